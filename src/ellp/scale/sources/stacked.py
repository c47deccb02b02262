"""Rows that are split over several files, one after the other."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ellp.errors import InputError
from ellp.scale.sources.place import base_name
from ellp.scale.sources.source import Source, check_span

NUMBERED = re.compile(r"^(?P<stem>.*?)(?P<number>\d+)-of-(?P<count>\d+)(?P<rest>.*)$")


@dataclass(frozen=True)
class Stacked:
    """Tables of one width and dtype, one below the other."""

    parts: tuple[Source, ...]
    starts: tuple[int, ...]
    name: str

    @property
    def shape(self) -> tuple[int, int]:
        return self.starts[-1], self.parts[0].shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.parts[0].dtype

    def read(self, first: int, last: int, into: Tensor | None = None) -> Tensor:
        check_span(self, first, last)
        part = max(0, bisect.bisect_right(self.starts, first, hi=len(self.parts)) - 1)
        if last <= self.starts[part + 1]:
            return self.parts[part].read(first - self.starts[part], last - self.starts[part], into)
        room = torch.empty(last - first, self.shape[1], dtype=self.dtype) if into is None else into[: last - first]
        while first < last:
            begin, end = self.starts[part], min(last, self.starts[part + 1])
            below = room[first - last : len(room) - (last - end)]
            rows = self.parts[part].read(first - begin, end - begin, below)
            if rows.data_ptr() != below.data_ptr():
                below.copy_(rows)
            first, part = end, part + 1
        return room

    def stamp(self) -> dict[str, Any]:
        return {"parts": [part.stamp() for part in self.parts]}


def stack(places: Sequence[str], name: str, open_one: Callable[[str], Source]) -> Source:
    """The rows of several files in the order of the numbers in their names, none of them missing."""
    if not places:
        raise InputError(f"need files to read, got none for {name}: check the path")
    check_complete(places)
    parts = [open_one(place) for place in sorted(places, key=_in_order)]
    for part in parts[1:]:
        if (part.shape[1], part.dtype) != (parts[0].shape[1], parts[0].dtype):
            raise InputError(
                f"need parts alike, got {parts[0].shape[1]} columns of {parts[0].dtype} in {parts[0].name} and "
                f"{part.shape[1]} of {part.dtype} in {part.name}: check that they belong together"
            )
    if len(parts) == 1:
        return parts[0]
    return Stacked(tuple(parts), (0, *accumulate(part.shape[0] for part in parts)), name)


def check_complete(places: Sequence[str]) -> None:
    """That of files called PART-00000-of-00007 and so on, each one is there."""
    there = {base_name(place) for place in places}
    series: dict[tuple[str, str, str], list[int]] = {}
    for file in there:
        if found := NUMBERED.match(file):
            series.setdefault((found["stem"], found["count"], found["rest"]), []).append(int(found["number"]))
    for (stem, count, rest), numbers in series.items():
        first = 1 if int(count) in numbers else 0
        for number in range(first, first + int(count)):
            file = f"{stem}{number:0{len(count)}d}-of-{count}{rest}"
            if number not in numbers:
                raise InputError(f"need all {int(count)} parts, got no {file}: copy or download it")


def _in_order(place: str) -> list[Any]:
    """Names by the numbers in them: part-2 before part-10."""
    return [int(piece) if piece.isdigit() else piece for piece in re.split(r"(\d+)", base_name(place))]
