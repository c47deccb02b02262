"""The projection: its bounds hold, its error is measured as stated, and nothing of its rank beats the floor."""

import math

import laws
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from integer_tables import integer_tables
from torch import Tensor

import ellp
from ellp.factor.project import power_sum

RANKS = [1, 2, 4]


def options(method: str) -> dict[str, bool]:
    return {"strict": False} if method == "lewis" else {}


def rivals(A: Tensor, k: int, factor: Tensor | None, c: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Rank-k pairs that may beat a projection: SVDs, medians of rows, random subspaces with good left factors."""
    S = torch.eye(A.shape[1], dtype=torch.float64) if factor is None else factor
    B = A @ S
    bases = [torch.linalg.svd(c.pow(power)[:, None] * B).Vh[:k] for power in (0.0, 0.5, 1.0)]
    bases += [B[torch.randperm(len(B), generator=torch.Generator().manual_seed(seed))[:k]] for seed in range(5)]
    bases += [laws.draw(k, A.shape[1], seed=seed) for seed in range(5)]
    pairs = []
    for basis in bases:
        right = torch.linalg.solve(S.T, basis.T).T
        pairs.append((B @ torch.linalg.pinv(basis), right))
        left = torch.linalg.lstsq(basis.T, B.T, driver="gelsd").solution.T
        for _ in range(10):  # towards the l_1 regression, and the rows that l_1 would cut off
            pull = (B - left @ basis).abs().clamp(min=1e-6).reciprocal()
            normal = torch.einsum("kd,nd,ld->nkl", basis, pull, basis) + 1e-9 * torch.eye(k)
            left = torch.linalg.solve(normal, ((pull * B) @ basis.T)[:, :, None])[:, :, 0]
        pairs.append((left, right))
    return pairs


@laws.each_implementation
@pytest.mark.parametrize("table", ["gaussian", "heavy", "stretched", "orthogonal"])
def test_bounds(method: str, p: float, table: str) -> None:
    A = laws.rows_of(table)
    for k in RANKS:
        laws.assert_bounded(ellp.factorize(A, k, p, method=method, **options(method)).certificate)


@laws.each_implementation
def test_bounds_with_importance_and_metric(method: str, p: float) -> None:
    A, c, S = laws.rows_of("heavy"), laws.importances(80), laws.metric_factor(6)
    for k in RANKS:
        found = ellp.factorize(A, k, p, c, S, method=method, **options(method))
        laws.assert_bounded(found.certificate)
        noise = 1e-9
        direct = laws.entry_error(A, found.left, found.right, p, c, S, noise)
        assert found.certificate.error == pytest.approx(direct, rel=1e-9)


@laws.each_dtype
@laws.each_power
def test_bounds_in_every_precision(dtype: torch.dtype, p: float) -> None:
    A = laws.rows_of("heavy", dtype)
    for k in RANKS:
        found = ellp.factorize(A, k, p)
        laws.assert_bounded(found.certificate, slack=1e-3)
        if p > 0:
            direct = laws.entry_error(A, found.left, found.right, p)
            assert found.certificate.error == pytest.approx(direct, rel=1e-3)


@laws.each_power
@pytest.mark.parametrize("k", RANKS)
def test_nothing_beats_the_floor(p: float, k: int) -> None:
    for table in ("heavy", "orthogonal", "gaussian"):
        A = laws.rows_of(table)
        c, S = laws.importances(len(A)) + 0.1, laws.metric_factor(A.shape[1])
        floor = ellp.factorize(A, k, p, c, S, strict=p > 0).certificate.floor  # at p = 0 no fixed point may exist
        assert floor > 0
        for left, right in rivals(A, k, S, c):
            assert laws.entry_error(A, left, right, p, c, S, noise=1e-9) >= floor * (1 - 1e-9)


@pytest.mark.parametrize("p", [0.5, 1.0, 1.5, 2.0, 3.0])
def test_refinement_does_not_beat_the_floor(p: float) -> None:
    A = laws.rows_of("heavy")
    for k in RANKS:
        laws.assert_bounded(ellp.factorize(A, k, p, refine="entries").certificate)


@pytest.mark.parametrize("d", [2, 4, 9])
def test_the_floor_at_infinity_is_met_by_a_cube(d: int) -> None:
    """Taking the mean off every column of the identity costs one rank and only 1/d in every entry."""
    identity = torch.eye(d, dtype=torch.float64)
    floor = ellp.factorize(identity, d - 1, math.inf).certificate.floor
    rival = identity - 1 / d
    assert int(torch.linalg.matrix_rank(rival)) == d - 1
    assert floor == pytest.approx(laws.entry_error(identity, rival, identity, math.inf), rel=1e-9)


def test_refinement_may_go_below_what_bounds_projections() -> None:
    """So a refined pair's ``lower`` is the floor."""
    A = laws.rotation(4, 75)
    plain, refined = (ellp.factorize(A, 3, 0.5, refine=refine, tol=1e-6) for refine in (None, "entries"))
    assert refined.certificate.error < 0.9 * plain.certificate.lower
    laws.assert_bounded(refined.certificate)


@pytest.mark.parametrize("p", [0.5, 1.0, 1.5, 2.0])
def test_orthogonal_rows_meet_the_floor_at_p_2_and_never_go_below(p: float) -> None:
    A = laws.rows_of("orthogonal")
    proof = ellp.factorize(A, 3, p, tol=1e-9).certificate
    assert proof.floor <= proof.error
    if p == 2:
        assert proof.floor == pytest.approx(proof.error, rel=1e-9)
        assert proof.lower == pytest.approx(proof.upper, rel=1e-9)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 3.0, math.inf])
