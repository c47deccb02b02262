"""Two factors with their evidence, and their error measured in any norm."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ellp.arrays import Array, Caller
from ellp.errors import InputError
from ellp.factor.project import power_sum
from ellp.options import check_p
from ellp.rows import read_rows


@dataclass(frozen=True)
class Certificate:
    """What is proved and what was measured about a factorization.

    For every direction x, ``|x|_M^p <= alpha f(x)`` and ``f(x) <= beta |x|_M^p``, where ``f(x) = sum_i c_i |a_i.x|^p``.
    The error is ``sum_i c_i sum_j |((A - A_k) S)_ij|^p`` (at p = inf the largest ``c_i |.|``): ``lower`` and ``upper``
    bound it from the ellipsoid alone, ``error`` is the measured value, and no matrix of this rank has an error below
    ``floor``. ``steps`` counts passes over all rows (cuts, for the ellipsoid method).
    """

    p: float
    alpha: float
    beta: float
    lower: float
    upper: float
    floor: float
    error: float
    steps: int

    @property
    def distortion(self) -> float:
        """The proved distortion ``alpha * beta``; the ideal is ``d^|1-p/2|``."""
        return self.alpha * self.beta


@dataclass(frozen=True)
class Factors:
    """``left @ right`` (n x k times k x d) approximates A; ``sigma`` and ``axes`` describe the ellipsoid used.

    ``sigma`` holds all axis values in descending order, ``axes`` the matching axes as columns. For a matrix wider than
    tall the ellipsoid is that of its transpose, and ``axes`` are n x n (unless ``refine="rows"``).
    """

    left: Array
    right: Array
    sigma: Array
    axes: Array
    rank: int
    certificate: Certificate


class RelativeError(NamedTuple):
    """Error over size, in the l_p norm of the entries and of the rows' Euclidean lengths."""

    entries: float
    rows: float


def relative_error(A: Array, factors: Factors, p: float = 1.0) -> RelativeError:
    """``(||A - A_k|| / ||A||)`` in l_p, over entries and over the Euclidean lengths of rows.

    >>> import numpy as np, ellp
    >>> A = np.diag([3.0, 1.0])
    >>> ellp.relative_error(A, ellp.svd(A, rank=1), p=1.0)
    RelativeError(entries=0.25, rows=0.25)
    """
    check_p(p)
    rows = read_rows(Caller(A).matrix, None, None)
    left, right = (Caller(part).matrix.to(rows.device) for part in (factors.left, factors.right))
    if left.shape[0] != rows.count or right.shape[1] != rows.matrix.shape[1]:
        raise InputError(
            f"need factors of a matrix of shape {tuple(rows.matrix.shape)}, got factors of shape "
            f"{(left.shape[0], right.shape[1])}: pass the matrix that was factored"
        )
    sums = torch.zeros(2, 2, dtype=torch.float64, device=rows.device)
    for span, block in rows.blocks():
        residual = torch.addmm(block, left[span].to(rows.work) / rows.scale, right.to(rows.work), alpha=-1)
        part = torch.stack([_both_norms(residual, p), _both_norms(block, p)])
        sums = torch.maximum(sums, part) if math.isinf(p) else sums + part
    ratios = torch.where(sums[0] == 0, sums[0], sums[0] / sums[1])
    root = 1.0 if p == 0 or math.isinf(p) else 1 / p
    return RelativeError(*(float(ratio) ** root for ratio in ratios))


def _both_norms(block: Tensor, p: float) -> Tensor:
    """Power sums over all entries, and over all rows' lengths."""
    lengths = torch.linalg.vector_norm(block, dim=1)
    rows = power_sum(block, p).double()
    entries = rows.max() if math.isinf(p) else rows.sum()
    return torch.stack([entries, power_sum(lengths.double(), p)])
