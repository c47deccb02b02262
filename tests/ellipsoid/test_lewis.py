"""The Lewis ellipsoid: its fixed point, its distortion, its closed forms and its symmetries."""

import math

import laws
import numpy as np
import pytest
import torch

import ellp
from ellp.ellipsoid.lewis import SAMPLE_PER_AXIS

ROBUST = [table for table in laws.TABLES if table not in {"signs", "clusters"}]  # where Tyler's scatter exists


def leverages(A: torch.Tensor, ellipsoid: ellp.Ellipsoid) -> torch.Tensor:
    """``q_i = a_i^T M^-1 a_i`` in the row space."""
    live = ellipsoid.sigma > 0
    return (A @ (ellipsoid.axes[:, live] / ellipsoid.sigma[live])).square().sum(dim=1)


def tables_at(p: float) -> list[str]:
    return ROBUST if p == 0 else list(laws.TABLES)


@laws.each_power
@pytest.mark.parametrize("tol", [0.05, 0.01])
def test_distortion_is_proved_within_the_tolerance(p: float, tol: float) -> None:
    for table in tables_at(p):
        A = laws.rows_of(table)
        ellipsoid = ellp.lewis_ellipsoid(A, p, tol=tol)
        ideal = laws.ideal(A.shape[1], p)
        assert ellipsoid.distortion <= (1 + tol) * ideal * (1 + 1e-12), table
        assert ellipsoid.distortion == ellipsoid.alpha * ellipsoid.beta
        assert ellipsoid.steps >= 1


@laws.each_finite_power
@pytest.mark.parametrize("table", ["gaussian", "heavy", "stretched", "clusters"])
def test_fixed_point(p: float, table: str) -> None:
    """``M = sum_i c_i q_i^(p/2-1) a_i a_i^T``, so the Lewis weights ``c_i q_i^(p/2)`` sum to the rank."""
    A = laws.rows_of(table)
    c = laws.importances(len(A))
    ellipsoid = ellp.lewis_ellipsoid(A, p, c, tol=1e-9, max_steps=600)
    q = leverages(A, ellipsoid)
    assert float((c * q.pow(p / 2)).sum()) == pytest.approx(A.shape[1], rel=1e-7)
    pull = (c * q.pow(p / 2 - 1)).masked_fill(q == 0, 0.0)
    values, axes = torch.linalg.eigh(A.T @ (pull[:, None] * A))
    again = ellp.Ellipsoid(axes.flip(1), values.sqrt().flip(0), p, 1.0, 1.0, 0)
    laws.assert_same_shape(again, ellipsoid, tol=1e-6)


@laws.each_finite_power
def test_fixed_point_of_a_deficient_matrix(p: float) -> None:
    A = laws.rows_of("heavy") @ laws.rotation(6)[:, :3] @ laws.draw(3, 6, seed=3)
    ellipsoid = ellp.lewis_ellipsoid(A, p, tol=1e-7, max_steps=600)
    assert int((ellipsoid.sigma > 0).sum()) == 3
    assert float(leverages(A, ellipsoid).pow(p / 2).sum()) == pytest.approx(3, rel=1e-6)
    assert ellipsoid.distortion == pytest.approx(laws.ideal(3, p), rel=1e-6)


@pytest.mark.parametrize("p", [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, math.inf])
def test_orthogonal_rows_in_closed_form(p: float) -> None:
    """Rows of length s_i along orthogonal directions: ``sigma_i = c_i^(1/p) s_i``; cube and cross-polytope."""
    lengths = torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0], dtype=torch.float64)
    c = torch.tensor([1.2, 1.1, 1.0, 0.9, 0.5], dtype=torch.float64)
    Q = laws.rotation(5, 3)
    ellipsoid = ellp.lewis_ellipsoid(lengths[:, None] * Q, p, c, tol=1e-9)
    expected = c.pow(1.0 if math.isinf(p) else 1 / p) * lengths
    torch.testing.assert_close(ellipsoid.sigma, expected, rtol=1e-7, atol=0)
    torch.testing.assert_close((Q @ ellipsoid.axes).abs(), torch.eye(5, dtype=torch.float64), rtol=0, atol=1e-7)
    assert ellipsoid.distortion == pytest.approx(laws.ideal(5, p), rel=1e-7)


def test_cube_and_cross_polytope_are_rounded_by_the_ball() -> None:
    for p, alpha, beta in ((math.inf, math.sqrt(7), 1.0), (1.0, 1.0, math.sqrt(7))):
        ellipsoid = ellp.lewis_ellipsoid(np.eye(7), p)
        np.testing.assert_allclose(ellipsoid.sigma, np.ones(7), rtol=1e-12)
        assert (ellipsoid.alpha, ellipsoid.beta) == pytest.approx((alpha, beta), rel=1e-12)


