"""The front door: arrays of every kind come in, factors of the same kind go out, and bad input is named."""

import inspect
import math

import laws
import numpy as np
import pytest
import torch
from torch import Tensor

import ellp

KINDS = {
    "float16": np.float16,
    "float32": np.float32,
    "float64": np.float64,
}


# Robustness -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_planted_subspace_survives_outliers(seed: int, dtype: torch.dtype) -> None:
    A, basis = laws.planted(seed, dtype)
    assert laws.angle(ellp.svd(A, 3).right.T, basis) > 60
    for p in (0.5, 1.0):
        assert laws.angle(ellp.factorize(A, 3, p).right.T, basis) < 10
    refined = ellp.factorize(A, 3, 1.0, refine="rows")
    assert laws.angle(refined.right.T, basis) < 3


# Kinds of arrays ------------------------------------------------------------------------------------------------------


@laws.each_dtype
@pytest.mark.parametrize("shape", [(40, 5), (5, 40), (6, 6)])
def test_tensors_come_back_as_they_came(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    found = ellp.factorize(laws.draw(*shape).to(dtype), 2)
    wide = torch.float32 if dtype.itemsize == 2 else dtype
    assert (found.left.dtype, found.right.dtype, found.sigma.dtype, found.axes.dtype) == (dtype, dtype, wide, wide)
    assert (found.left.shape, found.right.shape, found.rank) == ((shape[0], 2), (2, shape[1]), 2)
    small = min(shape)
    assert (found.sigma.shape, found.axes.shape) == ((small,), (small, small))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(40, 5), (5, 40)])
def test_numpy_and_torch_agree(kind: str, shape: tuple[int, int]) -> None:
    array = laws.draw(*shape).numpy().astype(KINDS[kind])
    found, same = ellp.factorize(array, 2), ellp.factorize(torch.from_numpy(array), 2)
    for name in ("left", "right", "sigma", "axes"):
        part = getattr(found, name)
        assert isinstance(part, np.ndarray)
        np.testing.assert_array_equal(part, getattr(same, name).numpy())
    assert found.left.dtype == array.dtype
    assert found.certificate == same.certificate
    lewis = ellp.lewis_ellipsoid(np.asarray(array), strict=False) if shape[0] > shape[1] else None
    assert lewis is None or isinstance(lewis.axes, np.ndarray)


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint8, np.uint16, np.bool_])
def test_whole_numbers(dtype: type) -> None:
    whole = (laws.draw(30, 4) * 3).abs().round().numpy().astype(dtype)
    found = ellp.factorize(whole, 2)
    assert found.left.dtype == np.float64
    laws.assert_same_product(found, ellp.factorize(whole.astype(np.float64), 2), 1e-12)


def test_whole_numbers_in_torch_take_the_default_dtype() -> None:
    whole = (laws.draw(30, 4) * 3).round().to(torch.int32)
    found = ellp.factorize(whole, 2)
    assert found.left.dtype == torch.get_default_dtype()
    laws.assert_same_product(found, ellp.factorize(whole.float(), 2), 1e-6)


def test_awkward_numpy_arrays() -> None:
    plain = laws.rows_of("heavy").numpy()
    expected = ellp.factorize(plain, 2)
    locked = plain.copy()
    locked.flags.writeable = False
    awkward = {
        "read-only": locked,
        "big-endian": plain.astype(">f8"),
        "column-major": np.asfortranarray(plain),
        "every second row": np.repeat(plain, 2, axis=0)[::2],
        "reversed twice": plain[::-1].copy()[::-1],
        "long double": plain.astype(np.longdouble),
        "a list": plain.tolist(),
    }
    for name, array in awkward.items():
        found = ellp.factorize(array, 2)
        assert found.left.dtype == np.float64, name
        laws.assert_same_product(found, expected, 1e-12)


