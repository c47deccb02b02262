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

from ellp.ellipsoid.lewis import Frame, careful_frame, triangle_frame
from ellp.errors import InputError
from ellp.rows import Rows

BUCKETS_PER_AXIS = 8


def sketched_frame(rows: Rows, p: float, seed: int) -> Frame:
    """The ellipsoid of a sparse p-stable-type sketch of the rows, in one pass."""
    if not 0 < p <= 2:
        raise InputError(f"need p above 0 and at most 2 for a sketch, got {p}: use method='lewis'")
    generator = torch.Generator().manual_seed(seed)
    size = min(rows.count, BUCKETS_PER_AXIS * max(rows.width, 16))
    bucket = torch.randint(size, (rows.count,), generator=generator).to(rows.device)
    sign = torch.randint(2, (rows.count,), generator=generator).double() * 2 - 1
    stretch = torch.ones_like(sign)
    if p < 2:
        stretch.exponential_(generator=generator)
    factor = sign.to(rows.device) * (rows.weight / stretch.to(rows.device)).pow(1 / p)
    sketch = torch.zeros(size, rows.width, dtype=torch.float64, device=rows.device)
    for span, block in rows.transformed():
        sketch.index_add_(0, bucket[span], block.double() * factor[span, None])
    largest = float(sketch.abs().max())
    if not math.isfinite(largest):
        raise InputError(f"need a larger p for a sketch, got {p}: its random weights overflow; use method='lewis'")
    frame = triangle_frame(rows, torch.linalg.qr(sketch / (largest or 1.0), mode="r").R)
    whole = frame.rows.width == rows.width
    return frame if whole else careful_frame(rows, p)  # rows that share a bucket can hide an axis of A
