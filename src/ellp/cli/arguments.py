"""Arguments that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Model = Annotated[str, typer.Argument(metavar="MODEL", help="a folder, a hub id, a PEFT adapter folder, or demo")]
Base = Annotated[str | None, typer.Option(help="where an adapter's base model is")]
AllowPickle = Annotated[bool, typer.Option("--allow-pickle", help="read pickled weights (weights only) if need be")]
RemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="run code that comes with the model")]
Tasks = Annotated[
    str, typer.Option("--task", help="cola, mrpc, sst2, stsb, ..., sts, perplexity or file (your own); comma between")
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, ...; a GPU if there is one")]
