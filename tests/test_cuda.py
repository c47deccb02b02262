"""The laws on a CUDA device, on a small table and on one of a vocabulary's size, and agreement with the CPU.

Runs alone too, from the top of the repository: ``PYTHONPATH=src python -m pytest tests/test_cuda.py``.
"""

import math
from typing import Any

import laws
import pytest
import torch
from torch import Tensor

import ellp
from ellp.code.search import code_table

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and torch sees none")


def vocabulary(dtype: torch.dtype = torch.float32) -> Tensor:
    """30000 x 64: uneven columns, uneven rows, a few far outliers, and zero rows for padding."""
    A = laws.draw(30000, 64) * torch.logspace(0, -2, 64, dtype=torch.float64) @ laws.rotation(64)
    A = A / laws.chances(30000, 1, seed=1).clamp(min=0.01)
    A[::5000] *= 10
    A[:4] = 0.0
    return A.to(dtype)


def options(method: str, p: float) -> dict[str, object]:
    return {"strict": False} if method == "lewis" and p == 0 else {}


@laws.each_implementation
@laws.each_dtype
@pytest.mark.parametrize("table", ["heavy", "orthogonal", "clusters"])
def test_small(method: str, p: float, dtype: torch.dtype, table: str) -> None:
    A = laws.rows_of(table, dtype)
    c, S = laws.importances(len(A)), laws.metric_factor(A.shape[1])
    for weights, factor in ((None, None), (c, S)):
        found = laws.ellipsoid_by(
            method, A.cuda(), p, weights, factor, **({"strict": False} if method == "lewis" else {})
        )
        assert found.axes.is_cuda
        laws.assert_sandwich(A, found, laws.slack_of(dtype), weights, factor)


@pytest.mark.parametrize(
    ("method", "p"),
    [(method, p) for method in ("lewis", "sketch", "svd") for p in laws.SUPPORTED[method] if p not in {1.5, 3.0, 6.0}],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_large(method: str, p: float, dtype: torch.dtype) -> None:
    A = vocabulary(dtype)
    found = ellp.factorize(A.cuda(), 16, p, method=method, **options(method, p))
    proof = found.certificate
    assert found.left.is_cuda
    assert found.left.dtype == dtype
    laws.assert_bounded(proof, slack=1e-3)
    assert not found.left[:4].any()
    if method == "lewis" and p > 0:
        assert proof.distortion <= 1.05 * laws.ideal(64, p) * (1 + 1e-9)
    ellipsoid = ellp.Ellipsoid(found.axes, found.sigma, p, proof.alpha, proof.beta, proof.steps)
    laws.assert_sandwich(A, ellipsoid, laws.slack_of(dtype))
    if p > 0:
        direct = laws.entry_error(A, found.left, found.right, p)
        assert proof.error == pytest.approx(direct, rel=1e-2 if dtype != torch.float64 else 1e-9)


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_device_does_not_matter(p: float, dtype: torch.dtype) -> None:
    A, c, S = vocabulary(dtype), laws.importances(30000), laws.metric_factor(64)
    tight = {"tol": 1e-5 if dtype == torch.float64 else 1e-3, "max_steps": 400}
    here, there = (ellp.factorize(rows, 16, p, c, S, **tight) for rows in (A, A.cuda()))
    assert there.certificate.error == pytest.approx(here.certificate.error, rel=1e-3)
    assert there.certificate.distortion == pytest.approx(here.certificate.distortion, rel=2e-3)
    torch.testing.assert_close(there.sigma.cpu(), here.sigma, rtol=1e-2, atol=0)


@pytest.mark.parametrize("refine", ["entries", "rows"])
@pytest.mark.parametrize("p", [0.5, 1.0, 1.5])
def test_refinement(refine: str, p: float) -> None:
    A = vocabulary()
    c, S = laws.importances(30000), laws.metric_factor(64)
    measure = laws.entry_error if refine == "entries" else laws.row_error
    plain, refined = (ellp.factorize(A.cuda(), 8, p, c, S, refine=choice) for choice in (None, refine))
    before, after = (measure(A, found.left, found.right, p, c, S) for found in (plain, refined))
    assert after <= before * (1 + 1e-4)
    laws.assert_bounded(refined.certificate, slack=1e-3)


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0])
def test_wide_deficient_and_zero_matrices(p: float) -> None:
    A = (laws.draw(500, 3) @ laws.draw(3, 12, seed=1)).float().cuda()
    for rows in (A, A.T):
        found = ellp.factorize(rows, 3, p)
        assert float((found.left @ found.right - rows).abs().max()) < 1e-3 * float(A.abs().max())
        assert not found.sigma[3:].any()
    c = torch.ones(12)
    c[::3] = 0.0
    found = ellp.factorize(A.T, 5, p, c, laws.metric_factor(500))
    assert torch.isfinite(found.left).all()
    assert float((found.left @ found.right - A.T).abs().max()) < 1e-3 * float(A.abs().max())
    assert not ellp.factorize(torch.zeros(90, 4).cuda(), 2, p).left.any()


