r"""One pass over the rows proves how well an ellipsoid rounds ``f(x) = sum_i c_i |a_i.x|^p``.

Let ``M = R^T R`` be any positive definite matrix, ``y_i = R^{-T} a_i`` the whitened rows, ``q_i = |y_i|^2`` and

    G = sum_i c_i q_i^{p/2-1} y_i y_i^T        (trace G = sum_i c_i q_i^{p/2})

with eigenvalues between ``l`` and ``u``. Since ``|y_i.z| <= q_i^{1/2} |z|``, Hoelder's inequality gives, for every x,

    p <= 2:   |x|_M^p <= f(x) / l                       f(x) <= tr(G)^{1-p/2} u^{p/2} |x|_M^p
    p >= 2:   |x|_M^p <= tr(G)^{p/2-1} l^{-p/2} f(x)    f(x) <= u |x|_M^p

The next Lewis iterate ``M' = R^T G R`` is certified by the same pass, more tightly, because it is the weighted
Gram matrix of the very weights that appear in G:

    p <= 2:   alpha = l^{-(1-p/2)},    beta = tr(G)^{1-p/2}
    p >= 2:   alpha = tr(G)^{p/2-1},   beta = l^{-(p/2-1)}

so ``M'`` has distortion ``(tr(G) / l)^{|1-p/2|}``, which is the ideal ``d^{|1-p/2|}`` exactly when G is a multiple of
the identity. No row has to be visited again. (Derivation: docs/how-it-works.md.)
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ellp.memory import tidy
from ellp.rows import Rows, Sums, Table

CPU_WHITEN_TILE = 96
CPU_GRAM_TILE = 192


@dataclass(frozen=True)
class Ellipsoid:
    """``{x : |x|_M <= 1}``, ``M = axes diag(sigma^2) axes^T``, with its proof.

    For every x: ``|x|_M^p <= alpha f(x)`` and ``f(x) <= beta |x|_M^p`` (for p = inf, the same without powers).
    ``sigma`` is descending; an axis along which f vanishes has sigma 0. ``steps`` counts passes over all rows.
    """

    axes: Any
    sigma: Any
    p: float
    alpha: float
    beta: float
    steps: int

    @property
    def distortion(self) -> float:
        return self.alpha * self.beta


@dataclass(frozen=True)
class Sweep:
    """What one pass over the rows says about the ellipsoid it was whitened with."""

    gram: Tensor
    p: float
    work: torch.dtype
    mean_log: float = 0.0
    """Mean of ``log q_i`` by weight: what the power mean of q becomes as p goes to 0."""

    @cached_property
    def eigenvalues(self) -> Tensor:
        """Of the Gram matrix, ascending; computed when first asked for. NaN where its entries overflowed."""
        finite = bool(torch.isfinite(self.gram).all())
        values: Tensor = (
            torch.linalg.eigvalsh(self.gram) if finite else self.gram.new_full(self.gram.shape[:1], math.nan)
        )
        return values

    @property
    def size(self) -> float:
        """The factor by which M must grow so that ``sum_i c_i q_i^(p/2) = d``, as at the fixed point."""
        if self.p == 0:
            return math.exp(self.mean_log)
        return float((self.trace / self.gram.shape[0]) ** (2 / self.p))

    @property
    def trace(self) -> float:
        return float(self.gram.trace())

    @property
    def lowest(self) -> float:
        return float(self.eigenvalues[0])

    @property
    def highest(self) -> float:
        return float(self.eigenvalues[-1])

    @property
    def sound(self) -> bool:
        """Whether rounding in the pass's own precision leaves the smallest eigenvalue meaningful."""
        return math.isfinite(self.highest) and self.lowest > 100 * torch.finfo(self.work).eps * self.highest

    @property
    def positive(self) -> bool:
        """Whether the Gram matrix has a Cholesky factor."""
        return int(torch.linalg.cholesky_ex(self.gram).info) == 0

    def here(self) -> tuple[float, float]:
        """alpha and beta of the ellipsoid M that the pass whitened with; infinite where rounding hides the proof."""
        half = self.p / 2
        if not self.sound:
            return math.inf, math.inf
        low, high, trace = (math.log(value) for value in (self.lowest, self.highest, self.trace))
        if self.p <= 2:
            return 1 / self.lowest, exponential((1 - half) * trace + half * high)
        return exponential((half - 1) * trace - half * low), self.highest

    def after(self) -> tuple[float, float]:
        """alpha and beta of the next Lewis iterate M' = R^T G R."""
        power = abs(1 - self.p / 2)
        ends = exponential(-power * math.log(self.lowest)), exponential(power * math.log(self.trace))
        return ends if self.p <= 2 else (ends[1], ends[0])


