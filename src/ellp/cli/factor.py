"""``ellp factor``: one table of a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ellp.errors import InputError
from ellp.options import How, Method, Refine


def factor(
    source: Annotated[str, typer.Argument(metavar="IN", help="a table: FILE, FILE:NAME, FOLDER of parts, or a URL")],
    output: Annotated[Path, typer.Option("-o", "--output", help="OUT.safetensors, or a folder for .npy files")],
    rank: Annotated[int | None, typer.Option(help="inner dimension of the factors")] = None,
    keep: Annotated[float | None, typer.Option(help="share of the parameters to keep, in place of --rank")] = None,
    bytes: Annotated[
        str | None, typer.Option("--bytes", help="a code in place of factors, in this share of float16's bytes: 1/8")
    ] = None,
    size: Annotated[str | None, typer.Option(help="the same as a size: 300MB")] = None,
    coder: Annotated[How, typer.Option(help="how rows are coded; auto takes what errs least")] = "auto",
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
    """Factor one table, however large, and write left, right, sigma and axes with a certificate; or code it."""
    from ellp import store
    from ellp.ellipsoid.lewis import MAX_STEPS
    from ellp.factoring import check_options
    from ellp.scale.coded import CodeJob, code_file
    from ellp.scale.factor import Job, Place, factorize_file
    from ellp.scale.sources import open_source
    from ellp.show import code_summary, factor_summary
    from ellp.show_passes import PassProgress

    shape = open_source(source).shape
    if bytes is not None or size is not None:
        _only_codes(rank=rank, keep=keep, refine=refine, passes=passes, method=None if method == "lewis" else method)
        budget = code_size(shape, bytes, size)
        directions = None if metric is None else store.read_matrix(str(metric))
        code = CodeJob(budget, p, importance, directions, coder, seed)
        with PassProgress(quiet=as_json) as progress:
            record = code_file(source, code, Place(output, memory, force, _files(metric)), progress)
        typer.echo(json.dumps(record) if as_json else code_summary(record))
        return
    inner = choose_rank(shape, rank, keep)
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
        place = Place(output, memory, force, inputs=_files(metric), dask=dask)
        record = factorize_file(source, job, place, progress).record
    typer.echo(json.dumps(record) if as_json else factor_summary(record))


def choose_rank(shape: tuple[int, ...], rank: int | None, keep: float | None) -> int:
    """The rank asked for, or the largest whose two factors hold at most ``keep`` of the matrix's numbers."""
    if (rank is None) == (keep is None):
        raise InputError(
            "need exactly one of --rank, --keep, --bytes and --size: --keep 0.5 keeps half of the parameters"
        )
    if rank is not None:
        return rank
    from ellp.budget import rank_for

    return rank_for(shape, keep or 0.0)


def code_size(shape: tuple[int, int], bytes: str | None, size: str | None) -> int:
    """The bytes asked for, as a number or as a share of those in float16."""
    from ellp.cli.model import byte_count, share

    if bytes is not None and size is not None:
        raise InputError("need at most one of --bytes and --size: pass one")
    if bytes is None:
        return byte_count(size) or 0
    part = share(bytes) or 0.0
    if not 0 < part <= 2:
        raise InputError(f"need a share of float16's bytes above 0 and at most 2, got {bytes}: 1/8 is 0.125")
    return int(2 * part * shape[0] * shape[1])


def _only_codes(**others: object) -> None:
    given = [f"--{name}" for name, value in others.items() if value is not None]
    if given:
        raise InputError(f"need no {given[0]} for a code, which --bytes or --size asks for: leave it out")


def _files(metric: Path | None) -> tuple[str, ...]:
    return () if metric is None else (str(metric),)
