"""``ellp finetune``: win back what a compression lost on a task."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from ellp.cli.arguments import AllowPickle, Base, Model, RemoteCode
from ellp.cli.evaluate import base_for


def finetune(
    model: Model,
    task: Annotated[str, typer.Option(help="one of GLUE's tasks, or file (your own labels)")],
    output: Annotated[Path, typer.Option("-o", "--output", help="folder to write")],
    data: Annotated[
        Path | None, typer.Option(help="a folder with TASK/train.tsv and TASK/dev.tsv; GLUE from the hub if left out")
    ] = None,
    teacher: Annotated[str | None, typer.Option(help="the dense model, to learn its answers too")] = None,
    train: Annotated[Literal["factors", "all", "lora"], typer.Option(help="what may change")] = "factors",
    epochs: Annotated[int, typer.Option(help="passes over the training examples")] = 3,
    rate: Annotated[float | None, typer.Option("--lr", help="learning rate; a default for each --train")] = None,
    batch: Annotated[int, typer.Option(help="examples in a batch")] = 32,
    limit: Annotated[int | None, typer.Option(help="use the first so many training examples")] = None,
    seed: Annotated[int, typer.Option(help="seed of the order and the dropout")] = 0,
    patience: Annotated[int, typer.Option(help="stop after so many epochs without a better score")] = 2,
    base: Base = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="leave a GPU alone")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="go on from the last checkpoint")] = False,
    allow_pickle: AllowPickle = False,
    trust_remote_code: RemoteCode = False,
    force: Annotated[bool, typer.Option("--force", help="replace an existing model folder")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Fine-tune a compressed model on a task, and tell its score before and after."""
    from ellp.finetune import Training
    from ellp.finetune import finetune as recover
    from ellp.recipe import Source
    from ellp.recovery import summary
    from ellp.show import LayerProgress

    training = Training(train, epochs, rate, batch, seed, patience, limit)
    source, dense = (
        None if name is None else Source(name, base_for(name, base), None, allow_pickle, trust_remote_code)
        for name in (model, teacher)
    )
    assert source is not None
    first = os.environ.get("RANK", "0") == "0"  # of several processes that accelerate started
    with LayerProgress(quiet=as_json or not first) as progress:
        record = recover(
            source,
            task,
            data,
            output,
            training,
            teacher=dense,
            cpu=cpu,
            resume=resume,
            force=force,
            command=shlex.join(["ellp", *sys.argv[1:]]),
            progress=progress,
        )
    if first:
        typer.echo(json.dumps(record) if as_json else summary(record))