def test_tyler_finds_the_shape_under_heavy_tails() -> None:
    """At p = 0 the radii do not matter; the covariance is ruined by them."""
    true = laws.metric_matrix(4)
    radii = chance_radii(4000)
    A = radii * laws.draw(4000, 4, seed=2) @ torch.linalg.cholesky(true).T
    tyler = laws.shape_matrix(ellp.lewis_ellipsoid(A, 0.0, tol=0.01))
    covariance = A.T @ A

    def distance(shape: torch.Tensor) -> float:
        ratios = torch.linalg.eigvals(torch.linalg.solve(true, shape)).real
        return float(ratios.max() / ratios.min())

    assert distance(tyler) < 1.3
    assert distance(covariance) > 4


def chance_radii(n: int) -> torch.Tensor:
    """Radii with a tail so heavy that they have no mean."""
    return laws.chances(n, 1, seed=1).clamp(min=1e-9).pow(-2)


def test_tyler_does_not_see_the_length_of_rows() -> None:
    A = laws.rows_of("gaussian")
    stretched = chance_radii(len(A)) * A
    laws.assert_same_product(ellp.factorize(A, 5, 0.0), ellp.factorize(A, 5, 0.0))
    first, second = (laws.shape_matrix(ellp.lewis_ellipsoid(rows, 0.0, tol=1e-9)) for rows in (A, stretched))
    torch.testing.assert_close(first / first.trace(), second / second.trace(), rtol=0, atol=1e-6)


# Symmetries -----------------------------------------------------------------------------------------------------------


