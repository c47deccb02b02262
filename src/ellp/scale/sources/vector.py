"""One number per row: in a file, or in memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ellp.arrays import Array, as_tensor
from ellp.errors import InputError
from ellp.scale.sources import Source
from ellp.scale.sources.npy import open_vector
from ellp.scale.sources.place import absolute, is_file


@dataclass(frozen=True)
class InMemory:
    """Numbers that the caller holds, as a table of one column."""

    numbers: Tensor
    name: str = "importance"

    @property
    def shape(self) -> tuple[int, int]:
        return int(self.numbers.shape[0]), 1

    @property
    def dtype(self) -> torch.dtype:
        return self.numbers.dtype

    def read(self, first: int, last: int, into: Tensor | None = None) -> Tensor:
        return self.numbers[first:last, None]

    def stamp(self) -> dict[str, Any]:
        from ellp.scale.journal import fingerprint

        return {"numbers": fingerprint(self.numbers)}


def open_importance(importance: Array | str | Path, count: int) -> Source:
    """The importances of ``count`` rows: an array, or the path of a ``.npy`` file, which is read in parts too."""
    if isinstance(importance, (str, Path)):
        path = absolute(str(importance))
        if not (path.endswith(".npy") and is_file(path)):
            raise InputError(f"need an existing .npy file of importances, got {path}: check the path")
        source: Source = open_vector(path)
    else:
        source = InMemory(as_tensor(importance).to("cpu", torch.float64).reshape(-1))
    if source.shape[0] != count:
        raise InputError(f"need one importance per row ({count}), got {source.shape[0]}: check their count")
    return source
