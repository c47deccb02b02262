"""``ellp evaluate``: what a model scores, and what its compression costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ellp.cli.arguments import Base, Model


def evaluate(
    model: Model,
    task: Annotated[str, typer.Option(help="cola, mrpc, sst2, stsb, ..., or sts (cosine, no training); comma between")],
    data: Annotated[Path, typer.Option(help="a file, or a folder with TASK/dev.tsv: sentence1, sentence2, label")],
    against: Annotated[str | None, typer.Option(help="the dense model to compare with")] = None,
    base: Base = None,
    limit: Annotated[int | None, typer.Option(help="use the first so many examples")] = None,
    batch: Annotated[int, typer.Option(help="examples in a batch")] = 32,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Score a model on labelled texts, and the drop from a dense model with its 95 % interval."""
    from ellp.evaluation import evaluate as measure
    from ellp.evaluation import summary
    from ellp.recipe import Source
    from ellp.show import LayerProgress

    names = [name.strip() for name in task.split(",")]
    source, dense = (
        None if name is None else Source(name, base if (Path(name) / "adapter_config.json").is_file() else None)
        for name in (model, against)
    )
    assert source is not None
    with LayerProgress(quiet=as_json) as progress:
        record = measure(source, names, data, against=dense, limit=limit, batch=batch, progress=progress)
    typer.echo(json.dumps(record) if as_json else summary(record))
