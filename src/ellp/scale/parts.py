"""A table in parts, and the one order in which what was found out about them is merged.

Both depend on the table's shape and dtype alone. Memory, threads, machines and interruptions change when a part is
visited and by whom, but not one bit of the result.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from ellp.rows import Merge, Sums

PART = 32 * 2**20  # bytes of a part in the working precision: long reads, and work that dwarfs its own bookkeeping
FEWEST = 256  # rows of a part, however wide they are
FAN = 16  # sums merged one after the other before the result moves up a level


class Part(NamedTuple):
    """Rows from ``first`` to ``last`` - 1."""

    first: int
    last: int


def parts_of(shape: tuple[int, int], dtype: torch.dtype) -> list[Part]:
    """All parts of a table, in order."""
    size = part_rows(shape[1], dtype)
    return [Part(first, min(first + size, shape[0])) for first in range(0, shape[0], size)]


def part_rows(columns: int, dtype: torch.dtype) -> int:
    """Rows of a full part."""
    return max(FEWEST, PART // (columns * max(dtype.itemsize, 4)))


@dataclass
class Tree:
    """Sums of parts, merged in order: ``FAN`` of a level make one of the next. ``done`` parts are in."""

    done: int = 0
    levels: list[tuple[int, Sums] | None] = field(default_factory=list)

    def add(self, sums: Sums, merge: Merge, parts: int = 1, level: int = 0) -> None:
        """The next sums in order, of one part, or of ``FAN ** level`` parts (fewer at the end of the table)."""
        self.done += parts
        while True:
            self.levels += [None] * (level + 1 - len(self.levels))
            held = self.levels[level]
            count, sums = (1, sums) if held is None else (held[0] + 1, merge(held[1], sums))
            if count < FAN:
                self.levels[level] = (count, sums)
                return
            self.levels[level] = None
            level += 1

    def total(self, merge: Merge) -> Sums:
        """Everything merged; nothing can be added any more."""
        held = [level[1] for level in self.levels if level is not None]
        found = held[0]
        for earlier in held[1:]:
            found = merge(earlier, found)
        return found
