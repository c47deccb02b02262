"""Labelled texts from local files: TSV, CSV, JSON, JSON lines or parquet with sentence1, sentence2 and label."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ellp.errors import InputError

SUFFIXES = (".tsv", ".csv", ".json", ".jsonl", ".parquet")
SPLITS = ("dev", "validation", "validation_matched", "test")


@dataclass(frozen=True)
class Examples:
    """Texts (one or two an example) and their labels: class numbers, or real numbers for a regression."""

    texts: list[tuple[str, ...]]
    labels: list[float]

    def __len__(self) -> int:
        return len(self.texts)


def find_file(data: Path, task: str) -> Path:
    """The file that holds a task's labelled examples: ``data`` itself, or the dev file in it or in ``data/task``."""
    if data.is_file():
        return data
    if not data.is_dir():
        raise InputError(f"need a file or folder with labelled texts, got {data}: check --data")
    for folder in (data / task, data):
        for split in SPLITS:
            for suffix in SUFFIXES:
                if (folder / f"{split}{suffix}").is_file():
                    return folder / f"{split}{suffix}"
    raise InputError(f"need {task}/dev.tsv (or .csv, .json, .jsonl, .parquet) in {data}, found none: check --data")


def read_examples(path: Path, *, pair: bool | None, classes: tuple[str, ...] | None, limit: int | None) -> Examples:
    """The examples in a file. ``pair`` says whether two texts are needed (None: two if there are two columns);
    ``classes`` are the names a text label may have (None: the label is a real number)."""
    records = list(_records(path))
    if not records:
        raise InputError(f"need labelled examples, got an empty file {path}: write one example a line")
    columns = set(records[0])
    if pair is None:
        pair = "sentence2" in columns
    wanted = ["sentence1", "sentence2", "label"] if pair else ["sentence1", "label"]
    lacking = [name for name in wanted if name not in columns]
    if lacking:
        found = ", ".join(sorted(map(str, columns)))
        raise InputError(
            f"need the columns {', '.join(wanted)} in {path.name}, got {found}: rename or add {', '.join(lacking)}"
        )
    records = records[:limit]
    texts = [tuple(str(record[name]) for name in wanted[:-1]) for record in records]
    labels = [_label(record["label"], classes, row, path) for row, record in enumerate(records, start=1)]
    return Examples(texts, labels)


def _label(given: Any, classes: tuple[str, ...] | None, row: int, path: Path) -> float:
    text = "" if given is None else str(given).strip()
    if classes is not None and text in classes:
        return float(classes.index(text))
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    known = value >= 0 if classes is None else value in range(len(classes))
    if not known:
        choices = "a number" if classes is None else f"one of {', '.join(classes)} or 0 to {len(classes) - 1}"
        advice = "this split has no labels, pass one that has" if text in ("-1", "") else "correct the label"
        raise InputError(f"need {choices} as label, got {text!r} in example {row} of {path.name}: {advice}")
    return value


def _records(path: Path) -> Iterable[Mapping[str, Any]]:
    try:
        if path.suffix in (".tsv", ".csv"):
            with path.open(encoding="utf-8", newline="") as lines:
                if path.suffix == ".tsv":  # GLUE's files are not quoted: a quotation mark is text
                    return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
                return list(csv.DictReader(lines))
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        if path.suffix == ".json":
            found = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(found, list) and all(isinstance(record, dict) for record in found):
                return found
            raise InputError(f"need a list of objects in {path.name}: write [{{'sentence1': ..., 'label': ...}}, ...]")
        if path.suffix == ".parquet":
            return _parquet(path)
    except (UnicodeDecodeError, json.JSONDecodeError, csv.Error) as error:
        raise InputError(f"need a readable {path.suffix} file, got {path.name} ({error}): save it again") from None
    raise InputError(f"need one of {', '.join(SUFFIXES)}, got {path.name}: convert the file")


def _parquet(path: Path) -> list[Mapping[str, Any]]:
    try:
        from pyarrow import ArrowInvalid, parquet
    except ImportError:
        raise InputError("need pyarrow to read parquet, got none: pip install pyarrow") from None
    try:
        rows: list[Mapping[str, Any]] = parquet.read_table(path).to_pylist()
    except ArrowInvalid as error:
        raise InputError(f"need a complete parquet file, got {path.name} ({error}): save it again") from None
    return rows
