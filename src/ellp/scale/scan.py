"""The first pass: are all numbers finite, how large are they, what do the rows weigh; and a sample of rows.

The sample is the one that :meth:`ellp.rows.Rows.sample` would draw: row i is in it if its random number u_i, which
depends on i and the seed alone, is below a chance that needs the sums of importances and of costs over *all* rows.
These are not known before the end; but a row whose chance can reach u_i is among the ``size`` rows with the least u_i
over importance, or with the least u_i over cost, and such least rows can be kept while reading (bottom-k samples; Cohen
and Kaplan 2007). What is kept does not depend on the order of the parts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ellp.ellipsoid.sketch import sketch
from ellp.errors import InputError
from ellp.rows import Rows, Sums, inclusion, largest_entry, power_of_two

FACTS = 4  # scalars before the sample: largest entry, largest weight, sum of weights over it, log of the sum of costs
SAMPLE = 5  # tensors of the sample: rows, their numbers, u, log weight, log cost


def candidates(size: int) -> int:
    """Rows to keep by each key, so that a sample of ``size`` is among them, whose true number scatters by its root."""
    return size + 5 * math.isqrt(size)


def scanned(rows: Rows, size: int, p: float, seed: int, buckets: int) -> Sums:
    """The kernel: facts, ``size`` rows by importance and as many by cost, and a sketch if it has ``buckets``."""
    largest = largest_entry(rows.matrix, rows.first)
    _check_weights(rows)
    scaled = replace(rows, scale=power_of_two(largest))
    weight = rows.weight.log()
    cost = weight + min(p, 2.0) * (scaled.lengths().log() + math.log(scaled.scale)) if p else weight
    top = rows.weight.max()
    facts = (
        torch.tensor(largest, dtype=torch.float64),
        top,
        (rows.weight / top).sum() if top > 0 else torch.zeros_like(top),
        torch.logsumexp(cost, 0),
    )
    drawn = rows.chances(seed)
    kept = _least(drawn, weight, cost, size)
    number = rows.first + kept
    sample = (rows.matrix[kept], number, drawn[kept], weight[kept], cost[kept])
    return (*facts, *sample, *(sketch(rows, p, seed, buckets) if buckets else ()))


def merged(one: Sums, other: Sums) -> Sums:
    """What two scans found, together; the sketches, if there are any, are added."""
    top = torch.maximum(one[1], other[1])
    weights = sum(part[2] * part[1] / top for part in (one, other)) if top > 0 else top
    assert isinstance(weights, Tensor)
    facts = (torch.maximum(one[0], other[0]), top, weights, torch.logaddexp(one[3], other[3]))
    both = [torch.cat(pair) for pair in zip(one[FACTS : FACTS + SAMPLE], other[FACTS : FACTS + SAMPLE], strict=True)]
    return (*facts, *both, *(a + b for a, b in zip(one[FACTS + SAMPLE :], other[FACTS + SAMPLE :], strict=True)))


@dataclass(frozen=True)
class Pruned:
    """The merge that keeps no more candidates than are needed."""

    size: int

    def __call__(self, one: Sums, other: Sums) -> Sums:
        both = merged(one, other)
        rows, number, drawn, weight, cost = both[FACTS : FACTS + SAMPLE]
        kept = _least(drawn, weight, cost, self.size)
        sample = tuple(part[kept] for part in (rows, number, drawn, weight, cost))
        return (*both[:FACTS], *sample, *both[FACTS + SAMPLE :])


@dataclass(frozen=True)
class Scan:
    """What the scan found, in words."""

    largest: float
    unit: float
    sums: Sums

    @staticmethod
    def of(sums: Sums, count: int, weighed: bool) -> Scan:
        unit = float(sums[1]) * (float(sums[2]) / count) if weighed else 1.0
        if unit == 0.0:
            raise InputError(
                "need at least one positive importance, got all zeros: leave importance out to weigh evenly"
            )
        return Scan(float(sums[0]), unit, sums)

    @property
    def sketch(self) -> Tensor:
        return self.sums[FACTS + SAMPLE]

    def sample(self, size: int, view: dict[str, Any]) -> Rows:
        """About ``size`` of the candidates, as :meth:`ellp.rows.Rows.sample` draws them from all rows."""
        matrix, weight, chance = self.drawn(size)
        return Rows(matrix=matrix, weight=weight / chance, **view)

    def drawn(self, size: int) -> tuple[Tensor, Tensor, Tensor]:
        """The rows of the sample, their weights in the table, and the chances with which they were drawn."""
        matrix, _, drawn, weight, cost = self.sums[FACTS : FACTS + SAMPLE]
        total = math.log(float(self.sums[1])) + math.log(float(self.sums[2]))
        share = (weight - total).exp() + torch.nan_to_num((cost - self.sums[3]).exp())
        chance = inclusion(share, size, total=2.0).minimum(_reach(drawn, weight, cost, candidates(size)))
        index = (drawn < chance).nonzero().squeeze(1)
        return matrix[index], (weight - math.log(self.unit)).exp()[index], chance[index]


def _least(drawn: Tensor, weight: Tensor, cost: Tensor, size: int) -> Tensor:
    """Places of the rows with the least u over importance, and over cost, in order."""
    if len(drawn) <= size:
        return torch.arange(len(drawn))
    keys = [drawn.log() - each for each in (weight, cost)]
    kept: Tensor = torch.cat([key.topk(size, largest=False).indices for key in keys]).sort().values
    return torch.unique_consecutive(kept) if size else torch.arange(0)


def _reach(drawn: Tensor, weight: Tensor, cost: Tensor, size: int) -> Tensor:
    """Below which u a row would have been a candidate."""
    if len(drawn) <= size:
        return torch.ones_like(drawn)
    bars = [(drawn.log() - each).kthvalue(size).values + each for each in (weight, cost)]
    return torch.maximum(*bars).exp().clamp(max=1.0)


def _check_weights(rows: Rows) -> None:
    bad = ~torch.isfinite(rows.weight) | (rows.weight < 0)
    if bool(bad.any()):
        row = int(bad.to(torch.uint8).argmax())
        raise InputError(
            f"need importances that are finite and not negative, got {float(rows.weight[row])} for row "
            f"{rows.first + row:,}: set it to 0 to ignore the row"
        )
