"""The laws themselves can fail: a certificate that claims a little too much, or loses an axis, is caught."""

from dataclasses import replace

import laws
import pytest
import torch

import ellp


@pytest.mark.parametrize("p", [0.5, 1.0, 1.5, 3.0, 6.0, float("inf")])
@pytest.mark.parametrize("side", ["alpha", "beta"])
def test_sandwich_notices_one_percent(p: float, side: str) -> None:
    A = laws.rows_of("orthogonal")
    ellipsoid = ellp.lewis_ellipsoid(A, p, tol=1e-6)
    laws.assert_sandwich(A, ellipsoid, laws.slack_of(A.dtype))
    with pytest.raises(AssertionError, match=f"above {side}"):
        laws.assert_sandwich(A, replace(ellipsoid, **{side: 0.99 * getattr(ellipsoid, side)}), laws.slack_of(A.dtype))


def test_sandwich_notices_a_lost_axis() -> None:
    A = laws.rows_of("gaussian")
    ellipsoid = ellp.lewis_ellipsoid(A)
    sigma = ellipsoid.sigma.clone()
    sigma[-1] = 0.0
    with pytest.raises(AssertionError, match="lost an axis"):
        laws.assert_sandwich(A, replace(ellipsoid, sigma=sigma), laws.slack_of(A.dtype))


def test_directions_find_the_rare_row() -> None:
    """One row in a hundred decides the upper bound at p = inf, and no random direction comes near it."""
    A = torch.cat([laws.draw(99, 8), 40 * laws.draw(1, 8, seed=1)])
    found = ellp.svd(A, 1)
    ellipsoid = ellp.Ellipsoid(found.axes, found.sigma, float("inf"), 10.0, 0.9, 1)
    with pytest.raises(AssertionError, match="above beta"):
        laws.assert_sandwich(A, ellipsoid, laws.slack_of(A.dtype))
