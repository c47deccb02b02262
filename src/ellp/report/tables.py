"""The table of a sweep, after Table 1 of the paper: a line a setting, the drop on every task, and the average."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ellp.markdown import table, text
from ellp.report.curves import SVD, Estimate, Key, Panel, Point, Series, task_label
from ellp.report.summary import Choice, Summary
from ellp.report.wording import interval, points, share

MADE = "<!-- made by ellp report -->"
MOST_LINES = 60  # of a model card; the page holds all
LEVELS = (0.5, 2.0, 5.0, 10.0)  # points of drop at which a cell's shade deepens


@dataclass(frozen=True)
class Entry:
    """A cell of the table. ``mark`` is "same" where the interval holds 0, "shade1" to "shade4", "failed" or ""."""

    text: str
    detail: str
    mark: str


@dataclass(frozen=True)
class Line:
    """A setting. ``note`` names it where it is one of the summary's choices."""

    setting: str
    rank: str
    rate: str
    bytes: str
    entries: tuple[Entry, ...]
    note: str
    front: bool


@dataclass(frozen=True)
class Block:
    """The lines of one series."""

    label: str
    lines: tuple[Line, ...]


def heads(panel: Panel) -> list[str]:
    """The tasks' names, and the average where there is more than one."""
    return [task_label(task) for task in panel.tasks] + ["average"] * (len(panel.tasks) > 1)


def dense_scores(panel: Panel) -> list[str]:
    """The scores before compression, in the order of :func:`heads`."""
    scores = [panel.dense.get(task) for task in panel.tasks]
    whole = [None if None in scores else panel.dense_average] * (len(scores) > 1)
    return ["–" if score is None else points(score) for score in (*scores, *whole)]


def blocks(panel: Panel, summary: Summary | None = None) -> Iterator[Block]:
    """The table, a block a series."""
    best = {id(point) for point in front(panel)}
    for series in panel.series:
        lines = [_line(panel, series, point, summary, id(point) in best) for point in series.points]
        yield Block(series.label, tuple(lines))


def front(panel: Panel) -> list[Point]:
    """The settings that no other beats in both bytes and average drop."""
    complete = [point for _, point in panel.settings if point.average is not None and point.average.finite]
    found: list[Point] = []
    lowest = math.inf
    for point in sorted(complete, key=lambda point: (point.share, _value(point))):
        if _value(point) < lowest:
            lowest = _value(point)
            found.append(point)
    return found


def _value(point: Point) -> float:
    return math.inf if point.average is None else point.average.value


def _line(panel: Panel, series: Series, point: Point, summary: Summary | None, on_front: bool) -> Line:
    entries = [_entry(point.drops.get(task), point.failed.get(task)) for task in panel.tasks]
    if len(panel.tasks) > 1:
        entries.append(_entry(point.average, None))
    return Line(
        setting=point.at,
        rank="–" if point.rank is None else str(point.rank),
        rate="–" if point.rate is None else share(point.rate, 0),
        bytes=share(point.share),
        entries=tuple(entries),
        note=_note(series, point, summary),
        front=on_front,
    )


def _note(series: Series, point: Point, summary: Summary | None) -> str:
    def chosen(choice: Choice | None) -> bool:
        return choice is not None and (choice.method, choice.setting) == (series.label, point.at)

    if summary is None:
        return ""
    named = (("recommended", summary.recommended), ("cautious", summary.cautious), ("low rank", summary.low_rank))
    return next((name for name, choice in named if chosen(choice)), "")


def _entry(drop: Estimate | None, error: str | None) -> Entry:
    if error is not None:
        return Entry("failed", error, "failed")
    if drop is None:
        return Entry("–", "not measured", "")
    if not drop.finite:
        return Entry(points(drop.value), "not a finite number", "shade4")
    return Entry(points(drop.value), interval(drop), _mark(drop))


def _mark(drop: Estimate) -> str:
    if not drop.measurable:
        return "same"
    return f"shade{level}" if (level := sum(drop.value > bound for bound in LEVELS)) else ""


# Markdown -------------------------------------------------------------------------------------------------------------


def markdown(found: list[tuple[Panel, Summary]]) -> str:
    """The summaries and tables for a model card; long tables keep the best settings and say so."""
    parts = [_markdown(panel, summary, len(found) > 1) for panel, summary in found]
    return "\n\n".join([MADE, *parts]) + "\n"


def _markdown(panel: Panel, summary: Summary, named: bool) -> str:
    lines, left_out = _shortest(panel, summary)
    top = ["method", "setting", "rate", "bytes", *heads(panel)]
    dense = ["dense, score", "", "0 %", "100.0 %", *dense_scores(panel)]
    body = [
        [text(label), text(line.setting), line.rate, line.bytes, *(_cell(entry) for entry in line.entries)]
        for label, line in lines
    ]
    note = (
        "Drop in points from the dense score (negative: better than dense), with its paired-bootstrap 95 % interval; "
        "bytes over the dense layer in float16, everything counted."
    )
    if left_out:
        note += f" The {len(lines)} best settings and the baselines of {len(lines) + left_out}."
    parts = [f"### {text(panel.name)}"] * named
    parts += [f"**{text(summary.headline)}** " + " ".join(text(line) for line in summary.sentences)]
    parts += [table([text(head) for head in top], [dense, *body], right=len(top) - 2), note]
    return "\n\n".join(parts)


def _cell(entry: Entry) -> str:
    if entry.mark == "failed" or entry.text == "–" or " to " not in entry.detail:
        return entry.text
    return f"{entry.text} ({entry.detail})"


def _shortest(panel: Panel, summary: Summary) -> tuple[list[tuple[str, Line]], int]:
    every = [(block.label, line) for block in blocks(panel, summary) for line in block.lines]
    if len(every) <= MOST_LINES:
        return every, 0
    base = {SVD.label, Key("lp", 1.0, None).label, Key("rounding", None, None).label}
    chosen = [(label, line) for label, line in every if line.front or line.note or label in base]
    return chosen[:MOST_LINES], len(every) - len(chosen[:MOST_LINES])
