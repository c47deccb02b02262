r"""Keep the leading axes of an ellipsoid: ``A_k = A S V_k V_k^T S^-1``, measured and bounded.

With ``P = V_k V_k^T`` and ``M = V diag(sigma^2) V^T`` the error ``(A - A_k) S = A S (I - P)`` satisfies, column by
column, ``f((I-P) e_j) = sum_i c_i |E_ij|^p``, so the ellipsoid's certificate bounds it without looking at A:

    (1/alpha) sum_j |(I-P) e_j|_M^p  <=  sum_i c_i sum_j |E_ij|^p  <=  beta sum_j |(I-P) e_j|_M^p

for any orthogonal projection P. And no matrix of rank k at all has an error below the *floor*
``sum_{i>k} sigma_i^p / (alpha (d-k)^(1-p/2))`` (for p <= 2; all p in docs/how-it-works.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ellp.ellipsoid.certificate import Ellipsoid
from ellp.errors import InputError
from ellp.memory import tidy
from ellp.rows import Rows, Sums, Table


@dataclass(frozen=True)
class Bounds:
    """What an ellipsoid proves about the error of a projection, before any error is measured."""

    lower: float
    upper: float
    floor: float


def power_sum(values: Tensor, p: float) -> Tensor:
    """``sum |x|^p`` along the last dimension: a count of nonzeros at p = 0, the maximum at p = inf.

    Summed in float64 above p = 1, where powers of ordinary numbers leave the range of float32.
    """
    if math.isinf(p):
        return values.abs().amax(dim=-1)
    if p == 0:
        return (values != 0).to(values.dtype).sum(dim=-1)
    if p == 1:
        summed: Tensor = torch.linalg.vector_norm(values, ord=1, dim=-1)
        return summed
    values = values.double() if p > 1 else values
    if p == 2:
        return values.square().sum(dim=-1)
    return values.double().abs().pow(p).sum(dim=-1)  # high powers leave the range of float32


def bounds(ellipsoid: Ellipsoid, basis: Tensor) -> Bounds:
    """Bounds for the projection onto the orthonormal columns of ``basis`` (d x k)."""
    p, (width, rank) = ellipsoid.p, basis.shape
    axes, sigma = ellipsoid.axes.double(), ellipsoid.sigma.double()
    stretch = sigma[:, None] * (axes.T - (axes.T @ basis) @ basis.T)  # column j is D V^T (I-P) e_j
    spread = float(power_sum(torch.linalg.vector_norm(stretch, dim=0), p))
    upper = spread * ellipsoid.beta if spread > 0 else 0.0
    if math.isinf(ellipsoid.alpha):
        return Bounds(0.0, upper, 0.0)
    return Bounds(spread / ellipsoid.alpha, upper, _floor(sigma[rank:], width, p) / ellipsoid.alpha)


def _floor(tail: Tensor, width: int, p: float) -> float:
    """Below what no matrix of this rank can be, times alpha; ``tail`` are the axis values left out.

    On the kernel of a rank-k matrix the error is A itself, and by Cauchy's interlacing the axes of the ellipsoid's
    restriction to it are no shorter than the tail.
    """
    if math.isinf(p):
        return float(tail.max()) / math.sqrt(width) if len(tail) else 0.0
    spread = max(1, len(tail) if p <= 2 else width)
    return float(power_sum(tail, p)) * math.exp(-abs(1 - p / 2) * math.log(spread)) if len(tail) else 0.0


class Keeper(Protocol):
    """Where a left factor goes, span by span."""

    def keep(self, first: int, left: Tensor) -> None:
        """Rows of the left factor, from the table's row ``first`` on."""


@dataclass(frozen=True)
class Held:
    """A left factor kept in memory."""

    left: Tensor

    def keep(self, first: int, left: Tensor) -> None:
        self.left[first : first + left.shape[0]] = left


def project(rows: Rows, basis: Tensor, dtype: torch.dtype, p: float) -> tuple[Tensor, Tensor, float]:
    """The pair that projects every row, in the metric, onto the columns of ``basis`` (d x k), and its error.

    ``basis`` is orthonormal; the error is that of :func:`weighted_error`, measured as the pair is stored.
    """
    tidy(rows.count * basis.shape[1] * dtype.itemsize)
    held = Held(torch.empty(rows.count, basis.shape[1], dtype=dtype, device=rows.device))
    right = right_factor(rows, basis, dtype)
    return held.left, right, projected_error(rows, basis, right, p, held)


def right_factor(table: Table, basis: Tensor, dtype: torch.dtype) -> Tensor:
    """The right factor (k x d) of a projection."""
    return table.unmeasured(basis.T).to(dtype)


def projected_error(table: Table, basis: Tensor, right: Tensor, p: float, keeper: Keeper) -> float:
    """One pass that keeps the left factor and measures the pair's error."""
    onto = basis if table.metric is None else table.metric @ basis
    cost, overflows = table.total(projected, onto.to(table.work), right, p, keeper)
    if bool(overflows):
        raise InputError(f"need factors that fit {right.dtype}, got an overflow: pass the matrix in a wider dtype")
    return in_units(table, float(cost), p)


def projected(rows: Rows, onto: Tensor, right: Tensor, p: float, keeper: Keeper) -> Sums:
    """The kernel of that pass: cost, and in how many blocks the left factor overflows."""
    cost = Cost(rows, right, p)
    overflows = torch.zeros((), dtype=torch.float64, device=rows.device)
    for span, block in rows.blocks():
        left = torch.mul(block @ onto, rows.scale).to(right.dtype)
        overflows += ~torch.isfinite(torch.stack(torch.aminmax(left))).all()
        keeper.keep(rows.first + span.start, left)
        cost.add(span, block, left)
    return cost.total, overflows


def weighted_error(rows: Rows, left: Tensor, right: Tensor, p: float) -> float:
    """``sum_i c_i sum_j |((A - left right) S)_ij|^p``, measured on the factors as they are stored."""
    cost = Cost(rows, right, p)
    for span, block in rows.blocks():
        cost.add(span, block, left[span])
    return in_units(rows, float(cost.total), p)


def in_units(table: Table, cost: float, p: float) -> float:
    """A cost of rescaled rows and weights, as the caller counts."""
    return cost * table.unit * (table.scale if math.isinf(p) else table.scale**p)


class Cost:
    """The sum of ``c_i |error of row i|^p`` over blocks (at p = inf the largest)."""

    def __init__(self, rows: Rows, right: Tensor, p: float) -> None:
        self.rows, self.p, self.right = rows, p, right.to(rows.work)
        self.metric = None if rows.metric is None else rows.metric.to(rows.work)
        size = min(rows.block, rows.count)
        self.buffer = torch.empty(size, right.shape[1], dtype=rows.work, device=rows.device)
        self.total = torch.zeros((), dtype=torch.float64, device=rows.device)

    def add(self, span: slice, block: Tensor, left: Tensor) -> None:
        part = left.to(self.rows.work)
        part = part if self.rows.scale == 1.0 else part / self.rows.scale
        residual = torch.addmm(block, part, self.right, alpha=-1, out=self.buffer[: block.shape[0]])
        residual = residual if self.metric is None else residual @ self.metric
        cost = power_sum(residual, self.p).double() * self.rows.weight[span]
        self.total = torch.maximum(self.total, cost.max()) if math.isinf(self.p) else self.total + cost.sum()
