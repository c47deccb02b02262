"""The front door of the mathematics: from a caller's array to factors with a certificate, and back."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import get_args

import torch

from ellp.arrays import Array, Caller
from ellp.ellipsoid.certificate import Ellipsoid
from ellp.ellipsoid.lewis import MAX_STEPS
from ellp.errors import InputError
from ellp.factor.factors import Factors
from ellp.factor.solve import Progress, Solver, exact, solve_wide
from ellp.options import Method, Refine, check_p, check_seed
from ellp.rows import read_rows


def factorize(
    A: Array | str | Path,
    rank: int,
    p: float = 1.0,
    importance: Array | str | Path | None = None,
    metric: Array | None = None,
    method: Method = "lewis",
    tol: float = 0.05,
    refine: Refine | None = None,
    seed: int = 0,
    *,
    max_steps: int = MAX_STEPS,
    strict: bool = True,
    progress: Progress | None = None,
    output: str | Path | None = None,
    memory: str | int | None = None,
    dask: str | None = None,
) -> Factors:
    """Factor A (n x d) into two matrices of the given rank along the main axes of the l_p ellipsoid of its rows.

    ``importance`` (n, nonnegative) weighs rows. ``metric`` weighs directions of a row's error e by ``e H e^T``: a
    symmetric positive definite d x d matrix is read as H, any other invertible one as its factor S, ``H = S S^T``.
    ``tol`` is how far above the ideal distortion ``d^|1-p/2|`` the *proved* one may be; if it cannot be proved within
    ``max_steps`` passes, ``strict`` raises :class:`ellp.NotConverged`, otherwise the honest certificate is returned.

    A path in place of A is a table that need not fit in memory: it is read in parts, ``memory`` (``"1GB"``, bytes; by
    default a quarter of the machine's) bounds what the process holds, and the factors are written to ``output``. With
    ``dask``, the address of a scheduler or ``local:N``, the workers of a cluster read and write.

    >>> import torch, ellp
    >>> factors = ellp.factorize(torch.randn(1000, 64, generator=torch.manual_seed(0)), rank=16)
    >>> factors.left.shape, factors.right.shape
    (torch.Size([1000, 16]), torch.Size([16, 64]))
    >>> factors.certificate.lower <= factors.certificate.error <= factors.certificate.upper
    True
    """
    check_options(rank, p, method, refine, seed)
    if isinstance(A, (str, Path)):
        from ellp.scale.factor import Job, Place, factorize_file

        place = Place(None if output is None else Path(output), memory)
        job = Job(rank, p, importance, metric, method, tol, refine, seed, max_steps, strict)
        return factorize_file(A, job, place, progress=progress).factors
    if isinstance(importance, (str, Path)) or output is not None or memory is not None:
        raise InputError(
            "need a path for a table with importances in a file, output or memory, got an array: pass a path"
        )
    caller = Caller(A)
    n, d = caller.matrix.shape
    weight, factor = caller.importance(importance), caller.metric(metric)
    solver = Solver(p, method, tol, refine, seed, max_steps, strict, progress)
    with in_range(p):
        if n >= d or refine == "rows":  # rows of a wide matrix are rows, not its transpose's columns
            solved = solver.solve(read_rows(caller.matrix, weight, factor), rank, caller.dtype)
        else:
            solved = solve_wide(caller.matrix, weight, factor, solver, rank, caller.dtype)
    if rank >= min(n, d):
        solved = exact(caller.matrix, solved, caller.dtype)
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
    start: Ellipsoid | None = None,
) -> Ellipsoid:
    """The Lewis ellipsoid of the rows of A, for any p from 0 (Tyler's scatter) to infinity (John's ellipsoid).

    ``start`` is an ellipsoid to go on from (p < inf), such as the sketched one, or that of a nearby p or table; a flat
    one is not used.

    >>> import numpy as np, ellp
    >>> round(ellp.lewis_ellipsoid(np.eye(3)).distortion, 12)  # the cross-polytope: d^(1/2)
    1.732050807569
    """
    if start is not None and math.isinf(p):
        raise InputError("need p below infinity for a start, got inf: leave start out")
    return _ellipsoid(A, importance, metric, Solver(p, "lewis", tol, None, seed, max_steps, strict, None, start))


def loewner_ellipsoid(
    A: Array, p: float = 1.0, importance: Array | None = None, metric: Array | None = None
) -> Ellipsoid:
    """An ellipsoid around ``{x : f(x) <= 1}`` by the ellipsoid method: the slow reference, for a few dozen columns."""
    return _ellipsoid(A, importance, metric, Solver(p, "loewner"))


def sketched_ellipsoid(
    A: Array, p: float = 1.0, importance: Array | None = None, metric: Array | None = None, seed: int = 0
) -> Ellipsoid:
    """The randomized ellipsoid: one pass sketches the rows, a second certifies and sharpens it (0 < p <= 2)."""
    return _ellipsoid(A, importance, metric, Solver(p, "sketch", seed=seed))


def check_options(rank: int, p: float, method: str, refine: str | None, seed: int) -> None:
    """What can be told about the options before the matrix is looked at."""
    check_p(p)
    check_seed(seed)
    whole = hasattr(rank, "__index__") and not isinstance(rank, bool)
    if not whole or rank < 1:
        raise InputError(f"need a rank of at least 1, got {rank}: pass a positive whole number")
    if method not in get_args(Method):
        raise InputError(f"need a method out of {', '.join(get_args(Method))}, got {method!r}: pass one of these")
    if refine is not None and refine not in get_args(Refine):
        raise InputError(
            f"need refine to be None or one of {', '.join(get_args(Refine))}, got {refine!r}: pass one of these"
        )


@contextmanager
def in_range(p: float) -> Iterator[None]:
    """Powers that leave the range of floats are a matter of p, whatever step meets them first."""
    try:
        yield
    except (ArithmeticError, torch.linalg.LinAlgError) as error:  # type: ignore[attr-defined]
        raise InputError(
            f"need a p whose powers and roots of these numbers are in the range of floats, got {p}: use one nearer to "
            "1, or 0 or inf"
        ) from error


def _ellipsoid(A: Array, importance: Array | None, metric: Array | None, solver: Solver) -> Ellipsoid:
    check_p(solver.p)
    check_seed(solver.seed)
    caller = Caller(A)
    rows = read_rows(caller.matrix, caller.importance(importance), caller.metric(metric))
    with in_range(solver.p):
        found = solver.ellipsoid(rows)
    return replace(found, axes=caller.back(found.axes, wide=True), sigma=caller.back(found.sigma, wide=True))