@laws.each_power
@pytest.mark.parametrize("t", [1e-30, 1e-7, 3.0, 1e12, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scale(p: float, t: float, dtype: torch.dtype) -> None:
    A = laws.rows_of("heavy", dtype)
    near = 1e-3 if dtype == torch.float32 else 1e-9
    plain, scaled = (ellp.lewis_ellipsoid(rows, p) for rows in (A, t * A))
    size = t**2 if p > 0 else float((scaled.sigma.double() / plain.sigma.double()).square().mean())
    laws.assert_same_shape(scaled, plain, size, tol=near)
    assert (scaled.alpha, scaled.beta) == pytest.approx((plain.alpha, plain.beta), rel=near)


@laws.each_power
def test_row_order(p: float) -> None:
    A = laws.rows_of("heavy")
    order = torch.randperm(len(A), generator=torch.Generator().manual_seed(0))
    laws.assert_same_shape(ellp.lewis_ellipsoid(A[order], p), ellp.lewis_ellipsoid(A, p))


@laws.each_power
def test_rotation(p: float) -> None:
    A, Q = laws.rows_of("heavy"), laws.rotation(6, 5)
    plain, turned = ellp.lewis_ellipsoid(A, p), ellp.lewis_ellipsoid(A @ Q, p)
    back = ellp.Ellipsoid(Q @ turned.axes, turned.sigma, p, turned.alpha, turned.beta, turned.steps)
    laws.assert_same_shape(back, plain)
    assert back.distortion == pytest.approx(plain.distortion, rel=1e-8)


@laws.each_finite_power
def test_a_repeated_row_is_a_row_of_twice_the_importance(p: float) -> None:
    A = laws.rows_of("heavy")
    c = torch.ones(len(A), dtype=torch.float64)
    c[:20] = 2.0
    twice = ellp.lewis_ellipsoid(torch.cat([A, A[:20]]), p)
    weighted = ellp.lewis_ellipsoid(A, p, c)
    laws.assert_same_shape(twice, weighted)
    assert (twice.alpha, twice.beta) == pytest.approx((weighted.alpha, weighted.beta), rel=1e-8)


@laws.each_power
@pytest.mark.parametrize("t", [1e-20, 0.3, 1e20])
def test_importance_in_another_unit(p: float, t: float) -> None:
    """f grows by t: at finite p the ellipsoid absorbs it, ``M -> t^(2/p) M``."""
    A, c = laws.rows_of("heavy"), laws.importances(80)
    plain, scaled = ellp.lewis_ellipsoid(A, p, c), ellp.lewis_ellipsoid(A, p, t * c)
    if p > 0:
        laws.assert_same_shape(scaled, plain, t**2 if math.isinf(p) else t ** (2 / p))
        assert (scaled.alpha, scaled.beta) == pytest.approx((plain.alpha, plain.beta), rel=1e-8)
    else:
        assert (scaled.alpha, scaled.beta) == pytest.approx((plain.alpha / t, plain.beta * t), rel=1e-8)


@laws.each_power
def test_rows_that_are_zero_or_weigh_nothing_do_not_matter(p: float) -> None:
    A = laws.rows_of("heavy")
    plain = ellp.lewis_ellipsoid(A, p)
    padded = ellp.lewis_ellipsoid(torch.cat([torch.zeros(9, 6, dtype=torch.float64), A]), p)
    laws.assert_same_shape(padded, plain)
    c = torch.cat([torch.zeros(9, dtype=torch.float64), torch.ones(80, dtype=torch.float64)])
    ignored = ellp.lewis_ellipsoid(torch.cat([1e6 * laws.draw(9, 6), A]), p, c, tol=1e-8, max_steps=1000)
    laws.assert_same_shape(ignored, ellp.lewis_ellipsoid(A, p, tol=1e-8, max_steps=1000), tol=1e-5)


# Starting on a sample -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 3.0, 6.0])
def test_the_sampled_start_changes_the_route_and_not_the_goal(p: float) -> None:
    A = laws.draw(3 * SAMPLE_PER_AXIS * 256, 4, seed=1) / laws.chances(3 * SAMPLE_PER_AXIS * 256, 1).clamp(min=0.01)
    first, second = (ellp.lewis_ellipsoid(A, p, tol=1e-8, seed=seed, max_steps=500) for seed in (0, 1))
    laws.assert_same_shape(first, second, tol=1e-6)
    assert not torch.equal(first.sigma, second.sigma)
    again = ellp.lewis_ellipsoid(A, p, tol=1e-8, seed=1, max_steps=500)
    assert torch.equal(again.sigma, second.sigma)
    assert torch.equal(again.axes, second.axes)


def test_a_sample_that_misses_an_axis_does_no_harm() -> None:
    """Two rows in thousands hold an axis alone, and weigh so little that a sample passes them by."""
    A = laws.draw(5000, 4, seed=1)
    A[:, 3] = 0.0
    A[7] = torch.tensor([0.0, 0.0, 0.0, 1e-3])
    ellipsoid = ellp.lewis_ellipsoid(A)
    laws.assert_sandwich(A, ellipsoid, laws.slack_of(A.dtype))
    assert float(ellipsoid.sigma[-1]) > 0


def test_many_zero_rows() -> None:
    A = torch.zeros(9000, 3)
    ellipsoid = ellp.lewis_ellipsoid(A)
    assert not ellipsoid.sigma.any()
    A[5000] = torch.tensor([3.0, 4.0, 0.0])
    ellipsoid = ellp.lewis_ellipsoid(A)
    torch.testing.assert_close(ellipsoid.sigma, torch.tensor([5.0, 0.0, 0.0]))


# Failing honestly -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.5, 1.0, 6.0, math.inf])
def test_strict_refuses_what_is_not_proved(p: float) -> None:
    A = laws.rows_of("heavy")
    with pytest.raises(ellp.NotConverged, match=r"need .+, got .+: raise tol or max_steps") as caught:
        ellp.lewis_ellipsoid(A, p, tol=1e-12, max_steps=2)
    kept = caught.value.ellipsoid
    loose = ellp.lewis_ellipsoid(A, p, tol=1e-12, max_steps=2, strict=False)
    assert kept.distortion == loose.distortion
    assert kept.steps == 2
    assert loose.distortion > (1 + 1e-12) * laws.ideal(6, p)
    laws.assert_sandwich(A, loose, laws.slack_of(A.dtype))


def test_tyler_of_too_much_mass_on_a_line_is_not_converged_but_honest() -> None:
    """With half of the rows on one line no Tyler scatter exists."""
    A = laws.draw(40, 4)
    A[:20] = A[0]
    with pytest.raises(ellp.NotConverged, match="use a larger p"):
        ellp.lewis_ellipsoid(A, 0.0)
    laws.assert_sandwich(A, ellp.lewis_ellipsoid(A, 0.0, strict=False), laws.slack_of(A.dtype))
    laws.assert_sandwich(A, ellp.lewis_ellipsoid(A, 0.5), laws.slack_of(A.dtype))


@pytest.mark.parametrize("p", [0.5, 1.0, 1.5, 3.0, 4.0, 6.0])
def test_the_rate_is_the_one_promised(p: float) -> None:
    """Each step shrinks the distance to the fixed point by ``|1 - p/2|``, and damped by ``(p-2)/(p+2)``, or more."""
    rate = (p - 2) / (p + 2) if p >= 4 else abs(1 - p / 2)
    for seed in range(3):
        steps = ellp.lewis_ellipsoid(laws.draw(12, 5, seed=seed), p, tol=1e-9, max_steps=500).steps
        assert steps <= 3 + math.log(1e-10) / math.log(rate)


def test_progress_reports_every_step() -> None:
    seen: list[tuple[str, int, float]] = []
    A = laws.rows_of("heavy")
    found = ellp.factorize(A, 2, tol=1e-4, progress=lambda *news: seen.append(news))
    assert [step for _, step, _ in seen] == list(range(1, found.certificate.steps + 1))
    assert {stage for stage, _, _ in seen} == {"ellipsoid"}
    values = [value for _, _, value in seen]
    assert values == sorted(values, reverse=True)
    assert values[-1] == pytest.approx(found.certificate.distortion)
