"""A task's examples, from local files or, without any, from the Hugging Face hub."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ellp.errors import InputError, first_line
from ellp.tasks.data import Examples, joined, read_rows, read_task
from ellp.tasks.glue import GLUE, OWN
from ellp.tasks.task import Task

HUB = "nyu-mll/glue"
SPLITS = {"dev": "validation", "train": "train"}


def load_task(task: Task, data: Path | None = None, limit: int | None = None, split: str = "dev") -> Examples:
    """The labelled examples of a task, or the text whose perplexity is measured."""
    if task.kind == "language":
        return _read_text(data, limit)
    if data is not None:
        return read_task(task, data, limit, split)
    if task.name == OWN:
        raise InputError("need your labelled texts for the task file, got none: pass --data FILE")
    return _from_hub(task, limit, split)


def _read_text(data: Path | None, limit: int | None) -> Examples:
    """A text file as it is, or its first ``limit`` lines."""
    if data is None or not data.is_file():
        raise InputError(f"need a text file to measure perplexity on, got {data or 'none'}: pass --data FILE.txt")
    try:
        text = data.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"need a UTF-8 text file, got {data} ({error}): save it as UTF-8") from None
    text = "\n".join(text.splitlines()[:limit])
    if not text.strip():
        raise InputError(f"need a text, got an empty file {data}: pass another one")
    return Examples([(text,)], [0.0])


def _from_hub(task: Task, limit: int | None, split: str) -> Examples:
    name = "stsb" if task.name == "sts" else task.name
    parts = task.parts if split == "dev" else ("",)
    found = []
    for part in parts:
        place = f"{SPLITS[split]}_{part}" if part else SPLITS[split]
        rows = _hub_rows(name, place, limit)
        found.append((part, *read_rows(rows, task, limit, f"{HUB} {name} {place}")))
    assert name in GLUE
    return joined(found)


def _hub_rows(name: str, split: str, limit: int | None) -> list[dict[str, Any]]:
    try:
        import datasets
    except ImportError:
        raise InputError(
            "need datasets to fetch GLUE from the hub, got none: pip install 'ellp[eval]', or pass --data DIR"
        ) from None
    try:
        with _silent("huggingface_hub", "datasets"):
            table = datasets.load_dataset(HUB, name, split=split)
    except Exception as error:
        raise InputError(
            f"need {HUB} from the Hugging Face hub, which cannot be fetched ({first_line(error)}): check the network, "
            f"or pass --data DIR with {name}/dev.tsv"
        ) from error
    count = len(table) if limit is None else min(limit, len(table))
    return [dict(row) for row in table.select(range(count))]


@contextmanager
def _silent(*names: str) -> Iterator[None]:
    """Without a line on standard error for every time the hub is tried again."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
