"""Two methods at equal rank, on the same examples: how much less one of them loses, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ellp.comparison import drop, interval, paired_drops
from ellp.sweep.bench import answers_name, dense_name
from ellp.sweep.cache import Cache
from ellp.tasks.data import Examples
from ellp.tasks.task import Task, mean

BASELINE = "svd"
SQUARES = "p=2"  # the same importances at p = 2
SETTING = ("method", "p", "importance", "keep")
ALL = "mean"  # the name of the mean over tasks


def comparisons(cells: Mapping[str, Mapping[str, Any]], cache: Cache, seed: int) -> list[dict[str, Any]]:
    """Every low-rank cell beside the plain SVD of the same rank, and every l_p beside l_2 with the same importances.

    By task and in the mean over tasks. ``gain`` is how many points less than the other a method loses; its 95 %
    interval comes from drawing the examples again, the same ones for both. Tasks are drawn apart.
    """
    found: list[dict[str, Any]] = []
    resampled: dict[tuple[Any, ...], list[tuple[float, Any]]] = {}
    for cell, base, against in _pairs(cells):
        answers = _answers(cache, cell, base)
        if answers is None:
            continue
        task, examples, one, other = answers
        gains = paired_drops(task, examples, one, other, seed=_seed(seed, cell["task"]))
        gain = drop(task, mean(task.scores(examples, one)), mean(task.scores(examples, other)))
        facts = {name: cell[name] for name in SETTING} | {"against": against}
        found.append(_told(facts | {"model": cell["model"], "task": cell["task"]}, gain, gains))
        if not task.lower_is_better:
            key = (_family(cell), *facts.values())
            resampled.setdefault(key, []).append((gain, gains))
    for (family, *values), parts in resampled.items():
        if len(parts) > 1:
            facts = dict(zip((*SETTING, "against"), values, strict=True))
            gain = sum(part for part, _ in parts) / len(parts)
            gains = sum(part for _, part in parts) / len(parts)
            found.append(_told(facts | {"model": family, "task": ALL, "tasks": len(parts)}, gain, gains))
    return found


def _pairs(
    cells: Mapping[str, Mapping[str, Any]],
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any], str]]:
    """Cells, each with those it is compared with: of the same model, task, layers and rank."""

    def place(cell: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(cell[name] for name in ("model", "task", "layers", "keep"))

    measured = [cells[name] for name in sorted(cells) if "error" not in cells[name]]
    bases = {place(cell): cell for cell in measured if cell["method"] == BASELINE}
    squares = {(cell["importance"], *place(cell)): cell for cell in measured if _is_lp(cell) and cell["p"] == 2}
    for cell in measured:
        if cell["keep"] is None or cell["method"] == BASELINE:
            continue
        if (base := bases.get(place(cell))) is not None:
            yield cell, base, BASELINE
        if _is_lp(cell) and cell["p"] != 2 and (other := squares.get((cell["importance"], *place(cell)))) is not None:
            yield cell, other, SQUARES


def _is_lp(cell: Mapping[str, Any]) -> bool:
    return bool(cell["method"] == "lp")


def _answers(cache: Cache, cell: Mapping[str, Any], base: Mapping[str, Any]) -> tuple[Task, Examples, Any, Any] | None:
    """The task, its examples' labels, and the answers behind a cell and the one it is compared with, if kept."""
    dense, *both = (
        cache.find(name)
        for name in (dense_name(cell["model"], cell["task"]), answers_name(base["id"]), answers_name(cell["id"]))
    )
    if dense is None or both[0] is None or both[1] is None:
        return None
    tensors, facts = dense
    told: dict[str, Any] = facts["task"]
    rebuilt: Any = Task
    task = rebuilt(**{name: tuple(value) if isinstance(value, list) else value for name, value in told.items()})
    labels = tensors["labels"].numpy()
    examples = Examples([("",)] * len(labels), labels, tuple((name, count) for name, count in facts["parts"]))
    svd, other = (part[0]["answers"].numpy() for part in both if part is not None)
    return task, examples, other, svd


def _told(facts: dict[str, Any], gain: float, gains: Any) -> dict[str, Any]:
    low, high = interval(gains)
    return facts | {"gain": gain, "gain_low": low, "gain_high": high}


def _family(cell: Mapping[str, Any]) -> str:
    """Models of one task each belong together, as do the tasks of one model: what stands before the task's name."""
    model, task = str(cell["model"]), str(cell["task"])
    return "" if model == task else model.removesuffix(f":{task}")


def _seed(seed: int, task: str) -> int:
    """A seed of its own for each task, so that tasks are drawn apart."""
    return int(np.random.SeedSequence([seed, *task.encode()]).generate_state(1)[0])