def test_awkward_tensors() -> None:
    plain = laws.rows_of("heavy")
    expected = ellp.factorize(plain, 2)
    parameter = torch.nn.Parameter(plain.clone())
    for tensor in (parameter, plain.T.contiguous().T, plain.repeat_interleave(2, dim=0)[::2], plain.expand(80, 6)):
        found = ellp.factorize(tensor, 2, importance=torch.ones(80, requires_grad=True))
        assert not found.left.requires_grad
        laws.assert_same_product(found, expected, 1e-12)
    assert parameter.grad is None


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 6.0, math.inf])
@pytest.mark.parametrize("method", ["lewis", "sketch", "svd", "loewner"])
def test_the_callers_arrays_are_never_changed(p: float, method: str) -> None:
    if p not in laws.SUPPORTED[method]:
        p = 1.0
    for dtype in laws.DTYPES:
        for A in (laws.rows_of("heavy", dtype), (1e-3 * laws.rows_of("heavy", dtype)).T.contiguous()):
            c = laws.importances(len(A)) + 0.1 if p else None
            S = laws.metric_factor(A.shape[1])
            given = [array for array in (A, c, S) if array is not None]
            copies = [array.clone() for array in given]
            for refine in (None, "rows", "entries") if 0 < p < math.inf and dtype.itemsize >= 4 else (None,):
                found = ellp.factorize(A, 2, p, c, S, method=method, refine=refine, strict=False, max_steps=20)
                found.left.zero_(), found.right.zero_()
            assert all(torch.equal(array, copy) for array, copy in zip(given, copies, strict=True))


def test_full_rank_factors_are_the_callers_to_change() -> None:
    A = laws.rows_of("gaussian")
    copy = A.clone()
    ellp.factorize(A, 5).left.zero_()
    assert torch.equal(A, copy)


# Shapes ---------------------------------------------------------------------------------------------------------------


@laws.each_power
@pytest.mark.parametrize("shape", [(7, 3), (3, 7), (4, 4), (1, 5), (5, 1), (1, 1)])
def test_full_rank_is_exact_to_the_bit(p: float, shape: tuple[int, int]) -> None:
    for dtype in laws.DTYPES:
        A = laws.draw(*shape).to(dtype)
        for k in (min(shape), min(shape) + 3):
            found = ellp.factorize(A, k, p, strict=False)
            assert torch.equal(found.left @ found.right, A)
            assert found.rank == min(shape)
            proof = found.certificate
            assert (proof.lower, proof.error, proof.upper, proof.floor) == (0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0, 3.0, math.inf])
def test_a_wide_matrix_is_the_transpose_of_a_tall_one(p: float) -> None:
    A = laws.rows_of("heavy")
    tall, wide = ellp.factorize(A, 2, p), ellp.factorize(A.T, 2, p)
    torch.testing.assert_close((tall.left @ tall.right).T, wide.left @ wide.right)
    assert wide.certificate == tall.certificate
    assert wide.left.is_contiguous()
    assert wide.right.is_contiguous()


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_weighted_wide_matrix(p: float, dtype: torch.dtype) -> None:
    A = laws.rows_of("heavy").T.contiguous().to(dtype)
    c, S = torch.tensor([3.0, 0.0, 1.0, 0.5, 0.0, 2.0]), laws.metric_factor(80)
    for importance, factor in ((c, None), (None, S), (c, S)):
        found = ellp.factorize(A, 2, p, importance, factor)
        direct = laws.entry_error(A, found.left, found.right, p, importance, factor)
        assert found.certificate.error == pytest.approx(direct, rel=1e-3 if dtype == torch.float32 else 1e-6)
        laws.assert_bounded(found.certificate)


def test_ignored_rows_of_a_wide_matrix_are_still_approximated() -> None:
    A = laws.draw(6, 2) @ laws.draw(2, 40, seed=1)
    c = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    for factor in (None, laws.metric_factor(40)):
        found = ellp.factorize(A, 2, 1.0, c, factor)
        torch.testing.assert_close(found.left @ found.right, A)


def test_a_weighted_wide_matrix_has_no_count() -> None:
    with laws.refused("p = 0", "leave it out"):
        ellp.factorize(laws.draw(3, 9), 1, 0.0, importance=torch.ones(3))


