r"""The Lewis ellipsoid at p = inf: John's ellipsoid of the polytope ``max_i c_i |a_i.x| <= 1``.

The fixed point needs a weight per row, ``M = sum_i w_i (c_i a_i)(c_i a_i)^T`` with ``w_i = w_i q_i``, where
``q_i = c_i^2 a_i^T M^-1 a_i`` is 1 on the contact rows and smaller elsewhere. The multiplicative update
``w <- w * q`` raises det M at every step and keeps ``sum w = d`` (Cohen, Cousins, Lee and Yang 2019).

Certificate, without powers: ``|x|_M <= (sum w)^(1/2) f(x)`` and ``f(x) <= (max q)^(1/2) |x|_M``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ellp.ellipsoid.certificate import Ellipsoid, GramSum
from ellp.ellipsoid.lewis import MAX_STEPS, Certified, Frame, careful_frame, delivered, gram_frame
from ellp.rows import Rows, Sums


def john(
    rows: Rows,
    tol: float,
    *,
    max_steps: int = MAX_STEPS,
    strict: bool = True,
    progress: Callable[[int, float], None] | None = None,
) -> Ellipsoid:
    """John's ellipsoid of ``rows``, proved to be within ``1 + tol`` of the ideal distortion ``d^(1/2)``."""
    squared = replace(rows, weight=rows.weight.square())
    frame = gram_frame(squared, 2.0) or careful_frame(squared, 2.0)
    if frame.rows.width == 0:
        return Certified(frame, 1.0, 1.0, 1).ellipsoid(math.inf)
    live = (rows.weight > 0).double()
    level = frame.rows.width / float(live.sum())
    frame, share = frame.stretched(level), live * level
    best = Certified(frame, math.inf, math.inf, 0)
    step = 0
    for step in range(1, max_steps + 1):
        reach, gram = _pass(frame, share)
        now = Certified(frame, math.sqrt(float(share.sum())), math.sqrt(float(reach.max())), step)
        best = now if now.distortion < best.distortion else best
        if progress is not None:
            progress(step, best.distortion)
        if best.excess(math.inf) <= tol:
            break
        share = share * reach
        frame = frame.moved(torch.linalg.cholesky(gram, upper=True), 1.0)
    best = replace(best, frame=replace(best.frame, rows=replace(rows, basis=best.frame.rows.basis)), steps=step)
    return delivered(best, math.inf, tol, strict)


def _pass(frame: Frame, share: Tensor) -> Sums:
    """``q`` of every row, and the whitened Gram matrix of the weights ``share * q``."""
    rows = frame.rows
    return rows.total(_reached, rows.map_back(frame.inverse).to(rows.work), share)


def _reached(rows: Rows, inverse: Tensor, share: Tensor) -> Sums:
    reach = torch.empty_like(share)
    gram = GramSum(rows)
    for span, block in rows.blocks():
        white = (block @ inverse) * rows.weight[span].sqrt()[:, None].to(rows.work)
        reach[span] = torch.linalg.vector_norm(white, dim=1).double().square()
        white *= (share[span] * reach[span]).sqrt()[:, None]
        gram.add(white)
    return reach, gram.matrix()
