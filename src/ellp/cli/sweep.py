"""``ellp sweep``: many methods and budgets on many models and tasks, into a record that survives being killed."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from ellp.cli.arguments import AllowPickle, Base, Device, RemoteCode

Models = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL...", help="MODEL, TASK=MODEL, NAME=MODEL, NAME:TASK=MODEL, or a folder of TASK folders"
    ),
]
Data = Annotated[Path | None, typer.Option(help="a file, or a folder with TASK/dev.tsv; GLUE from the hub if left out")]
Jobs = Annotated[int | None, typer.Option(help="processes; one a core if left out, one on a GPU")]


def sweep(
    models: Models,
    output: Annotated[Path, typer.Option("-o", "--output", help="folder of the record, new or to be resumed")],
    task: Annotated[str, typer.Option(help="tasks of models that name none; comma between")] = "",
    data: Data = None,
    method: Annotated[
        str, typer.Option(help="svd, lp, fwsvd, int8, int4, int3, int2, coded, tapered; comma")
    ] = "svd,lp,fwsvd,int8,int4,int3,int2",
    p: Annotated[str, typer.Option("--p", help="norms of lp, comma between: 1 is robust, 2 is the SVD")] = "1",
    keep: Annotated[str, typer.Option(help="shares of the parameters to keep, comma between")] = "0.85,0.72,0.59",
    share: Annotated[str, typer.Option("--bytes", help="shares of the float16 bytes, as 1/8,1/16")] = "",
    importance: Annotated[
        list[str] | None, typer.Option(help="of lp's rows: uniform, prior, words, text:FILE, ...; comma between")
    ] = None,
    layers: Annotated[
        str, typer.Option(help="embeddings, linear, all, or names with *: approximated together")
    ] = "embeddings",
    jobs: Jobs = None,
    limit: Annotated[int | None, typer.Option(help="use the first so many examples")] = None,
    batch: Annotated[int, typer.Option(help="examples in a batch")] = 32,
    base: Base = None,
    device: Device = None,
    seed: Annotated[int, typer.Option(help="seed of the resamples and of the row samples")] = 0,
    retry: Annotated[bool, typer.Option("--retry", help="measure cells again that failed")] = False,
    allow_pickle: AllowPickle = False,
    trust_remote_code: RemoteCode = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Measure every method at every budget on every model and task; run it again to go on after a stop."""
    from ellp.evaluation import check_device
    from ellp.show_sweep import SweepProgress, sweep_summary
    from ellp.sweep.grid import Grid, read_importances, read_models, read_norms, read_shares
    from ellp.sweep.run import cores
    from ellp.sweep.run import sweep as measure

    grid = Grid(
        models=read_models(models, _listed(task)),
        methods=tuple(_listed(method)),
        p=read_norms(p),
        importances=read_importances(importance or ["uniform"]),
        keep=read_shares(keep),
        shares=read_shares(share),
        layers=layers,
    )
    place = str(check_device(device))
    with SweepProgress(quiet=as_json) as progress:
        run = measure(
            grid,
            output,
            data,
            base=base,
            limit=limit,
            batch=batch,
            seed=seed,
            jobs=jobs or (1 if place.startswith("cuda") else cores()),
            device=place,
            allow_pickle=allow_pickle,
            trust_remote_code=trust_remote_code,
            again=retry,
            command=shlex.join(["ellp", *sys.argv[1:]]),
            progress=progress,
        )
    cells = [run.cells[cell.id] for cell in grid.cells()]
    typer.echo(json.dumps(run.facts | {"cells": cells}) if as_json else sweep_summary(run.facts, cells, str(output)))
    if all("error" in cell for cell in cells):
        raise typer.Exit(1)


def _listed(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