@laws.each_power
def test_one_row_and_one_column(p: float) -> None:
    row, column = laws.draw(1, 9), laws.draw(9, 1)
    for A in (row, column):
        found = ellp.factorize(A, 1, p)
        assert torch.equal(found.left @ found.right, A)
        assert float(found.sigma[0]) > 0
    if 0 < p < math.inf:
        assert float(ellp.lewis_ellipsoid(column, p).sigma[0] ** p) == pytest.approx(float(column.abs().pow(p).sum()))


# Degenerate data ------------------------------------------------------------------------------------------------------


@laws.each_power
def test_zero_rows_stay_zero_and_change_nothing(p: float) -> None:
    A = laws.rows_of("heavy")
    padded = torch.cat([A[:40], torch.zeros(7, 6, dtype=torch.float64), A[40:]])
    plain, found = ellp.factorize(A, 2, p), ellp.factorize(padded, 2, p)
    assert not found.left[40:47].any()
    kept = torch.cat([found.left[:40], found.left[47:]])
    torch.testing.assert_close(kept @ found.right, plain.left @ plain.right, rtol=1e-6, atol=1e-6)
    assert found.certificate.error == pytest.approx(plain.certificate.error, rel=1e-6)


@laws.each_power
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", ["lewis", "svd"])
def test_a_deficient_matrix_is_exact_at_its_rank(p: float, dtype: torch.dtype, method: str) -> None:
    A = (laws.draw(50, 3) @ laws.draw(3, 8, seed=1)).to(dtype)
    for rows in (A, A.T.contiguous()):
        for k in (3, 5):
            found = ellp.factorize(rows, k, p, method=method)
            near = 1e-5 if dtype == torch.float32 else 1e-12
            assert float((found.left @ found.right - rows).abs().max()) < near * float(A.abs().max())
            assert found.rank == k
            assert bool((found.sigma[:3] > 0).all())
            assert not found.sigma[3:].any()
        low = ellp.factorize(rows, 2, p, method=method)
        laws.assert_bounded(low.certificate, slack=1e-3)
        assert low.certificate.floor > 0


@laws.each_power
@pytest.mark.parametrize("shape", [(9, 3), (3, 9), (5000, 2)])
def test_an_all_zero_matrix(p: float, shape: tuple[int, int]) -> None:
    for method in ("lewis", "svd", "sketch", "loewner"):
        if p in laws.SUPPORTED[method]:
            found = ellp.factorize(torch.zeros(shape), 1, p, method=method)
            assert not (found.left @ found.right).any()
            assert not found.sigma.any()
            proof = found.certificate
            assert (proof.lower, proof.error, proof.upper, proof.floor) == (0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0, 3.0])
def test_repeated_rows(p: float) -> None:
    distinct = laws.draw(7, 5)
    A = distinct.repeat_interleave(torch.tensor([1, 2, 3, 4, 5, 6, 7]), dim=0)
    found = ellp.factorize(A, 2, p)
    weighted = ellp.factorize(distinct, 2, p, importance=torch.arange(1.0, 8.0))
    torch.testing.assert_close(found.right.T @ found.right, weighted.right.T @ weighted.right)
    assert found.certificate.error == pytest.approx(weighted.certificate.error, rel=1e-8)


@pytest.mark.parametrize(("dtype", "condition"), [(torch.float64, 1e8), (torch.float32, 1e5)])
@pytest.mark.parametrize("p", [0.5, 1.0, 2.0, 4.0])
def test_ill_conditioned(dtype: torch.dtype, condition: float, p: float) -> None:
    stretch = torch.logspace(0, -math.log10(condition), 6, dtype=torch.float64)
    A = (laws.draw(300, 6) * stretch @ laws.rotation(6)).to(dtype)
    found = ellp.factorize(A, 3, p)
    laws.assert_bounded(found.certificate, slack=1e-3)
    assert float(found.sigma[-1]) > 0
    assert found.certificate.distortion <= 1.05 * laws.ideal(6, p) * (1 + 1e-9)
    near = 0.2 if dtype == torch.float32 else 0.01
    M = ellp.lewis_ellipsoid((laws.draw(300, 6) * stretch @ laws.rotation(6)), p)
    torch.testing.assert_close(found.sigma.double(), M.sigma, rtol=near, atol=0)


