"""Refinement never raises its objective, and lowers it where there is something to gain."""

import math

import laws
import pytest
import torch
from torch import Tensor

import ellp

POWERS = [0.5, 1.0, 1.5, 2.0, 3.0]


def spiked(dtype: torch.dtype = torch.float64) -> Tensor:
    """Rank 2 and a little noise, with one entry in twenty-five far off."""
    A = laws.draw(120, 2) @ laws.draw(2, 8, seed=1) + 0.05 * laws.draw(120, 8, seed=2)
    off = laws.chances(120, 8, seed=3) < 0.04
    return torch.where(off, A + 10 * laws.draw(120, 8, seed=4), A).to(dtype)


def with_outlying_rows() -> Tensor:
    A = laws.draw(150, 2) @ laws.draw(2, 8, seed=1) + 0.05 * laws.draw(150, 8, seed=2)
    A[::15] = 6 * laws.draw(10, 8, seed=5)
    return A


VARIANTS = {
    "plain": (None, None),
    "importance": (laws.importances(120) + 0.01, None),
    "metric": (None, laws.metric_factor(8)),
    "both": (laws.importances(120), laws.metric_factor(8)),
}


@pytest.mark.parametrize("p", POWERS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_entries_lower_the_entrywise_error(p: float, variant: str) -> None:
    c, S = VARIANTS[variant]
    A = spiked()
    plain, refined = (ellp.factorize(A, 2, p, c, S, refine=refine) for refine in (None, "entries"))
    before, after = (laws.entry_error(A, found.left, found.right, p, c, S) for found in (plain, refined))
    assert after <= before * (1 + 1e-9)
    assert refined.certificate.error == pytest.approx(after, rel=1e-8)
    laws.assert_bounded(refined.certificate)
    if p <= 1:
        assert after < 0.95 * before


@pytest.mark.parametrize("p", POWERS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_lower_the_row_error(p: float, variant: str) -> None:
    c, S = VARIANTS[variant]
    A = with_outlying_rows()[:120]
    plain, refined = (ellp.factorize(A, 2, p, c, S, refine=refine) for refine in (None, "rows"))
    before, after = (laws.row_error(A, found.left, found.right, p, c, S) for found in (plain, refined))
    assert after <= before * (1 + 1e-9)
    laws.assert_bounded(refined.certificate)
    right = refined.right if S is None else refined.right @ S
    torch.testing.assert_close(right @ right.T, torch.eye(2, dtype=torch.float64), atol=1e-9, rtol=0)


@pytest.mark.parametrize("p", [0.5, 1.0])
def test_rows_gain_from_a_bad_start(p: float) -> None:
    """The SVD's axes follow the outlying rows; refinement brings them back."""
    A = with_outlying_rows()
    plain, refined = (ellp.factorize(A, 2, p, method="svd", refine=refine) for refine in (None, "rows"))
    before, after = (laws.row_error(A, found.left, found.right, p) for found in (plain, refined))
    assert after < 0.99 * before


@pytest.mark.parametrize("refine", ["entries", "rows"])
def test_at_p_2_there_is_nothing_to_gain(refine: str) -> None:
    A, c, S = spiked(), *VARIANTS["both"]
    plain, refined = (ellp.factorize(A, 2, 2.0, c, S, refine=choice) for choice in (None, refine))
    assert refined.certificate.error == pytest.approx(plain.certificate.error, rel=1e-6)


@pytest.mark.parametrize("refine", ["entries", "rows"])
@pytest.mark.parametrize("dtype", laws.DTYPES)
def test_every_precision(refine: str, dtype: torch.dtype) -> None:
    A = spiked(dtype)
    measure = laws.entry_error if refine == "entries" else laws.row_error
    plain, refined = (ellp.factorize(A, 2, refine=choice) for choice in (None, refine))
    assert refined.left.dtype == refined.right.dtype == dtype
    slack = 1e-2 if dtype.itemsize == 2 else 1e-5
    assert measure(A, refined.left, refined.right, 1.0) <= measure(A, plain.left, plain.right, 1.0) * (1 + slack)


@pytest.mark.parametrize("refine", ["entries", "rows"])
def test_a_wide_matrix(refine: str) -> None:
    A = spiked().T.contiguous()
    c, S = laws.importances(8) + 0.1, laws.metric_factor(120)
    plain, refined = (ellp.factorize(A, 2, 1.0, c, S, refine=choice) for choice in (None, refine))
    laws.assert_bounded(refined.certificate)
    assert refined.certificate.error == pytest.approx(
        laws.entry_error(A, refined.left, refined.right, 1.0, c, S), rel=1e-8
    )
    if refine == "entries":
        assert refined.certificate.error < plain.certificate.error


@pytest.mark.parametrize("refine", ["entries", "rows"])
@pytest.mark.parametrize("p", [0.5, 1.0, 3.0])
def test_nothing_breaks_on_exact_fits(refine: str, p: float) -> None:
    """Zero rows, repeated rows and a matrix of exactly this rank: weights of vanished residuals stay finite."""
    A = torch.cat([torch.zeros(5, 6), laws.draw(2, 6).float().repeat(10, 1)])
    for k in (1, 2, 4):
        found = ellp.factorize(A, k, p, refine=refine)
        assert torch.isfinite(found.left).all()
        assert torch.isfinite(found.right).all()
        assert not found.left[:5].any()
        if k >= 2:
            assert float((found.left @ found.right - A).abs().max()) < 1e-5


def test_refining_an_all_zero_matrix() -> None:
    for refine in ("entries", "rows"):
        found = ellp.factorize(torch.zeros(9, 3), 2, refine=refine)
        assert not (found.left @ found.right).any()
        assert found.certificate.error == 0.0


@pytest.mark.parametrize("t", [1e-30, 1e30])
@pytest.mark.parametrize("refine", ["entries", "rows"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scale(t: float, refine: str, dtype: torch.dtype) -> None:
    A = spiked(dtype)
    plain, scaled = (ellp.factorize(rows, 2, refine=refine) for rows in (A, t * A))
    assert scaled.certificate.error == pytest.approx(t * plain.certificate.error, rel=1e-3)


@pytest.mark.parametrize("p", [0.0, math.inf])
@pytest.mark.parametrize("refine", ["entries", "rows"])
def test_powers_out_of_reach(p: float, refine: str) -> None:
    with laws.refused("to refine", "leave refine out"):
        ellp.factorize(laws.draw(20, 4), 2, p, refine=refine)


def test_refinement_that_would_not_fit_in_memory_is_refused() -> None:
    A = torch.eye(1100, 1100)[:, :1100]
    with laws.refused("GiB", "refine='rows'"):
        ellp.factorize(A, 1000, 2.0, method="svd", refine="entries")


def test_progress_names_the_stage() -> None:
    stages: list[str] = []
    ellp.factorize(spiked(), 2, refine="entries", progress=lambda stage, step, value: stages.append(stage))
    assert "refine entries" in stages
    values: list[float] = []
    ellp.factorize(
        with_outlying_rows(),
        2,
        refine="rows",
        progress=lambda stage, step, value: values.append(value) if stage == "refine rows" else None,
    )
    assert values == sorted(values, reverse=True)
