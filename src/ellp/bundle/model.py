"""A model as it is asked for, and as it was opened."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

DTYPES = {None: "auto", "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Wanted:
    """What a caller wants of a model's files, and allows to be done with them."""

    dtype: str | None
    allow_pickle: bool
    trust_remote_code: bool
    compressed: bool


@dataclass(frozen=True)
class Bundle:
    """A loaded model, in evaluation mode on the CPU, and where the files around it lie."""

    model: torch.nn.Module
    folder: Path | None
    source: str
    name: str
    bytes_on_disk: int
    adapter: Path | None = None