# Scale and symmetry of the factors ------------------------------------------------------------------------------------


@laws.each_power
@pytest.mark.parametrize("t", [1e-30, 1e-9, 1e9, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scale(p: float, t: float, dtype: torch.dtype) -> None:
    A = laws.rows_of("gaussian", dtype)
    for rows in (A, A.T.contiguous()):
        plain, scaled = ellp.factorize(rows, 2, p), ellp.factorize(t * rows, 2, p)
        near = 1e-3 if dtype == torch.float32 else 1e-9
        torch.testing.assert_close(
            scaled.left.double() @ scaled.right.double() / t,
            plain.left.double() @ plain.right.double(),
            rtol=near,
            atol=near,
        )
        growth = 1.0 if p == 0 else t if math.isinf(p) else t**p
        assert scaled.certificate.error == pytest.approx(growth * plain.certificate.error, rel=10 * near, abs=0)
        laws.assert_bounded(scaled.certificate, slack=1e-3)


@pytest.mark.parametrize("p", [0.5, 1.0, 3.0, math.inf])
@pytest.mark.parametrize("t", [1e-20, 1e-3, 1e20])
def test_importance_in_another_unit(p: float, t: float) -> None:
    A, c = laws.rows_of("heavy"), laws.importances(80)
    for rows, weights in ((A, c), (A.T.contiguous(), laws.importances(6))):
        plain, scaled = ellp.factorize(rows, 2, p, weights), ellp.factorize(rows, 2, p, t * weights)
        laws.assert_same_product(scaled, plain, 1e-6)
        assert scaled.certificate.error == pytest.approx(t * plain.certificate.error, rel=1e-6, abs=0)
        laws.assert_bounded(scaled.certificate)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("p", [0.5, 1.0, 2.0, 4.0, 6.0])
@pytest.mark.parametrize("t", [1e-20, 1e-6, 1e6, 1e20])
def test_metric_in_another_unit(dtype: torch.dtype, p: float, t: float) -> None:
    A, H = laws.rows_of("heavy", dtype), laws.metric_matrix(6)
    plain, scaled = ellp.factorize(A, 2, p, metric=H), ellp.factorize(A, 2, p, metric=t * H)
    near = 1e-3 if dtype == torch.float32 else 1e-8
    laws.assert_same_product(scaled, plain, near)
    assert scaled.certificate.error == pytest.approx(t ** (p / 2) * plain.certificate.error, rel=10 * near, abs=0)
    laws.assert_bounded(scaled.certificate, slack=1e-3)


def test_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    A, c, S = laws.draw(700, 4), laws.importances(700), laws.metric_factor(4)

    def all_ways() -> list[ellp.Factors]:
        ways = [ellp.factorize(A, 2, p, c, S) for p in (0.0, 1.0, 4.0, math.inf)]
        ways += [ellp.factorize(A, 2, 1.0, c, S, refine=refine) for refine in ("rows", "entries")]
        return ways + [ellp.factorize(A, 2, 1.0, c, S, method=method) for method in ("sketch", "svd")]

    whole = all_ways()
    monkeypatch.setattr("ellp.rows.CPU_BLOCK", 1)  # 256 rows at a time
    for found, expected in zip(all_ways(), whole, strict=True):
        laws.assert_same_product(found, expected, 1e-5)
        assert found.certificate.error == pytest.approx(expected.certificate.error, rel=1e-7)


def test_results_can_be_repeated() -> None:
    A = laws.draw(5000, 6).float()
    first, second = (ellp.factorize(A, 2, seed=7) for _ in range(2))
    assert torch.equal(first.left, second.left)
    assert torch.equal(first.right, second.right)
    assert first.certificate == second.certificate


# Metric ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("wide", [False, True])
def test_a_metric_or_its_factor(p: float, wide: bool) -> None:
    """Both give the same error at p = 2 and near; the entries of ``E S`` differ by a rotation of S elsewhere."""
    A = laws.rows_of("gaussian")
    A = A.T.contiguous() if wide else A
    H = laws.metric_matrix(A.shape[1])
    values, vectors = torch.linalg.eigh(H)
    root = (vectors * values.sqrt()) @ vectors.T
    turned = root @ laws.rotation(A.shape[1], 9)
    by_metric = ellp.factorize(A, 2, p, metric=H, tol=1e-9, max_steps=500)
    for S in (laws.metric_factor(A.shape[1]), turned):
        by_factor = ellp.factorize(A, 2, p, metric=S, tol=1e-9, max_steps=500)
        direct = laws.entry_error(A, by_factor.left, by_factor.right, p, factor=S)
        assert by_factor.certificate.error == pytest.approx(direct, rel=1e-9)
        if p == 2 or not wide:  # a tall matrix's ellipsoid turns with S, so the kept directions are the same
            laws.assert_same_product(by_factor, by_metric, 1e-6)
    direct = laws.entry_error(A, by_metric.left, by_metric.right, p, factor=root)
    assert by_metric.certificate.error == pytest.approx(direct, rel=1e-9)


@laws.each_power
@pytest.mark.parametrize("shape", [(40, 5), (5, 40)])
def test_the_identity_is_no_metric(p: float, shape: tuple[int, int]) -> None:
    A = laws.draw(*shape)
    plain, same = ellp.factorize(A, 2, p), ellp.factorize(A, 2, p, metric=torch.eye(shape[1]))
    laws.assert_same_product(same, plain, 1e-9)
    assert same.certificate.error == pytest.approx(plain.certificate.error, rel=1e-9)


def test_what_the_metric_values_is_kept() -> None:
    A = laws.draw(300, 6)
    for heavy in range(6):
        H = torch.eye(6, dtype=torch.float64)
        H[heavy, heavy] = 100.0
        plain, found = ellp.factorize(A, 3), ellp.factorize(A, 3, metric=H)
        before, after = ((A - pair.left @ pair.right)[:, heavy].abs().sum() for pair in (plain, found))
        assert float(after) < 0.2 * float(A[:, heavy].abs().sum())
        assert float(after) < float(before)


# Importance -----------------------------------------------------------------------------------------------------------


def test_what_is_important_is_kept() -> None:
    A = laws.draw(300, 6)
    c = torch.ones(300)
    c[:3] = 1e4
    plain, found = ellp.factorize(A, 3), ellp.factorize(A, 3, importance=c)
    before, after = ((A - pair.left @ pair.right)[:3].abs().sum() for pair in (plain, found))
    assert float(after) < 0.05 * float(before)


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_importance_on_one_row(p: float, dtype: torch.dtype) -> None:
    A = laws.draw(40, 5).to(dtype)
    c = torch.zeros(40)
    c[17] = 2.0
    for method in ("lewis", "svd"):
        found = ellp.factorize(A, 1, p, importance=c, method=method)
        torch.testing.assert_close((found.left @ found.right)[17], A[17], rtol=1e-5, atol=1e-6)
        assert int((found.sigma > 0).sum()) == 1


def test_importance_takes_every_kind() -> None:
    A = laws.rows_of("heavy")
    c = np.arange(80) % 4
    expected = ellp.factorize(A, 2, importance=c)
    for same in (c.tolist(), torch.from_numpy(c), c.astype(np.float32), torch.from_numpy(c)[:, None]):
        laws.assert_same_product(ellp.factorize(A, 2, importance=same), expected, 1e-12)


# Refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("numpy", [False, True])
def test_nan_and_infinity(bad: float, numpy: bool) -> None:
    A = laws.draw(5000, 3)
    A[4321, 2] = bad
    with laws.refused("row 4,321", "column 2", "NaN" if math.isnan(bad) else "infinity"):
        ellp.factorize(A.numpy() if numpy else A, 1)
    with laws.refused("row 2", "column 4,321"):  # of the caller's matrix, not of its transpose
        ellp.factorize(A.T, 1, importance=torch.ones(3))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_empty(shape: tuple[int, int]) -> None:
    with laws.refused(str(shape)):
        ellp.factorize(torch.zeros(shape), 1)
    with laws.refused(str(shape)):
        ellp.lewis_ellipsoid(np.zeros(shape))


@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4)])
def test_not_a_matrix(shape: tuple[int, ...]) -> None:
    for A in (torch.ones(shape), np.ones(shape)):
        with laws.refused("two dimensions"):
            ellp.factorize(A, 1)