def exponential(value: float) -> float:
    """``e^value``, infinite where that leaves the range of floats: high powers are kept as logarithms until the end."""
    return math.exp(value) if value < math.log(sys.float_info.max) else math.inf


def sweep(table: Table, inverse: Tensor, p: float) -> Sweep:
    """The whitened, reweighted Gram matrix G; ``inverse`` is R^-1 (float64, upper triangular)."""
    return sweeps(table, inverse, (p,))[0]


def sweeps(table: Table, inverse: Tensor, powers: tuple[float, ...]) -> list[Sweep]:
    """The same for several p in one pass."""
    tidy(inverse.numel() * inverse.itemsize)
    *uppers, logs = table.total(whitened, table.map_back(inverse).to(table.work), powers)
    grams = [symmetric(upper) for upper in uppers]
    means = [float(logs / gram.trace()) if p == 0 else 0.0 for gram, p in zip(grams, powers, strict=True)]
    return [Sweep(gram, p, table.work, mean) for gram, p, mean in zip(grams, powers, means, strict=True)]


def whitened(rows: Rows, whiten: Tensor, powers: tuple[float, ...]) -> Sums:
    """The kernel of a sweep: the upper part of G for each power, and the sum of ``c_i log q_i``."""
    triangular = rows.plain and not rows.matrix.is_cuda
    buffers = torch.empty(
        min(2, len(powers)), min(rows.block, rows.count), rows.width, dtype=rows.work, device=rows.device
    )
    totals = [GramSum(rows) for _ in powers]
    weight = rows.weight.to(rows.work).sqrt()
    logs = torch.zeros((), dtype=torch.float64, device=rows.device)
    for span, block in rows.blocks():
        y, scaled = buffers[0, : block.shape[0]], buffers[-1, : block.shape[0]]
        _times_upper(block, whiten, y) if triangular else torch.mm(block, whiten, out=y)
        length = torch.linalg.vector_norm(y, dim=1)
        absent = length == 0
        for p, total in zip(powers, totals, strict=True):
            share = (weight[span] * length.pow(p / 2 - 1)).masked_fill_(absent, 0.0)
            total.add(torch.mul(y, share[:, None], out=y if total is totals[-1] else scaled))
            if p == 0:
                logs += (rows.weight[span] * 2 * length.double().log().masked_fill_(absent, 0.0)).sum()
    return *(total.upper for total in totals), logs


class GramSum:
    """The sum of ``block.T @ block`` over blocks, in float64; on a CPU only upper tiles are right until the end."""

    def __init__(self, rows: Rows, width: int | None = None) -> None:
        width = rows.width if width is None else width
        self.upper = torch.zeros(width, width, dtype=torch.float64, device=rows.device)
        self.tile = width if rows.matrix.is_cuda else CPU_GRAM_TILE

    def add(self, block: Tensor) -> None:
        for first in range(0, self.upper.shape[0], self.tile):
            part = block[:, first : first + self.tile].T @ block[:, first:]
            self.upper[first : first + self.tile, first:] += part

    def matrix(self) -> Tensor:
        """The whole sum, in the memory that gathered it; nothing can be added any more."""
        return symmetric(self.upper)


def symmetric(upper: Tensor) -> Tensor:
    """A symmetric matrix by its upper part, in the same memory."""
    for first in range(0, upper.shape[0], CPU_GRAM_TILE):
        last = first + CPU_GRAM_TILE
        corner = upper[first:last, first:last]
        corner.copy_(corner.triu() + corner.triu(1).T)
        upper[last:, first:last] = upper[first:last, last:].T
    return upper


def _times_upper(block: Tensor, upper: Tensor, out: Tensor) -> None:
    """``block @ upper`` for an upper triangular matrix, skipping the zero tiles."""
    width = upper.shape[1]
    for first in range(0, width, CPU_WHITEN_TILE):
        last = min(first + CPU_WHITEN_TILE, width)
        torch.mm(block[:, :last], upper[:last, first:last], out=out[:, first:last])
