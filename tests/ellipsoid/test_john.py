"""John's ellipsoid: weights, contact points, and bodies whose John ellipsoid is known."""

import math

import laws
import numpy as np
import pytest
import torch

import ellp


def test_a_regular_polygon_is_rounded_by_a_circle() -> None:
    turns = np.arange(7) * math.pi / 7  # opposite sides are one row
    A = np.stack([np.cos(turns), np.sin(turns)], axis=1)
    ellipsoid = ellp.lewis_ellipsoid(A, math.inf, tol=1e-6)
    np.testing.assert_allclose(ellipsoid.sigma, [1, 1], rtol=1e-5)
    assert ellipsoid.distortion == pytest.approx(math.sqrt(2), rel=1e-5)


def test_the_ellipsoid_is_inscribed_and_touches() -> None:
    """Scaled by beta the ellipsoid lies in the polytope: every row's dual norm is at most one, the largest is one."""
    A, c = laws.rows_of("gaussian"), laws.importances(60)
    ellipsoid = ellp.lewis_ellipsoid(A, math.inf, c, tol=0.01)
    assert ellipsoid.alpha == pytest.approx(math.sqrt(5))
    reach = torch.linalg.vector_norm((c[:, None] * A) @ (ellipsoid.axes / ellipsoid.sigma), dim=1)
    assert float(reach.max()) == pytest.approx(ellipsoid.beta, rel=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_no_inscribed_ellipsoid_is_larger(seed: int) -> None:
    """John's ellipsoid maximizes volume among those inside; candidates are made to fit by scaling."""
    A = laws.draw(30, 3, seed=seed)

    def volume(factor: torch.Tensor) -> float:  # of {x : |factor x| <= 1}, scaled to fit inside max |a_i.x| <= 1
        reach = torch.linalg.vector_norm(A @ torch.linalg.inv(factor), dim=1).max()
        return float(-3 * reach.log() - torch.linalg.slogdet(factor).logabsdet)

    found = ellp.lewis_ellipsoid(A, math.inf, tol=0.001, max_steps=5000)
    best = volume(found.sigma[:, None] * found.axes.T)
    slack = 3 * 2 * 0.001
    for p in (1.0, 2.0, 6.0):
        other = ellp.lewis_ellipsoid(A, p)
        assert volume(other.sigma[:, None] * other.axes.T) <= best + slack
    near = [(found.sigma[:, None] * found.axes.T) @ (torch.eye(3) + 0.1 * laws.draw(3, 3, seed=s)) for s in range(20)]
    assert all(volume(factor) <= best + slack for factor in near)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_deficient_matrix(dtype: torch.dtype) -> None:
    A = (laws.draw(40, 2) @ laws.draw(2, 5, seed=1)).to(dtype)
    ellipsoid = ellp.lewis_ellipsoid(A, math.inf)
    assert int((ellipsoid.sigma > 0).sum()) == 2
    laws.assert_sandwich(A, ellipsoid, laws.slack_of(dtype))


def test_many_rows_within_the_circle_do_not_matter() -> None:
    turns = torch.arange(5, dtype=torch.float64) * math.pi / 5
    corners = torch.stack([turns.cos(), turns.sin()], dim=1)
    inside = 0.5 * laws.draw(100, 2).tanh()
    alone = ellp.lewis_ellipsoid(corners, math.inf, tol=1e-6, max_steps=5000)
    crowded = ellp.lewis_ellipsoid(torch.cat([corners, inside]), math.inf, tol=1e-6, max_steps=5000)
    laws.assert_same_shape(crowded, alone, tol=1e-4)