def test_numbers_that_are_not_real() -> None:
    for A in (torch.ones(3, 2, dtype=torch.complex64), np.ones((3, 2), dtype=complex), np.array([["a", "b"]])):
        with laws.refused("need real numbers"):
            ellp.factorize(A, 1)


def test_sparse() -> None:
    with laws.refused("dense", "to_dense"):
        ellp.factorize(torch.eye(4).to_sparse(), 1)
    with laws.refused("dense", "to_dense"):
        ellp.lewis_ellipsoid(torch.eye(4).to_sparse())
    with laws.refused("dense", "to_dense"):
        ellp.factorize(torch.eye(4), 1, metric=torch.eye(4).to_sparse())


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_bad_importances_name_the_row(bad: float) -> None:
    c = torch.ones(20)
    c[13] = bad
    with laws.refused("row 13", str(bad)):
        ellp.factorize(laws.draw(20, 3), 1, importance=c)


def test_importances_that_do_not_fit() -> None:
    A = laws.draw(20, 3)
    with laws.refused("20", "19"):
        ellp.factorize(A, 1, importance=torch.ones(19))
    with laws.refused("zero"):
        ellp.factorize(A, 1, importance=torch.zeros(20))


def test_metrics_that_are_none() -> None:
    A = laws.draw(20, 3)
    with laws.refused("positive definite"):
        ellp.factorize(A, 1, metric=torch.diag(torch.tensor([1.0, 1.0, -1.0])))
    with laws.refused("positive definite"):
        ellp.factorize(A, 1, metric=torch.ones(3, 3))
    with laws.refused("invertible"):
        ellp.factorize(A, 1, metric=torch.tensor([[1.0, 2.0, 3.0], [0.0, 1.0, 1.0], [0.0, 0.0, 0.0]]))
    with laws.refused("3 x 3", "(2, 2)"):
        ellp.factorize(A, 1, metric=torch.eye(2))
    with laws.refused("finite metric", "row 1"):
        ellp.factorize(A, 1, metric=torch.diag(torch.tensor([1.0, math.nan, 1.0])))