def test_full_rank_is_exact_to_the_bit() -> None:
    A = laws.draw(50, 7).float()
    found = ellp.factorize(A.cuda(), 7)
    assert torch.equal(found.left.cpu(), A)
    assert torch.equal(found.right.cpu(), torch.eye(7))


def test_arrays_may_live_apart() -> None:
    """Importances and a metric come along to the matrix's device; relative_error takes a matrix from either."""
    A = laws.draw(300, 6)
    found = ellp.factorize(A.cuda(), 2, importance=laws.importances(300).numpy(), metric=laws.metric_factor(6))
    expected = ellp.factorize(A, 2, importance=laws.importances(300), metric=laws.metric_factor(6))
    laws.assert_same_product(found, expected, 1e-8)
    assert ellp.relative_error(A, found) == pytest.approx(ellp.relative_error(A.cuda(), found), rel=1e-9)


def test_bad_rows_are_named() -> None:
    A = laws.draw(3000, 3).cuda()
    A[2345, 1] = math.nan
    with laws.refused("row 2,345", "column 1", "NaN"):
        ellp.factorize(A, 1)


def test_results_can_be_repeated() -> None:
    A = vocabulary().cuda()
    first, second = (ellp.factorize(A, 8, seed=3) for _ in range(2))
    assert torch.equal(first.sigma, second.sigma)
    assert torch.equal(first.left, second.left)


@pytest.mark.parametrize(
    "settings",
    [{"bytes": 0.25, "coder": "codebook"}, {"bytes": 0.3, "coder": "rounding"}, {"keep": 0.4, "tapered": True}],
    ids=lambda settings: settings.get("coder", "tapered"),
)
def test_a_coded_table_reads_alike_on_both_devices(settings: dict[str, Any]) -> None:
    table = torch.randn(3000, 96, generator=torch.Generator().manual_seed(0)) * torch.logspace(0, -1, 96)
    model = torch.nn.Sequential(torch.nn.Embedding.from_pretrained(table))
    ellp.compress(model, **settings)
    ids = torch.randint(3000, (4, 50), generator=torch.Generator().manual_seed(1))
    here = model(ids)
    there = model.to("cuda")(ids.cuda())
    assert torch.allclose(here, there.cpu(), atol=1e-5)


def test_a_table_is_coded_on_the_device_as_well_as_on_the_host() -> None:
    table = torch.randn(3000, 96, generator=torch.Generator().manual_seed(0)) * torch.logspace(0, -1, 96)
    here, there = (code_table(part, 100_000) for part in (table, table.cuda()))
    assert all(tensor.is_cuda for tensor in there.tensors.values())
    assert there.bytes <= 100_000
    assert there.error == pytest.approx(here.error, rel=0.02)
