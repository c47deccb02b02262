"""The l_2 baseline (the paper's Algorithm 2): the singular value decomposition as an ellipsoid."""

from __future__ import annotations

import math

import torch

from ellp.ellipsoid.certificate import Ellipsoid, sweep
from ellp.ellipsoid.lewis import Frame, axes_frame, completed
from ellp.rows import Rows


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


def _ends(frame: Frame, p: float) -> tuple[float, float]:
    rows = frame.rows
    if p == 2 or rows.width == 0:
        return 1.0, 1.0
    if not math.isinf(p):
        return sweep(rows, frame.inverse, p).here()
    live = rows.weight > 0
    inverse = rows.map_back(frame.inverse).to(rows.work)
    lengths = torch.cat([torch.linalg.vector_norm(block @ inverse, dim=1) for _, block in rows.blocks()])
    alpha = float(rows.weight[live].reciprocal().sum())
    return math.sqrt(alpha), float((rows.weight * lengths.double()).max())