@pytest.mark.parametrize("p", [-1.0, -math.inf, math.nan])
def test_powers_that_are_none(p: float) -> None:
    A = laws.draw(20, 3)
    for act in (lambda: ellp.factorize(A, 1, p), lambda: ellp.lewis_ellipsoid(A, p)):
        with laws.refused("need p of 0 or more", str(p)):
            act()


@pytest.mark.parametrize("rank", [0, -2, 1.5, 2.0, math.nan, math.inf, True, "2", None])
def test_ranks_that_are_none(rank: object) -> None:
    with laws.refused("rank", "positive whole number"):
        ellp.factorize(laws.draw(20, 3), rank)  # type: ignore[arg-type]


@pytest.mark.parametrize("rank", [np.int64(2), np.uint8(2), torch.tensor(2)])
def test_ranks_of_every_kind(rank: int) -> None:
    found = ellp.factorize(laws.draw(20, 3), rank)
    assert found.rank == 2
    assert type(found.rank) is int


def test_unknown_choices() -> None:
    A = laws.draw(20, 3)
    with laws.refused("lewis", "'pca'"):
        ellp.factorize(A, 1, method="pca")  # type: ignore[arg-type]
    with laws.refused("entries", "'columns'"):
        ellp.factorize(A, 1, refine="columns")  # type: ignore[arg-type]


