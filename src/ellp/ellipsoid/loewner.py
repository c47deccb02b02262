r"""The Loewner ellipsoid by the ellipsoid method: the slow, exact-subgradient reference.

``L = {x : g(x) <= 1}`` with the norm ``g = f^(1/p)``, p >= 1. L is symmetric, so the centre stays at 0 and the state
is the shape matrix F of ``E = {x : x^T F^-1 x <= 1}``, which always contains L. While some axis point z of
``E / sqrt(d+1)`` lies outside L, the subgradient h of g at z gives ``|h.x| <= g(x) <= 1`` on L, a slab of relative
width ``t = (h^T F h)^(-1/2) < (d+1)^(-1/2)``, and E shrinks to the smallest ellipsoid around its part in the slab,

    F <- d (1-t^2)/(d-1) (F - (1 - d t^2)/(1 - t^2) F h h^T F / (h^T F h)).

At the end every axis point is inside, so ``x = sum_i t_i u_i`` gives ``g(x) <= (sum_i g(u_i)^2)^(1/2) |x|_E``:
``alpha = 1`` and ``beta = (sum_i g(u_i)^2)^(p/2) <= (d (d+1))^(p/2)``. (The paper's Algorithm 3, corrected:
docs/how-it-works.md lists the changes.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ellp.ellipsoid.certificate import Ellipsoid, sweep
from ellp.ellipsoid.lewis import Certified, Frame, careful_frame
from ellp.errors import InputError, NotConverged
from ellp.rows import Rows, Sums

MAX_CUTS = 200_000
WIDEST = 64


def loewner(
    rows: Rows,
    p: float,
    *,
    max_cuts: int = MAX_CUTS,
    watch: Callable[[Tensor], None] | None = None,
) -> Ellipsoid:
    """An ellipsoid around ``{f <= 1}`` whose axes, shrunk by ``sqrt(d+1)``, end inside it.

    ``watch`` is called with the shape matrix in whitened coordinates before every cut.
    """
    if not 1 <= p < math.inf:
        raise InputError(f"need p from 1 to below infinity for the ellipsoid method, got {p}: use method='lewis'")
    frame = careful_frame(rows, p)
    if frame.rows.width > WIDEST:
        raise InputError(
            f"need at most {WIDEST} dimensions for the ellipsoid method, got {frame.rows.width}: use method='lewis'"
        )
    if frame.rows.width == 0:
        return Certified(frame, 1.0, 1.0, 0).ellipsoid(p)
    (white,) = frame.rows.total(_white, frame.inverse)
    body = Body(white, rows.weight, p)
    outer, _ = sweep(frame.rows, frame.inverse, p).here()
    if not math.isfinite(outer):
        raise InputError(f"need rows whose shares of f fit in float64 at p = {p}, got too wide a range: lower p")
    shape = torch.eye(body.width, dtype=torch.float64, device=rows.device) * outer ** (2 / p)
    cuts = 0
    while True:
        values, axes = torch.linalg.eigh(shape)
        ends = axes * values.sqrt()
        gauges = body.gauge(ends)
        if watch is not None:
            watch(shape)
        farthest = int(gauges.argmax())
        if float(gauges[farthest]) <= math.sqrt(body.width + 1):
            break
        if cuts == max_cuts:
            raise NotConverged(
                f"need more than {max_cuts} cuts to round this body: raise max_cuts, or use method='lewis'",
                _certified(frame, shape, gauges, p, cuts).ellipsoid(p),
            )
        shape = cut(shape, body.subgradient(ends[:, farthest]))
        cuts += 1
    return _certified(frame, shape, gauges, p, cuts).ellipsoid(p)


def _white(rows: Rows, inverse: Tensor) -> Sums:
    return (torch.cat([block @ inverse for _, block in rows.transformed()]),)


@dataclass(frozen=True)
class Body:
    """The convex body ``{x : sum_i c_i |y_i.x|^p <= 1}`` of whitened rows ``y_i``."""

    white: Tensor
    weight: Tensor
    p: float

    @property
    def width(self) -> int:
        return int(self.white.shape[1])

    def gauge(self, points: Tensor) -> Tensor:
        """The norm g of each column of ``points``."""
        return (self.weight @ (self.white @ points).abs().pow(self.p)).pow(1 / self.p)

    def subgradient(self, point: Tensor) -> Tensor:
        """An h with ``h.point = g(point)`` and ``|h.x| <= g(x)`` for every x."""
        along = self.white @ point
        pull = self.weight * along.abs().pow(self.p - 1) * along.sign()
        return self.white.T @ pull / self.gauge(point[:, None]).pow(self.p - 1)


def cut(shape: Tensor, normal: Tensor) -> Tensor:
    """The smallest ellipsoid around the part of ``x^T shape^-1 x <= 1`` within ``|normal.x| <= 1``."""
    width = shape.shape[0]
    along = shape @ normal
    reach = float(normal @ along)
    inward = torch.outer(along, along) / reach
    shrunk = (width / reach) * inward  # along the normal: d t^2, with t^2 = 1 / reach
    across = width * (1 - 1 / reach) / max(1, width - 1)
    following = across * (shape - inward) + shrunk
    return (following + following.T) / 2


def _certified(frame: Frame, shape: Tensor, gauges: Tensor, p: float, cuts: int) -> Certified:
    inverse = torch.linalg.inv(shape)
    factor = torch.linalg.cholesky((inverse + inverse.T) / 2, upper=True)
    beta = float(gauges.square().sum()) ** (p / 2)
    return Certified(frame.moved(factor, 1.0), 1.0, beta, cuts)
