"""``ellp report``: the record of a sweep as a page, figures and a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="the folder that ellp sweep wrote")],
    output: Annotated[Path, typer.Option("-o", "--output", help="the page to write")] = Path("report.html"),
    markdown: Annotated[Path | None, typer.Option(help="also the summary and table for a model card")] = None,
    figures: Annotated[Path | None, typer.Option(help="also the figures, PNG and SVG, into this folder")] = None,
    goal: Annotated[float, typer.Option(help="share of the score that the recommended setting keeps")] = 0.99,
    force: Annotated[bool, typer.Option("--force", help="replace files that are no earlier report")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Show what a sweep found: one self-contained page with curves, tables, evidence and a recommended setting."""
    from ellp.report.write import report_summary, write_report

    record = write_report(run, output, markdown, figures, goal, force)
    typer.echo(json.dumps(record) if as_json else report_summary(record))
