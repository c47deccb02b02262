"""The randomized ellipsoid: certified whatever the dice say, and a start for the exact one."""

import laws
import pytest
import torch

import ellp
from ellp.ellipsoid.certificate import sweep
from ellp.ellipsoid.lewis import lewis
from ellp.ellipsoid.sketch import sketched_frame
from ellp.rows import read_rows

POWERS = laws.SUPPORTED["sketch"]


@pytest.mark.parametrize("p", [0.1, *POWERS])
@pytest.mark.parametrize("seed", range(5))
def test_the_certificate_holds_for_every_seed(p: float, seed: int) -> None:
    for table in ("heavy", "orthogonal", "signs"):
        A = laws.rows_of(table)
        laws.assert_sandwich(A, ellp.sketched_ellipsoid(A, p, seed=seed), laws.slack_of(A.dtype))


@pytest.mark.parametrize("p", [0.1, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(20))
def test_rows_that_fall_together_cost_no_axis(p: float, seed: int) -> None:
    """Ten rows in hundreds hold nine axes; two of them often share a bucket."""
    A = torch.cat([laws.draw(600, 1) * laws.draw(1, 10, seed=1), laws.draw(9, 10, seed=2)])
    for dtype in (torch.float32, torch.float64):
        ellipsoid = ellp.sketched_ellipsoid(A.to(dtype), p, seed=seed)
        laws.assert_sandwich(A.to(dtype), ellipsoid, laws.slack_of(dtype))


@pytest.mark.parametrize("p", POWERS)
def test_the_certifying_pass_sharpens_the_sketch(p: float) -> None:
    A = laws.draw(3000, 8) / laws.chances(3000, 1, seed=1).clamp(min=1e-3)
    reached = []
    for seed in range(15):
        start = sketched_frame(read_rows(A, None, None), p, seed)
        alpha, beta = sweep(start.rows, start.inverse, p).here()
        after = ellp.sketched_ellipsoid(A, p, seed=seed)
        assert after.steps == 2
        assert after.distortion < alpha * beta
        reached.append(after.distortion)
    assert p < 1 or sorted(reached)[7] < 20 * laws.ideal(8, p), "one draw in seven is unlucky, the median is not"


@pytest.mark.parametrize("p", POWERS)
def test_as_a_start_it_leads_to_the_same_ellipsoid(p: float) -> None:
    A = laws.rows_of("heavy")
    rows = read_rows(A, laws.importances(80), None)
    default = lewis(rows, p, 1e-9, max_steps=400)
    warm = lewis(rows, p, 1e-9, max_steps=400, start=sketched_frame(rows, p, seed=3))
    laws.assert_same_shape(warm, default, tol=1e-7)


@pytest.mark.parametrize("p", POWERS)
@pytest.mark.parametrize("t", [1.0, 1e-12])
def test_the_public_door_takes_it_as_a_start(p: float, t: float) -> None:
    A = t * laws.rows_of("heavy")
    start = ellp.sketched_ellipsoid(A, p, seed=3)
    warm = ellp.lewis_ellipsoid(A, p, tol=1e-9, max_steps=400, start=start)
    laws.assert_same_shape(warm, ellp.lewis_ellipsoid(A, p, tol=1e-9, max_steps=400), tol=1e-7)
    again = ellp.lewis_ellipsoid(A, p, tol=1e-8, start=warm)
    assert again.steps == 1


def test_a_flat_start_hides_no_axis() -> None:
    A = laws.rows_of("gaussian")
    flat = ellp.lewis_ellipsoid(A * torch.tensor([1.0, 1, 1, 1, 0]))
    laws.assert_same_shape(ellp.lewis_ellipsoid(A, tol=1e-9, start=flat), ellp.lewis_ellipsoid(A, tol=1e-9), tol=1e-7)


@pytest.mark.parametrize("p", POWERS)
def test_the_seed_decides(p: float) -> None:
    A = laws.draw(400, 5)
    first, again, other = (ellp.sketched_ellipsoid(A, p, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.sigma, again.sigma)
    assert torch.equal(first.axes, again.axes)
    assert p == 2 or not torch.equal(first.sigma, other.sigma)
    start, elsewhere = (sketched_frame(read_rows(A, None, None), p, seed).factor.abs() for seed in (0, 1))
    assert not torch.equal(start, elsewhere)


@pytest.mark.parametrize("p", [0.0, 2.1, float("inf")])
def test_powers_out_of_reach(p: float) -> None:
    with laws.refused("for a sketch", "method='lewis'"):
        ellp.sketched_ellipsoid(laws.draw(9, 2), p)


def test_a_power_whose_random_weights_overflow() -> None:
    with laws.refused("larger p"):
        ellp.sketched_ellipsoid(laws.draw(2000, 2), 0.001)
