"""The front door of the mathematics: from a caller's array to factors with a certificate, and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple, get_args

import torch
from torch import Tensor

from ellp.arrays import Array, Caller
from ellp.ellipsoid.certificate import Ellipsoid
from ellp.ellipsoid.john import john
from ellp.ellipsoid.lewis import MAX_STEPS, lewis
from ellp.ellipsoid.loewner import loewner
from ellp.ellipsoid.sketch import sketched_frame
from ellp.errors import InputError
from ellp.factor.project import bounds, power_sum, project, weighted_error
from ellp.factor.refine import refine_entries, refine_rows
from ellp.factor.svd import singular_ellipsoid
from ellp.options import Method, Refine
from ellp.rows import Rows, largest_entry, read_rows

Progress = Callable[[str, int, float], None]
"""Called after each step with the stage's name, the step's number, and the distortion or cost reached."""


@dataclass(frozen=True)
class Certificate:
    """What is proved and what was measured about a factorization.

    For every direction x, ``|x|_M^p <= alpha f(x)`` and ``f(x) <= beta |x|_M^p``, where ``f(x) = sum_i c_i |a_i.x|^p``.
    The error is ``sum_i c_i sum_j |((A - A_k) S)_ij|^p`` (at p = inf the largest ``c_i |.|``): ``lower`` and ``upper``
    bound it from the ellipsoid alone, ``error`` is the measured value, and no matrix of this rank has an error below
    ``floor``. ``steps`` counts passes over all rows (cuts, for the ellipsoid method).
    """

    p: float
    alpha: float
    beta: float
    lower: float
    upper: float
    floor: float
    error: float
    steps: int

    @property
    def distortion(self) -> float:
        """The proved distortion ``alpha * beta``; the ideal is ``d^|1-p/2|``."""
        return self.alpha * self.beta


@dataclass(frozen=True)
class Factors:
    """``left @ right`` (n x k times k x d) approximates A; ``sigma`` and ``axes`` describe the ellipsoid used.

    ``sigma`` holds all axis values in descending order, ``axes`` the matching axes as columns. For a matrix wider than
    tall the ellipsoid is that of its transpose, and ``axes`` are n x n (unless ``refine="rows"``).
    """

    left: Array
    right: Array
    sigma: Array
    axes: Array
    rank: int
    certificate: Certificate


class RelativeError(NamedTuple):
    """Error over size, in the l_p norm of the entries and of the rows' Euclidean lengths."""

    entries: float
    rows: float


def factorize(
    A: Array,
    rank: int,
    p: float = 1.0,
    importance: Array | None = None,
    metric: Array | None = None,
    method: Method = "lewis",
    tol: float = 0.05,
    refine: Refine | None = None,
    seed: int = 0,
    *,
    max_steps: int = MAX_STEPS,
    strict: bool = True,
    progress: Progress | None = None,
) -> Factors:
    """Factor A (n x d) into two matrices of the given rank along the main axes of the l_p ellipsoid of its rows.

    ``importance`` (n, nonnegative) weighs rows. ``metric`` weighs directions of a row's error e by ``e H e^T``: a
    symmetric positive definite d x d matrix is read as H, any other invertible one as its factor S, ``H = S S^T``.
    ``tol`` is how far above the ideal distortion ``d^|1-p/2|`` the *proved* one may be; if it cannot be proved within
    ``max_steps`` passes, ``strict`` raises :class:`ellp.NotConverged`, otherwise the honest certificate is returned.

    >>> import torch, ellp
    >>> factors = ellp.factorize(torch.randn(1000, 64, generator=torch.manual_seed(0)), rank=16)
    >>> factors.left.shape, factors.right.shape
    (torch.Size([1000, 16]), torch.Size([16, 64]))
    >>> factors.certificate.lower <= factors.certificate.error <= factors.certificate.upper
    True
    """
    caller = Caller(A)
    _check_options(rank, p, method, refine, seed)
    n, d = caller.matrix.shape
    weight, factor = caller.importance(importance), caller.metric(metric)
    solver = _Solver(p, method, tol, refine, seed, max_steps, strict, progress)
    with _in_range(p):
        if n >= d or refine == "rows":  # rows of a wide matrix are rows, not its transpose's columns
            solved = solver.solve(read_rows(caller.matrix, weight, factor), rank, caller.dtype)
        else:
            solved = _wide(caller.matrix, weight, factor, solver, rank, caller.dtype)
    if rank >= min(n, d):
        solved = _exact(caller.matrix, solved, caller.dtype)
    left, right, ellipsoid, certificate = solved
    return Factors(
        left=caller.back(left),
        right=caller.back(right),
        sigma=caller.back(ellipsoid.sigma, wide=True),
        axes=caller.back(ellipsoid.axes, wide=True),
        rank=int(left.shape[1]),
        certificate=certificate,
    )


