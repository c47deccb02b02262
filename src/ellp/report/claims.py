"""One method against another at equal rank: where it is better or worse by more than chance does."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ellp.report.curves import SVD, Estimate, Key, Panel, Series, averaged, key
from ellp.report.wording import counted, points

MEAN = "mean"  # the record's name for the average over tasks


@dataclass(frozen=True)
class Gain:
    """How many points fewer one setting loses than another, with the 95 % interval of that difference."""

    at: str
    value: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        return "better" if self.low > 0 else "worse" if self.high < 0 else "inside the interval"


@dataclass(frozen=True)
class Comparison:
    """One series against another at equal rank: where it is better or worse by more than chance does.

    ``paired``: the intervals come from the same examples drawn again for both. Otherwise those of both drops were added
    as if independent, which errs to caution, since both are measured on the same examples.
    """

    method: str
    against: str
    gains: tuple[Gain, ...]
    paired: bool

    @property
    def count(self) -> int:
        return len(self.gains)

    def times(self, verdict: str) -> int:
        return sum(gain.verdict == verdict for gain in self.gains)

    @property
    def verdict(self) -> str:
        """One sentence; a difference within the noise is called that."""
        head = f"{self.method} against {self.against} at equal rank"
        if self.times("inside the interval") == self.count:
            sizes = {1: "the one size is", 2: "both sizes are"}.get(self.count, f"all {self.count} sizes are")
            return f"{head}: no measurable difference ({sizes} inside the interval)."
        words = ("better", "worse", "inside the interval")
        counts = [f"{word} at {self.times(word)}" for word in words if self.times(word)]
        widest = max(self.gains, key=lambda gain: abs(gain.value))
        side = "fewer" if widest.value > 0 else "more"
        most = f"at most {points(abs(widest.value))} points {side} lost, at {widest.at}"
        return f"{head}: {', '.join(counts)} of {counted(self.count, 'size')} ({most})."


Paired = Mapping[tuple[Key, Key, str], Gain]
"""By the one series, the other, and the setting."""


def robust_claims(panel: Panel, paired: Paired) -> list[Comparison]:
    """Every p other than 2 against p = 2 with the same importance: what robustness alone brings."""
    found = []
    for series in panel.series:
        mine = series.key
        if mine.method != "lp" or mine.p == 2:
            continue
        other = panel.find(Key("lp", 2.0, mine.importance)) or (panel.find(SVD) if mine.importance is None else None)
        if other is not None and (one := compare(series, other, paired)) is not None:
            found.append(one)
    return found


def against_svd(panel: Panel, paired: Paired) -> list[Comparison]:
    """Every other low-rank series against the plain SVD."""
    base = panel.find(SVD)
    others = [one for one in panel.series if one.key.factored and one.key != SVD]
    return [found for one in others if base is not None and (found := compare(one, base, paired)) is not None]


def paired_gains(panel: Panel, rows: Iterable[Mapping[str, Any]]) -> dict[tuple[Key, Key, str], Gain]:
    """The record's own comparisons, on the same examples, of what this panel averages."""
    tasks = averaged(panel.tasks, panel.scored)
    names = {(panel.family, MEAN)} if len(tasks) > 1 else {(panel.tasks[task], task) for task in tasks}
    found = {}
    for row in rows:
        if (str(row.get("model") or ""), str(row.get("task"))) not in names or row.get("tasks", 1) != len(tasks):
            continue
        if any(row.get(name) is None for name in ("method", "keep", "gain", "gain_low", "gain_high")):
            continue
        p, at = row.get("p"), f"keep {float(row['keep']):.4g}"
        series = key(str(row["method"]), None if p is None else float(p), row.get("importance"))
        against = SVD if row.get("against", "svd") == "svd" else Key("lp", 2.0, series.importance)
        found[series, against, at] = Gain(at, *(float(row[name]) for name in ("gain", "gain_low", "gain_high")))
    return found


def compare(series: Series, against: Series, paired: Paired) -> Comparison | None:
    """Two series at every size where both were measured on every task."""
    theirs = {point.at: point.average for point in against.points}
    pairs = [(point.at, point.average, theirs.get(point.at)) for point in series.points]
    both = [
        (at, one, other)
        for at, one, other in pairs
        if one is not None and other is not None and one.finite and other.finite
    ]
    if not both:
        return None
    whole = all((series.key, against.key, at) in paired for at, _, _ in both)
    gains = [paired[series.key, against.key, at] if whole else _gain(at, one, other) for at, one, other in both]
    return Comparison(series.label, against.label, tuple(gains), whole)


def _gain(at: str, one: Estimate, other: Estimate) -> Gain:
    gain = other.value - one.value
    below = math.hypot(one.high - one.value, other.value - other.low)
    above = math.hypot(one.value - one.low, other.high - other.value)
    return Gain(at, gain, gain - below, gain + above)
