"""The Lewis ellipsoid: the fixed point of ``M <- sum_i c_i (a_i^T M^-1 a_i)^(p/2-1) a_i a_i^T``.

Set and guarantee: for ``0 < p < inf`` the fixed point rounds ``f(x) = sum_i c_i |a_i.x|^p`` within ``d^|1-p/2|``
(Lewis 1978; computed as in Cohen and Peng 2015); p = 2 gives the SVD, p = 0 Tyler's M-estimator of scatter.

The state is one upper triangular factor ``R``, ``M = R^T R``. A step whitens the rows with ``R^-1``, forms the
reweighted Gram matrix ``G`` in whitened coordinates (one pass), and moves to ``R^T G^eta R``: ``eta = 1`` for p < 3,
where the plain iteration contracts, and ``4/(p+2)`` above, the step that makes both ends of the linearised map's
spectrum equally small. The pass certifies the ellipsoid it leaves behind (see :mod:`ellp.ellipsoid.certificate`).

Few passes are needed because the first ellipsoid is solved on a sample of rows: its error looks like noise, and
one full pass averages noise away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ellp.ellipsoid.certificate import Ellipsoid, GramSum, Sweep, exponential, sweep, symmetric
from ellp.errors import NotConverged
from ellp.memory import tidy
from ellp.rows import Rows, Sums, Table

MAX_STEPS = 200
SAMPLE_PER_AXIS = 8  # sampled rows per dimension: sampling noise is then about 1/sqrt(8) of each axis
DAMPED_FROM = 3.0  # the plain iteration contracts up to p = 4, but from here on the damped one is faster
FLOAT32_LIMIT = 1e4  # condition number up to which whitened float32 passes are accurate
GRAM_LIMIT = 1e6  # condition number up to which a float64 Gram matrix gives a usable factor
RANK_ULPS = 16  # axes shorter than this many roundings of the longest are rounding noise, not data

Progress = Callable[[int, float], None]


def lewis(
    rows: Table,
    p: float,
    tol: float,
    *,
    max_steps: int = MAX_STEPS,
    strict: bool = True,
    start: Frame | None = None,
    seen: Sweep | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Ellipsoid:
    """The Lewis ellipsoid of ``rows``, proved to be within ``1 + tol`` of the ideal distortion.

    ``start`` is where to begin, and ``seen`` what a pass with that frame said, if one was made.
    """
    found = iterate(start or first_frame(rows, p, seed), p, tol, max_steps, progress, seen)
    return delivered(found, p, tol, strict)


def delivered(found: Certified, p: float, tol: float, strict: bool) -> Ellipsoid:
    """The ellipsoid found, refused if ``strict`` and its proof falls short of ``tol``."""
    ellipsoid = found.ellipsoid(p)
    excess = found.excess(p)
    if strict and not excess <= tol:
        raise NotConverged(
            f"need a distortion proved within {tol:.3g} of ideal, got {excess:.3g} after {found.steps} passes: raise "
            "tol or max_steps, pass strict=False to accept the certificate as it is, or (p near 0) use a larger p, "
            "(p in the hundreds) p = inf",
            ellipsoid,
        )
    return ellipsoid


@dataclass(frozen=True)
class Frame:
    """Rows, the factor R of the current ellipsoid in their coordinates, and its inverse (both float64)."""

    rows: Table
    factor: Tensor
    inverse: Tensor

    @staticmethod
    def at(rows: Table, factor: Tensor, room: Tensor | None = None) -> Frame:
        """The frame of this factor; ``room`` is a matrix of its size that may be overwritten."""
        frame = Frame(rows, factor, _inverse(factor, room))
        exact = rows.work == torch.float64 or frame.condition <= FLOAT32_LIMIT
        return frame if exact else replace(frame, rows=rows.precise())

    @property
    def condition(self) -> float:
        """Condition number of R, exact within sqrt(d)."""
        product = torch.linalg.matrix_norm(self.factor) * torch.linalg.matrix_norm(self.inverse)
        value = float(product) / math.sqrt(max(1, self.factor.shape[0]))
        return value if math.isfinite(value) else math.inf

    def stretched(self, size: float) -> Frame:
        """The frame whose M is ``size`` times as large."""
        root = math.sqrt(size)
        return Frame(self.rows, self.factor * root, self.inverse / root)

    def moved(self, triangle: Tensor, size: float) -> Frame:
        """The frame whose factor is ``triangle @ R``, M made ``size`` times as large; uses ``triangle`` up."""
        return Frame.at(self.rows, (triangle @ self.factor).mul_(math.sqrt(size)), room=triangle)


def _inverse(factor: Tensor, room: Tensor | None = None) -> Tensor:
    """The inverse of an upper triangular matrix."""
    inverse = torch.empty_like(factor) if room is None else room
    inverse.zero_().fill_diagonal_(1.0)
    out = None if factor.is_cuda else inverse
    solved: Tensor = torch.linalg.solve_triangular(factor, inverse, upper=True, out=out)
    return solved


@dataclass(frozen=True)
class Certified:
    """An ellipsoid by its frame, its proof, and the passes it took."""

    frame: Frame
    alpha: float
    beta: float
    steps: int

    @property
    def distortion(self) -> float:
        return self.alpha * self.beta

    def excess(self, p: float) -> float:
        """How far the proved distortion is above the fixed point's, relatively."""
        width = max(1, self.frame.rows.width)
        ideal = math.log(width) * (0.5 if math.isinf(p) else abs(1 - p / 2))
        return exponential(math.log(self.distortion) - ideal) - 1 if math.isfinite(self.distortion) else math.inf

    def ellipsoid(self, p: float) -> Ellipsoid:
        rows = self.frame.rows
        sigma, axes = principal_axes(self.frame)
        if p == 0:  # f counts rows there, and no ellipsoid can absorb their unit
            return Ellipsoid(axes, sigma * rows.scale, p, self.alpha / rows.unit, self.beta * rows.unit, self.steps)
        unit = rows.unit if math.isinf(p) else rows.unit ** (1 / p)
        return Ellipsoid(axes, sigma * rows.scale * unit, p, self.alpha, self.beta, self.steps)


