"""Where a matrix's rows come from, and what each of them weighs.

Everything downstream sees a matrix only through :class:`Table`: sums over its rows, which a kernel computes from
:class:`Rows` in memory. There the matrix is blocks of rows in a working precision, in units in which the entries are of
ordinary size, with importances whose mean is one. A matrix in memory is one part of itself; one that is not is read
part by part, and the parts' sums are merged (see :mod:`ellp.scale`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from ellp.errors import InputError

CPU_BLOCK = 2 * 2**20  # bytes: a block and its whitened copy stay near the cores, and are few enough to loop over
CUDA_BLOCK = 512 * 2**20  # bytes: large enough to fill the device, small beside its memory
ORDINARY = 2.0**16  # entries up to here, and down to its inverse, need no rescaling even when squared


Sums = tuple[Tensor, ...]
"""What a kernel finds out about some rows; two of them are merged into what it finds out about both."""

Merge = Callable[[Sums, Sums], Sums]
Kernel = Callable[..., Sums]
"""``kernel(rows, *state)``; of module level, so that it can be sent to another process."""

AnyTable = TypeVar("AnyTable", bound="Table")


def added(one: Sums, other: Sums) -> Sums:
    """The usual merge: sums are added, in the memory of the first."""
    for total, part in zip(one, other, strict=True):
        total += part
    return one


@dataclass(frozen=True, kw_only=True)
class Table(ABC):
    """The rows of ``matrix @ metric @ basis / scale``, wherever the matrix (n x d) lies, each with a weight.

    ``metric`` (d x d) is the factor S of the metric on row errors, ``basis`` (d x r, orthonormal) spans the rows of
    ``matrix @ metric`` where they do not fill the space; both are float64, and None stands for the identity. ``unit``
    is what one unit of weight weighs for the caller.
    """

    scale: float = 1.0
    unit: float = 1.0
    metric: Tensor | None = None
    basis: Tensor | None = None
    work: torch.dtype = torch.float32

    @property
    @abstractmethod
    def count(self) -> int: ...

    @property
    @abstractmethod
    def columns(self) -> int: ...

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """Of the matrix as it is stored."""

    @property
    @abstractmethod
    def device(self) -> torch.device: ...

    @abstractmethod
    def total(self, kernel: Kernel, *state: object, merge: Merge = added) -> Sums:
        """One pass: what the kernel finds out about all rows."""

    @abstractmethod
    def sample(self, size: int, p: float, seed: int) -> Rows:
        """About ``size`` rows, those that may matter more drawn more often and weighing less (Horvitz-Thompson)."""

    @property
    def width(self) -> int:
        """Dimension of the space the ellipsoid lives in."""
        return int(self.columns if self.basis is None else self.basis.shape[1])

    @property
    def plain(self) -> bool:
        """Whether the ellipsoid's coordinates are the caller's columns."""
        return self.metric is None and self.basis is None

    def map_back(self, columns: Tensor) -> Tensor:
        """A matrix acting on the ellipsoid's coordinates, as one acting on the caller's columns (float64)."""
        if self.basis is not None:
            columns = self.basis @ columns
        return columns if self.metric is None else self.metric @ columns

    def unmeasured(self, right: Tensor) -> Tensor:
        """A right factor in the metric's coordinates, as one in the caller's columns: ``right S^-1`` (float64)."""
        return right if self.metric is None else torch.linalg.solve(self.metric.T, right.T).T

    def precise(self: AnyTable) -> AnyTable:
        """The same rows, read in float64."""
        return replace(self, work=torch.float64)

    def restricted(self: AnyTable, basis: Tensor) -> AnyTable:
        """The same rows in the coordinates of an orthonormal ``basis`` (width x r) of the row space."""
        return replace(self, basis=basis if self.basis is None else self.basis @ basis)


@dataclass(frozen=True, kw_only=True)
class Rows(Table):
    """Rows in memory: ``matrix`` is never copied, ``weight`` has a number for each row meant.

    ``index`` picks the rows meant, None all of them; ``first`` is the number of the first row in the whole table, where
    these are a part of it.
    """

    matrix: Tensor
    weight: Tensor
    index: Tensor | None = None
    first: int = 0

    @property
    def count(self) -> int:
        return int(self.weight.shape[0])

    @property
    def columns(self) -> int:
        return int(self.matrix.shape[1])

    @property
    def dtype(self) -> torch.dtype:
        return self.matrix.dtype

    @property
    def device(self) -> torch.device:
        return self.matrix.device

    @property
    def block(self) -> int:
        """Rows in a full block."""
        size = CUDA_BLOCK if self.matrix.is_cuda else CPU_BLOCK
        return max(256, size // (self.work.itemsize * self.columns))

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

    def total(self, kernel: Kernel, *state: object, merge: Merge = added) -> Sums:
        return kernel(self, *state)

    def sample(self, size: int, p: float, seed: int) -> Rows:
        """Half of the chance goes to rows in proportion to their importance, half in proportion to their share
        ``c_i ||a_i||^p`` of the cost; a row that should be drawn more than once is drawn for certain."""
        cost = self.weight * self.lengths().pow(min(p, 2.0))
        chance = inclusion(self.weight / self.weight.sum() + cost / cost.sum(), size)
        index = (self.chances(seed) < chance).nonzero().squeeze(1)
        weight = self.weight[index] / chance[index]
        return replace(self, weight=weight, index=index if self.index is None else self.index[index])

    def chances(self, seed: int, stream: int = 0) -> Tensor:
        """A number in [0, 1) for every row, which depends on nothing but its place in the whole table."""
        return chances(seed, stream, self.first, self.first + self.count).to(self.device)

    def lengths(self) -> Tensor:
        """Euclidean length of every transformed row (float64)."""
        parts = [torch.linalg.vector_norm(block, dim=1) for _, block in self.transformed()]
        return torch.cat(parts).double()


def inclusion(share: Tensor, size: int, total: float | None = None) -> Tensor:
    """Inclusion chances proportional to ``share`` and summing to ``size``, none above one.

    ``total`` is the sum of all shares, where only those are given that may come near a chance of one.
    """
    total = float(share.sum()) if total is None else total
    chance = share * (size / total)
    for _ in range(8):
        full = chance >= 1
        rest = total - float(share[full].sum())
        left = size - int(full.sum())
        if not bool((chance > 1).any()) or left <= 0 or rest <= 1e-12 * total:
            break
        chance = torch.where(full, 1.0, share * (left / rest))
    return chance.clamp(max=1.0)


DRAWN_AT_ONCE = 4  # numbers of a Philox counter step


def chances(seed: int, stream: int, first: int, last: int) -> Tensor:
    """Numbers in [0, 1), float64, for the rows from ``first`` to ``last`` - 1, in whatever spans they are asked for.

    ``stream`` tells apart draws for different purposes.
    """
    start = first // DRAWN_AT_ONCE
    bits = np.random.Philox(key=[seed % 2**64, stream]).advance(start)
    drawn = np.random.Generator(bits).random(last - start * DRAWN_AT_ONCE)
    return torch.from_numpy(drawn[first - start * DRAWN_AT_ONCE :])


def read_rows(matrix: Tensor, importance: Tensor | None, factor: Tensor | None) -> Rows:
    """Check a matrix, and bring it and its importances to ordinary units."""
    scale = power_of_two(largest_entry(matrix))
    if importance is None:
        weight, unit = torch.ones(matrix.shape[0], dtype=torch.float64, device=matrix.device), 1.0
    else:
        largest_weight = importance.max()  # taken out first: a mean of numbers near the end of the range overflows
        mean = (importance / largest_weight).mean()
        unit = float(mean * largest_weight)
        weight = importance / largest_weight / mean
    work = torch.float64 if matrix.dtype == torch.float64 else torch.float32
    return Rows(matrix=matrix, weight=weight, scale=scale, unit=unit, metric=factor, work=work)


def power_of_two(largest: float) -> float:
    """What entries up to ``largest`` are divided by, to be of ordinary size without losing a digit."""
    ordinary = largest == 0.0 or 1 / ORDINARY <= largest <= ORDINARY
    return 1.0 if ordinary else 2.0 ** math.floor(math.log2(largest))


def largest_entry(matrix: Tensor, first: int = 0) -> float:
    """The largest absolute value in a matrix, which must have entries, all of them finite.

    ``first`` is the number of the matrix's first row in its table.
    """
    if matrix.numel() == 0:
        raise InputError(f"need a matrix with rows and columns, got shape {tuple(matrix.shape)}: pass data to factor")
    low, high = torch.aminmax(matrix)
    largest = max(-float(low), float(high))
    if not math.isfinite(largest):
        raise InputError(
            f"need finite entries, got {first_bad_row(matrix, first)}: drop or repair that row before factoring"
        )
    return largest


def first_bad_row(matrix: Tensor, first: int = 0) -> str:
    """Which row is the first that holds a NaN or an infinity, in words."""
    bad = ~torch.isfinite(matrix)
    row = int(bad.any(dim=1).to(torch.uint8).argmax())
    column = int(bad[row].to(torch.uint8).argmax())
    kind = "NaN" if bool(torch.isnan(matrix[row, column])) else "infinity"
    return f"{kind} in row {first + row:,}, column {column:,}"
