"""The interval of a drop is that of a bootstrap over examples, whatever the metric."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("scipy")

from ellp.comparison import changed, interval, paired_drops
from ellp.tasks.data import Examples
from ellp.tasks.glue import TASKS
from ellp.tasks.metrics import METRICS


def made(name: str, count: int, seed: int = 0) -> tuple[Examples, Any, Any]:
    """Labels, and the answers of a good and of a worse model."""
    generator = np.random.default_rng(seed)
    task = TASKS[name]
    if task.kind == "regress":
        labels = generator.integers(0, 26, count) / 5
        answers = [labels + generator.standard_normal(count) * noise for noise in (1.0, 1.5)]
    else:
        labels = generator.integers(len(task.classes), size=count).astype(float)
        wrong = (labels + 1) % len(task.classes)
        answers = [np.where(generator.random(count) < right, labels, wrong) for right in (0.9, 0.8)]
    return Examples([("text",)] * count, labels), answers[0], answers[1]


@pytest.mark.parametrize("name", ["sst2", "mrpc", "cola", "stsb"])
def test_drops_are_spread_as_those_of_examples_drawn_one_by_one(name: str) -> None:
    examples, dense, small = made(name, 200)
    task, generator = TASKS[name], np.random.default_rng(7)
    slow = []
    for _ in range(100):
        drawn = generator.integers(200, size=200)
        values = [
            np.mean([100 * METRICS[metric](examples.labels[drawn], side[drawn]) for metric in task.metrics])
            for side in (dense, small)
        ]
        slow.append(values[0] - values[1])
    fast = paired_drops(task, examples, dense, small, resamples=2000)
    error = np.std(slow) / 100**0.5
    assert abs(fast.mean() - np.mean(slow)) < 5 * error
    assert np.std(fast) == pytest.approx(np.std(slow), rel=0.3)
    low, high = interval(fast)
    assert low < task.score(examples, dense) - task.score(examples, small) < high


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """The true drop of accuracy is 10 points; 95 % intervals should hold it in 88 to 100 of a hundred draws."""
    held = 0
    for seed in range(100):
        low, high = interval(paired_drops(TASKS["sst2"], *made("sst2", 150, seed), resamples=300))
        held += low <= 10 <= high
    assert 88 <= held <= 100


def test_the_same_answers_lose_nothing() -> None:
    for name in ("mrpc", "stsb"):
        examples, dense, _ = made(name, 50)
        assert interval(paired_drops(TASKS[name], examples, dense, dense)) == (0, 0)
        assert not changed(TASKS[name], examples, dense, dense)["examples"]


def test_the_seed_decides() -> None:
    examples, dense, small = made("stsb", 50)
    first, again, other = (paired_drops(TASKS["stsb"], examples, dense, small, seed=seed) for seed in (0, 0, 1))
    assert (first == again).all() and (first != other).any()


def test_mnlis_halves_are_drawn_apart() -> None:
    labels = np.zeros(40)
    examples = Examples([("a", "b")] * 40, labels, (("matched", 30), ("mismatched", 10)))
    small = np.where(np.arange(40) < 30, 0.0, 1.0)  # all wrong on the second half, which counts half of the score
    drops = paired_drops(TASKS["mnli"], examples, labels, small)
    assert (drops == 50).all()


def test_a_rise_of_perplexity_is_a_drop() -> None:
    counts = np.full(30, 10.0)
    dense = 10 * np.log(np.random.default_rng(0).uniform(5, 10, 30))
    drops = paired_drops(TASKS["perplexity"], Examples([("text",)] * 30, counts), dense, dense + 1)
    assert (drops > 0).all()


def test_a_large_task_takes_no_longer_than_a_moment() -> None:
    examples, dense, small = made("qqp", 40_000)
    start = time.perf_counter()
    paired_drops(TASKS["qqp"], examples, dense, small)
    assert time.perf_counter() - start < 2


def test_changed_answers_are_counted_and_shown() -> None:
    examples = Examples([("one",), ("two",), ("three",)], np.array([1.0, 1.0, 0.0]))
    found = changed(TASKS["sst2"], examples, np.array([1, 1, 0]), np.array([1, 0, 0]))
    assert found["count"] == 1 and found["mean_change"] is None
    assert found["examples"] == [{"texts": ["two"], "label": "positive", "before": "positive", "after": "negative"}]
    moved = changed(TASKS["stsb"], examples, np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.5, 5.0]))
    assert moved["count"] is None and moved["mean_change"] == pytest.approx(2.5 / 3)
    assert [example["texts"] for example in moved["examples"]] == [["three"], ["two"]]
