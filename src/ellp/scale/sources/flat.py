"""Numbers that lie in a file one row after the other, from a fixed offset on: read by position, never mapped.

A mapped file counts as resident memory for as long as its pages are not needed elsewhere; a read into a buffer that is
used again does not grow with the file.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ellp.errors import InputError

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
        there = os.stat(self.path).st_size
        if there < needed:
            raise InputError(f"need a complete file of {needed} bytes, got {self.name} with {there}: copy it again")

    @property
    def itemsize(self) -> int:
        return 2 if self.stored == HALF else np.dtype(self.stored).itemsize

    def read(self, first: int, last: int, into: Tensor | None = None) -> Tensor:
        count, width = last - first, self.shape[1]
        if self.columns:
            return torch.stack([self._numbers(self.shape[0] * j + first, count) for j in range(width)], dim=1)
        fits = into is not None and self._native
        room = into[:count].view(-1) if fits and into is not None else None
        return self._numbers(first * width, count * width, room).view(count, width)

    def stamp(self) -> dict[str, Any]:
        facts = os.stat(self.path)
        return {
            "path": os.path.realpath(self.path),
            "size": facts.st_size,
            "mtime_ns": facts.st_mtime_ns,
            "offset": self.offset,
            "shape": list(self.shape),
            "stored": self.stored,
        }

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
            fill(self.path, where, found.view(torch.uint8).numpy(), self.name)
            return found
        raw = np.empty(count, self.stored)
        fill(self.path, where, raw.view(np.uint8), self.name)
        return torch.from_numpy(raw.astype(raw.dtype.newbyteorder("="), copy=False)).to(self.dtype)


def fill(path: str, offset: int, target: np.ndarray[Any, Any], name: str) -> None:
    """Read exactly ``target`` from a place in a file; one that ends before is an error, never a hang."""
    view = target.data
    done = 0
    with open(path, "rb", buffering=0) as file:
        file.seek(offset)
        while done < len(view):
            got = file.readinto(view[done:])
            if not got:
                raise InputError(
                    f"need {len(view)} bytes from byte {offset} of {name}, got {done}: the file became shorter while "
                    "it was read; restore it and start again"
                )
            done += got
