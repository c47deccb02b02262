"""One self-contained HTML page of a sweep: its style and script are inside, and its policy forbids any network."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from ellp.errors import InputError
from ellp.report import wording
from ellp.report.curves import Estimate, Panel, Point, Series, panels, task_label
from ellp.report.layers import Layer, layers, together
from ellp.report.looks import DARK, LIGHT, looks
from ellp.report.read import Run
from ellp.report.summary import GOAL, Summary, plain, summarize
from ellp.report.tables import blocks, dense_scores, heads

MOST_FAILURES = 200


def page(run: Run, goal: float = GOAL, title: str | None = None) -> str:
    """The page as text. Every name in the record is escaped, whatever it contains."""
    found = panels(run)
    summaries = [summarize(panel, goal, run.comparisons) for panel in found]
    style, script = _colors() + _text("page.css"), _script()
    every = layers(run)
    text: str = _template().render(
        title=title or _title(found),
        policy=_policy(style, script),
        style=style,
        script=script,
        data=embedded(payload(found, summaries, every)),
        views=[_view(panel, summary) for panel, summary in zip(found, summaries, strict=True)],
        run=run,
        counts=_counts(run, found),
        failures=run.failures[:MOST_FAILURES],
        layers=every,
        together=together(run),
        tasks=_tasks(found),
        commands=_commands(run),
        times=_times(run),
        wording=wording,
        claim=str((run.facts.get("verdict") or {}).get("text") or "").splitlines(),
    )
    return text


def embedded(value: Any) -> str:
    """JSON that nothing in it can end early, to stand inside a script element.

    >>> embedded({"token": "</script>"})
    '{"token":"\\\\u003c/script\\\\u003e"}'
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text  # what is not ASCII, U+2028 among it, json.dumps has escaped


def payload(found: Sequence[Panel], summaries: Sequence[Summary], every: Sequence[Layer]) -> dict[str, Any]:
    """What the page's script draws: numbers and labels, no markup."""
    shown = [_panel(panel, summary) for panel, summary in zip(found, summaries, strict=True)]
    spectra = [{"ranks": layer.ranks, "curves": layer.spectra} for layer in every]
    facts: dict[str, Any] = plain({"panels": shown, "layers": spectra})
    return facts


# What the script draws ------------------------------------------------------------------------------------------------


def _panel(panel: Panel, summary: Summary) -> dict[str, Any]:
    units = {task: "points" if task in panel.scored else "perplexity" for task in panel.tasks}
    tasks = [{"label": task_label(task), "dense": panel.dense.get(task), "unit": units[task]} for task in panel.tasks]
    series = [
        {
            "label": one.label,
            "look": [look.color, look.dash, look.marker, look.width],
            "shown": look.shown,
            "points": [_point(panel, one, point, summary) for point in one.points],
        }
        for one, look in zip(panel.series, looks(panel), strict=True)
    ]
    dense = None if math.isnan(panel.dense_average) else panel.dense_average
    unit = "perplexity" if panel.perplexity else "points"
    return {"name": panel.name, "tasks": tasks, "dense": dense, "unit": unit, "goal": summary.goal, "series": series}


def _point(panel: Panel, series: Series, point: Point, summary: Summary) -> dict[str, Any]:
    best = summary.recommended
    chosen = best is not None and (best.method, best.setting) == (series.label, point.at)
    return {
        "at": point.at,
        "rank": point.rank,
        "rate": point.rate,
        "share": point.share,
        "bytes": point.bytes,
        "best": chosen,
        "average": _drop(point.average),
        "tasks": [_measured(point, task) for task in panel.tasks],
    }


def _drop(drop: Estimate | None) -> list[float] | None:
    return None if drop is None else [_digits(part) for part in (drop.value, drop.low, drop.high)]


def _measured(point: Point, task: str) -> list[Any] | None:
    drop, cell = _drop(point.drops.get(task)), point.cells.get(task)
    return None if drop is None or cell is None else [*drop, _digits(cell.score), cell.changed]


def _digits(value: float) -> float:
    return float(f"{value:.6g}")


# What the template shows ----------------------------------------------------------------------------------------------


