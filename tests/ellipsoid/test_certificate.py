"""Every method's certificate is true, for every power, precision, importance and metric."""

import math

import laws
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from integer_tables import integer_tables

import ellp
from ellp.ellipsoid.certificate import CPU_GRAM_TILE, CPU_WHITEN_TILE, GramSum, sweep
from ellp.ellipsoid.lewis import Frame
from ellp.rows import read_rows


def options(method: str) -> dict[str, bool]:
    return {"strict": False} if method == "lewis" else {}


@laws.each_implementation
@laws.each_table
def test_sandwich(method: str, p: float, table: str) -> None:
    A = laws.rows_of(table)
    ellipsoid = laws.ellipsoid_by(method, A, p, **options(method))
    laws.assert_sandwich(A, ellipsoid, laws.slack_of(A.dtype))


@laws.each_implementation
@pytest.mark.parametrize("table", ["heavy", "orthogonal", "clusters"])
def test_sandwich_with_importance_and_metric(method: str, p: float, table: str) -> None:
    A = laws.rows_of(table)
    c, S = laws.importances(len(A)), laws.metric_factor(A.shape[1])
    ellipsoid = laws.ellipsoid_by(method, A, p, c, S, **options(method))
    laws.assert_sandwich(A, ellipsoid, laws.slack_of(A.dtype), c, S)
    ellipsoid = laws.ellipsoid_by(method, A, p, c, **options(method))
    laws.assert_sandwich(A, ellipsoid, laws.slack_of(A.dtype), c)


@laws.each_implementation
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("table", ["heavy", "stretched", "orthogonal"])
def test_sandwich_in_lower_precision(method: str, p: float, dtype: torch.dtype, table: str) -> None:
    A = laws.rows_of(table, dtype)
    ellipsoid = laws.ellipsoid_by(method, A, p, **options(method))
    laws.assert_sandwich(A, ellipsoid, laws.slack_of(dtype))


@pytest.mark.parametrize("condition", [1e3, 1e4, 1e5])
@pytest.mark.parametrize("p", [0.5, 1.0, 3.0, 6.0])
def test_sandwich_of_an_ill_conditioned_tight_body_in_float32(condition: float, p: float) -> None:
    stretch = torch.logspace(0, -math.log10(condition), 6, dtype=torch.float64)
    A = (laws.rotation(6, 1) * stretch[:, None] @ laws.rotation(6, 2)).float()
    laws.assert_sandwich(A, ellp.lewis_ellipsoid(A, p), laws.slack_of(A.dtype))


@pytest.mark.parametrize("p", [0.5, 1.0, 3.0, 6.0, math.inf])
def test_sandwich_at_condition_1e8_in_float64(p: float) -> None:
    A = laws.draw(60, 5) * torch.logspace(0, -8, 5, dtype=torch.float64) @ laws.rotation(5)
    ellipsoid = ellp.lewis_ellipsoid(A, p)
    laws.assert_sandwich(A, ellipsoid, laws.slack_of(A.dtype))
    assert float(ellipsoid.sigma[0] / ellipsoid.sigma[-1]) > 1e6


@settings(max_examples=150, deadline=None, derandomize=True)
@given(integer_tables(), st.sampled_from(laws.POWERS), st.sampled_from(list(laws.SUPPORTED)), st.booleans())
def test_sandwich_of_degenerate_tables(
    table: tuple[torch.Tensor, torch.Tensor], p: float, method: str, single: bool
) -> None:
    A, c = table
    A = A.float() if single else A
    if p not in laws.SUPPORTED[method]:
        method = "lewis"
    if A.shape[0] < A.shape[1]:
        A, c = A.T.contiguous(), torch.ones(A.shape[1], dtype=torch.float64)
    laws.assert_sandwich(A, laws.ellipsoid_by(method, A, p, c, **options(method)), laws.slack_of(A.dtype), c)


@laws.each_finite_power
def test_one_pass_certifies_any_ellipsoid(p: float) -> None:
    """Not only fixed points: M may be anything, here the identity and something far from round."""
    A = laws.rows_of("gaussian")
    rows = read_rows(A, None, None)
    for factor in (torch.eye(5, dtype=torch.float64), laws.draw(5, 5, seed=1).triu() + 4 * torch.eye(5)):
        frame = Frame.at(rows, factor.double())
        alpha, beta = sweep(rows, frame.inverse, p).here()
        values, axes = torch.linalg.eigh(factor.double().T @ factor.double())
        ellipsoid = ellp.Ellipsoid(axes.flip(1), values.sqrt().flip(0), p, alpha, beta, 1)
        laws.assert_sandwich(A, ellipsoid, laws.slack_of(A.dtype))


@pytest.mark.parametrize("width", [1, CPU_WHITEN_TILE, CPU_WHITEN_TILE + 1, CPU_GRAM_TILE + 7])
def test_tiles_add_up_to_the_plain_formula(width: int) -> None:
    """``G = sum_i c_i q_i^(p/2-1) y_i y_i^T`` on either side of a tile's edge."""
    p = 1.0
    A, c = laws.draw(2 * width, width), laws.importances(2 * width) + 0.1
    rows = read_rows(A, c, None)
    inverse = laws.draw(width, width, seed=1).triu() + 4 * torch.eye(width, dtype=torch.float64)
    white = A @ inverse
    q = white.square().sum(dim=1)
    expected = white.T @ ((rows.weight * q.pow(p / 2 - 1))[:, None] * white)
    torch.testing.assert_close(sweep(rows, inverse, p).gram, expected)
    total = GramSum(rows)
    for _, block in rows.blocks():
        total.add(block)
    torch.testing.assert_close(total.matrix(), A.T @ A)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_proof_hidden_by_rounding_is_not_claimed(dtype: torch.dtype) -> None:
    """At p = 10 the weights of an SVD's rows span more than float64 resolves."""
    A = torch.tensor([[0.0, 0.0, -1.0], [0.0, 1.0, 0.0], [-1.0, -1.0, -1.0]], dtype=dtype)
    c = torch.tensor([2.0, 1e-3, 100.0])
    found = ellp.factorize(A, 2, 10.0, c, method="svd")
    assert found.certificate.alpha == math.inf
    laws.assert_bounded(found.certificate)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_iteration_that_runs_away_stays_honest(strict: bool, dtype: torch.dtype) -> None:
    """Tyler's iteration on a row that outweighs all others: it diverges until numbers overflow."""
    A = torch.tensor([[1, 8, 0, 0], [0, 0, -4, 0], [-7, 6, -4, -4], [5, 0, 8, 3], [3, 0, 3, 0]], dtype=dtype)
    c = torch.tensor([1.0, 100.0, 2.0, 1.0, 1.0])
    if strict:
        with pytest.raises(ellp.NotConverged):
            ellp.factorize(A, 2, 0.0, c, max_steps=2000)
    else:
        found = ellp.factorize(A, 2, 0.0, c, max_steps=2000, strict=False)
        laws.assert_bounded(found.certificate)
        assert torch.isfinite(found.left).all()
