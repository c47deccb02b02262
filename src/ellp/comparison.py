"""Two models' answers to the same examples: the drop, how sure it is, and which answers changed."""

from __future__ import annotations

from typing import Any

import numpy as np

from ellp.errors import InputError
from ellp.predict import Prepared
from ellp.tasks.data import Examples
from ellp.tasks.task import Task, mean

RESAMPLES = 1000
BLOCK = 2**22  # numbers of a block of resamples: 32 MB
SHOWN = 5


def compare(prepared: Prepared, dense: Any, small: Any, seed: int = 0) -> dict[str, Any]:
    """Scores of ``small`` and of ``dense``, the drop with its 95 % interval, and the answers that changed."""
    task, examples = prepared.task, prepared.examples
    scores, against = task.scores(examples, small), task.scores(examples, dense)
    low, high = interval(paired_drops(task, examples, dense, small, seed=seed))
    return {
        "scores": scores,
        "score": mean(scores),
        "against_scores": against,
        "against_score": mean(against),
        "drop": drop(task, mean(against), mean(scores)),
        "drop_low": low,
        "drop_high": high,
        "changed": changed(task, examples, dense, small),
    }


def drop(task: Task, dense: Any, small: Any) -> Any:
    """What was lost, positive when the small model is worse: points, or perplexity."""
    return small - dense if task.lower_is_better else dense - small


def paired_drops(
    task: Task, examples: Examples, dense: Any, small: Any, resamples: int = RESAMPLES, seed: int = 0
) -> Any:
    """The drops seen when the examples are drawn again with replacement, the same ones for both models.

    Only how often each different (label, answer, answer) is drawn matters; those counts are multinomial. MNLI's halves
    are drawn apart.

    >>> from ellp.tasks.glue import TASKS
    >>> examples = Examples([("text",)] * 100, np.ones(100))
    >>> float(paired_drops(TASKS["sst2"], examples, np.ones(100), np.zeros(100)).mean())
    100.0
    """
    generator = np.random.default_rng(seed)
    found = []
    for _, rows in examples.slices():
        triples = np.stack([examples.labels[rows], dense[rows], small[rows]], axis=1).astype(float)
        unique, counts = np.unique(triples, axis=0, return_counts=True)
        labels, before, after = unique.T
        block = max(1, BLOCK // len(unique))
        drops = []
        for first in range(0, resamples, block):
            size = min(block, resamples - first)
            weights = generator.multinomial(counts.sum(), counts / counts.sum(), size=size).astype(float)
            scores = (task.resampled_scores(labels, answers, weights) for answers in (before, after))
            drops.append(drop(task, *scores))
        found.append(np.concatenate(drops))
    return sum(found) / len(found)


def check_seed(seed: int) -> None:
    """A seed that every library used here takes."""
    if not 0 <= seed < 2**32:
        raise InputError(f"need a seed from 0 to {2**32 - 1}, got {seed}: 0 is the default")


def interval(drops: Any) -> tuple[float, float]:
    """The middle 95 % of resampled drops."""
    low, high = np.quantile(drops, (0.025, 0.975))
    return float(low), float(high)


def changed(task: Task, examples: Examples, dense: Any, small: Any) -> dict[str, Any]:
    """How many answers changed, and the first or the most changed few by their texts."""
    moved = np.abs(np.asarray(dense, dtype=float) - np.asarray(small, dtype=float))
    if task.kind == "language":
        moved = moved / examples.labels
    if task.kind == "classify":
        moved = (moved > 0).astype(float)
    order = np.argsort(-moved, kind="stable")
    shown = [int(index) for index in order[:SHOWN] if moved[index] > 0]
    counted = task.kind == "classify"
    return {
        "count": int(moved.sum()) if counted else None,
        "mean_change": None if counted else float(moved.mean()),
        "examples": [_shown(task, examples, dense, small, index) for index in shown],
    }


def _shown(task: Task, examples: Examples, dense: Any, small: Any, index: int) -> dict[str, Any]:
    def named(value: Any) -> Any:
        return task.classes[int(value)] if task.kind == "classify" else float(value)

    return {
        "texts": list(examples.texts[index]),
        "label": named(examples.labels[index]),
        "before": named(dense[index]),
        "after": named(small[index]),
    }
