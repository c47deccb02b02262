"""A record read, and everything asked for written: the page, the table for a model card, the figures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ellp.errors import InputError
from ellp.folder import replacing
from ellp.report.curves import Panel, panels
from ellp.report.figures import write_figures
from ellp.report.page import page
from ellp.report.read import read_run
from ellp.report.summary import GOAL, summarize
from ellp.report.tables import MADE, markdown

MARKS = ('name="generator" content="ellp report"', MADE)  # how a file of an earlier report is known


def write_report(
    folder: Path,
    output: Path,
    markdown_file: Path | None = None,
    figures: Path | None = None,
    goal: float = GOAL,
    force: bool = False,
) -> dict[str, Any]:
    """Write the page, and the other files where asked for; what was found and written, ready for JSON.

    An earlier report is replaced; any other file is left alone unless ``force`` is given.
    """
    if not 0 < goal < 1:
        raise InputError(f"need a share of the score to keep between 0 and 1, got {goal}: 0.99 keeps 99 %")
    for path in (output, markdown_file):
        if path is not None:
            _check(path, force)
    run = read_run(folder)
    found = panels(run)
    summaries = [summarize(panel, goal, run.comparisons) for panel in found]
    written = [_put(output, page(run, goal))]
    if markdown_file is not None:
        written.append(_put(markdown_file, markdown(list(zip(found, summaries, strict=True)))))
    if figures is not None:
        for number, panel in enumerate(found):
            written += write_figures(panel, figures, _stem(panel, number) if len(found) > 1 else "")
    return {
        "run": str(folder),
        "cells": len(run.cells),
        "failed": len(run.failures),
        "unread": run.unread,
        "panels": [summary.facts() for summary in summaries],
        "written": [str(path) for path in written],
    }


def report_summary(record: Mapping[str, Any]) -> str:
    """What a report found and wrote, in a few lines for a person."""
    lines = []
    for panel in record["panels"]:
        lines += [f"{panel['panel']}: {panel['headline']}", *(f"  {sentence}" for sentence in panel["sentences"])]
    counts = f"{record['cells']} cells measured, {record['failed']} failed"
    if record["unread"]:
        counts += f", {record['unread']} lines could not be read"
    return "\n".join([*lines, counts, *(f"written to  {path}" for path in record["written"])])


def _check(path: Path, force: bool) -> None:
    if path.is_dir():
        raise InputError(f"need a file to write, got the folder {path}: add a name")
    if not path.absolute().parent.is_dir():
        raise InputError(f"need an existing folder for the output, got {path.parent}: create it first")
    if path.exists() and not force and not _earlier_report(path):
        raise InputError(f"need an output that is new or an earlier report, got {path}: pass --force to replace it")


def _earlier_report(path: Path) -> bool:
    with path.open(encoding="utf-8", errors="replace") as file:
        start = file.read(4000)
    return any(mark in start for mark in MARKS)


def _put(path: Path, text: str) -> Path:
    with replacing(path) as draft:
        draft.write_text(text, encoding="utf-8")
    return path


def _stem(panel: Panel, number: int) -> str:
    """The start of a file's name, from a panel's."""
    name = re.sub(r"[^A-Za-z0-9.]+", "-", panel.name).strip("-.")[:60]
    return f"{number + 1}-{name}-" if name else f"{number + 1}-"