def iterate(
    frame: Frame,
    p: float,
    tol: float,
    max_steps: int,
    progress: Progress | None = None,
    seen: Sweep | None = None,
) -> Certified:
    """Step until the certificate is within ``tol`` of ideal; the best ellipsoid proved, and all passes made."""
    best = Certified(frame, math.inf, math.inf, 0)
    step = 0
    for step in range(1, max_steps + 1):
        if frame.rows.width == 0:
            return Certified(frame, 1.0, 1.0, step)
        seen = seen or sweep(frame.rows, frame.inverse, p)
        if not seen.sound:
            if frame.rows.work == torch.float64:
                break  # degenerate (p near 0, too much mass on a subspace): the proof so far is what there is
            frame, seen = careful_frame(frame.rows, p), None
            continue
        frame, now = _step(frame, seen, step)
        seen = None
        best = now if now.distortion < best.distortion else best
        if progress is not None:
            progress(step, best.distortion)
        if best.excess(p) <= tol:
            break
    return replace(best, steps=step)


def _step(frame: Frame, seen: Sweep, step: int) -> tuple[Frame, Certified]:
    """The next frame, and the ellipsoid this pass proved: the next one, or under damping the one it whitened with."""
    following = _next_frame(frame, seen)
    if seen.p >= DAMPED_FROM:
        alpha, beta = seen.here()
        stretch = seen.size ** (seen.p / 2)
        return following, Certified(frame.stretched(seen.size), alpha * stretch, beta / stretch, step)
    stretch = (seen.size * frame.rows.width / seen.trace) ** (seen.p / 2)  # M' here is that multiple of R^T G R
    alpha, beta = seen.after()
    return following, Certified(following, alpha * stretch, beta / stretch, step)


def _next_frame(frame: Frame, seen: Sweep) -> Frame:
    level = frame.rows.width / seen.trace
    if seen.p < DAMPED_FROM:
        return frame.moved(torch.linalg.cholesky(seen.gram, upper=True), seen.size * level)
    values, vectors = torch.linalg.eigh(seen.gram * level)
    damped = (vectors * values.pow(4 / (seen.p + 2))) @ vectors.T
    return frame.moved(torch.linalg.cholesky(damped, upper=True), seen.size)


def sample_size(columns: int) -> int:
    """Rows a start is solved on."""
    return SAMPLE_PER_AXIS * max(columns, 256)


def first_frame(rows: Table, p: float, seed: int) -> Frame:
    """Where to start: the ellipsoid of a sample of rows where there are many, of all reweighted rows elsewhere."""
    size = sample_size(rows.width)
    if rows.count > 2 * size:
        frame = gram_frame(rows.sample(size, p, seed), p)
        for _ in range(_sample_steps(p)):
            seen = sweep(frame.rows, frame.inverse, p) if frame is not None else None
            frame = _next_frame(frame, seen) if frame is not None and seen is not None and seen.positive else None
        if frame is not None:
            return Frame.at(rows, frame.factor)
    return gram_frame(rows, p) or careful_frame(rows, p)


def frame_of(rows: Table, ellipsoid: Ellipsoid) -> Frame | None:
    """The frame of an ellipsoid found before; None if it is flat and could hide an axis of these rows."""
    sigma = torch.as_tensor(ellipsoid.sigma).to(rows.device, torch.float64)
    axes = torch.as_tensor(ellipsoid.axes).to(rows.device, torch.float64)
    if rows.basis is not None or axes.shape != (rows.width, rows.width) or _rank(rows, sigma) < rows.width:
        return None
    return Frame.at(rows, torch.linalg.qr((sigma / rows.scale)[:, None] * axes.T, mode="r").R)


