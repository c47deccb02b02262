"""``ellp factor``: one matrix of a file."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ellp.errors import InputError
from ellp.options import Method, Refine


def factor(
    source: Annotated[str, typer.Argument(metavar="IN", help="IN.npy or IN.safetensors[:tensor]")],
    output: Annotated[Path, typer.Option("-o", "--output", help="where to write the factors (.safetensors)")],
    rank: Annotated[int | None, typer.Option(help="inner dimension of the factors")] = None,
    keep: Annotated[float | None, typer.Option(help="share of the parameters to keep, in place of --rank")] = None,
    p: Annotated[float, typer.Option("--p", help="the norm: 1 is robust, 2 is the SVD; 0 to inf")] = 1.0,
    method: Annotated[Method, typer.Option(help="how the ellipsoid is found")] = "lewis",
    importance: Annotated[Path | None, typer.Option(help="C.npy: one nonnegative number per row")] = None,
    metric: Annotated[Path | None, typer.Option(help="H.npy: d x d weights of error directions")] = None,
    refine: Annotated[Refine | None, typer.Option(help="lower the l_p error further")] = None,
    tol: Annotated[float, typer.Option(help="how far above ideal the proved distortion may be")] = 0.05,
    seed: Annotated[int, typer.Option(help="seed of the row sample or the sketch")] = 0,
    force: Annotated[bool, typer.Option("--force", help="replace an existing output")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Factor one matrix and write left, right, sigma and axes with a certificate."""
    from ellp import store
    from ellp.factoring import factorize
    from ellp.show import Passes, factor_record, factor_summary

    store.check_output(output, force, (source, importance, metric))
    matrix, weights, directions = (
        None if part is None else store.read_matrix(str(part)) for part in (source, importance, metric)
    )
    if matrix is None or matrix.ndim != 2:
        shape = None if matrix is None else tuple(matrix.shape)
        raise InputError(f"need a matrix in {source}, got shape {shape}: save a table with rows and columns")
    inner = choose_rank(matrix.shape, rank, keep)
    with Passes(quiet=as_json) as passes:
        problem = partial(factorize, matrix, inner, p, weights, directions)
        found = problem(method, tol, refine, seed, progress=passes)
        passes.say("the SVD, for comparison")
        baseline = found if method == "svd" else problem("svd")
        passes.say("writing")
        record = factor_record(source, str(output), matrix.shape, matrix.dtype.itemsize, found, baseline, method)
        parts = {name: store.to_tensor(getattr(found, name)) for name in ("left", "right", "sigma", "axes")}
        record["bytes_written"] = store.write_tensors(output, parts, record)
    typer.echo(json.dumps(record) if as_json else factor_summary(record))


def choose_rank(shape: tuple[int, ...], rank: int | None, keep: float | None) -> int:
    """The rank asked for, or the largest whose two factors hold at most ``keep`` of the matrix's numbers."""
    if (rank is None) == (keep is None):
        raise InputError("need exactly one of --rank and --keep: pass --keep 0.5 to keep half of the parameters")
    if rank is not None:
        return rank
    from ellp.budget import rank_for

    return rank_for(shape, keep or 0.0)
