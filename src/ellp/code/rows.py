r"""A code found on some rows, for all rows of a table: where they come by one after another, and never all at once.

The axes, the stages and the way to spend the bytes are those of a code of a sample (:mod:`ellp.code.search`). A row a
is then coded by its coordinates y on the axes B as they are stored, those that err least in the metric ``H = S S^T``:

    y = (a - m) S P^T (P P^T)^-1,      P = B S,

up to the length at which ``c error(length) + mu length`` is least, at a price mu a byte under which, by the sample's
word, all rows together fit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ellp.code.axes import read_axes
from ellp.code.prefixes import levels_up_to
from ellp.code.search import SLACK, Coded
from ellp.code.staged import Stages, choose, decode, encode, price

BLOCK = 4096  # rows worked on at a time
SURE = 2.0  # standard deviations that the rows' bytes may differ from what the sample foretells


class Sample(NamedTuple):
    """Rows of a table, their importances (of mean one over the table), and the chances with which they were drawn."""

    matrix: Tensor
    weight: Tensor
    chance: Tensor


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
        """Codes (rows x M), the index of every row's length, and its squared errors: coded, and as the mean alone."""
        centred, weight = rows.float() - self.mean, weight.clamp(min=1e-30)
        codes, errors = encode(centred @ self.into, self.stages, SLACK * self.mu / weight)
        choice = choose(errors, weight, self.levels, self.mu)
        read = decode(codes, self.levels[choice].long(), self.stages)
        lost = centred - read @ self.axes[: read.shape[1]]
        both = torch.stack([lost, centred]) if self.root is None else torch.stack([lost, centred]) @ self.root
        return codes, choice, both.double().square().sum(dim=2)


def row_coder(found: Coded, sample: Sample, count: int, room: int, metric: Tensor | None) -> RowCoder:
    """The coder of a code of the ``sample``, at the price under which ``count`` rows take ``room`` bytes.

    ``metric`` is the factor S of the metric on errors.
    """
    parts = found.tensors
    stages = Stages(parts["axes"], parts["scale"].float(), parts["book"], parts["books"])
    columns = parts["mean"].shape[1]
    axes = read_axes(parts["proj.weight"], found.bits, columns) * parts["proj.scale"].float()[:, None]
    root = None if metric is None else metric.float()
    place = (axes if root is None else axes @ root).double()
    into = torch.linalg.lstsq(place @ place.T, place, driver="gelsd").solution.T
    into = into.float() if root is None else root @ into.float()
    coder = RowCoder(parts["mean"][0].float(), into.contiguous(), axes, stages, 0.0, root)
    return repriced(coder, sample, count, room)


def repriced(coder: RowCoder, sample: Sample, count: int, room: int) -> RowCoder:
    """The same coder at the price for so much room, less what chance may make of the sample's word."""
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
