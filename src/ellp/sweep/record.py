"""The record of a sweep on disk: ``run.json`` with what it is about, ``cells.jsonl`` with one finished cell a line.

A line is flushed to the disk before the next cell counts as begun, so that a sweep killed at any moment has lost at
most the cells that were in progress. A last line cut short by the kill is removed when the folder is opened again.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ellp.errors import InputError, first_line
from ellp.folder import replacing

FORMAT = 1
FACTS, CELLS, CACHE = "run.json", "cells.jsonl", "cache"
FIXED = ("seed", "limit", "layers")  # what may not change between the first run and a later one


class Run:
    """An open run folder: what is known, what is measured, and room for more. One process writes to it."""

    def __init__(self, folder: Path, facts: dict[str, Any], cells: dict[str, dict[str, Any]]) -> None:
        self.folder = folder
        self.facts = facts
        self.cells = cells

    @property
    def cache(self) -> Path:
        return self.folder / CACHE

    def append(self, cell: Mapping[str, Any]) -> None:
        """Add a finished cell; it is on the disk when this returns."""
        line = json.dumps(plain(cell), sort_keys=False) + "\n"
        with (self.folder / CELLS).open("ab") as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
        self.cells[str(cell["id"])] = json.loads(line)

    def save(self) -> None:
        """Write ``run.json``, all of it or nothing."""
        with replacing(self.folder / FACTS) as draft:
            draft.write_text(json.dumps(plain(self.facts), indent=1) + "\n", encoding="utf-8")

    def model(self, key: str) -> dict[str, Any] | None:
        """What is recorded about a model."""
        return next((model for model in self.facts["models"] if model["key"] == key), None)


@contextmanager
def open_run(folder: Path, settings: Mapping[str, Any]) -> Iterator[Run]:
    """A run folder for writing, new or to be resumed with the same fixed ``settings``; for one process at a time."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"need a folder for the record, got the file {folder}: choose another name")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / FACTS).is_file():
        strangers = [path.name for path in folder.iterdir() if path.name != CACHE and not path.name.startswith(".")]
        if strangers:
            raise InputError(
                f"need a new folder or one of an earlier sweep, got {folder} with {strangers[0]}: choose another"
            )
    if not folder.is_dir() and not folder.parent.is_dir():
        raise InputError(f"need an existing folder for the record, got {folder.parent}: create it first")
    folder.mkdir(exist_ok=True)
    with _locked(folder):
        if not (folder / FACTS).is_file():
            shutil.rmtree(folder / CACHE, ignore_errors=True)  # of a record that is gone
            run = Run(folder, {"format": FORMAT, **settings, "models": []}, {})
            run.save()
        else:
            run = read_run(folder, mend=True)
            _check_same(folder, run.facts, settings)
        yield run


def read_run(folder: Path, mend: bool = False) -> Run:
    """The record in a folder; with ``mend``, a last line cut short is removed from the file as well."""
    try:
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"need the record of a sweep, got {first_line(error)} in {folder}: check the folder") from None
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        found = facts.get("format") if isinstance(facts, dict) else None
        raise InputError(f"need a record of format {FORMAT}, got {found!r} in {folder / FACTS}: update ellp")
    return Run(folder, facts, _read_cells(folder / CELLS, mend))


def _read_cells(path: Path, mend: bool) -> dict[str, dict[str, Any]]:
    """Cells by id, a later line in place of an earlier one."""
    content = path.read_bytes() if path.is_file() else b""
    cells: dict[str, dict[str, Any]] = {}
    whole = 0
    lines = content.split(b"\n")
    for number, line in enumerate(lines, 1):
        if number == len(lines):
            break  # what follows the last line end: nothing, or a line cut short
        try:
            cell = json.loads(line)
            cells[cell["id"]] = cell
        except (ValueError, TypeError, KeyError):
            if number < len(lines) - 1:
                raise InputError(
                    f"need one cell a line in {path}, got something else in line {number}: remove it"
                ) from None
            break
        whole += len(line) + 1
    if mend and whole < len(content):
        with path.open("rb+") as file:
            file.truncate(whole)
            os.fsync(file.fileno())
    return cells


def _check_same(folder: Path, found: dict[str, Any], wanted: Mapping[str, Any]) -> None:
    for name in FIXED:
        if name in wanted and found.get(name) != plain(wanted[name]):
            raise InputError(
                f"need the {name} that {folder} was begun with ({_short(found.get(name))}), got "
                f"{_short(wanted[name])}: use the same, or another folder"
            )
    for task, mark in wanted.get("data", {}).items():
        if found["data"].setdefault(task, mark) != mark:
            raise InputError(
                f"need the examples of {task} that {folder} was begun with, got others: use another folder"
            )


def _short(value: Any) -> str:
    text = json.dumps(plain(value))
    return text if len(text) <= 80 else f"{text[:77]}..."


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Alone with the folder; the system lets go of it when the process ends, however it ends."""
    with (folder / ".lock").open("a") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:
            pass  # no such locks on this system
        except OSError:
            raise InputError(f"need a folder that no sweep is writing to, got {folder}: wait for it to end") from None
        yield


def plain(value: Any) -> Any:
    """A value as JSON can hold it; an infinite number is the string ``"inf"``.

    >>> plain({"p": float("inf"), "keep": (0.5,)})
    {'p': 'inf', 'keep': [0.5]}
    """
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
