"""p = 2 is the singular value decomposition, by either method."""

import laws
import pytest
import torch

import ellp


@pytest.mark.parametrize("method", ["lewis", "svd", "sketch"])
@pytest.mark.parametrize("table", ["gaussian", "heavy", "stretched", "orthogonal"])
def test_p_2_is_the_svd(method: str, table: str) -> None:
    A = laws.rows_of(table)
    _, sigma, right = torch.linalg.svd(A, full_matrices=False)
    for k in (1, 3):
        found = ellp.factorize(A, k, 2.0, method=method)
        torch.testing.assert_close(found.sigma, sigma, rtol=1e-6, atol=0)
        assert laws.angle(found.right.T, right[:k].T) < 1e-5
        tail = float(sigma[k:].square().sum())
        assert found.certificate.error == pytest.approx(tail, rel=1e-6)
        assert (found.certificate.lower, found.certificate.upper) == pytest.approx((tail, tail), rel=1e-6)
        assert found.certificate.floor == pytest.approx(tail, rel=1e-6)


@pytest.mark.parametrize("method", ["lewis", "svd"])
def test_weighted(method: str) -> None:
    A, c, S = laws.rows_of("gaussian"), laws.importances(60), laws.metric_factor(5)
    _, sigma, right = torch.linalg.svd(c.sqrt()[:, None] * A @ S, full_matrices=False)
    found = ellp.factorize(A, 2, 2.0, c, S, method=method)
    torch.testing.assert_close(found.sigma, sigma, rtol=1e-9, atol=0)
    assert laws.angle((found.right @ S).T, right[:2].T) < 1e-6
    assert found.certificate.error == pytest.approx(float(sigma[2:].square().sum()), rel=1e-9)


def test_svd_is_factorize_with_method_svd() -> None:
    A = laws.rows_of("heavy")
    laws.assert_same_product(ellp.svd(A, 2), ellp.factorize(A, 2, 2.0, method="svd"))
    assert ellp.svd(A, 2).certificate.distortion == 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_noise_is_no_axis(dtype: torch.dtype) -> None:
    """What the certificate does not cover must not appear in sigma: it would be a claim about f."""
    A = (laws.draw(40, 3) @ laws.draw(3, 6, seed=1)).to(dtype)
    for p in laws.POWERS:
        found = ellp.factorize(A, 2, p, method="svd")
        assert int((found.sigma > 0).sum()) == 3
        laws.assert_bounded(found.certificate, slack=1e-3)


@pytest.mark.parametrize("t", [0.01, 1.0, 50.0])
def test_the_unit_of_importance_is_certified_too(t: float) -> None:
    A = laws.rows_of("heavy")
    c = t * laws.importances(80)
    for p in laws.POWERS:
        laws.assert_sandwich(A, laws.ellipsoid_by("svd", A, p, c), laws.slack_of(A.dtype), c)


def test_the_svd_serves_other_powers_worse_than_the_lewis_ellipsoid() -> None:
    A = laws.rows_of("heavy")
    for p in (0.5, 1.0, 4.0, 6.0):
        svd, lewis = (ellp.factorize(A, 2, p, method=method, tol=0.01) for method in ("svd", "lewis"))
        assert lewis.certificate.distortion < svd.certificate.distortion
