"""The record of a sweep as the report uses it: typed cells, measured or failed, and what the whole run is about."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ellp.report.shape import check
from ellp.sweep import record

UNIFORM = "uniform"


@dataclass(frozen=True)
class Cell:
    """One measured cell: a task's score with some layers changed in one way, and the drop with its 95 % interval.

    ``layers`` is how the layers were asked for, ``names`` are theirs. An importance of None counts every row alike.
    """

    id: str
    model: str
    layers: str
    method: str
    p: float | None
    importance: str | None
    keep: float | None
    asked: float | None
    names: tuple[str, ...]
    rate: float | None
    rank: int | None
    bytes: float
    bytes_share: float
    task: str
    score: float
    scores: Mapping[str, float]
    drop: float
    low: float
    high: float
    changed: int | None
    certificate: Mapping[str, float] | None
    relative_error: Mapping[str, float]
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class Failure:
    """A cell that could not be measured, and why."""

    id: str
    model: str
    layers: str
    method: str
    p: float | None
    importance: str | None
    keep: float | None
    asked: float | None
    task: str
    error: str


@dataclass(frozen=True)
class Run:
    """A whole record. ``facts`` is ``run.json``; ``unread`` counts cells that lack what a cell needs."""

    facts: Mapping[str, Any]
    cells: tuple[Cell, ...]
    failures: tuple[Failure, ...] = ()
    unread: int = 0

    @property
    def models(self) -> list[Mapping[str, Any]]:
        return list(self.facts.get("models") or ())

    @property
    def comparisons(self) -> list[Mapping[str, Any]]:
        """Differences between methods at the same rank, measured by the sweep on the same examples."""
        return list(self.facts.get("comparisons") or ())


def read_run(folder: Path) -> Run:
    """The record in a folder. Where a cell was measured twice, the later one counts."""
    found = record.read_run(folder)
    return typed(found.facts, found.cells.values())


def typed(facts: Mapping[str, Any], cells: Iterable[Mapping[str, Any]]) -> Run:
    """The record from the objects in its two files.

    >>> typed({"models": []}, [{"id": "a", "error": "no memory"}]).failures[0].error
    'no memory'
    """
    check(facts)
    found = [_understood(cell) for cell in cells]
    good = tuple(cell for cell in found if isinstance(cell, Cell))
    return Run(facts, good, tuple(cell for cell in found if isinstance(cell, Failure)), found.count(None))


def _understood(line: Mapping[str, Any]) -> Cell | Failure | None:
    try:
        return _cell(line)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None


def _cell(line: Mapping[str, Any]) -> Cell | Failure:
    names = str(line.get("layer") or "")
    who: dict[str, Any] = {
        "id": str(line["id"]),
        "model": str(line.get("model") or ""),
        "layers": str(line.get("layers") or names),
        "method": str(line.get("method") or ""),
        "p": _number(line.get("p")),
        "importance": None if line.get("importance") in (None, "", UNIFORM) else str(line["importance"]),
        "keep": _number(line.get("keep")),
        "asked": _number(line.get("bytes_asked")),
        "task": str(line.get("task") or ""),
    }
    if line.get("error") is not None:
        return Failure(**who, error=str(line["error"]))
    drop = float(line["drop"])
    rate, rank, changed = _number(line.get("rate")), _number(line.get("rank")), _number(line.get("changed"))
    return Cell(
        **who,
        names=tuple(name.strip() for name in names.split(",") if name.strip()),
        rate=rate,
        rank=None if rank is None else int(rank),
        bytes=float(line["bytes"]),
        bytes_share=float(line["bytes_share"]),
        score=float(line["score"]),
        scores=numbers(line.get("scores")),
        drop=drop,
        low=_or(_number(line.get("drop_low")), drop),
        high=_or(_number(line.get("drop_high")), drop),
        changed=None if changed is None else int(changed),
        certificate=None if line.get("certificate") is None else numbers(line["certificate"]),
        relative_error=numbers(line.get("relative_error")),
        seconds=numbers(line.get("seconds")),
    )


def numbers(facts: Mapping[str, Any] | None) -> dict[str, float]:
    """The numbers of an object, those written as strings (``"inf"``) too; what is none is left out.

    >>> numbers({"l1": "inf", "l2": 0.5, "l3": None})
    {'l1': inf, 'l2': 0.5}
    """
    found = {str(name): _number(value) for name, value in (facts or {}).items()}
    return {name: value for name, value in found.items() if value is not None}


def _number(value: Any) -> float | None:
    if value is None or isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _or(value: float | None, other: float) -> float:
    return other if value is None or math.isnan(value) else value