def svd(A: Array, rank: int, importance: Array | None = None, metric: Array | None = None) -> Factors:
    """The l_2 baseline: the truncated SVD of A, weighted if asked, in the same clothes as :func:`factorize`.

    >>> import numpy as np, ellp
    >>> A = np.diag([3.0, 2.0, 1.0])
    >>> ellp.svd(A, rank=2).certificate.error
    1.0
    """
    return factorize(A, rank, p=2.0, importance=importance, metric=metric, method="svd")


def lewis_ellipsoid(
    A: Array,
    p: float = 1.0,
    importance: Array | None = None,
    metric: Array | None = None,
    tol: float = 0.05,
    seed: int = 0,
    *,
    max_steps: int = MAX_STEPS,
    strict: bool = True,
) -> Ellipsoid:
    """The Lewis ellipsoid of the rows of A, for any p from 0 (Tyler's scatter) to infinity (John's ellipsoid).

    >>> import numpy as np, ellp
    >>> round(ellp.lewis_ellipsoid(np.eye(3)).distortion, 12)  # the cross-polytope: d^(1/2)
    1.732050807569
    """
    return _ellipsoid(A, importance, metric, _Solver(p, "lewis", tol, None, seed, max_steps, strict, None))


def loewner_ellipsoid(
    A: Array, p: float = 1.0, importance: Array | None = None, metric: Array | None = None
) -> Ellipsoid:
    """An ellipsoid around ``{x : f(x) <= 1}`` by the ellipsoid method: the slow reference, for a few dozen columns."""
    return _ellipsoid(A, importance, metric, _Solver(p, "loewner"))


def sketched_ellipsoid(
    A: Array, p: float = 1.0, importance: Array | None = None, metric: Array | None = None, seed: int = 0
) -> Ellipsoid:
    """The randomized ellipsoid: one pass sketches the rows, a second certifies and sharpens it (0 < p <= 2)."""
    return _ellipsoid(A, importance, metric, _Solver(p, "sketch", seed=seed))


def relative_error(A: Array, factors: Factors, p: float = 1.0) -> RelativeError:
    """``(||A - A_k|| / ||A||)`` in l_p, over entries and over the Euclidean lengths of rows.

    >>> import numpy as np, ellp
    >>> A = np.diag([3.0, 1.0])
    >>> ellp.relative_error(A, ellp.svd(A, rank=1), p=1.0)
    RelativeError(entries=0.25, rows=0.25)
    """
    _check_p(p)
    rows = read_rows(Caller(A).matrix, None, None)
    left, right = (Caller(part).matrix.to(rows.device) for part in (factors.left, factors.right))
    if left.shape[0] != rows.count or right.shape[1] != rows.matrix.shape[1]:
        raise InputError(
            f"need factors of a matrix of shape {tuple(rows.matrix.shape)}, got factors of shape "
            f"{(left.shape[0], right.shape[1])}: pass the matrix that was factored"
        )
    sums = torch.zeros(2, 2, dtype=torch.float64, device=rows.device)
    for span, block in rows.blocks():
        residual = torch.addmm(block, left[span].to(rows.work) / rows.scale, right.to(rows.work), alpha=-1)
        part = torch.stack([_both_norms(residual, p), _both_norms(block, p)])
        sums = torch.maximum(sums, part) if math.isinf(p) else sums + part
    ratios = torch.where(sums[0] == 0, sums[0], sums[0] / sums[1])
    root = 1.0 if p == 0 or math.isinf(p) else 1 / p
    return RelativeError(*(float(ratio) ** root for ratio in ratios))


def _both_norms(block: Tensor, p: float) -> Tensor:
    """Power sums over all entries, and over all rows' lengths."""
    lengths = torch.linalg.vector_norm(block, dim=1)
    rows = power_sum(block, p).double()
    entries = rows.max() if math.isinf(p) else rows.sum()
    return torch.stack([entries, power_sum(lengths.double(), p)])


def _check_p(p: float) -> None:
    if not p >= 0:
        raise InputError(f"need p of 0 or more, got {p}: 1 is robust, 2 is the SVD")


def _check_options(rank: int, p: float, method: str, refine: str | None, seed: int) -> None:
    _check_p(p)
    _check_seed(seed)
    whole = hasattr(rank, "__index__") and not isinstance(rank, bool)
    if not whole or rank < 1:
        raise InputError(f"need a rank of at least 1, got {rank}: pass a positive whole number")
    if method not in get_args(Method):
        raise InputError(f"need a method out of {', '.join(get_args(Method))}, got {method!r}: pass one of these")
    if refine is not None and refine not in get_args(Refine):
        raise InputError(
            f"need refine to be None or one of {', '.join(get_args(Refine))}, got {refine!r}: pass one of these"
        )


def _check_seed(seed: int) -> None:
    if not -(2**63) <= seed < 2**63:
        raise InputError(f"need a seed of at most 63 bits, got {seed}: pass a smaller one")


@contextmanager
def _in_range(p: float) -> Iterator[None]:
    """Powers that leave the range of floats are a matter of p, whatever step meets them first."""
    try:
        yield
    except (ArithmeticError, torch.linalg.LinAlgError) as error:  # type: ignore[attr-defined]
        raise InputError(
            f"need a p whose powers and roots of these numbers are in the range of floats, got {p}: use one nearer to "
            "1, or 0 or inf"
        ) from error


