"""Where a matrix's rows come from, and what each of them weighs.

Everything downstream sees a matrix only through :class:`Rows`: blocks of rows in a working precision, in units in
which the entries are of ordinary size, with importances whose mean is one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ellp.errors import InputError

CPU_BLOCK = 2 * 2**20  # bytes: a block and its whitened copy stay near the cores, and are few enough to loop over
CUDA_BLOCK = 512 * 2**20  # bytes: large enough to fill the device, small beside its memory
ORDINARY = 2.0**16  # entries up to here, and down to its inverse, need no rescaling even when squared


@dataclass(frozen=True)
class Rows:
    """The rows of ``matrix @ metric @ basis / scale``, each weighing ``weight[i]``.

    ``matrix`` is n x d and never copied; ``index`` picks the rows meant, None all of them; ``metric`` (d x d) is
    the factor S of the metric on row errors, ``basis`` (d x r, orthonormal) spans the rows of ``matrix @ metric``
    where they do not fill the space; both are float64, and None stands for the identity. ``unit`` is what one unit
    of ``weight`` weighs for the caller.
    """

    matrix: Tensor
    weight: Tensor
    scale: float = 1.0
    unit: float = 1.0
    metric: Tensor | None = None
    basis: Tensor | None = None
    work: torch.dtype = torch.float32
    index: Tensor | None = None

    @property
    def count(self) -> int:
        return int(self.weight.shape[0])

    @property
    def width(self) -> int:
        """Dimension of the space the ellipsoid lives in."""
        return int(self.matrix.shape[1] if self.basis is None else self.basis.shape[1])

    @property
    def plain(self) -> bool:
        """Whether the ellipsoid's coordinates are the caller's columns."""
        return self.metric is None and self.basis is None

    @property
    def device(self) -> torch.device:
        return self.matrix.device

    @property
    def block(self) -> int:
        """Rows in a full block."""
        size = CUDA_BLOCK if self.matrix.is_cuda else CPU_BLOCK
        return max(256, size // (self.work.itemsize * self.matrix.shape[1]))

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """The matrix in caller's columns (not transformed), rescaled, in the working precision."""
        for first in range(0, self.count, self.block):
            span = slice(first, min(first + self.block, self.count))
            block = self.matrix[span if self.index is None else self.index[span]].to(self.work)
            yield span, block if self.scale == 1.0 else block / self.scale

    def transformed(self) -> Iterator[tuple[slice, Tensor]]:
        """Blocks of ``matrix @ metric @ basis``."""
        if self.plain:
            yield from self.blocks()
            return
        identity = torch.eye(self.width, dtype=torch.float64, device=self.device)
        transform = self.map_back(identity).to(self.work)
        for span, block in self.blocks():
            yield span, block @ transform

    def map_back(self, columns: Tensor) -> Tensor:
        """A matrix acting on the ellipsoid's coordinates, as one acting on the caller's columns (float64)."""
        if self.basis is not None:
            columns = self.basis @ columns
        return columns if self.metric is None else self.metric @ columns

    def unmeasured(self, right: Tensor) -> Tensor:
        """A right factor in the metric's coordinates, as one in the caller's columns: ``right S^-1`` (float64)."""
        return right if self.metric is None else torch.linalg.solve(self.metric.T, right.T).T

    def precise(self) -> Rows:
        """The same rows, read in float64."""
        return replace(self, work=torch.float64)

    def restricted(self, basis: Tensor) -> Rows:
        """The same rows in the coordinates of an orthonormal ``basis`` (width x r) of the row space."""
        return replace(self, basis=basis if self.basis is None else self.basis @ basis)

    def sample(self, size: int, p: float, generator: torch.Generator) -> Rows:
        """About ``size`` rows, those that may matter more drawn more often and weighing less (Horvitz-Thompson).

        Half of the chance goes to rows in proportion to their importance, half in proportion to their share
        ``c_i ||a_i||^p`` of the cost; a row that should be drawn more than once is drawn for certain.
        """
        cost = self.weight * self.lengths().pow(min(p, 2.0))
        chance = _inclusion(self.weight / self.weight.sum() + cost / cost.sum(), size)
        steps = torch.cumsum(chance, 0)
        start = torch.rand((), generator=generator, dtype=torch.float64).to(self.device)
        marks = torch.floor(steps + start)
        drawn = torch.diff(marks, prepend=torch.floor(start)[None]) > 0
        index = drawn.nonzero().squeeze(1)
        weight = self.weight[index] / chance[index]
        return replace(self, weight=weight, index=index if self.index is None else self.index[index])

    def lengths(self) -> Tensor:
        """Euclidean length of every transformed row (float64)."""
        parts = [torch.linalg.vector_norm(block, dim=1) for _, block in self.transformed()]
        return torch.cat(parts).double()


def _inclusion(share: Tensor, size: int) -> Tensor:
    """Inclusion chances proportional to ``share`` and summing to ``size``, none above one."""
    chance = share * (size / share.sum())
    for _ in range(8):
        full = chance >= 1
        rest = share * ~full
        left = size - int(full.sum())
        if not bool((chance > 1).any()) or left <= 0 or float(rest.sum()) == 0.0:
            break
        chance = torch.where(full, torch.ones_like(chance), rest * (left / rest.sum()))
    return chance.clamp(max=1.0)


def read_rows(matrix: Tensor, importance: Tensor | None, factor: Tensor | None) -> Rows:
    """Check a matrix, and bring it and its importances to ordinary units."""
    largest = largest_entry(matrix)
    ordinary = largest == 0.0 or 1 / ORDINARY <= largest <= ORDINARY
    scale = 1.0 if ordinary else 2.0 ** math.floor(math.log2(largest))
    if importance is None:
        weight, unit = torch.ones(matrix.shape[0], dtype=torch.float64, device=matrix.device), 1.0
    else:
        largest_weight = importance.max()  # taken out first: a mean of numbers near the end of the range overflows
        mean = (importance / largest_weight).mean()
        unit = float(mean * largest_weight)
        weight = importance / largest_weight / mean
    work = torch.float64 if matrix.dtype == torch.float64 else torch.float32
    return Rows(matrix=matrix, weight=weight, scale=scale, unit=unit, metric=factor, work=work)


def largest_entry(matrix: Tensor) -> float:
    """The largest absolute value in a matrix, which must have entries, all of them finite."""
    if matrix.numel() == 0:
        raise InputError(f"need a matrix with rows and columns, got shape {tuple(matrix.shape)}: pass data to factor")
    low, high = torch.aminmax(matrix)
    largest = max(-float(low), float(high))
    if not math.isfinite(largest):
        raise InputError(f"need finite entries, got {first_bad_row(matrix)}: drop or repair that row before factoring")
    return largest


def first_bad_row(matrix: Tensor) -> str:
    """Which row is the first that holds a NaN or an infinity, in words."""
    bad = ~torch.isfinite(matrix)
    row = int(bad.any(dim=1).to(torch.uint8).argmax())
    column = int(bad[row].to(torch.uint8).argmax())
    kind = "NaN" if bool(torch.isnan(matrix[row, column])) else "infinity"
    return f"{kind} in row {row}, column {column}"
