"""How a series looks wherever it is drawn: a colour that colour-blind eyes can tell apart, a dash and a marker."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ellp.report.curves import SVD, Key, Panel, Series

LIGHT = ("#59616c", "#0063b1", "#b84300", "#00785a", "#a33b7c", "#8a6000", "#00798c", "#6a51a3")
DARK = ("#aeb7c2", "#5cb3ff", "#ff9a62", "#3fd0a4", "#f092c4", "#f0c14b", "#5fd0e0", "#b9a3f5")
DASHES = ("solid", "dash", "dot", "dashdot")
MARKERS = ("circle", "square", "diamond", "up", "down", "cross", "hexagon")
FIXED = {SVD: 0, Key("lp", 1.0, None): 1, Key("rounding", None, None): 5}
SHOWN = 6


@dataclass(frozen=True)
class Look:
    """``color`` counts into :data:`LIGHT` and :data:`DARK`; ``shown`` says whether a drawing starts with it."""

    color: int
    dash: str
    marker: str
    width: float
    shown: bool


def looks(panel: Panel) -> list[Look]:
    """One look a series: baselines always have the same one; colours go first to what is shown first."""
    shown = _shown(panel)
    free = [color for color in range(len(LIGHT)) if color not in FIXED.values()]
    waiting = [one.key for one in panel.series if one.key not in FIXED]
    places = {key: place for place, key in enumerate(sorted(waiting, key=lambda key: key not in shown))}
    return [_look(key, places.get(key, 0), free, key in shown) for key in (one.key for one in panel.series)]


def _look(key: Key, place: int, free: list[int], shown: bool) -> Look:
    """Beyond the number of free colours, dashes and markers tell series apart."""
    color = FIXED[key] if key in FIXED else free[place % len(free)]
    turn = 0 if key in FIXED else place // len(free)
    width = 3.2 if key == SVD else 1.6  # seen on both sides of a curve that covers it, as p = 1 often does
    return Look(color, DASHES[turn % len(DASHES)], MARKERS[(color + turn) % len(MARKERS)], width, shown)


def _shown(panel: Panel) -> set[Key]:
    """The baselines, and of the rest those with the lowest drop at their smallest sizes."""
    known = [*FIXED, *(one.key for one in panel.series if one.key.method == "fwsvd")]
    first = [one.key for one in panel.series if one.key in known]
    rest = sorted((one for one in panel.series if one.key not in first), key=_loss)
    return {*first, *(one.key for one in rest[: max(2, SHOWN - len(first))])}


def _loss(series: Series) -> float:
    values = [point.average.value for point in series.points if point.average is not None and point.average.finite]
    return sum(values) / len(values) if values else math.inf
