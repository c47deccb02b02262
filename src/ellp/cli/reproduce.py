"""``ellp reproduce``: the source paper's table and figure, measured on models at hand."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from ellp.cli.arguments import AllowPickle, Base, Device
from ellp.cli.sweep import Data, Jobs


def reproduce(
    what: Annotated[Literal["table1", "figure1"], typer.Argument(help="table1: drops by task; figure1: drop by rate")],
    output: Annotated[Path, typer.Option("-o", "--output", help="folder of the record and of the results")],
    models: Annotated[
        str | None,
        typer.Option(help="as for ellp sweep, comma between; from the hub if left out, where -o holds no record"),
    ] = None,
    data: Data = None,
    task: Annotated[str, typer.Option(help="tasks of models that name none; comma between")] = "",
    jobs: Jobs = None,
    limit: Annotated[int | None, typer.Option(help="use the first so many examples")] = None,
    base: Base = None,
    device: Device = None,
    seed: Annotated[int, typer.Option(help="seed of the resamples and of the row samples")] = 0,
    allow_pickle: AllowPickle = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Measure what arXiv:2009.05647 reports, l_1 beside the SVD, with the published numbers beside ours."""
    from ellp import reproduce as paper
    from ellp.evaluation import check_device
    from ellp.show_sweep import SweepProgress
    from ellp.sweep.grid import read_models
    from ellp.sweep.run import processes

    if models is not None or not (output / "run.json").is_file():
        tasks = [name.strip() for name in task.split(",") if name.strip()]
        named = [] if models is None else [name.strip() for name in models.split(",") if name.strip()]
        entries = paper.hub_models() if models is None else read_models(named, tasks)
        place = str(check_device(device))
        measure = {"table1": paper.measure_table1, "figure1": paper.measure_figure1}[what]
        with SweepProgress(quiet=as_json) as progress:
            measure(
                entries,
                output,
                data,
                base=base,
                limit=limit,
                seed=seed,
                jobs=processes(place) if jobs is None else jobs,
                device=place,
                allow_pickle=allow_pickle,
                command=shlex.join(["ellp", *sys.argv[1:]]),
                progress=progress,
            )
    facts = {"table1": paper.write_table1, "figure1": paper.write_figure1}[what](output)
    told = [str(facts["markdown"]), ""] if what == "table1" else []
    typer.echo(
        json.dumps(facts) if as_json else "\n".join([*told, *(f"written to  {path}" for path in facts["written"])])
    )
