"""Labelled texts from local files: TSV, CSV, JSON, JSON lines or parquet with sentence1, sentence2 and label."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ellp.errors import InputError, first_line

if TYPE_CHECKING:
    from ellp.tasks.task import Task

SUFFIXES = (".tsv", ".csv", ".json", ".jsonl", ".parquet")
SPLITS = {"dev": ("dev", "validation"), "train": ("train",), "test": ("test",)}


@dataclass(frozen=True)
class Examples:
    """Texts (one or two an example) and their labels: class numbers, or real numbers for a regression.

    ``parts`` are the names and lengths of the pieces that are scored apart: MNLI's matched and mismatched halves.
    """

    texts: list[tuple[str, ...]]
    labels: Any
    parts: tuple[tuple[str, int], ...] = ()

    def __len__(self) -> int:
        return len(self.texts)

    def slices(self) -> Iterator[tuple[str, slice]]:
        """The name and the place of each part."""
        start = 0
        for name, length in self.parts or (("", len(self)),):
            yield name, slice(start, start + length)
            start += length


def read_task(task: Task, data: Path, limit: int | None = None, split: str = "dev") -> Examples:
    """A task's labelled examples, at most ``limit`` of each part, from a file, or from a folder with ``TASK/dev.tsv``
    or ``dev.tsv`` (or another of the formats)."""
    if limit is not None and limit < 1:
        raise InputError(f"need a limit of at least 1 example, got {limit}: leave it out for all")
    files = find_files(task, data, split)
    found = [(part, *read_rows(records(file), task, limit, file.name)) for part, file in files.items()]
    return joined(found)


def joined(found: Sequence[tuple[str, list[tuple[str, ...]], list[float]]]) -> Examples:
    """The parts of a task, one after the other."""
    texts = [text for _, some, _ in found for text in some]
    labels = np.array([label for _, _, some in found for label in some])
    return Examples(texts, labels, tuple((part, len(some)) for part, some, _ in found))


def find_files(task: Task, data: Path, split: str = "dev") -> dict[str, Path]:
    """The files that hold a split of a task, by part: ``data`` itself, or what lies in it or in ``data/TASK``."""
    if data.is_file():
        return {"": data}
    if not data.is_dir():
        raise InputError(f"need a file or folder with labelled texts, got {data}: check --data")
    folder = "stsb" if task.name == "sts" else task.name
    parts = task.parts if split == "dev" else ("",)
    for place in (data / folder, data):
        for names in ({part: f"_{part}" if part else "" for part in parts}, {"": ""}):
            files = {part: _first_file(place, split, end) for part, end in names.items()}
            if all(files.values()):
                return {part: file for part, file in files.items() if file is not None}
    raise InputError(
        f"need {folder}/{split}.tsv (or .csv, .json, .jsonl, .parquet) in {data}, found none: check --data"
    )


def _first_file(place: Path, split: str, end: str) -> Path | None:
    paths = (place / f"{name}{end}{suffix}" for name in SPLITS[split] for suffix in SUFFIXES)
    return next((path for path in paths if path.is_file()), None)


def read_rows(
    rows: Sequence[Mapping[str, Any]], task: Task, limit: int | None, origin: str
) -> tuple[list[tuple[str, ...]], list[float]]:
    """The texts and labels of a task in rows with named columns, the first ``limit`` of them."""
    if not rows:
        raise InputError(f"need labelled examples, got none in {origin}: write one example a line under the names")
    columns = _text_columns(task, set(rows[0]), origin)
    texts, labels = [], []
    for number, row in enumerate(rows[:limit], start=1):
        for name in columns:
            if not isinstance(row.get(name), (str, int, float)):
                found = "none" if row.get(name) is None else f"a {type(row[name]).__name__}"
                raise InputError(f"need a text under {name}, got {found} in example {number} of {origin}: correct it")
        texts.append(tuple(str(row[name]) for name in columns))
        labels.append(_label(row.get("label"), task, number, origin))
    return texts, labels


def _text_columns(task: Task, columns: set[str], origin: str) -> tuple[str, ...]:
    """Where the texts are: sentence1 and sentence2, or GLUE's own names; a task of any file takes what there is."""
    pair = "sentence2" in columns if task.pair is None else task.pair
    wanted = ("sentence1", "sentence2") if pair else ("sentence1",)
    others = task.columns if set(task.columns) <= columns and task.columns else wanted
    texts = wanted if set(wanted) <= columns else others
    lacking = [name for name in (*texts, "label") if name not in columns]
    if lacking:
        found = ", ".join(sorted(map(str, columns)))
        raise InputError(
            f"need the columns {', '.join((*wanted, 'label'))} in {origin}, got {found}: rename or add "
            f"{', '.join(lacking)}"
        )
    return texts


def _label(given: Any, task: Task, number: int, origin: str) -> float:
    text = "" if given is None else str(given).strip()
    where = f"in example {number} of {origin}"
    if text in ("", "-1") and text not in task.classes and (task.classes or text == ""):
        raise InputError(f"need a label, got {text or 'none'!r} {where}: pass a split that has labels")
    if text in task.classes:
        return float(task.classes.index(text))
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    count = len(task.classes)
    if np.isfinite(value) and (not count or value in range(count)):
        return value
    choices = f"one of {', '.join(task.classes)} or 0 to {count - 1}" if count else "a number"
    raise InputError(f"need {choices} as label, got {text!r} {where}: correct it, or pass a model with that label")


def records(path: Path) -> list[dict[str, Any]]:
    """The rows of a file, each a mapping of column names."""
    if path.suffix not in SUFFIXES:
        raise InputError(f"need one of {', '.join(SUFFIXES)}, got {path.name}: convert the file")
    if path.suffix == ".parquet":
        return _parquet(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            found = list(_parsed(lines, path))
    except (UnicodeDecodeError, json.JSONDecodeError, csv.Error) as error:
        raise InputError(f"need a readable {path.suffix} file, got {path.name} ({error}): save it again") from None
    if not all(isinstance(record, dict) for record in found):
        raise InputError(f"need objects in {path.name}, got something else: write {{'sentence1': ..., 'label': ...}}")
    return found


def _parsed(lines: Any, path: Path) -> Iterable[Any]:
    if path.suffix == ".tsv":  # GLUE's files are not quoted: a quotation mark is text
        return _table(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE), path)
    if path.suffix == ".csv":
        return _table(csv.DictReader(lines), path)
    if path.suffix == ".jsonl":
        return (json.loads(line) for line in lines if line.strip())
    found = json.loads(lines.read() or "[]")
    return found if isinstance(found, list) else [found]


def _table(rows: csv.DictReader[str], path: Path) -> Iterable[Any]:
    names = list(rows.fieldnames or ())
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"need columns of different names in {path.name}, got {twice!r} twice: rename one of them")
    return rows


def _parquet(path: Path) -> list[dict[str, Any]]:
    try:
        from pyarrow import ArrowInvalid, parquet
    except ImportError:
        raise InputError("need pyarrow to read parquet, got none: pip install 'ellp[eval]'") from None
    try:
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    except ArrowInvalid as error:
        raise InputError(
            f"need a complete parquet file, got {path.name} ({first_line(error)}): save it again"
        ) from None
    return rows
