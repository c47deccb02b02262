"""From rows to factors: the ellipsoid that the options ask for, its leading axes, and the certificate of both."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ellp.ellipsoid.certificate import Ellipsoid
from ellp.ellipsoid.john import john
from ellp.ellipsoid.lewis import MAX_STEPS, frame_of, lewis
from ellp.ellipsoid.loewner import loewner
from ellp.ellipsoid.sketch import sketched_frame
from ellp.errors import InputError
from ellp.factor.factors import Certificate
from ellp.factor.project import bounds, project, weighted_error
from ellp.factor.refine import refine_entries, refine_rows
from ellp.factor.svd import singular_ellipsoid
from ellp.options import Method, Refine
from ellp.rows import Rows, largest_entry, read_rows

Progress = Callable[[str, int, float], None]
"""Called after each step with the stage's name, the step's number, and the distortion or cost reached."""

Solved = tuple[Tensor, Tensor, Ellipsoid, Certificate]


@dataclass(frozen=True)
class Solver:
    """The options of a factorization, applied to rows that are at least as many as their columns."""

    p: float
    method: Method
    tol: float = 0.05
    refine: Refine | None = None
    seed: int = 0
    max_steps: int = MAX_STEPS
    strict: bool = True
    progress: Progress | None = None
    start: Ellipsoid | None = None

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
            start=None if self.start is None else frame_of(rows, self.start),
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
            error = weighted_error(rows, left, right, self.p)
        else:
            left, right, error = project(rows, basis, dtype, self.p)
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


def solve_wide(
    matrix: Tensor,
    weight: Tensor | None,
    factor: Tensor | None,
    solver: Solver,
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


def exact(matrix: Tensor, solved: Solved, dtype: torch.dtype) -> Solved:
    """Nothing is lost at full rank: the matrix itself, beside an identity."""
    n, d = matrix.shape
    identity = torch.eye(min(n, d), dtype=dtype, device=matrix.device)
    left, right = (matrix.clone(), identity) if n >= d else (identity, matrix.clone())
    certificate = replace(solved[3], lower=0.0, upper=0.0, floor=0.0, error=0.0)
    return left, right, solved[2], certificate
