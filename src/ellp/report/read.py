"""The record of a sweep, as it lies in its folder: ``run.json`` and one finished cell a line in ``cells.jsonl``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ellp.errors import InputError, first_line

FORMAT = 1


@dataclass(frozen=True)
class Cell:
    """One measured cell: a task's score with one layer changed in one way, and the drop with its 95 % interval."""

    id: str
    model: str
    layer: str
    method: str
    p: float | None
    importance: str | None
    keep: float | None
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
    layer: str
    method: str
    p: float | None
    importance: str | None
    keep: float | None
    task: str
    error: str


@dataclass(frozen=True)
class Run:
    """A whole record. ``facts`` is ``run.json``; ``unread`` counts lines that are no cells (a torn last one is not)."""

    facts: Mapping[str, Any]
    cells: tuple[Cell, ...]
    failures: tuple[Failure, ...] = ()
    unread: int = 0

    @property
    def models(self) -> list[Mapping[str, Any]]:
        return list(self.facts.get("models") or ())


def read_run(folder: Path) -> Run:
    """The record in a folder. Where a cell was measured twice, its last line counts."""
    path = folder / "run.json"
    if not path.is_file():
        raise InputError(f"need the folder of a sweep, got {folder} without run.json: pass what 'ellp sweep -o' wrote")
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"need a readable run.json, got {first_line(error)} in {path}: restore it") from None
    lines = folder / "cells.jsonl"
    try:
        text = lines.read_text(encoding="utf-8", errors="replace") if lines.is_file() else ""
    except OSError as error:
        raise InputError(f"need a readable cells.jsonl, got {first_line(error)}: restore it") from None
    return parse_run(facts, text)


def parse_run(facts: Any, text: str) -> Run:
    """The record from the content of its two files.

    >>> parse_run({"format": 1, "models": []}, '{"id": "a", "error": "no memory"}').failures[0].error
    'no memory'
    """
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        found = facts.get("format") if isinstance(facts, dict) else type(facts).__name__
        raise InputError(
            f"need run.json in format {FORMAT}, got {found}: write the report with the version of the sweep"
        )
    found_lines: dict[str, Cell | Failure] = {}
    unread = 0
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            cell = _cell(json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError):
            unread += number < len(lines)  # a last line without its end was being written when the sweep was killed
            continue
        found_lines.pop(cell.id, None)
        found_lines[cell.id] = cell
    found_all = list(found_lines.values())
    good = tuple(cell for cell in found_all if isinstance(cell, Cell))
    return Run(facts, good, tuple(cell for cell in found_all if isinstance(cell, Failure)), unread)


def _cell(line: Mapping[str, Any]) -> Cell | Failure:
    layer = line.get("layer") or ""
    who: dict[str, Any] = {
        "id": str(line["id"]),
        "model": str(line.get("model") or ""),
        "layer": layer if isinstance(layer, str) else ", ".join(map(str, layer)),
        "method": str(line.get("method") or ""),
        "p": _number(line.get("p")),
        "importance": None if line.get("importance") in (None, "", "none") else str(line["importance"]),
        "keep": _number(line.get("keep")),
        "task": str(line.get("task") or ""),
    }
    if line.get("error") is not None:
        return Failure(**who, error=str(line["error"]))
    drop = float(line["drop"])
    rate, rank, changed = _number(line.get("rate")), _number(line.get("rank")), _number(line.get("changed"))
    return Cell(
        **who,
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
