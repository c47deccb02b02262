"""Every method gives what it says, counts what it takes, and finds its ellipsoid once for all budgets."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import ellp
from ellp import InputError
from ellp.code.rounding import round_to_bits, rounded_bytes
from ellp.sweep import problem as problems
from ellp.sweep.cache import Cache
from ellp.sweep.methods import METHODS, Approximation
from ellp.sweep.problem import Problem, fingerprint

SHAPES = [(120, 40), (40, 120)]


def table(shape: tuple[int, int] = (120, 40)) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    scales = torch.linspace(2.0, 0.1, shape[1])
    return torch.randn(shape, generator=generator) * scales


def counts(rows: int) -> Tensor:
    return 1 / (torch.arange(rows, dtype=torch.float64) + 5)


def approximate(name: str, problem: Problem, keep: float = 0.5) -> Approximation:
    return METHODS[name].approximate(problem, keep=keep, share=None)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_low_rank_is_the_factorization(shape: tuple[int, int], p: float, weighted: bool) -> None:
    matrix = table(shape)
    weight = counts(shape[0]) if weighted else None
    found = approximate("lp", Problem(matrix, p, weight))
    assert found.rank is not None and found.proof is not None
    wanted = ellp.factorize(matrix, found.rank, p, weight, method="svd" if p == 2 else "lewis", strict=False)
    difference = (found.matrix - wanted.left @ wanted.right).norm() / matrix.norm()
    assert float(difference) < 2e-3  # the factors are float16
    assert found.proof.distortion == pytest.approx(wanted.certificate.distortion, rel=1e-3)
    if not (weighted and shape[0] < shape[1]):  # there, weights are in units of their own
        assert found.proof.error == pytest.approx(wanted.certificate.error, rel=1e-2)


@pytest.mark.parametrize("shape", SHAPES)
def test_bytes_and_parameters_are_those_of_float16_factors(shape: tuple[int, int]) -> None:
    found = approximate("svd", Problem(table(shape), 2.0), keep=0.4)
    assert found.rank == int(0.4 * 120 * 40 / 160) and found.parameters == found.rank * 160
    assert found.bytes == 2 * found.parameters
    assert int(torch.linalg.matrix_rank(found.matrix)) == found.rank


def test_numbers_are_those_that_float16_holds() -> None:
    left, right, _ = Problem(table(), 1.0).factors(10)
    assert torch.equal(left, left.half().float()) and torch.equal(right, right.half().float())
    with pytest.raises(InputError, match="float16"):
        Problem(table() * 1e6, 1.0).factors(10)


@pytest.mark.parametrize("bits", [8, 4, 3, 2])
def test_rounding_is_plain_rounding(bits: int) -> None:
    found = METHODS[f"int{bits}"].approximate(Problem(table()), keep=None, share=None)
    assert torch.equal(found.matrix, round_to_bits(table(), bits))
    assert found.bytes == rounded_bytes((120, 40), bits)
    assert found.rank is found.parameters is found.proof is None


def test_weights_decide_what_is_kept() -> None:
    matrix, weight = table(), counts(120)
    plain, weighted = (approximate("svd", Problem(matrix, 2.0, rows)).matrix for rows in (None, weight))
    first, last = slice(0, 20), slice(60, 120)
    assert (matrix - weighted)[first].norm() < (matrix - plain)[first].norm()
    assert (matrix - weighted)[last].norm() > (matrix - plain)[last].norm()


def test_rows_without_weight_are_allowed() -> None:
    weight = counts(120)
    weight[50:] = 0.0
    for shape in SHAPES:
        found = approximate("fwsvd", Problem(table(shape), 2.0, weight[: shape[0]] + 0.0))
        assert bool(torch.isfinite(found.matrix).all())


def test_one_ellipsoid_for_all_budgets_processes_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    found = problems.lewis_ellipsoid
    monkeypatch.setattr(problems, "lewis_ellipsoid", lambda *args, **more: calls.append(args) or found(*args, **more))
    one = Problem(table(), 1.0, cache=Cache(tmp_path))
    first = [approximate("lp", one, keep).matrix for keep in (0.8, 0.5, 0.2)]
    other = Problem(table(), 1.0, cache=Cache(tmp_path))  # as another process has it
    second = [approximate("lp", other, keep).matrix for keep in (0.8, 0.5, 0.2)]
    assert len(calls) == 1
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))
    for different in (Problem(table() + 1, 1.0), Problem(table(), 1.5), Problem(table(), 1.0, counts(120))):
        different.cache = Cache(tmp_path)
        assert different.ellipsoid is not None
    assert len(calls) == 4


def test_a_damaged_cache_is_made_again(tmp_path: Path) -> None:
    wanted = Problem(table(), 1.0, cache=Cache(tmp_path)).ellipsoid
    (file,) = tmp_path.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-40])
    again = Problem(table(), 1.0, cache=Cache(tmp_path)).ellipsoid
    assert torch.equal(again.axes, wanted.axes) and again.alpha == wanted.alpha


def test_fingerprints_tell_numbers_shapes_and_types_apart() -> None:
    matrix = table()
    same = {fingerprint(matrix), fingerprint(matrix.clone()), fingerprint(matrix.T.contiguous().T)}
    assert len(same) == 1
    others = {
        fingerprint(matrix.T),
        fingerprint(matrix.double()),
        fingerprint(matrix + 1e-7),
        fingerprint(matrix, matrix),
    }
    assert len(others | same) == 5
