r"""Lower the error that the ellipsoid's projection starts with, by iteratively reweighted least squares (IRLS).

``entries`` works on ``sum_i c_i sum_j |((A - U W) S)_ij|^p`` over both factors: with weights
``h_ij = max(|E_ij|, eps)^(p-2)`` every row of U, then every column of W, is a k x k weighted least-squares problem,
solved for all rows of a block at once. ``rows`` works on ``sum_i c_i |a_i S (I - P)|_2^p`` over projections P of rank
k: the leading eigenvectors of the Gram matrix with weights ``c_i |e_i|^(p-2)``.

Both are monotone: a step that does not lower its objective is not taken, and ends the refinement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ellp.ellipsoid.certificate import GramSum
from ellp.errors import InputError
from ellp.factor.project import power_sum
from ellp.rows import Rows

MAX_ROUNDS = 30
ENOUGH = 1e-4  # relative gain of a round below which the next would not be noticed
SMOOTHING = 1e-4  # of the mean residual: keeps the weights of exactly fitted entries finite
SOLVE_BYTES = 256 * 2**20  # working memory for the batched normal equations
LARGEST_NORMAL = 8 * 2**30  # bytes the normal equations of all columns together may take

Progress = Callable[[int, float], None]


def refine_rows(rows: Rows, basis: Tensor, p: float, progress: Progress | None = None) -> Tensor:
    """A better orthonormal basis (d x k) for ``sum_i c_i |row residual|^p``, starting from ``basis``."""
    _check(p)
    floor = 0.0
    cost, mean, gram = _row_pass(rows, basis, p, floor)
    for step in range(1, MAX_ROUNDS + 1):
        if mean == 0.0:
            break
        if floor == 0.0:
            floor = SMOOTHING * mean
            cost, mean, gram = _row_pass(rows, basis, p, floor)
        _, vectors = torch.linalg.eigh(gram)
        candidate = vectors.flip(1)[:, : basis.shape[1]]
        lower, mean, following = _row_pass(rows, candidate, p, floor)
        if not lower < cost:
            break
        basis, gain, cost, gram = candidate, cost - lower, lower, following
        if progress is not None:
            progress(step, cost)
        if gain <= ENOUGH * cost:
            break
    return basis


def _row_pass(rows: Rows, basis: Tensor, p: float, floor: float) -> tuple[float, float, Tensor]:
    """The row objective at ``basis``, the mean residual, and the Gram matrix of the reweighted rows (float64)."""
    width = basis.shape[0]
    axes = basis.to(rows.work)
    cost = torch.zeros((), dtype=torch.float64, device=rows.device)
    mean = torch.zeros_like(cost)
    gram = GramSum(rows, width)
    for span, block in rows.transformed():
        residual = torch.linalg.vector_norm(torch.addmm(block, block @ axes, axes.T, alpha=-1), dim=1).double()
        cost += (rows.weight[span] * residual.pow(p)).sum()
        mean += (rows.weight[span] * residual).sum() / rows.count
        if floor > 0.0:
            pull = (rows.weight[span] * residual.clamp(min=floor).pow(p - 2)).sqrt()
            gram.add(block * pull[:, None].to(rows.work))
    return float(cost), float(mean), gram.matrix()


def refine_entries(rows: Rows, basis: Tensor, p: float, progress: Progress | None = None) -> tuple[Tensor, Tensor]:
    """Factors ``U`` (n x k) and ``W`` (k x d), in the metric's coordinates, with a lower entrywise l_p error.

    A row of U, and a column of W, moves only if its own share of the objective falls.
    """
    _check(p)
    width, rank = basis.shape
    need = 12 * width * rank * rank
    if need > LARGEST_NORMAL:
        raise InputError(
            f"need about {need / 2**30:.0f} GiB for entrywise refinement at rank {rank}: lower the rank or use "
            "refine='rows'"
        )
    right = basis.T.to(rows.work).contiguous()
    left = torch.cat([block @ right.T for _, block in rows.transformed()])
    floor = SMOOTHING * _mean_residual(rows, left, right)
    cost = math.inf
    for step in range(1, MAX_ROUNDS + 1):
        if floor == 0.0:
            break
        candidate = _improve(rows, left, right, p, floor)
        before, after = (_column_costs(rows, left, factor, p) for factor in (right, candidate))
        right = torch.where(after < before, candidate, right)
        lower = float(torch.minimum(before, after).sum())
        gain, cost = cost - lower, lower
        if progress is not None:
            progress(step, cost)
        if gain <= ENOUGH * cost:
            break
    return left * rows.scale, right


def _improve(rows: Rows, left: Tensor, right: Tensor, p: float, floor: float) -> Tensor:
    """Move the rows of ``left`` in place, and return what the columns of ``right`` would move to."""
    rank, width = right.shape
    upper = torch.triu_indices(rank, rank, device=right.device)
    pairs = (right[upper[0]] * right[upper[1]]).T.contiguous()  # d x k(k+1)/2
    normal = torch.zeros(width, pairs.shape[1], dtype=torch.float64, device=right.device)
    target = torch.zeros(width, rank, dtype=torch.float64, device=right.device)
    for span, block in _chunks(rows, rank):
        old = left[span]
        residual = torch.addmm(block, old, right, alpha=-1)
        pull = _pull(residual, p, floor)
        new = _solve(pull @ pairs, (pull * block) @ right.T, upper)
        after = torch.addmm(block, new, right, alpha=-1)
        better = power_sum(after, p) < power_sum(residual, p)
        left[span] = torch.where(better[:, None], new, old)
        pull = _pull(torch.where(better[:, None], after, residual), p, floor) * rows.weight[span, None].to(rows.work)
        now = left[span]
        normal += (pull.T @ (now[:, upper[0]] * now[:, upper[1]])).double()
        target += ((pull * block).T @ now).double()
    return _solve(normal, target, upper).T.to(right.dtype).contiguous()


def _pull(residual: Tensor, p: float, floor: float) -> Tensor:
    """IRLS weights: the quadratic with these weights touches ``|E|^p`` at the current residual."""
    return (residual.abs() / floor).clamp_(min=1.0).pow_(p - 2)


def _solve(packed: Tensor, target: Tensor, upper: Tensor) -> Tensor:
    """Solve one k x k system per row; ``packed`` holds the upper triangles. Unsolvable rows become NaN."""
    count, rank = target.shape
    normal = packed.new_empty(count, rank, rank)
    normal[:, upper[0], upper[1]] = packed
    normal[:, upper[1], upper[0]] = packed
    diagonal = normal.diagonal(dim1=1, dim2=2)
    diagonal += 10 * torch.finfo(packed.dtype).eps * diagonal.mean(dim=1, keepdim=True)
    factor, failed = torch.linalg.cholesky_ex(normal)
    solved = torch.cholesky_solve(target[:, :, None], factor)[:, :, 0]
    return solved.masked_fill((failed != 0)[:, None], math.nan)  # compares as no improvement, so never taken


def _chunks(rows: Rows, rank: int) -> Iterator[tuple[slice, Tensor]]:
    """Row blocks small enough for their batched normal equations."""
    size = max(1, SOLVE_BYTES // (rows.work.itemsize * 3 * rank * rank))
    for span, block in rows.transformed():
        for first in range(0, block.shape[0], size):
            piece = block[first : first + size]
            yield slice(span.start + first, span.start + first + piece.shape[0]), piece


def _column_costs(rows: Rows, left: Tensor, right: Tensor, p: float) -> Tensor:
    costs = torch.zeros(right.shape[1], dtype=torch.float64, device=right.device)
    for span, block in rows.transformed():
        residual = torch.addmm(block, left[span], right, alpha=-1).double()
        costs += rows.weight[span] @ residual.abs().pow(p)
    return costs.nan_to_num(nan=math.inf)


def _mean_residual(rows: Rows, left: Tensor, right: Tensor) -> float:
    return float(_column_costs(rows, left, right, 1.0).sum()) / (rows.count * right.shape[1])


def _check(p: float) -> None:
    if not 0 < p < math.inf:
        raise InputError(f"need p above 0 and finite to refine, got {p}: leave refine out")
