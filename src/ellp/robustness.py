"""Whether a robust norm changes anything on a matrix: p = 1 beside the SVD at the same rank, measured."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ellp.factor.factors import Factors
from ellp.factoring import factorize, svd
from ellp.rows import Rows, read_rows
from ellp.rowstats import longest_rows

THRESHOLD = 0.01  # a relative difference of errors up to here counts as none
OUTLIERS = 0.1  # a share of the squared sum in them from which on the longest rows are called outliers
EXACT = 1e-6  # relative errors up to here are rounding


@dataclass(frozen=True)
class Robustness:
    """p = 1 beside the SVD at the same rank.

    ``entries`` is ``sum |A - A_k| / sum |A|``; ``ordinary`` is the mean of ``|a_i - a_i,k| / |a_i|`` over all rows but
    the zero ones and the longest 1 %. A gain is by how much p = 1's error is lower, relative to the SVD's.
    """

    rank: int
    distortion: float
    entries: float
    entries_svd: float
    ordinary: float
    ordinary_svd: float
    verdict: str

    @property
    def entries_gain(self) -> float:
        return _gain(self.entries, self.entries_svd)

    @property
    def ordinary_gain(self) -> float:
        return _gain(self.ordinary, self.ordinary_svd)

    @property
    def helps(self) -> bool:
        """Whether p = 1 is better than the threshold in one of the errors, and not worse by it in the other."""
        gains = self.entries_gain, self.ordinary_gain
        return max(gains) > THRESHOLD and min(gains) >= -THRESHOLD


def compare(matrix: Tensor, rank: int, top_share: float) -> Robustness:
    """Factor a matrix both ways. ``top_share`` is what :class:`RowLengths` says of it."""
    if matrix.dtype.itemsize == 2:
        matrix = matrix.float()  # compares the subspaces, not how their factors round
    robust, plain = factorize(matrix, rank, strict=False), svd(matrix, rank)
    rows = read_rows(matrix, None, None).precise()
    ordinary = _ordinary(rows.lengths())
    (entries, kept), (entries_svd, kept_svd) = (_errors(rows, factors, ordinary) for factors in (robust, plain))
    found = Robustness(robust.rank, robust.certificate.distortion, entries, entries_svd, kept, kept_svd, "")
    return replace(found, verdict=_verdict(found, top_share))


def _ordinary(lengths: Tensor) -> Tensor:
    """Which rows are neither zero nor among the longest 1 %."""
    ordinary = lengths > 0
    if int(ordinary.sum()) > longest_rows(len(lengths)):
        ordinary[lengths.topk(longest_rows(len(lengths))).indices] = False
    return ordinary


def _errors(rows: Rows, factors: Factors, ordinary: Tensor) -> tuple[float, float]:
    """The relative l_1 error of the entries, and the mean relative error of the ordinary rows."""
    lost = size = relative = 0.0
    right = factors.right.double()
    for span, block in rows.blocks():
        residual = torch.addmm(block, factors.left[span].double() / rows.scale, right, alpha=-1)
        lost += float(residual.abs().sum())
        size += float(block.abs().sum())
        lengths = (torch.linalg.vector_norm(part[ordinary[span]], dim=1) for part in (residual, block))
        relative += float(torch.div(*lengths).sum())
    return lost / size, relative / int(ordinary.sum())


def _gain(robust: float, plain: float) -> float:
    return 1 - max(robust, EXACT) / max(plain, EXACT)


def _verdict(found: Robustness, top_share: float) -> str:
    """The two gains in words; outliers are named only where the longest rows hold enough to be called so."""
    rows, entries = found.ordinary_gain, found.entries_gain
    most = max(abs(rows), abs(entries))
    if max(found.entries, found.entries_svd) <= EXACT:
        return "both p = 1 and the SVD are exact at this rank"
    if most <= THRESHOLD:
        return f"p = 1 and the SVD are within {_at_most(most):.1%} here: robustness changes nothing that counts"
    if found.helps and rows > THRESHOLD:
        cause = f"the longest 1% of rows hold {top_share:.0%} of the squared sum"
        outliers = "outlier rows dominate the SVD, " if top_share >= OUTLIERS else ""
        return f"p = 1 keeps the ordinary rows {rows:.1%} better: {outliers}{cause}"
    if found.helps:
        return f"p = 1 has an l_1 error {entries:.1%} lower, and ordinary rows within {_at_most(abs(rows)):.1%}"
    return (
        f"p = 1 does not help: it loses {_more(-rows)} of the ordinary rows, and its l_1 error is {_higher(-entries)}"
    )


def _at_most(value: float) -> float:
    """Rounded up to a tenth of a percent."""
    return math.ceil(value * 1000 - 1e-9) / 1000


def _more(change: float) -> str:
    return f"{abs(change):.1%} {'more' if change > 0 else 'less'}"


def _higher(change: float) -> str:
    return f"{abs(change):.1%} {'higher' if change > 0 else 'lower'}"
