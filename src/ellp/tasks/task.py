"""What a task is: its kind, its classes, its texts and its metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ellp.tasks.data import Examples
from ellp.tasks.metrics import METRICS, RESAMPLED

Kind = Literal["classify", "regress", "similarity", "language"]


@dataclass(frozen=True)
class Task:
    """One task. Its score is the mean of its metrics (and of MNLI's two halves), as GLUE's own overall score has it.

    ``kind`` is what the model does: choose a class, say a number, compare two sentence vectors, or predict tokens.
    ``classes`` are the names of the classes, in the order of the labels; ``columns`` are the names that GLUE gives the
    texts, accepted beside sentence1 and sentence2.
    """

    name: str
    kind: Kind
    metrics: tuple[str, ...]
    classes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    pair: bool | None = None
    parts: tuple[str, ...] = ("",)

    @property
    def lower_is_better(self) -> bool:
        return "perplexity" in self.metrics

    @property
    def unit(self) -> float:
        """Metrics between 0 and 1 are told in points, that is hundredths."""
        return 1.0 if self.lower_is_better else 100.0

    def scores(self, examples: Examples, guesses: Any) -> dict[str, float]:
        """Every metric, in points.

        >>> from ellp.tasks.glue import TASKS
        >>> import numpy as np
        >>> examples = Examples([("a",), ("b",), ("c",)], np.array([1.0, 0.0, 1.0]))
        >>> TASKS["sst2"].scores(examples, np.array([1, 0, 1]))
        {'accuracy': 100.0}
        """
        return {
            _label(name, part): self.unit * METRICS[name](examples.labels[rows], guesses[rows])
            for part, rows in examples.slices()
            for name in self.metrics
        }

    def score(self, examples: Examples, guesses: Any) -> float:
        """The mean of the metrics."""
        return mean(self.scores(examples, guesses))

    def resampled_scores(self, labels: Any, guesses: Any, weights: Any) -> Any:
        """The scores of resamples, given how often each example was drawn into each (resamples x examples)."""
        found = [RESAMPLED[name](labels, guesses, weights) for name in self.metrics]
        return self.unit * sum(found) / len(found)


def mean(scores: dict[str, float]) -> float:
    """The score that several metrics make together."""
    return sum(scores.values()) / len(scores)


def _label(metric: str, part: str) -> str:
    return f"{metric}_{part}" if part else metric
