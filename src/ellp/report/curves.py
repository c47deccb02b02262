"""The cells of a record put in order: panels of tasks that belong together, series of one method, points along them.

A panel averages over tasks, so it holds each task once: models of one family with one task each (adapters of the same
base, say) share a panel, and models that were measured on the same tasks get one panel each. Perplexities are no
points, so no average counts them.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from ellp.report.read import UNIFORM, Cell, Failure, Run

TASKS = {"cola": "CoLA", "mrpc": "MRPC", "sst2": "SST-2", "stsb": "STS-B", "sts": "STS", "wnli": "WNLI", "rte": "RTE"}
TASKS |= {"qqp": "QQP", "mnli": "MNLI", "qnli": "QNLI", "mnli-m": "MNLI-m", "mnli-mm": "MNLI-mm"}
METHODS = {"svd": "SVD", "fwsvd": "FWSVD", "rounding": "rounding"}
ORDER = ("svd", "fwsvd", "lp")


@dataclass(frozen=True)
class Estimate:
    """A drop in points with its 95 % interval; positive is a loss."""

    value: float
    low: float
    high: float

    @property
    def finite(self) -> bool:
        return all(map(math.isfinite, (self.value, self.low, self.high)))

    @property
    def measurable(self) -> bool:
        """Whether the interval leaves no drop at all out."""
        return not self.low <= 0 <= self.high


@dataclass(frozen=True)
class Key:
    """What a series is: the method without its size. Plain rounding to 8, 4, 3 and 2 bits is one series."""

    method: str
    p: float | None
    importance: str | None

    @property
    def label(self) -> str:
        """
        >>> Key("lp", 1.0, "frequencies").label, Key("svd", None, None).label
        ('p = 1 with frequencies', 'SVD')
        """
        name = METHODS.get(self.method, self.method)
        if self.p is not None:
            name = f"p = {power(self.p)}" if self.method == "lp" else f"{name}, p = {power(self.p)}"
        return name if self.importance is None else f"{name} with {self.importance}"

    @property
    def factored(self) -> bool:
        """Whether the layer becomes two thin matrices, which need no special kernel."""
        return self.method in {"svd", "fwsvd", "lp"}


SVD = Key("svd", None, None)


@dataclass(frozen=True)
class Point:
    """One setting of a series, with what it did to every task; ``average`` only where no task is missing."""

    at: str
    keep: float | None
    rate: float | None
    rank: int | None
    bytes: float
    share: float
    drops: Mapping[str, Estimate]
    cells: Mapping[str, Cell]
    failed: Mapping[str, str]
    average: Estimate | None

    def drop(self, task: str | None) -> Estimate | None:
        return self.average if task is None else self.drops.get(task)


@dataclass(frozen=True)
class Series:
    key: Key
    points: tuple[Point, ...]

    @property
    def label(self) -> str:
        return self.key.label


@dataclass(frozen=True)
class Panel:
    """Tasks (each of one model) and the series measured on them. ``dense`` are the scores before."""

    name: str
    family: str
    layers: str
    tasks: Mapping[str, str]
    models: Mapping[str, Mapping[str, Any]]
    dense: Mapping[str, float]
    series: tuple[Series, ...]
    scored: tuple[str, ...]

    @property
    def perplexity(self) -> bool:
        """Whether the average is one of perplexities, which rise where scores drop."""
        return bool(self.tasks) and not self.scored

    @property
    def dense_average(self) -> float:
        """The mean dense score of the tasks that the average is over; NaN where one is unknown."""
        scores = [self.dense.get(task, math.nan) for task in averaged(self.tasks, self.scored)]
        return sum(scores) / len(scores) if scores else math.nan

    @property
    def settings(self) -> list[tuple[Series, Point]]:
        return [(series, point) for series in self.series for point in series.points]

    def find(self, key: Key) -> Series | None:
        return next((series for series in self.series if series.key == key), None)

    def retention(self, drop: Estimate | None) -> Estimate | None:
        """The share of the dense average that is left; ``low`` is the worse end."""
        if drop is None or not drop.finite or not self.dense_average > 0:
            return None
        return Estimate(*(1 - part / self.dense_average for part in (drop.value, drop.high, drop.low)))


def averaged(tasks: Iterable[str], scored: Sequence[str]) -> list[str]:
    """The tasks that an average is over: those with scores, or all where none has."""
    return list(scored or tasks)


def combined(drops: Iterable[Estimate]) -> Estimate:
    """The mean of several tasks' drops; intervals are combined as those of independent measurements.

    >>> combined([Estimate(1.0, 0.0, 2.0)] * 4)
    Estimate(value=1.0, low=0.5, high=1.5)
    """
    every = list(drops)
    count = len(every)
    mean = sum(drop.value for drop in every) / count
    if not all(drop.finite for drop in every):
        return Estimate(mean, mean, mean)
    below = math.sqrt(sum((drop.value - drop.low) ** 2 for drop in every)) / count
    above = math.sqrt(sum((drop.high - drop.value) ** 2 for drop in every)) / count
    return Estimate(mean, mean - below, mean + above)


def power(p: float | None) -> str:
    """A norm's p for a person."""
    return "-" if p is None else "∞" if math.isinf(p) else f"{p:g}"


