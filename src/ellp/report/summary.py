"""What a sweep says, in plain language: the setting to use, and where a claimed gain is inside the noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ellp.report.claims import Comparison, against_svd, paired_gains, robust_claims
from ellp.report.curves import Estimate, Panel, Point, Series, averaged, task_label
from ellp.report.wording import counted, exact, fraction, interval, kept, points, share, size

GOAL = 0.99


@dataclass(frozen=True)
class Choice:
    """A setting to use: the smallest in bytes that keeps the goal's share of the average score."""

    method: str
    setting: str
    rank: int | None
    share: float
    bytes: float
    drop: Estimate
    retention: Estimate
    model_bytes: tuple[float, float] | None

    @property
    def label(self) -> str:
        return f"{self.setting} rounding" if self.method == "rounding" else f"{self.method} at {self.setting}"


@dataclass(frozen=True)
class Summary:
    """The findings of one panel; ``sentences`` are for a person and say nothing the other fields do not."""

    panel: str
    goal: float
    headline: str
    sentences: tuple[str, ...]
    recommended: Choice | None
    cautious: Choice | None
    low_rank: Choice | None
    claims: tuple[Comparison, ...]
    others: tuple[Comparison, ...]

    def facts(self) -> dict[str, Any]:
        """The same as JSON can hold it."""
        found: dict[str, Any] = plain(asdict(self))
        return found


def summarize(panel: Panel, goal: float = GOAL, comparisons: Iterable[Mapping[str, Any]] = ()) -> Summary:
    """The findings of a panel; ``goal`` is the share of the average score to keep.

    ``comparisons`` are those of the record: differences measured on the same examples.
    """
    recommended = smallest(panel, goal, lambda left: left.value)
    cautious = smallest(panel, goal, lambda left: left.low)
    low_rank = smallest(panel, goal, lambda left: left.value, lambda series: series.key.factored)
    paired = paired_gains(panel, comparisons)
    claims, others = tuple(robust_claims(panel, paired)), tuple(against_svd(panel, paired))
    sentences = [
        *_about(panel, recommended, goal),
        *_about_cautious(recommended, cautious, goal),
        *_about_low_rank(panel, recommended, low_rank, goal),
        *(claim.verdict for claim in claims),
        *_gaps(panel),
    ]
    headline = _headline(panel, recommended, goal)
    return Summary(panel.name, goal, headline, tuple(sentences), recommended, cautious, low_rank, claims, others)


# The setting to use ---------------------------------------------------------------------------------------------------


def smallest(
    panel: Panel,
    goal: float,
    end: Callable[[Estimate], float],
    fits: Callable[[Series], bool] = lambda series: True,
) -> Choice | None:
    """The setting with the fewest bytes, below the dense layer's, that keeps ``goal`` of the average score."""
    good = []
    for series, point in panel.settings:
        left = panel.retention(point.average)
        if left is not None and point.share < 1 and fits(series) and end(left) >= goal:
            good.append((point.share, -left.value, series, point))
    if not good:
        return None
    _, _, series, point = min(good, key=lambda found: found[:2])
    return _choice(panel, series, point)


def _choice(panel: Panel, series: Series, point: Point) -> Choice:
    left = panel.retention(point.average)
    assert point.average is not None and left is not None  # only such points are chosen
    sizes = _model_bytes(panel, point)
    return Choice(series.label, point.at, point.rank, point.share, point.bytes, point.average, left, sizes)


def _model_bytes(panel: Panel, point: Point) -> tuple[float, float] | None:
    """The whole model before and after, in float16; of the largest model in the panel."""
    sizes = [float(model["bytes_fp16"]) for model in panel.models.values() if model.get("bytes_fp16")]
    if not sizes or not point.share > 0:
        return None
    before = max(sizes)
    return before, before - point.bytes / point.share + point.bytes


def _headline(panel: Panel, found: Choice | None, goal: float) -> str:
    if found is not None:
        return f"{found.label} {_keeps(panel, found.retention.value)} at {fraction(found.share)} of the layer's bytes."
    if not any(point.average for _, point in panel.settings):
        return "Nothing to recommend yet: no setting was measured on every task."
    return f"No setting measured on every task keeps {exact(goal)} of the score below the dense size."


def _keeps(panel: Panel, left: float) -> str:
    """What a setting does to the score, or to a perplexity, which is better the lower it is."""
    if panel.perplexity:
        return f"raises perplexity by {share(max(1 - left, 0.0))}"
    return f"keeps {kept(left)} of the score"


def _about(panel: Panel, found: Choice | None, goal: float) -> list[str]:
    if found is None:
        return _closest(panel)
    names = averaged(panel.tasks, panel.scored)
    tasks = f"over {len(names)} tasks" if len(names) > 1 else f"on {task_label(names[0])}"
    where = f" (rank {found.rank})" if found.rank is not None else ""
    lost = f"The drop of {found.label}{where} is {points(found.drop.value)} points {tasks}"
    lines = [f"{lost}, 95 % interval {interval(found.drop)}, from a dense score of {points(panel.dense_average)}."]
    if found.model_bytes is not None:
        before, after = found.model_bytes
        lines.append(f"The whole model in float16 goes from {size(before)} to {size(after)}.")
    tried = len([1 for _, point in panel.settings if point.average is not None])
    if tried > 1:
        lines.append(
            f"It is the smallest of {counted(tried, 'setting')} that keeps {exact(goal)}, chosen on the data it is "
            "scored on: expect slightly less on new data."
        )
    return lines


def _closest(panel: Panel) -> list[str]:
    left = [
        (found.value, series, point)
        for series, point in panel.settings
        if (found := panel.retention(point.average)) is not None and point.share < 1
    ]
    if not left:
        return []
    value, series, point = max(left, key=lambda found: found[0])
    return [f"The closest is {series.label}, {point.at}: {kept(value)} at {fraction(point.share)} of the bytes."]


def _about_cautious(found: Choice | None, cautious: Choice | None, goal: float) -> list[str]:
    if found is None:
        return []
    if cautious is None:
        return [f"No setting keeps {exact(goal)} at the worse end of its interval as well."]
    if cautious == found:
        return [f"It keeps {kept(found.retention.low)} even at the worse end of its interval."]
    line = (
        f"To keep {exact(goal)} even at the worse end of the interval, use {cautious.label}, "
        f"at {fraction(cautious.share)} of the bytes."
    )
    return [line]


def _about_low_rank(panel: Panel, found: Choice | None, low_rank: Choice | None, goal: float) -> list[str]:
    if not any(series.key.factored for series in panel.series) or (found is not None and found == low_rank):
        return []
    if low_rank is None:
        return [f"No low-rank setting measured on every task keeps {exact(goal)} by itself."]
    line = (
        f"As two plain matrices, without a kernel for integers, the smallest is {low_rank.label}: "
        f"{kept(low_rank.retention.value)} at {fraction(low_rank.share)} of the bytes."
    )
    return [line]


def _gaps(panel: Panel) -> list[str]:
    partial = [point for _, point in panel.settings if point.average is None]
    if not partial:
        return []
    verb = "has" if len(partial) == 1 else "have"
    return [f"{counted(len(partial), 'setting')} {verb} no average: a task failed or is not finished yet."]


def plain(value: Any) -> Any:
    """A value as JSON can hold it; a number that is not finite is a string.

    >>> plain({"a": (1.5, float("inf"))})
    {'a': [1.5, 'inf']}
    """
    if isinstance(value, dict):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
