r"""The randomized ellipsoid: one pass over the entries of A builds it, one more proves it.

Every row is divided by ``E_i^(1/p)`` with ``E_i`` standard exponential, given a random sign and added into one of
``O(d)`` buckets (a CountSketch; Woodruff and Zhang 2013). For p <= 2 the buckets' Gram matrix rounds f coarsely but
with high probability; at p = 2 the exponentials are left out, since the CountSketch alone preserves lengths. The pass
that certifies the sketch also performs a Lewis step, which removes most of its distortion at no cost: the ellipsoid
returned is the one after that step.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ellp.ellipsoid.lewis import Frame, careful_frame, triangle_frame
from ellp.errors import InputError
from ellp.rows import Rows, Sums, Table

BUCKETS_PER_AXIS = 8


def sketched_frame(rows: Table, p: float, seed: int) -> Frame:
    """The ellipsoid of a sparse p-stable-type sketch of the rows, in one pass."""
    check_power(p)
    return frame_of_sketch(rows, p, rows.total(sketch, p, seed, buckets(rows))[0])


def check_power(p: float) -> None:
    """A sketch needs 0 < p <= 2."""
    if not 0 < p <= 2:
        raise InputError(f"need p above 0 and at most 2 for a sketch, got {p}: use method='lewis'")


def buckets(rows: Table) -> int:
    """Rows of the sketch."""
    return min(rows.count, BUCKETS_PER_AXIS * max(rows.width, 16))


def sketch(rows: Rows, p: float, seed: int, size: int) -> Sums:
    """The buckets (size x r), to each of which about every ``size``-th row is added."""
    bucket = (rows.chances(seed, 1) * size).long()
    sign = (rows.chances(seed, 2) < 0.5).double() * 2 - 1
    stretch = -torch.log1p(-rows.chances(seed, 3).clamp(min=2**-54)) if p < 2 else torch.ones_like(sign)
    factor = sign * (rows.weight / stretch).pow(1 / p)
    total = torch.zeros(size, rows.width, dtype=torch.float64, device=rows.device)
    for span, block in rows.transformed():
        total.index_add_(0, bucket[span], block.double() * factor[span, None])
    return (total,)


def frame_of_sketch(rows: Table, p: float, sketch: Tensor) -> Frame:
    """The frame of the buckets' Gram matrix."""
    largest = float(sketch.abs().max())
    if not math.isfinite(largest):
        raise InputError(f"need a larger p for a sketch, got {p}: its random weights overflow; use method='lewis'")
    frame = triangle_frame(rows, torch.linalg.qr(sketch / (largest or 1.0), mode="r").R)
    whole = frame.rows.width == rows.width
    return frame if whole else careful_frame(rows, p)  # rows that share a bucket can hide an axis of A