def _sample_steps(p: float) -> int:
    """Steps that halve the start's error at least, by the contraction rate; the sample's noise hides the rest."""
    rate = abs(1 - p / 2) if p < DAMPED_FROM else (p - 2) / (p + 2)
    return 1 if rate <= 0.5 else min(6, math.ceil(math.log(0.5) / math.log(rate))) if rate < 1 else 6


def gram_frame(rows: Table, p: float) -> Frame | None:
    """The ellipsoid of rows weighted by ``c_i |a_i|^(p-2)``; None where a Gram matrix cannot resolve it."""
    total = symmetric(rows.total(leveled_gram, p)[0])
    factor, failed = torch.linalg.cholesky_ex(total, upper=True)
    if int(failed) != 0:
        return None
    frame = Frame.at(rows, factor, room=total)
    return frame if frame.condition <= GRAM_LIMIT else None


def leveled_gram(rows: Rows, p: float) -> Sums:
    """The upper part of ``sum_i c_i |a_i|^(p-2) a_i a_i^T``."""
    gram = GramSum(rows)
    for _, block in _leveled(rows, p):
        gram.add(block)
    return (gram.upper,)


def careful_frame(rows: Table, p: float) -> Frame:
    """The same ellipsoid by orthogonal factorizations in float64, restricted to the row space if that is smaller."""
    return triangle_frame(rows, rows.total(leveled_triangle, p, merge=_stacked)[0])


def leveled_triangle(rows: Rows, p: float) -> Sums:
    """The upper triangular factor of the same sum."""
    triangle = torch.zeros(0, rows.width, dtype=torch.float64, device=rows.device)
    for _, block in _leveled(rows, p):
        triangle = torch.linalg.qr(torch.cat([triangle, block]), mode="r").R
    return (triangle,)


def _stacked(one: Sums, other: Sums) -> Sums:
    return (torch.linalg.qr(torch.cat([one[0], other[0]]), mode="r").R,)


def triangle_frame(rows: Table, triangle: Tensor) -> Frame:
    """The frame of ``R^T R``, on the axes of R that are more than rounding noise of the caller's numbers."""
    _, values, axes = torch.linalg.svd(triangle, full_matrices=False)
    if _rank(rows, values) == rows.width:
        return Frame.at(rows.precise(), triangle)
    return axes_frame(rows, values, axes.T)


def axes_frame(rows: Table, values: Tensor, axes: Tensor) -> Frame:
    """The frame whose ellipsoid has these axes (columns, orthonormal) and values, noise axes left out."""
    rank = _rank(rows, values)
    return Frame.at(rows.precise().restricted(axes[:, :rank].contiguous()), torch.diag(values[:rank]))


def _rank(rows: Table, values: Tensor) -> int:
    noise = torch.finfo(torch.float64 if rows.dtype == torch.float64 else torch.float32).eps
    return int((values > RANK_ULPS * noise * values[0]).sum())


def _leveled(rows: Rows, p: float) -> Iterator[tuple[slice, Tensor]]:
    """Float64 blocks with each row multiplied by ``(c_i |a_i|^(p-2))^(1/2)``."""
    for span, block in rows.precise().transformed():
        length = torch.linalg.vector_norm(block, dim=1)
        level = (rows.weight[span] * length.pow(min(p, 2.0) - 2)).sqrt().masked_fill_(length == 0, 0.0)[:, None]
        owned = rows.dtype != block.dtype or rows.scale != 1.0 or not rows.plain
        yield span, block.mul_(level) if owned else block * level


def principal_axes(frame: Frame) -> tuple[Tensor, Tensor]:
    """Axis values (descending) and axes of ``M = R^T R`` in the metric's coordinates; missing axes get value 0."""
    factor, basis = frame.factor, frame.rows.basis
    tidy(2 * factor.numel() * factor.itemsize)
    if factor.shape[0] == 0 or frame.condition > FLOAT32_LIMIT:
        _, sigma, across = torch.linalg.svd(factor)
        axes = across.T
    else:
        squares, axes = torch.linalg.eigh(factor.T @ factor)
        sigma, axes = squares.clamp(min=0).sqrt().flip(0), axes.flip(1)
    return (sigma, axes) if basis is None else completed(sigma, basis @ axes)


def completed(sigma: Tensor, axes: Tensor) -> tuple[Tensor, Tensor]:
    """Axis values and orthonormal axes (d x r), completed to d axes; the new ones have value 0."""
    full, rank = axes.shape
    square, _ = torch.linalg.qr(axes, mode="complete")
    return torch.cat([sigma, sigma.new_zeros(full - rank)]), torch.cat([axes, square[:, rank:]], dim=1)
