r"""The coordinates a table is coded in: the axes of the ellipsoid of its centred rows, in the metric.

    y_i = (a_i - m) S V,      a_i = m + y_i V^T S^-1

with the weighted mean m, the factor S of the metric ``H = S S^T`` and the ellipsoid's axes V, in the order of their
weighted variance. V is orthonormal, so a row's error in the metric is its squared error in these coordinates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ellp.arrays import Caller
from ellp.factoring import lewis_ellipsoid

BLOCK = 4096  # rows worked on at a time


@dataclass(frozen=True)
class Basis:
    """A table with its weights (mean one) and the maps into coordinates and back (float32).

    Or a sample of the rows of a table with ``count`` of them, each drawn with its ``chance``.
    """

    matrix: Tensor
    weight: Tensor
    mean: Tensor
    into: Tensor
    back: Tensor
    variance: Tensor
    worth: Tensor  # (n) what each row's error is while nothing of it is stored, weighted
    count: int | None = None
    chance: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Of the whole table."""
        return self.count or int(self.matrix.shape[0]), int(self.matrix.shape[1])

    def coordinates(self, rows: slice | Tensor) -> Tensor:
        """The coordinates of some rows."""
        return (self.matrix[rows].float() - self.mean) @ self.into

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        for first in range(0, self.shape[0], BLOCK):
            span = slice(first, min(first + BLOCK, self.shape[0]))
            yield span, self.coordinates(span)

    def error(self, rows: Tensor, stored: Tensor) -> float:
        """Weighted squared error, in the metric, of what is ``stored`` for some rows; their weights count n in all."""
        lost = ((self.matrix[rows].float() - stored) @ self.into).square().sum(dim=1)
        return float((self.weight[rows] * lost).double().sum())

    def onto(self, axes: Tensor) -> Basis:
        """The same table on other axes (k x d), such as rounded ones: coordinates are those that err least on them."""
        place = (axes @ self.into).double()
        least = torch.linalg.solve(place @ place.T, place).T
        return replace(
            self,
            into=(self.into.double() @ least).float().contiguous(),
            back=axes,
            variance=self.variance[: len(axes)] * place.square().sum(dim=1),
        )

    @property
    def size(self) -> float:
        """The error of storing the mean alone."""
        return float(self.variance.sum()) * self.shape[0]

    def sample(self, size: int, seed: int) -> tuple[Tensor, Tensor]:
        """Row numbers and weights of about ``size`` rows, drawn evenly, by weight and by worth, a third each
        (Horvitz-Thompson)."""
        held = torch.ones_like(self.weight) if self.chance is None else self.chance
        held = held.double()
        if len(self.weight) <= size:
            return torch.arange(len(self.weight), device=self.weight.device), (self.weight / held).float()
        by = torch.stack([torch.ones_like(self.weight), self.weight, self.worth]).double()
        wanted = (by / (by / held).sum(dim=1, keepdim=True).clamp(min=1e-300)).mean(dim=0).mul_(size).clamp_(max=1.0)
        chance = (wanted / held).clamp_(max=1.0)
        marks = chance.cumsum(0) + float(torch.rand((), generator=torch.Generator().manual_seed(seed)))
        drawn = (
            torch.diff(marks.floor(), prepend=marks.new_tensor([float(marks[0] - chance[0])]).floor()) > 0
        ).nonzero()
        rows = drawn[:, 0]
        return rows, (self.weight[rows] / (chance * held)[rows].float()).float()


def basis(
    matrix: Tensor, importance: Tensor | None = None, metric: Tensor | None = None, p: float = 1.0, seed: int = 0
) -> Basis:
    """The basis of a table (n x d) under row importances and a metric on directions, at the ellipsoid's p."""
    caller = Caller(matrix)
    given, factor = caller.importance(importance), caller.metric(metric)
    count, width = matrix.shape
    weight = torch.ones(count, device=matrix.device) if given is None else (given / given.mean()).float()
    mean = torch.zeros(width, dtype=torch.float64, device=matrix.device)
    for first in range(0, count, BLOCK):
        span = slice(first, first + BLOCK)
        mean += weight[span].double() @ matrix[span].double()
    center = (mean / weight.double().sum()).float()
    found = lewis_ellipsoid(
        matrix.float() - center, p, given, None if factor is None else metric, seed=seed, strict=False
    )
    axes = found.axes.double()
    into = (axes if factor is None else factor @ axes).float()
    variance = torch.zeros(width, dtype=torch.float64, device=matrix.device)
    worth = torch.zeros(count, device=matrix.device)
    for first in range(0, count, BLOCK):
        span = slice(first, first + BLOCK)
        squares = ((matrix[span].float() - center) @ into).double().square()
        variance += weight[span].double() @ squares
        worth[span] = (weight[span].double() * squares.sum(dim=1)).float()
    order = variance.argsort(descending=True)
    axes = axes[:, order]
    back = axes.T if factor is None else torch.linalg.solve(factor.T, axes).T
    into, back = into[:, order].contiguous(), back.float().contiguous()
    return Basis(matrix, weight, center, into, back, variance[order] / count, worth)
