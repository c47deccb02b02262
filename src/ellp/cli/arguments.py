"""Arguments that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Model = Annotated[str, typer.Argument(metavar="MODEL", help="a folder, a hub id, a PEFT adapter folder, or demo")]
Base = Annotated[str | None, typer.Option(help="where an adapter's base model is")]
AllowPickle = Annotated[bool, typer.Option("--allow-pickle", help="read pickled weights (weights only) if need be")]
RemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="run code that comes with the model")]
