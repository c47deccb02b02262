r"""A code found on some rows, for all rows of a table: where they come by one after another, and never all at once.

The axes, the stages and the way to spend the bytes are found on a sample (:mod:`ellp.code.search`). A row is then coded
by its coordinates on the axes as they are stored, up to the length at which ``c error(length) + mu length`` is least,
at a price mu a byte under which, by the sample's word, all rows together fit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ellp.arrays import Array, metric_factor
from ellp.code.basis import BLOCK, basis
from ellp.code.prefixes import levels_up_to
from ellp.code.search import SLACK, Learned, learn
from ellp.code.staged import Stages, choose, decode, encode, price
from ellp.options import How

SURE = 2.0  # standard deviations that the rows' bytes may differ from what the sample foretells


class Sample(NamedTuple):
    """Rows of a table, their importances (of mean one over the table), and the chances with which they were drawn."""

    matrix: Tensor
    weight: Tensor
    chance: Tensor

    def half(self, which: int) -> Sample:
        """Every other row: a code learned from one half is priced by the other, which it has not seen."""
        return Sample(self.matrix[which::2], self.weight[which::2], self.chance[which::2] / 2)


@dataclass(frozen=True)
class RowCoder:
    """Everything but the rows: ``mean`` (d), ``into`` (d x k), ``axes`` (k x d), ``root`` (the factor S, or None)."""

    mean: Tensor
    into: Tensor
    axes: Tensor
    stages: Stages
    mu: float
    root: Tensor | None = None

    @property
    def levels(self) -> Tensor:
        """The lengths a row may have."""
        return levels_up_to(self.stages.count)

    def code(self, rows: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Codes (rows x M), the index of every row's length, and its errors in the metric: coded, as the mean alone."""
        centred, weight = rows.float() - self.mean, weight.clamp(min=1e-30)
        codes, errors = encode(centred @ self.into, self.stages, SLACK * self.mu / weight)
        choice = choose(errors, weight, self.levels, self.mu)
        read = decode(codes, self.levels[choice].long(), self.stages)
        lost = centred - read @ self.axes[: read.shape[1]]
        both = torch.stack([lost, centred])
        return codes, choice, (both if self.root is None else both @ self.root).double()


def learn_rows(
    sample: Sample, count: int, size: int, metric: Array | None, p: float, how: How, seed: int
) -> tuple[Learned, RowCoder]:
    """The best code for a table of ``count`` rows in ``size`` bytes, as a sample tells, without a price as yet."""
    drawn = sample.weight / sample.chance
    found = basis(sample.matrix, drawn, metric, p, seed)
    worth = found.worth * sample.chance.to(found.worth)
    found = replace(found, weight=sample.weight.float(), worth=worth, chance=sample.chance, count=count)
    learned = learn(found, size, how, seed)
    root = None if metric is None else metric_factor(metric, sample.matrix.shape[1]).float()
    axes = learned.basis
    return learned, RowCoder(axes.mean, axes.into, axes.back, learned.stages, 0.0, root)


def repriced(coder: RowCoder, sample: Sample, count: int, room: int) -> RowCoder:
    """The coder at the price for so much room, as the sample tells, less what chance may make of its word."""
    errors = torch.cat([encode(_into(coder, block), coder.stages)[1] for block in torch.split(sample.matrix, BLOCK)])
    counts = 1 / sample.chance.double()
    counts *= count / counts.sum()
    levels, weight = coder.levels, sample.weight.float()
    mu = price(errors, weight, levels, room, counts)
    lengths = levels[choose(errors, weight, levels, mu)].double()
    mean = float((counts * lengths).sum()) / count
    spread = math.sqrt(float((counts * (counts - 1).clamp(min=0.0) * (lengths - mean).square()).sum()))
    return replace(coder, mu=price(errors, weight, levels, max(1.0, room - SURE * spread), counts))


def _into(coder: RowCoder, rows: Tensor) -> Tensor:
    return (rows.float() - coder.mean) @ coder.into