Solved = tuple[Tensor, Tensor, Ellipsoid, Certificate]


@dataclass(frozen=True)
class _Solver:
    """The options of a factorization, applied to rows that are at least as many as their columns."""

    p: float
    method: Method
    tol: float = 0.05
    refine: Refine | None = None
    seed: int = 0
    max_steps: int = MAX_STEPS
    strict: bool = True
    progress: Progress | None = None

    def ellipsoid(self, rows: Rows) -> Ellipsoid:
        if self.method == "svd":
            return singular_ellipsoid(rows, self.p)
        if self.method == "loewner":
            return loewner(rows, self.p)
        told = self._stage("ellipsoid")
        if self.method == "sketch":
            start = sketched_frame(rows, self.p, self.seed)
            found = lewis(rows, self.p, self.tol, max_steps=1, strict=False, start=start, progress=told)
            return replace(found, steps=found.steps + 1)
        if math.isinf(self.p):
            return john(rows, self.tol, max_steps=self.max_steps, strict=self.strict, progress=told)
        return lewis(
            rows,
            self.p,
            self.tol,
            max_steps=self.max_steps,
            strict=self.strict,
            seed=self.seed,
            progress=told,
        )

    def solve(self, rows: Rows, rank: int, dtype: torch.dtype) -> Solved:
        ellipsoid = self.ellipsoid(rows)
        basis = ellipsoid.axes[:, : min(rank, ellipsoid.axes.shape[1])].double()
        if self.refine == "rows":
            basis = refine_rows(rows, basis, self.p, self._stage("refine rows"))
        proved = bounds(ellipsoid, basis)
        if self.refine == "entries":
            left, right = refine_entries(rows, basis, self.p, self._stage("refine entries"))
            left, right = left.to(dtype), rows.unmeasured(right.double()).to(dtype)
            proved = replace(proved, lower=proved.floor)
        else:
            left, right = project(rows, basis, dtype)
        error = weighted_error(rows, left, right, self.p)
        certificate = Certificate(
            self.p,
            ellipsoid.alpha,
            ellipsoid.beta,
            proved.lower,
            proved.upper,
            proved.floor,
            error,
            ellipsoid.steps,
        )
        return left, right, ellipsoid, certificate

    def _stage(self, name: str) -> Callable[[int, float], None] | None:
        progress = self.progress
        return None if progress is None else lambda step, value: progress(name, step, value)


def _ellipsoid(A: Array, importance: Array | None, metric: Array | None, solver: _Solver) -> Ellipsoid:
    _check_p(solver.p)
    _check_seed(solver.seed)
    caller = Caller(A)
    rows = read_rows(caller.matrix, caller.importance(importance), caller.metric(metric))
    with _in_range(solver.p):
        found = solver.ellipsoid(rows)
    return replace(found, axes=caller.back(found.axes, wide=True), sigma=caller.back(found.sigma, wide=True))


def _wide(
    matrix: Tensor,
    weight: Tensor | None,
    factor: Tensor | None,
    solver: _Solver,
    rank: int,
    dtype: torch.dtype,
) -> Solved:
    """A matrix wider than tall, through its transpose: the entrywise cost is the same, once weights are folded in."""
    largest_entry(matrix)  # complains in the caller's rows, not the transpose's
    folded, level = matrix, None
    if factor is not None:
        folded = folded.double() @ factor
    if weight is not None:
        if solver.p == 0:
            raise InputError("need no importance for a wide matrix at p = 0, where rows only count: leave it out")
        level = weight if math.isinf(solver.p) else weight.pow(1 / solver.p)
        folded = folded.double() * level[:, None]
    plain = folded is matrix
    tall, across, ellipsoid, certificate = solver.solve(
        read_rows(folded.T, None, None), rank, dtype if plain else torch.float64
    )
    left, right = across.T, tall.T
    if level is not None:
        ignored = level == 0
        left = left / level.masked_fill(ignored, 1.0)[:, None]
        target = matrix[ignored].double() if factor is None else matrix[ignored].double() @ factor
        left[ignored] = torch.linalg.lstsq(right.T, target.T).solution.T
    if factor is not None:
        right = torch.linalg.solve(factor.T, right.T).T
    left, right = left.to(dtype).contiguous(), right.to(dtype).contiguous()
    if not plain:  # measured again, as stored and with the weights unfolded
        error = weighted_error(read_rows(matrix, weight, factor), left, right, solver.p)
        certificate = replace(certificate, error=error)
    return left, right, ellipsoid, certificate


def _exact(matrix: Tensor, solved: Solved, dtype: torch.dtype) -> Solved:
    """Nothing is lost at full rank: the matrix itself, beside an identity."""
    n, d = matrix.shape
    identity = torch.eye(min(n, d), dtype=dtype, device=matrix.device)
    left, right = (matrix.clone(), identity) if n >= d else (identity, matrix.clone())
    certificate = replace(solved[3], lower=0.0, upper=0.0, floor=0.0, error=0.0)
    return left, right, solved[2], certificate
