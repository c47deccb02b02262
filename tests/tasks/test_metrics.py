"""Metrics on counted resamples are the official ones on the examples written out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("sklearn")
pytest.importorskip("scipy")

from ellp import InputError
from ellp.tasks import metrics
from ellp.tasks.metrics import METRICS, RESAMPLED


def drawn(generator: np.random.Generator, count: int, resamples: int = 4) -> np.ndarray:
    return generator.multinomial(count, np.full(count, 1 / count), size=resamples).astype(float)


def check(name: str, labels: np.ndarray, guesses: np.ndarray, weights: np.ndarray) -> None:
    found = RESAMPLED[name](labels, guesses, weights)
    for value, counts in zip(found, weights.astype(int), strict=True):
        wanted = METRICS[name](np.repeat(labels, counts), np.repeat(guesses, counts))
        assert value == pytest.approx(wanted, abs=1e-9), name


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(2, 60), classes=st.integers(2, 5))
@pytest.mark.parametrize("name", ["accuracy", "macro_f1", "matthews"])
def test_class_metrics(name: str, seed: int, count: int, classes: int) -> None:
    generator = np.random.default_rng(seed)
    labels, guesses = (generator.integers(classes, size=count).astype(float) for _ in range(2))
    check(name, labels, guesses, drawn(generator, count))


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 60))
def test_f1_of_two_classes(seed: int, count: int) -> None:
    generator = np.random.default_rng(seed)
    labels, guesses = (generator.integers(2, size=count).astype(float) for _ in range(2))
    check("f1", labels, guesses, drawn(generator, count))


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(4, 60), ties=st.booleans())
@pytest.mark.parametrize("name", ["pearson", "spearman"])
def test_correlations(name: str, seed: int, count: int, ties: bool) -> None:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 6, count) / 2 if ties else generator.standard_normal(count)
    guesses = labels + generator.standard_normal(count)
    if ties:
        guesses = guesses.round()
    check(name, labels, guesses, drawn(generator, count))


def test_perplexity_weighs_stretches_by_their_tokens() -> None:
    generator = np.random.default_rng(0)
    counts, losses = generator.integers(1, 50, 30).astype(float), generator.random(30) * 40
    check("perplexity", counts, losses, drawn(generator, 30))


@pytest.mark.parametrize("name", ["matthews", "pearson", "spearman", "f1"])
def test_what_is_constant_scores_nothing(name: str) -> None:
    labels, guesses = np.array([0.0, 1.0, 1.0, 0.0]), np.zeros(4)
    check(name, labels, guesses, np.array([[1.0, 1, 1, 1], [4, 0, 0, 0], [0, 2, 2, 0]]))
    assert METRICS[name](labels, guesses) == 0


def test_correlations_far_from_zero_keep_their_digits() -> None:
    generator = np.random.default_rng(0)
    labels = 1e6 + generator.standard_normal(50)
    weights = drawn(generator, 50)
    found = RESAMPLED["pearson"](labels, labels + 1, weights)
    assert found == pytest.approx(np.ones(4))


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(metrics.importlib, "import_module", gone)
    with pytest.raises(InputError, match=r"need scikit-learn .* pip install 'ellp\[eval\]'"):
        METRICS["matthews"](np.zeros(2), np.zeros(2))
