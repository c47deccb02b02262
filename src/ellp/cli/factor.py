"""``ellp factor``: one table of a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ellp.errors import InputError
from ellp.options import Method, Refine


def factor(
    source: Annotated[str, typer.Argument(metavar="IN", help="IN.npy or IN.safetensors[:tensor]")],
    output: Annotated[Path, typer.Option("-o", "--output", help="OUT.safetensors, or a folder for .npy files")],
    rank: Annotated[int | None, typer.Option(help="inner dimension of the factors")] = None,
    keep: Annotated[float | None, typer.Option(help="share of the parameters to keep, in place of --rank")] = None,
    p: Annotated[float, typer.Option("--p", help="the norm: 1 is robust, 2 is the SVD; 0 to inf")] = 1.0,
    method: Annotated[Method, typer.Option(help="how the ellipsoid is found")] = "lewis",
    importance: Annotated[Path | None, typer.Option(help="C.npy: one nonnegative number per row")] = None,
    metric: Annotated[Path | None, typer.Option(help="H.npy: d x d weights of error directions")] = None,
    refine: Annotated[Refine | None, typer.Option(help="lower the l_p error further")] = None,
    tol: Annotated[float, typer.Option(help="how far above ideal the proved distortion may be")] = 0.05,
    passes: Annotated[int | None, typer.Option(help="at most so many passes to prove it, whatever is reached")] = None,
    seed: Annotated[int, typer.Option(help="seed of the row sample or the sketch")] = 0,
    memory: Annotated[str | None, typer.Option(help="how much to use, as in 1GB; a quarter of the machine's")] = None,
    dask: Annotated[str | None, typer.Option(help="address of a Dask scheduler, or local[:N]")] = None,
    compare: Annotated[bool, typer.Option("--compare/--no-compare", help="measure the SVD's error too")] = True,
    force: Annotated[bool, typer.Option("--force", help="replace an existing output")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Factor one table, however large, and write left, right, sigma and axes with a certificate."""
    from ellp import store
    from ellp.ellipsoid.lewis import MAX_STEPS
    from ellp.factoring import check_options
    from ellp.scale.factor import Job, Place, factorize_file
    from ellp.scale.sources import open_source
    from ellp.show import factor_summary
    from ellp.show_passes import PassProgress

    inner = choose_rank(open_source(source).shape, rank, keep)
    check_options(inner, p, method, refine, seed)
    if passes is not None and passes < 0:
        raise InputError(f"need passes of 0 or more, got {passes}: leave --passes out to go on until tol is proved")
    job = Job(
        rank=inner,
        p=p,
        importance=importance,
        metric=None if metric is None else store.read_matrix(str(metric)),
        method=method,
        tol=tol,
        refine=refine,
        seed=seed,
        max_steps=MAX_STEPS if passes is None else passes,
        strict=passes is None,
        compare=compare,
    )
    with PassProgress(quiet=as_json) as progress:
        place = Place(output, memory, force, inputs=() if metric is None else (str(metric),), dask=dask)
        record = factorize_file(source, job, place, progress).record
    typer.echo(json.dumps(record) if as_json else factor_summary(record))


def choose_rank(shape: tuple[int, ...], rank: int | None, keep: float | None) -> int:
    """The rank asked for, or the largest whose two factors hold at most ``keep`` of the matrix's numbers."""
    if (rank is None) == (keep is None):
        raise InputError("need exactly one of --rank and --keep: pass --keep 0.5 to keep half of the parameters")
    if rank is not None:
        return rank
    from ellp.budget import rank_for

    return rank_for(shape, keep or 0.0)
