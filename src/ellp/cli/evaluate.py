"""``ellp evaluate``: what a model scores, and what its compression costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ellp.cli.arguments import AllowPickle, Base, Device, Model, RemoteCode, Tasks


def evaluate(
    model: Model,
    task: Tasks,
    data: Annotated[
        Path | None, typer.Option(help="a file, or a folder with TASK/dev.tsv; GLUE from the hub if left out")
    ] = None,
    against: Annotated[str | None, typer.Option(help="the dense model to compare with")] = None,
    base: Base = None,
    limit: Annotated[int | None, typer.Option(help="use the first so many examples")] = None,
    batch: Annotated[int, typer.Option(help="examples in a batch")] = 32,
    device: Device = None,
    seed: Annotated[int, typer.Option(help="seed of the resamples and of masked tokens")] = 0,
    allow_pickle: AllowPickle = False,
    trust_remote_code: RemoteCode = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Score a model on labelled texts, and the drop from a dense model with its 95 % interval."""
    from ellp.evaluation import evaluate as measure
    from ellp.evaluation import summary
    from ellp.recipe import Source
    from ellp.show import LayerProgress

    sources = [
        None if name is None else Source(name, base_for(name, base), None, allow_pickle, trust_remote_code)
        for name in (model, against)
    ]
    assert sources[0] is not None
    names = [name.strip() for name in task.split(",")]
    with LayerProgress(quiet=as_json) as progress:
        record = measure(
            sources[0],
            names,
            data,
            against=sources[1],
            limit=limit,
            batch=batch,
            device=device,
            seed=seed,
            progress=progress,
        )
    typer.echo(json.dumps(record) if as_json else summary(record))


def base_for(name: str, base: str | None) -> str | None:
    """``--base`` is for adapters; a whole model needs none."""
    return base if (Path(name) / "adapter_config.json").is_file() else None