def test_power_sum(p: float) -> None:
    values = torch.tensor([[3.0, -4.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    expected = {0.0: 2.0, math.inf: 4.0}.get(p, 3.0**p + 4.0**p if p else 2.0)
    torch.testing.assert_close(power_sum(values, p), torch.tensor([expected, 0.0], dtype=torch.float64))


def test_the_projection_is_one() -> None:
    """``A_k = A S P S^-1`` with the leading axes, and projecting again changes nothing."""
    A, S = laws.rows_of("heavy"), laws.metric_factor(6)
    found = ellp.factorize(A, 2, metric=S)
    V = found.axes[:, :2]
    torch.testing.assert_close(found.left @ found.right, A @ S @ V @ V.T @ torch.linalg.inv(S))
    torch.testing.assert_close(found.right @ S @ V, torch.eye(2, dtype=torch.float64), atol=1e-10, rtol=0)


def test_half_precision_overflow_has_a_remedy() -> None:
    A = torch.full((8, 16), 60000.0, dtype=torch.float16).T.contiguous()  # sums of entries exceed the largest half
    with laws.refused("float16", "wider dtype"):
        ellp.factorize(A, 1)
    assert torch.isfinite(ellp.factorize(A.float(), 1).left).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("p", [4.0, 6.0, 8.0, 12.0])
@pytest.mark.parametrize("t", [2.0**-15, 2.0**15, 1e-12, 1e12])
def test_high_powers_of_small_and_large_entries(dtype: torch.dtype, p: float, t: float) -> None:
    """``|E_ij|^p`` leaves the range of float32 long before the entries do."""
    A = (t * laws.rows_of("gaussian")).to(dtype)
    found = ellp.factorize(A, 4, p)
    laws.assert_bounded(found.certificate, slack=1e-3)
    assert found.certificate.error == pytest.approx(laws.entry_error(A, found.left, found.right, p), rel=1e-2)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(integer_tables(), st.sampled_from(laws.POWERS[1:]), st.integers(1, 4), st.sampled_from(list(laws.SUPPORTED)))
def test_bounds_of_degenerate_tables(table: tuple[Tensor, Tensor], p: float, k: int, method: str) -> None:
    A, c = table
    method = method if p in laws.SUPPORTED[method] else "lewis"
    found = ellp.factorize(A, k, p, c, method=method, **options(method))
    proof = found.certificate
    assert torch.isfinite(found.left).all()
    assert torch.isfinite(found.right).all()
    direct = laws.entry_error(A, found.left, found.right, p, c)
    noise = 1e3 * 1e-14 ** (1.0 if math.isinf(p) else p)  # an error of zero, up to rounding
    assert proof.error == pytest.approx(direct, rel=1e-6, abs=noise)
    assert max(proof.lower, proof.floor) <= proof.error * (1 + 1e-6) + noise
    assert proof.error <= proof.upper * (1 + 1e-6) + noise