def task_label(task: str) -> str:
    return TASKS.get(task.lower(), task)


# Panels ---------------------------------------------------------------------------------------------------------------


def panels(run: Run) -> tuple[Panel, ...]:
    """A record in order, in the order of its models and tasks."""
    every: list[Cell | Failure] = [*run.cells, *run.failures]
    cells: dict[str, list[Cell | Failure]] = defaultdict(list)
    for cell in every:
        cells[cell.model].append(cell)
    facts = {str(model.get("key")): model for model in run.models}
    keys = [*facts, *(key for key in cells if key not in facts)]
    tasks = {key: _tasks(run, facts.get(key, {}), cells[key]) for key in keys}
    groups = _groups(keys, facts, tasks)
    return tuple(panel for group in groups for panel in _panels_of(group, facts, tasks, cells))


def _tasks(run: Run, model: Mapping[str, Any], cells: list[Cell | Failure]) -> list[str]:
    order = [str(task) for task in run.facts.get("tasks") or ()]
    found = dict.fromkeys([*(model.get("dense") or ()), *(cell.task for cell in cells)])
    return sorted((str(task) for task in found if task), key=lambda task: order.index(task) if task in order else 99)


def _groups(keys: list[str], facts: Mapping[str, Any], tasks: Mapping[str, list[str]]) -> list[list[str]]:
    alike: dict[Any, list[str]] = {}
    for key in keys:
        model = facts.get(key, {})
        shapes = sorted((layer.get("rows", 0), layer.get("columns", 0)) for layer in model.get("layers") or ())
        alike.setdefault((model.get("family", ""), model.get("architecture"), *shapes), []).append(key)
    groups = []
    for together in alike.values():
        every = [task for key in together for task in tasks[key]]
        groups += [together] if len(every) == len(set(every)) else [[key] for key in together]
    return groups


def _panels_of(
    group: list[str],
    facts: Mapping[str, Any],
    tasks: Mapping[str, list[str]],
    cells: Mapping[str, list[Cell | Failure]],
) -> list[Panel]:
    owner = {task: key for key in group for task in tasks[key]}
    every = [cell for key in group for cell in cells[key]]
    dense = {task: _dense(facts.get(key, {}), task, every) for task, key in owner.items()}
    known = {task: score for task, score in dense.items() if score is not None}
    models = {key: facts.get(key, {}) for key in group}
    languages = {cell.task for cell in every if isinstance(cell, Cell) and "perplexity" in cell.scores}
    scored = tuple(task for task in owner if task not in languages)
    family = str(facts.get(group[0], {}).get("family") or "")
    name = family or _name([str(facts.get(key, {}).get("name") or key) for key in group])
    patterns = list(dict.fromkeys(cell.layers for cell in every)) or [""]
    found = []
    for layers in patterns:
        title = name if len(patterns) == 1 else f"{name}: {layers}"
        series = _series([cell for cell in every if cell.layers == layers], averaged(owner, scored))
        found.append(Panel(title, family, layers, owner, models, known, series, scored))
    return found


