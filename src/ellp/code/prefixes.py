"""Rows of different lengths in one stream: which places are a row's own, found without a position for every row.

Row i owns ``length_i`` consecutive places. A length is stored as one byte, an index into at most 256 ``levels``; where
the rows start is stored for every 64th row only, and the places between are added up when a row is asked for. So the
row map costs 1.1 bytes a row, on disk and in memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ellp.errors import InputError

WINDOW = 64  # rows that share one stored start
FINE = 128  # lengths up to here are all levels; longer ones are spaced evenly


@dataclass(frozen=True)
class Prefixes:
    """The row map: ``lengths`` (uint8, one a row, padded to whole windows), ``levels`` (int16), ``starts`` (int64)."""

    lengths: Tensor
    levels: Tensor
    starts: Tensor

    @property
    def total(self) -> int:
        """Places in the whole stream."""
        return int(self.starts[-1])

    def spans(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """First place and length of each of ``rows`` (int64)."""
        window = torch.div(rows, WINDOW, rounding_mode="floor")
        within = rows - window * WINDOW
        steps = torch.arange(WINDOW, device=rows.device)
        around = self.lengths.view(-1, WINDOW).index_select(0, window)
        lengths = self.levels.index_select(0, around.reshape(-1).int()).view(-1, WINDOW).long()
        start = self.starts.index_select(0, window) + lengths.masked_fill(steps >= within[:, None], 0).sum(dim=1)
        return start, lengths.gather(1, within[:, None])[:, 0]


def levels_up_to(most: int) -> Tensor:
    """The lengths a row may have, from 0 to ``most``: all of them if 256 suffice.

    >>> levels_up_to(4).tolist(), len(levels_up_to(768))
    ([0, 1, 2, 3, 4], 256)
    """
    if most < 256:
        return torch.arange(most + 1, dtype=torch.int16)
    coarse = torch.linspace(FINE - 1, most, 256 - FINE + 1)[1:].round()
    return torch.cat([torch.arange(FINE), coarse]).to(torch.int16)


def map_rows(choice: Tensor, levels: Tensor) -> Prefixes:
    """The row map of rows whose lengths are ``levels[choice]``."""
    count = choice.shape[0]
    lengths = torch.zeros(-(-count // WINDOW) * WINDOW, dtype=torch.uint8, device=choice.device)
    lengths[:count] = choice.to(torch.uint8)
    known = levels.to(choice.device)
    sums = known[lengths.long()].long().masked_fill(torch.arange(len(lengths), device=choice.device) >= count, 0)
    starts = torch.cat([sums.new_zeros(1), sums.view(-1, WINDOW).sum(dim=1).cumsum(0)])
    return Prefixes(lengths, known, starts)


def map_bytes(count: int, levels: int = 256) -> int:
    """Bytes of the row map of ``count`` rows."""
    windows = -(-count // WINDOW)
    return windows * WINDOW + 2 * levels + 8 * (windows + 1)


def check_map(found: Prefixes, count: int, places: int, most: int) -> None:
    """That a row map read from a file speaks of these rows and of no place outside the stream."""
    windows = -(-count // WINDOW)
    if found.lengths.shape != (windows * WINDOW,) or found.starts.shape != (windows + 1,) or not len(found.levels):
        raise InputError(
            f"need a row map of {count} rows, got one of another size: the code is damaged, write it again"
        )
    levels = found.levels.long()
    if int(levels.min()) < 0 or int(levels.max()) > most:
        raise InputError(f"need rows of at most {most} places, got a level outside: the code is damaged")
    if int(found.lengths.max()) >= len(levels):
        raise InputError("need a level for every row, got a row without: the code is damaged")
    rows = levels[found.lengths.long()]
    rows[count:] = 0
    sums = torch.cat([rows.new_zeros(1), rows.view(-1, WINDOW).sum(dim=1).cumsum(0)])
    if not torch.equal(sums, found.starts) or int(sums[-1]) != places:
        raise InputError(f"need rows that fill {places} places, got {int(sums[-1])}: the code is damaged or truncated")


def ragged(start: Tensor, length: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For every place of the asked rows, one after another: which row it is of, its step there, and where it lies."""
    row = torch.repeat_interleave(torch.arange(length.shape[0], device=length.device), length)
    before = length.cumsum(0) - length
    step = torch.arange(row.shape[0], device=length.device) - before[row]
    return row, step, start[row] + step