def _view(panel: Panel, summary: Summary) -> dict[str, Any]:
    lines = list(blocks(panel, summary))
    return {
        "panel": panel,
        "summary": summary,
        "heads": heads(panel),
        "dense": dense_scores(panel),
        "blocks": lines,
        "long": sum(len(block.lines) for block in lines) > 40,
        "comparisons": _comparisons(summary),
        "unpaired": not all(one.paired for one in (*summary.claims, *summary.others)),
    }


def _comparisons(summary: Summary) -> list[dict[str, Any]]:
    """Claims first, each with its table; a comparison that is among the claims already is not repeated."""
    known = {(one.method, one.against) for one in summary.claims}
    rest = [one for one in summary.others if (one.method, one.against) not in known]
    groups = (
        ("Does the robust norm help? Every p against p = 2, the same importance, equal rank.", summary.claims),
        ("What else helps? Every other low-rank method against the plain SVD, equal rank.", rest),
    )
    shown = []
    for title, group in groups:
        sizes = list(dict.fromkeys(gain.at for one in group for gain in one.gains))
        rows = [(one, {gain.at: gain for gain in one.gains}) for one in group]
        shown += [{"title": title, "sizes": sizes, "rows": rows}] if rows else []
    return shown


def _title(found: Sequence[Panel]) -> str:
    return found[0].name if len(found) == 1 and found[0].name else "What compression costs"


def _counts(run: Run, found: Sequence[Panel]) -> dict[str, int]:
    drops = [drop for panel in found for _, point in panel.settings for drop in point.drops.values()]
    endless = sum(not drop.finite for drop in drops)
    return {"cells": len(run.cells), "failed": len(run.failures), "unread": run.unread, "endless": endless}


def _tasks(found: Sequence[Panel]) -> list[dict[str, Any]]:
    """Every model and task before compression."""
    shown = []
    for panel in found:
        for task, key in panel.tasks.items():
            model = panel.models.get(key, {})
            facts = (model.get("dense") or {}).get(task) or {}
            row = {"task": task_label(task), "model": model.get("name") or key, "source": model.get("source") or "–"}
            row |= {"architecture": model.get("architecture") or "–", "parameters": model.get("parameters")}
            row |= {"examples": facts.get("examples"), "score": panel.dense.get(task)}
            row["metric"] = " and ".join(str(name) for name in facts.get("scores") or ()) or "–"
            shown.append(row)
    return list({str(row): row for row in shown}.values())


def _commands(run: Run) -> list[str]:
    """What was called, each command once: a record may have grown by several."""
    said = [run.facts.get("command"), *(session.get("command") for session in run.facts.get("sessions") or ())]
    return list(dict.fromkeys(str(command) for command in said if command))


def _times(run: Run) -> dict[str, str]:
    """How long the sweep took, and what its processes did in that time."""
    took = sum(float(session.get("seconds") or 0) for session in run.facts.get("sessions") or ())
    factoring = {(cell.model, cell.id.rpartition("/")[2]): cell.seconds.get("factor", 0.0) for cell in run.cells}
    work = {"factoring": sum(factoring.values())}  # once a setting, whatever the number of tasks
    work["evaluating"] = sum(cell.seconds.get("evaluate", 0.0) for cell in run.cells)
    parts = [f"{wording.duration(seconds)} {name}" for name, seconds in work.items() if seconds > 0]
    return {"sessions": wording.duration(took) if took else "", "work": ", ".join(parts)}


# The parts of the file ------------------------------------------------------------------------------------------------


@cache
def _template() -> Any:
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError:
        raise InputError("need jinja2 for the page, got none: pip install 'ellp[report]'") from None
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["unbroken"] = wording.unbroken
    return environment.from_string(_text("page.html.j2"))


def _text(name: str) -> str:
    return files("ellp.report").joinpath(name).read_text(encoding="utf-8")


def _script() -> str:
    """Both files in a scope of their own."""
    parts = "\n".join(_text(name) for name in ("chart.js", "page.js"))
    return f'"use strict";\n{{\n{parts}}}\n'


def _colors() -> str:
    pairs = enumerate(zip(LIGHT, DARK, strict=True))
    return ":root{" + "".join(f"--c{one}:light-dark({light},{dark});" for one, (light, dark) in pairs) + "}\n"


def _policy(style: str, script: str) -> str:
    """Nothing is loaded from anywhere, and no script or style runs but the page's own."""
    rules: Mapping[str, str] = {
        "default-src": "'none'",
        "script-src": _hash(script),
        "style-src": _hash(style),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
