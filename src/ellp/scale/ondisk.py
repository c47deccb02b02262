"""Rows on disk, as kernels and ellipsoids see them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ellp.rows import Kernel, Merge, Rows, Sums, Table, added
from ellp.scale.parts import Part
from ellp.scale.sources import Source

if TYPE_CHECKING:
    from ellp.scale.passes import Passes


@dataclass(frozen=True)
class Stored:
    """A table and its rows' importances on disk; weights are importances over ``unit``."""

    source: Source
    importance: Source | None = None
    unit: float = 1.0

    def rows(self, part: Part, view: dict[str, Any], room: Tensor | None = None) -> Rows:
        """A part in memory; ``room`` may hold its matrix."""
        return Rows(
            matrix=self.source.read(part.first, part.last, room),
            weight=self.weights(part),
            first=part.first,
            **view,
        )

    def weights(self, part: Part) -> Tensor:
        if self.importance is None:
            return torch.ones(part.last - part.first, dtype=torch.float64)
        return self.importance.read(part.first, part.last).double().view(-1) / self.unit

    def stamp(self) -> dict[str, Any]:
        return {
            "table": self.source.stamp(),
            "importance": None if self.importance is None else self.importance.stamp(),
        }


@dataclass(frozen=True)
class Task:
    """A kernel and its state, for any part of a table: all that another thread or machine needs to know."""

    stored: Stored
    view: dict[str, Any]
    kernel: Kernel
    state: tuple[Any, ...]

    def read(self, part: Part, room: Tensor | None = None) -> Rows:
        return self.stored.rows(part, self.view, room)

    def sums(self, rows: Rows) -> Sums:
        return self.kernel(rows, *self.state)


@dataclass(frozen=True, kw_only=True)
class OnDisk(Table):
    """A table whose passes read it part by part. ``start`` is the sample of rows that the first scan drew."""

    stored: Stored
    passes: Passes
    start: Rows | None = None

    @property
    def count(self) -> int:
        return self.stored.source.shape[0]

    @property
    def columns(self) -> int:
        return self.stored.source.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.stored.source.dtype

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def total(self, kernel: Kernel, *state: object, merge: Merge = added) -> Sums:
        return self.passes.run(self.task(kernel, *state), merge)

    def task(self, kernel: Kernel, *state: object) -> Task:
        """A kernel as it sees the rows of this table."""
        view = {part.name: getattr(self, part.name) for part in fields(Table)}
        return Task(self.stored, view, kernel, state)

    def sample(self, size: int, p: float, seed: int) -> Rows:
        if self.start is None:
            raise RuntimeError("the scan drew no sample")
        return self.start
