"""The official metrics: once on all examples (by scikit-learn and scipy), and on many resamples at a time.

A resample of n examples is how often each was drawn, ``weights`` (resamples x n). Every metric here is a function of
such counts, so a thousand resamples are a few matrix products; with all counts one they equal the official metrics.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from ellp.errors import InputError

Metric = Callable[[Any, Any], float]
Resampled = Callable[[Any, Any, Any], Any]


def _accuracy(labels: Any, guesses: Any) -> float:
    return float(np.mean(labels == guesses))


def _f1(labels: Any, guesses: Any) -> float:
    return float(_library("sklearn.metrics").f1_score(labels, guesses, zero_division=0.0))


def _macro_f1(labels: Any, guesses: Any) -> float:
    return float(_library("sklearn.metrics").f1_score(labels, guesses, average="macro", zero_division=0.0))


def _matthews(labels: Any, guesses: Any) -> float:
    with warnings.catch_warnings():  # one class alone is no mistake of the caller's
        warnings.simplefilter("ignore")
        return float(_library("sklearn.metrics").matthews_corrcoef(labels, guesses))


def _pearson(labels: Any, guesses: Any) -> float:
    return _correlation("pearsonr", labels, guesses)


def _spearman(labels: Any, guesses: Any) -> float:
    return _correlation("spearmanr", labels, guesses)


def _correlation(name: str, labels: Any, guesses: Any) -> float:
    with warnings.catch_warnings():  # constant guesses have no correlation, which counts as none
        warnings.simplefilter("ignore")
        return float(np.nan_to_num(getattr(_library("scipy.stats"), name)(labels, guesses)[0]))


def _perplexity(counts: Any, losses: Any) -> float:
    return float(np.exp(np.sum(losses) / np.sum(counts)))


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        package = {"sklearn": "scikit-learn"}.get(name.partition(".")[0], name.partition(".")[0])
        raise InputError(f"need {package} for this task's metric, got none: pip install 'ellp[eval]'") from None


METRICS: dict[str, Metric] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "macro_f1": _macro_f1,
    "matthews": _matthews,
    "pearson": _pearson,
    "spearman": _spearman,
    "perplexity": _perplexity,
}


# On resamples ---------------------------------------------------------------------------------------------------------


def _accuracies(labels: Any, guesses: Any, weights: Any) -> Any:
    return weights @ (labels == guesses) / weights.sum(axis=1)


def _class_counts(labels: Any, guesses: Any, weights: Any) -> tuple[Any, Any, Any]:
    """Per resample and class: right guesses, labels, guesses."""
    classes = np.union1d(labels, guesses)
    true, said = labels[:, None] == classes, guesses[:, None] == classes
    return weights @ (true & said), weights @ true, weights @ said


def _f1s(labels: Any, guesses: Any, weights: Any) -> Any:
    true, said = labels == 1, guesses == 1
    return _ratio(2 * (weights @ (true & said)), weights @ true + weights @ said)


def _macro_f1s(labels: Any, guesses: Any, weights: Any) -> Any:
    right, true, said = _class_counts(labels, guesses, weights)
    return _ratio(2 * right, true + said).sum(axis=1) / (true + said > 0).sum(axis=1)


def _matthews_many(labels: Any, guesses: Any, weights: Any) -> Any:
    right, true, said = _class_counts(labels, guesses, weights)
    total = weights.sum(axis=1)
    above = right.sum(axis=1) * total - (true * said).sum(axis=1)
    below = np.sqrt(total**2 - (true**2).sum(axis=1)) * np.sqrt(total**2 - (said**2).sum(axis=1))
    return _ratio(above, below)


def _pearsons(labels: Any, guesses: Any, weights: Any) -> Any:
    return _weighted_correlation(labels[None], guesses[None], weights)


def _spearmans(labels: Any, guesses: Any, weights: Any) -> Any:
    return _weighted_correlation(_ranks(labels, weights), _ranks(guesses, weights), weights)


def _ranks(values: Any, weights: Any) -> Any:
    """Each example's mean rank within each resample: those drawn below it, and half of those that equal it."""
    _, group = np.unique(values, return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    drawn = np.add.reduceat(weights[:, order], starts, axis=1)
    return (drawn.cumsum(axis=1) - drawn / 2)[:, group]


def _weighted_correlation(one: Any, other: Any, weights: Any) -> Any:
    total = weights.sum(axis=1, keepdims=True)
    one, other = (side - (weights * side).sum(axis=1, keepdims=True) / total for side in (one, other))
    sizes = [np.sqrt((weights * side**2).sum(axis=1)) for side in (one, other)]
    return _ratio((weights * one * other).sum(axis=1), sizes[0] * sizes[1])


def _perplexities(counts: Any, losses: Any, weights: Any) -> Any:
    return np.exp((weights @ losses) / (weights @ counts))


def _ratio(above: Any, below: Any) -> Any:
    """A quotient that is zero where nothing is below."""
    return np.divide(above, below, out=np.zeros_like(above, dtype=float), where=below > 1e-12)


RESAMPLED: dict[str, Resampled] = {
    "accuracy": _accuracies,
    "f1": _f1s,
    "macro_f1": _macro_f1s,
    "matthews": _matthews_many,
    "pearson": _pearsons,
    "spearman": _spearmans,
    "perplexity": _perplexities,
}
