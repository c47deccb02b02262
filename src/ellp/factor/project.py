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

import torch
from torch import Tensor

from ellp.ellipsoid.certificate import Ellipsoid
from ellp.errors import InputError
from ellp.memory import tidy
from ellp.rows import Rows


@dataclass(frozen=True)
class Bounds:
    """What an ellipsoid proves about the error of a projection, before any error is measured."""

    lower: float
    upper: float
    floor: float


Pair = tuple[Tensor, Tensor]
"""left (n x k) and right (k x d), whose product approximates the matrix."""


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


def project(rows: Rows, basis: Tensor, dtype: torch.dtype) -> Pair:
    """The pair that projects every row, in the metric, onto the orthonormal columns of ``basis`` (d x k)."""
    onto = basis if rows.metric is None else rows.metric @ basis
    right = rows.unmeasured(basis.T).to(dtype)
    tidy(rows.count * basis.shape[1] * dtype.itemsize)
    left = torch.empty(rows.count, basis.shape[1], dtype=dtype, device=rows.device)
    onto = onto.to(rows.work)
    for span, block in rows.blocks():
        torch.mul(block @ onto, rows.scale, out=left[span])
    if not bool(torch.isfinite(left.sum())):
        raise InputError(f"need factors that fit {dtype}, got an overflow: pass the matrix in a wider dtype")
    return left, right


def weighted_error(rows: Rows, left: Tensor, right: Tensor, p: float) -> float:
    """``sum_i c_i sum_j |((A - left right) S)_ij|^p``, measured on the factors as they are stored."""
    total = torch.zeros((), dtype=torch.float64, device=rows.device)
    right = right.to(rows.work)
    metric = None if rows.metric is None else rows.metric.to(rows.work)
    buffer = torch.empty(min(rows.block, rows.count), right.shape[1], dtype=rows.work, device=rows.device)
    for span, block in rows.blocks():
        part = left[span].to(rows.work)
        part = part if rows.scale == 1.0 else part / rows.scale
        residual = torch.addmm(block, part, right, alpha=-1, out=buffer[: block.shape[0]])
        cost = power_sum(residual if metric is None else residual @ metric, p).double() * rows.weight[span]
        total = torch.maximum(total, cost.max()) if math.isinf(p) else total + cost.sum()
    return float(total) * rows.unit * (rows.scale if math.isinf(p) else rows.scale**p)