def _name(names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    shared = re.sub(r"[\W_]+$", "", "".join(letters[0] for letters in alike))
    return f"{shared} ({len(names)} models)" if len(shared) >= 3 else f"{len(names)} models, one per task"


def _dense(model: Mapping[str, Any], task: str, cells: list[Cell | Failure]) -> float | None:
    try:
        return float(model["dense"][task]["score"])
    except (KeyError, TypeError, ValueError):
        same = (cell for cell in cells if isinstance(cell, Cell) and cell.task == task)
        first = next((cell for cell in same if "perplexity" not in cell.scores), None)
        return None if first is None else first.score + first.drop


# Series ---------------------------------------------------------------------------------------------------------------


def key_of(cell: Cell | Failure) -> Key:
    """The series of a cell."""
    return key(cell.method, cell.p, cell.importance)


def key(method: str, p: float | None, importance: str | None) -> Key:
    """The series of a method; the p = 2 of the SVD and the Fisher weights of FWSVD are its own and not named.

    >>> key("int4", None, None), key("svd", 2.0, "uniform")
    (Key(method='rounding', p=None, importance=None), Key(method='svd', p=None, importance=None))
    """
    weights = None if method == "fwsvd" or importance == UNIFORM else importance
    name = "rounding" if re.fullmatch(r"int\d+", method) else method
    return Key(name, None if name in METHODS else p, weights)


def _series(cells: list[Cell | Failure], tasks: list[str]) -> tuple[Series, ...]:
    found: dict[Key, dict[str, list[Cell | Failure]]] = {}
    for cell in cells:
        found.setdefault(key_of(cell), {}).setdefault(_at(cell), []).append(cell)
    series = []
    for key, places in found.items():
        points = [point for at, group in places.items() if (point := _point(at, group, tasks)) is not None]
        series.append(Series(key, tuple(sorted(points, key=lambda point: -point.share))))
    return tuple(sorted((one for one in series if one.points), key=lambda one: series_order(one.key)))


def series_order(key: Key) -> tuple[Any, ...]:
    """The place of a series among the others: the baselines first, rounding last."""
    place = ORDER.index(key.method) if key.method in ORDER else len(ORDER) + (key.method == "rounding")
    return (place, key.importance is not None, key.importance or "", key.p if key.p is not None else -1.0, key.method)


def _at(cell: Cell | Failure) -> str:
    if re.fullmatch(r"int\d+", cell.method):
        return cell.method
    if cell.keep is not None:
        return f"keep {cell.keep:.4g}"
    if cell.asked is not None:
        return f"bytes {cell.asked:.4g}"
    return f"bytes {cell.bytes_share:.3g}" if isinstance(cell, Cell) else cell.id


def _point(at: str, group: list[Cell | Failure], tasks: list[str]) -> Point | None:
    cells = {cell.task: cell for cell in group if isinstance(cell, Cell)}
    failed = {cell.task: cell.error for cell in group if isinstance(cell, Failure) and cell.task not in cells}
    if not cells:
        return None
    drops = {task: Estimate(cell.drop, cell.low, cell.high) for task, cell in cells.items()}
    some = next(iter(cells.values()))
    share = sum(cell.bytes_share for cell in cells.values()) / len(cells)
    rate = some.rate if some.rate is not None else None if some.keep is None else 1 - some.keep
    whole = combined(drops[task] for task in tasks) if all(task in drops for task in tasks) else None
    return Point(at, some.keep, rate, some.rank, some.bytes, share, drops, cells, failed, whole)
