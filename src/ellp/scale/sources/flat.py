"""Numbers that lie in a file one row after the other, from a fixed offset on: read by position, never mapped.

A mapped file counts as resident memory for as long as its pages are not needed elsewhere; a read into a buffer that is
used again does not grow with the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ellp.errors import InputError
from ellp.scale.sources import place
from ellp.scale.sources.source import check_span

HALF = "bfloat16"  # stored as numpy has no name for


@dataclass(frozen=True)
class Flat:
    """``shape`` numbers of the numpy dtype ``stored`` (or bfloat16) from ``offset`` on; by columns if ``columns``."""

    path: str
    offset: int
    shape: tuple[int, int]
    stored: str
    dtype: torch.dtype
    name: str
    columns: bool = False

    def __post_init__(self) -> None:
        needed = self.offset + self.shape[0] * self.shape[1] * self.itemsize
        there = place.size(self.path)
        if there < needed:
            raise InputError(f"need a complete file of {needed} bytes, got {self.name} with {there}: copy it again")

    @property
    def itemsize(self) -> int:
        return 2 if self.stored == HALF else np.dtype(self.stored).itemsize

    def read(self, first: int, last: int, into: Tensor | None = None) -> Tensor:
        check_span(self, first, last)
        count, width = last - first, self.shape[1]
        if self.columns:
            return torch.stack([self._numbers(self.shape[0] * j + first, count) for j in range(width)], dim=1)
        fits = into is not None and self._native
        room = into[:count].view(-1) if fits and into is not None else None
        return self._numbers(first * width, count * width, room).view(count, width)

    def stamp(self) -> dict[str, Any]:
        facts = {"offset": self.offset, "shape": list(self.shape), "stored": self.stored}
        return place.stamp(self.path) | facts

    @property
    def _native(self) -> bool:
        """Whether the bytes in the file are the numbers as read."""
        return self.stored == HALF or (
            np.dtype(self.stored).isnative and np.dtype(self.stored) == torch.empty(0, dtype=self.dtype).numpy().dtype
        )

    def _numbers(self, first: int, count: int, room: Tensor | None = None) -> Tensor:
        where = self.offset + first * self.itemsize
        if self._native:
            found = torch.empty(count, dtype=self.dtype) if room is None else room
            place.fill(self.path, where, found.view(torch.uint8).numpy(), self.name)
            return found
        raw = np.empty(count, self.stored)
        place.fill(self.path, where, raw.view(np.uint8), self.name)
        return torch.from_numpy(raw.astype(raw.dtype.newbyteorder("="), copy=False)).to(self.dtype)
