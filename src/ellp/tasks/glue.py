"""The GLUE tasks: their classes, whether they compare two texts, and their official metrics."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Metric = Callable[[Any, Any], float]


def _accuracy(labels: Any, guesses: Any) -> float:
    return float(np.mean(labels == guesses))


def _f1(labels: Any, guesses: Any) -> float:
    from sklearn.metrics import f1_score

    return float(f1_score(labels, guesses, zero_division=0.0))


def _matthews(labels: Any, guesses: Any) -> float:
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(labels, guesses))


def _pearson(labels: Any, guesses: Any) -> float:
    return _correlation("pearsonr", labels, guesses)


def _spearman(labels: Any, guesses: Any) -> float:
    return _correlation("spearmanr", labels, guesses)


def _correlation(name: str, labels: Any, guesses: Any) -> float:
    from scipy import stats

    with warnings.catch_warnings():  # constant guesses have no correlation, which counts as none
        warnings.simplefilter("ignore")
        return float(np.nan_to_num(getattr(stats, name)(labels, guesses)[0]))


METRICS: dict[str, Metric] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "matthews": _matthews,
    "pearson": _pearson,
    "spearman": _spearman,
}


@dataclass(frozen=True)
class Task:
    """One task. ``classes`` is None for a regression; the score is the mean of the metrics, in points."""

    name: str
    metrics: tuple[str, ...]
    classes: tuple[str, ...] | None
    pair: bool | None

    def scores(self, labels: Any, guesses: Any) -> dict[str, float]:
        """Every metric, in points (hundredths)."""
        return {name: 100 * METRICS[name](labels, guesses) for name in self.metrics}

    def score(self, labels: Any, guesses: Any) -> float:
        values = self.scores(labels, guesses)
        return sum(values.values()) / len(values)


_ENTAILMENT = ("entailment", "not_entailment")

TASKS = {
    task.name: task
    for task in (
        Task("cola", ("matthews",), ("unacceptable", "acceptable"), pair=False),
        Task("sst2", ("accuracy",), ("negative", "positive"), pair=False),
        Task("mrpc", ("accuracy", "f1"), ("not_equivalent", "equivalent"), pair=True),
        Task("stsb", ("pearson", "spearman"), None, pair=True),
        Task("qqp", ("accuracy", "f1"), ("not_duplicate", "duplicate"), pair=True),
        Task("mnli", ("accuracy",), ("entailment", "neutral", "contradiction"), pair=True),
        Task("qnli", ("accuracy",), _ENTAILMENT, pair=True),
        Task("rte", ("accuracy",), _ENTAILMENT, pair=True),
        Task("wnli", ("accuracy",), ("not_entailment", "entailment"), pair=True),
        Task("sts", ("spearman",), None, pair=True),  # a sentence encoder's cosine, nothing trained
    )
}
