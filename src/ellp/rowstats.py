"""What a matrix's rows look like to a low-rank factorization: how low its rank could be, and how uneven they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ellp.rows import read_rows

LONGEST = 0.01  # the share of rows, by length, that is not called ordinary
TAIL = 0.05  # the share of rows, by length, whose decay is the tail
LISTED = 8


@dataclass(frozen=True)
class Spectrum:
    """Singular values s, in four numbers.

    ``effective_rank`` is ``exp(-sum q log q)``, ``q = s^2 / sum s^2``; ``rank_90`` and ``rank_99`` are the smallest
    ranks holding that share of ``sum s^2``; ``condition`` is the largest over the smallest s, and infinite where the
    smallest is below what a Gram matrix in float64 resolves (about 1e-8 of the largest).
    """

    effective_rank: float
    rank_90: int
    rank_99: int
    condition: float


@dataclass(frozen=True)
class LongRow:
    """One of the longest rows; ``ratio`` is its length over the median length."""

    index: int
    length: float
    ratio: float
    token: str | None


@dataclass(frozen=True)
class RowLengths:
    """How uneven the rows' Euclidean lengths are.

    ``longest_over_median`` leaves zero rows out of the median. ``top_share`` is the share of the squared sum in the
    longest 1 % of rows. ``tail`` is Hill's estimate: the mean of log(length / the longest ordinary length) over the
    longest 5 % of rows, which is 0 for equal lengths and 1/a where lengths beyond t are as frequent as t^-a.
    """

    longest_over_median: float
    top_share: float
    tail: float
    zero_rows: int
    longest: tuple[LongRow, ...]


def spectrum(matrix: Tensor) -> Spectrum:
    """The singular values of a matrix, through the eigenvalues of the smaller Gram matrix in float64."""
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    gram = torch.zeros(tall.shape[1], tall.shape[1], dtype=torch.float64, device=matrix.device)
    for _, block in read_rows(tall, None, None).precise().blocks():
        gram.addmm_(block.T, block)
    squares = torch.linalg.eigvalsh(gram).flip(0).clamp(min=0)
    total = float(squares.sum())
    if total == 0:
        return Spectrum(0.0, 0, 0, math.inf)
    shares = squares / total
    held = shares.cumsum(0)
    ranks = [min(int((held < part).sum()) + 1, len(held)) for part in (0.90, 0.99)]
    resolved = len(squares) * torch.finfo(torch.float64).eps * float(squares[0])
    smallest = float(squares[-1])
    condition = math.sqrt(float(squares[0]) / smallest) if smallest > resolved else math.inf
    return Spectrum(math.exp(float(torch.special.entr(shares).sum())), ranks[0], ranks[1], condition)


def row_lengths(lengths: Tensor, unit: float = 1.0, tokens: Sequence[str] | None = None) -> RowLengths:
    """Facts about rows from their lengths (float64), which are counted in ``unit``."""
    count = len(lengths)
    order = lengths.argsort(descending=True)
    ranked = lengths[order]
    live = int((lengths > 0).sum())
    if live == 0:
        return RowLengths(1.0, longest_rows(count) / count, 0.0, count, ())
    median = float(ranked[:live].median())
    squares = ranked.square()
    longest = tuple(
        LongRow(
            index=row,
            length=float(lengths[row]) * unit,
            ratio=float(lengths[row]) / median,
            token=tokens[row] if tokens is not None and row < len(tokens) else None,
        )
        for row in order[: min(LISTED, live)].tolist()
    )
    return RowLengths(
        longest_over_median=float(ranked[0]) / median,
        top_share=float(squares[: longest_rows(count)].sum() / squares.sum()),
        tail=_hill(ranked[:live]),
        zero_rows=count - live,
        longest=longest,
    )


def longest_rows(count: int) -> int:
    """How many rows the longest 1 % are."""
    return math.ceil(LONGEST * count)


def _hill(ranked: Tensor) -> float:
    """Hill's estimate over the longest rows; ``ranked`` are positive lengths, descending."""
    beyond = min(math.ceil(TAIL * len(ranked)), len(ranked) - 1)
    return float((ranked[:beyond] / ranked[beyond]).log().mean()) if beyond else 0.0