@pytest.mark.parametrize("p", [1e-3, 60.0, 400.0, 1e6])
@pytest.mark.parametrize("method", ["lewis", "svd"])
@pytest.mark.parametrize("refine", [None, "rows", "entries"])
def test_extreme_powers_are_refused_or_bounded(p: float, method: str, refine: str | None) -> None:
    A = laws.draw(300, 6)
    try:
        proof = ellp.factorize(A, 2, p=p, method=method, refine=refine, strict=False).certificate
    except ellp.InputError as error:
        refused, proof = str(error), None
    if proof is None:
        assert "range of floats" in refused
        return
    assert proof.lower <= proof.error * 1.0001
    assert proof.error <= proof.upper * 1.0001


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, math.inf])
def test_importances_at_the_end_of_the_range(p: float) -> None:
    A = laws.draw(300, 6)
    even, huge = (ellp.factorize(A, 2, p=p, importance=np.full(300, t)).left for t in (1.0, 1e308))
    torch.testing.assert_close(huge, even)


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, 10**30])
def test_seeds_out_of_range(seed: int) -> None:
    for call in (ellp.lewis_ellipsoid, ellp.sketched_ellipsoid):
        with pytest.raises(ellp.InputError, match="seed"):
            call(laws.draw(9, 2), seed=seed)
    with pytest.raises(ellp.InputError, match="seed"):
        ellp.factorize(laws.draw(9, 2), 1, seed=seed)


@pytest.mark.parametrize("p", [0.5, 3.0])
def test_not_converged_keeps_what_was_found(p: float) -> None:
    A = laws.rows_of("heavy")
    with pytest.raises(ellp.NotConverged, match=r"strict=False") as caught:
        ellp.factorize(A, 2, p, tol=1e-13, max_steps=1)
    laws.assert_sandwich(A, caught.value.ellipsoid, laws.slack_of(A.dtype))
    found = ellp.factorize(A, 2, p, tol=1e-13, max_steps=1, strict=False)
    laws.assert_bounded(found.certificate)
    assert isinstance(caught.value, ellp.EllpError)


# Relative error -------------------------------------------------------------------------------------------------------


@laws.each_power
@pytest.mark.parametrize("t", [1e-20, 1.0, 1e20])
def test_relative_error_is_the_ratio_of_norms(p: float, t: float) -> None:
    A = t * laws.rows_of("heavy")
    found = ellp.factorize(A, 2, 1.0)
    residual = A - found.left @ found.right

    def norm(entries: Tensor) -> float:
        return float((entries / t).abs().max()) if math.isinf(p) else float((entries / t).abs().pow(p).sum() ** (1 / p))

    if p > 0:
        entries = norm(residual) / norm(A)
        rows = norm(torch.linalg.vector_norm(residual, dim=1)) / norm(torch.linalg.vector_norm(A, dim=1))
        assert ellp.relative_error(A, found, p) == pytest.approx((entries, rows), rel=1e-9)
        assert ellp.relative_error(A.numpy(), found, p) == pytest.approx((entries, rows), rel=1e-9)
    zero = torch.zeros_like(A)
    assert ellp.relative_error(zero, ellp.factorize(zero, 2, 1.0), p) == (0.0, 0.0)


def test_relative_error_counts_at_p_0() -> None:
    A = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
    assert ellp.relative_error(A, ellp.svd(A, 1), 0.0) == (0.25, 0.25)


def test_relative_error_of_factors_of_another_matrix() -> None:
    found = ellp.svd(laws.draw(20, 3), 1)
    with laws.refused("(21, 3)", "(20, 3)"):
        ellp.relative_error(laws.draw(21, 3), found)


# The package ----------------------------------------------------------------------------------------------------------


def test_every_public_name_exists_and_is_documented() -> None:
    for name in ellp.__all__:
        assert inspect.getdoc(getattr(ellp, name)), name
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = ellp.no_such_name


def test_errors_are_what_their_names_say() -> None:
    assert issubclass(ellp.InputError, ValueError)
    assert issubclass(ellp.NotConverged, RuntimeError)
    assert issubclass(ellp.InputError, ellp.EllpError)
    assert issubclass(ellp.NotConverged, ellp.EllpError)
