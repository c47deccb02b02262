"""What a record says about the paper's claim, in plain words: does l_1 lose less than l_2 at equal rank?

A pure function of the record: nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

CLAIM = "at equal rank, the l_1 factorization loses less than the l_2 factorization (the SVD)"
MEAN = "mean"


@dataclass(frozen=True)
class Comparison:
    """How many points less than the SVD of the same rank something loses, with a 95 % interval."""

    model: str
    task: str
    keep: float
    gain: float
    low: float
    high: float

    @property
    def outcome(self) -> str:
        """``better`` or ``worse`` where the interval leaves out zero, ``open`` where it does not."""
        return "better" if self.low > 0 else "worse" if self.high < 0 else "open"

    def __str__(self) -> str:
        where = self.task if self.model in ("", self.task) else f"{self.model}, {self.task}"
        spread = f"95 % between {self.low:+.2f} and {self.high:+.2f}"
        return f"{where} at keep {self.keep:g}: {self.gain:+.2f} points ({spread})"


@dataclass(frozen=True)
class Verdict:
    """Where the claim holds, where the opposite does, and where the data cannot tell."""

    claim: str
    better: tuple[Comparison, ...]
    worse: tuple[Comparison, ...]
    open: tuple[Comparison, ...]
    means: tuple[Comparison, ...]
    text: str

    def record(self) -> dict[str, Any]:
        return asdict(self)


def verdict(record: Mapping[str, Any], p: float = 1.0, importance: str = "uniform") -> Verdict | None:
    """The verdict on l_p with an importance against the SVD; None if the record has no such pair.

    >>> found = {"method": "lp", "p": 1.0, "importance": "uniform", "model": "m", "task": "rte", "keep": 0.5}
    >>> said = verdict({"comparisons": [found | {"gain": 2.0, "gain_low": 0.5, "gain_high": 3.5}]})
    >>> said.text.splitlines()[1]
    'Seen: m, rte at keep 0.5: +2.00 points (95 % between +0.50 and +3.50).'
    """
    found = [
        Comparison(row["model"], row["task"], row["keep"], row["gain"], row["gain_low"], row["gain_high"])
        for row in record.get("comparisons", ())
        if row["method"] == "lp"
        and float(row["p"]) == p
        and row["importance"] == importance
        and row.get("against", "svd") == "svd"
    ]
    single, means = ([row for row in found if (row.task == MEAN) == wanted] for wanted in (False, True))
    if not single:
        return None
    claim = (
        CLAIM
        if (p, importance) == (1.0, "uniform")
        else f"at equal rank, l_{p:g} ({importance}) loses less than the SVD"
    )
    parts = {name: tuple(row for row in single if row.outcome == name) for name in ("better", "worse", "open")}
    return Verdict(claim, **parts, means=tuple(means), text=_text(claim, parts, means, len(single)))


def _text(claim: str, parts: Mapping[str, Sequence[Comparison]], means: Sequence[Comparison], count: int) -> str:
    better, worse, unsure = (len(parts[name]) for name in ("better", "worse", "open"))
    lines = [
        f'The claim "{claim}" {_answer(better, worse, count, means)}: it is seen in {better} of {count} '
        f"comparison{'s' * (count > 1)}, and the opposite in {worse or 'none'}"
        + (f"; {_are(unsure)} within what chance does." if unsure else ".")
    ]
    lines += [f"Seen: {row}." for row in parts["better"]]
    lines += [f"Opposite: {row}." for row in parts["worse"]]
    if count >= 10 and better + worse:
        lines.append(f"(Of {count} such intervals, about {count / 20:.0f} leave out zero by chance alone.)")
    if means:
        lines.append(f"In the mean over the tasks: {'; '.join(_mean(row) for row in means)}.")
    return "\n".join(lines)


def _answer(better: int, worse: int, count: int, means: Sequence[Comparison]) -> str:
    """Holds, or not: one comparison in twenty may differ by chance, so that many prove nothing."""
    by_mean = {row.outcome for row in means}
    chance = count / 20
    for_it = better > chance or "better" in by_mean
    against = worse > chance or "worse" in by_mean
    if for_it and against:
        return "holds in some places and fails in others here"
    if for_it:
        return "holds here" if better + len(means) >= count / 2 else "holds in places here"
    return "does not hold here" if against else "is not confirmed here"


def _are(count: int) -> str:
    return "1 is" if count == 1 else f"{count} are"


def _mean(row: Comparison) -> str:
    said = {"better": "less lost", "worse": "more lost", "open": "no difference seen"}[row.outcome]
    return f"keep {row.keep:g}: {row.gain:+.2f} points ({row.low:+.2f} to {row.high:+.2f}, {said})"


def mean_drops(cells: Iterable[Mapping[str, Any]]) -> dict[tuple[Any, ...], float]:
    """The mean drop over tasks of every variant that was measured on as many tasks as any other.

    Keys are (method, p, importance, keep, bytes asked).
    """
    drops: dict[tuple[Any, ...], list[float]] = {}
    for cell in cells:
        if "error" not in cell and "perplexity" not in cell["scores"]:
            drops.setdefault(variant_key(cell), []).append(cell["drop"])
    most = max((len(some) for some in drops.values()), default=0)
    return {key: sum(some) / len(some) for key, some in drops.items() if len(some) == most}


def variant_key(cell: Mapping[str, Any]) -> tuple[Any, ...]:
    """What is the same for all models and tasks on which a variant is measured."""
    return tuple(cell[name] for name in ("method", "p", "importance", "keep", "bytes_asked"))
