"""The l_2 baseline (the paper's Algorithm 2): the singular value decomposition as an ellipsoid."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ellp.ellipsoid.certificate import Ellipsoid, sweep
from ellp.ellipsoid.lewis import Frame, axes_frame, careful_frame, completed, gram_frame, principal_axes
from ellp.rows import Rows, Sums, Table


def singular_ellipsoid(rows: Rows, p: float) -> Ellipsoid:
    """Axes and singular values of the weighted rows, by one ``torch.linalg.svd`` in the working precision.

    At p other than 2 one pass over the rows certifies how well, or how badly, the same axes serve that cost.
    """
    parts = [block * rows.weight[span, None].sqrt().to(rows.work) for span, block in rows.transformed()]
    _, values, across = torch.linalg.svd(torch.cat(parts), full_matrices=False)
    frame = axes_frame(rows, values.double(), across.double().T)
    stretch = rows.unit ** (-0.5 if math.isinf(p) else p / 2 - 1)  # sigma grows with unit^(1/2), f with unit
    alpha, beta = _ends(frame, p)
    values[frame.rows.width :] = 0.0  # rounding noise, which no proof covers
    sigma, axes = completed(values.double() * rows.scale * math.sqrt(rows.unit), across.double().T)
    return Ellipsoid(axes, sigma, p, alpha * stretch, beta / stretch, 1)


def gram_ellipsoid(rows: Table, p: float) -> Ellipsoid:
    """The same for rows that are never all in memory: through the eigenvectors of their Gram matrix in float64.

    An axis shorter than 1e-6 of the longest is lost in the rounding of squares; where there are such, the triangular
    factor of an orthogonal factorization takes the Gram matrix's place, in a second pass.
    """
    frame = gram_frame(rows, 2.0) or careful_frame(rows, 2.0)
    sigma, axes = principal_axes(frame)
    stretch = rows.unit ** (p / 2 - 1)
    alpha, beta = _ends(frame, p)
    return Ellipsoid(axes, sigma * rows.scale * math.sqrt(rows.unit), p, alpha * stretch, beta / stretch, 1 + (p != 2))


def _ends(frame: Frame, p: float) -> tuple[float, float]:
    rows = frame.rows
    if p == 2 or rows.width == 0:
        return 1.0, 1.0
    if not math.isinf(p):
        return sweep(rows, frame.inverse, p).here()
    alpha, beta = rows.total(_extremes, rows.map_back(frame.inverse).to(rows.work))
    return math.sqrt(float(alpha)), float(beta)


def _extremes(rows: Rows, inverse: Tensor) -> Sums:
    live = rows.weight > 0
    lengths = torch.cat([torch.linalg.vector_norm(block @ inverse, dim=1) for _, block in rows.blocks()])
    return rows.weight[live].reciprocal().sum(), (rows.weight * lengths.double()).max()
