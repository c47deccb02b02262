"""The laws of the matrix core, each stated once, and the tables, powers and dtypes they are checked over.

Everything here works in float64 on the values the caller passed, whatever precision the package worked in.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import ellp

POWERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, math.inf)
SUPPORTED = {
    "lewis": POWERS,  # at p = inf this is john
    "loewner": (1.0, 1.5, 2.0, 3.0, 6.0),
    "sketch": (0.5, 1.0, 1.5, 2.0),
    "svd": POWERS,
}
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

each_power = pytest.mark.parametrize("p", POWERS)
each_finite_power = pytest.mark.parametrize("p", POWERS[1:-1])
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
each_implementation = pytest.mark.parametrize(
    ("method", "p"), [(method, p) for method, powers in SUPPORTED.items() for p in powers]
)


# Tables ---------------------------------------------------------------------------------------------------------------


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers (float64)."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def chances(*shape: int, seed: int = 0) -> Tensor:
    """Uniform numbers in [0, 1) (float64)."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rotation(d: int, seed: int = 0) -> Tensor:
    return torch.linalg.qr(draw(d, d, seed=seed)).Q


def orthogonal_rows() -> Tensor:
    """Rows along orthogonal directions, of lengths 1 to 5: every inequality of the certificate is tight."""
    return torch.arange(1.0, 6.0, dtype=torch.float64)[:, None] * rotation(5, seed=1)


def clustered_rows() -> Tensor:
    """Four directions over and over, with noise on a few rows, exact duplicates and zero rows."""
    centers = draw(4, 4, seed=2).repeat(12, 1)
    noisy = draw(48, 4, seed=3) * 0.1 * (torch.arange(48) % 5 == 0)[:, None]
    return torch.cat([torch.zeros(3, 4, dtype=torch.float64), centers + noisy, torch.zeros(2, 4, dtype=torch.float64)])


TABLES = {
    "gaussian": lambda: draw(60, 5),
    "heavy": lambda: draw(80, 6, seed=4) / chances(80, 1, seed=5).square().clamp(min=1e-3),
    "stretched": lambda: draw(70, 5, seed=6) * torch.logspace(0, -3, 5, dtype=torch.float64) @ rotation(5, seed=7),
    "orthogonal": orthogonal_rows,
    "clusters": clustered_rows,
    "signs": lambda: draw(24, 4, seed=8).sign(),
    "column": lambda: draw(20, 1, seed=9),
}
each_table = pytest.mark.parametrize("table", TABLES)


def rows_of(table: str, dtype: torch.dtype = torch.float64) -> Tensor:
    return TABLES[table]().to(dtype)


def importances(n: int, seed: int = 10) -> Tensor:
    """Uneven importances, a quarter of them zero."""
    c = chances(n, seed=seed).square() * 7
    c[::4] = 0.0
    return c


def metric_factor(d: int, seed: int = 11) -> Tensor:
    """A lower triangular S of a metric ``S S^T`` that is far from the identity."""
    return torch.linalg.cholesky(metric_matrix(d, seed))


def metric_matrix(d: int, seed: int = 11) -> Tensor:
    return rotation(d, seed) @ torch.diag(torch.logspace(-1, 1, d, dtype=torch.float64)) @ rotation(d, seed).T


def planted(
    seed: int, dtype: torch.dtype = torch.float64, inliers: int = 900, outliers: int = 30
) -> tuple[Tensor, Tensor]:
    """Rows near a 3-dimensional subspace of R^12, long outliers far from it, and a basis of the subspace (12 x 3)."""
    basis, away = rotation(12, seed)[:, :3], rotation(12, seed)[:, 3:6]
    inside = draw(inliers, 3, seed=seed + 100) @ basis.T + 0.01 * draw(inliers, 12, seed=seed + 200)
    outside = 10 * draw(outliers, 3, seed=seed + 300) @ away.T + 0.01 * draw(outliers, 12, seed=seed + 400)
    order = torch.randperm(inliers + outliers, generator=torch.Generator().manual_seed(seed))
    return torch.cat([inside, outside])[order].to(dtype), basis


# Reference formulas ---------------------------------------------------------------------------------------------------


def as_double(array: Any) -> Tensor:
    """A copy of an array of either kind, in float64 on the CPU."""
    tensor = array.detach().cpu() if isinstance(array, Tensor) else torch.from_numpy(np.array(array))
    return tensor.to(torch.float64)


def measured(A: Any, factor: Any = None) -> Tensor:
    """``A S``."""
    return as_double(A) if factor is None else as_double(A) @ as_double(factor)


def weights_of(A: Any, importance: Any = None) -> Tensor:
    return torch.ones(len(A), dtype=torch.float64) if importance is None else as_double(importance)


def cost(rows: Tensor, x: Tensor, p: float, c: Tensor) -> Tensor:
    """``f(x) = sum_i c_i |a_i.x|^p`` of every column of x; the largest ``c_i |a_i.x|`` at p = inf."""
    along = (rows @ x).abs()
    if math.isinf(p):
        return (c[:, None] * along).amax(dim=0)
    if p == 0:  # a product of the size of rounding is a zero
        noise = 1e-12 * torch.linalg.vector_norm(rows, dim=1)[:, None] * torch.linalg.vector_norm(x, dim=0)
        return c @ (along > noise).double()
    return c @ along.pow(p)


def shape_matrix(ellipsoid: Any) -> Tensor:
    """``M = axes diag(sigma^2) axes^T``."""
    stretched = as_double(ellipsoid.axes) * as_double(ellipsoid.sigma)
    return stretched @ stretched.T


def lengths(ellipsoid: Any, x: Tensor) -> Tensor:
    """``|x|_M`` of every column of x."""
    return torch.linalg.vector_norm(as_double(ellipsoid.sigma)[:, None] * (as_double(ellipsoid.axes).T @ x), dim=0)


def ideal(d: int, p: float) -> float:
    return math.sqrt(d) if math.isinf(p) else d ** abs(1 - p / 2)


def entry_error(
    A: Any, left: Any, right: Any, p: float, importance: Any = None, factor: Any = None, noise: float = 0.0
) -> float:
    """``sum_i c_i sum_j |((A - left right) S)_ij|^p``, computed directly; at p = 0, entries above ``noise`` count."""
    residual = (as_double(A) - as_double(left) @ as_double(right)) @ measured(torch.eye(as_double(A).shape[1]), factor)
    c = weights_of(A, importance)
    if math.isinf(p):
        return float((c[:, None] * residual.abs()).max())
    if p == 0:
        return float(c @ (residual.abs() > noise).double().sum(dim=1))
    return float(c @ residual.abs().pow(p).sum(dim=1))


def row_error(A: Any, left: Any, right: Any, p: float, importance: Any = None, factor: Any = None) -> float:
    """``sum_i c_i |((A - left right) S)_i|_2^p``."""
    residual = (as_double(A) - as_double(left) @ as_double(right)) @ measured(torch.eye(as_double(A).shape[1]), factor)
    return float(weights_of(A, importance) @ torch.linalg.vector_norm(residual, dim=1).pow(p))


def angle(basis: Tensor, other: Tensor) -> float:
    """The largest principal angle between two subspaces of one dimension, in degrees."""
    first, second = torch.linalg.qr(basis.double()).Q, torch.linalg.qr(other.double()).Q
    sine = torch.linalg.matrix_norm(second - first @ (first.T @ second), ord=2).clamp(max=1.0)
    return math.degrees(math.asin(float(sine)))


# Directions that try to break a certificate ---------------------------------------------------------------------------


def directions(rows: Tensor, ellipsoid: Any, p: float, c: Tensor) -> Tensor:
    """Columns x, all in the row space: random ones, and the ones in which a wrong bound would show."""
    sigma, axes = as_double(ellipsoid.sigma), as_double(ellipsoid.axes)
    live = sigma > 0
    back, there = axes[:, live] / sigma[live], (axes[:, live] * sigma[live]).T  # from, and to, whitened coordinates
    white = rows @ back
    width = white.shape[1]
    index = torch.linspace(0, len(white) - 1, min(len(white), 24)).long()
    index = index[torch.linalg.vector_norm(white[index], dim=1) > 0]
    some, around = white[index], draw(width, 2, seed=20)
    start = torch.cat(
        [
            torch.eye(width, dtype=torch.float64),  # the ellipsoid's axes
            draw(width, 24, seed=21),
            draw(width, 16, seed=22).sign(),
            some.T,  # where |a.x| is largest
            *(around - torch.outer(row, row @ around) / row.square().sum() for row in some),  # where it is zero
            there,  # coordinate axes
            there @ rows[index].T,  # the rows themselves
            there @ draw(len(axes), 8, seed=23),
        ],
        dim=1,
    )
    start = start[:, torch.linalg.vector_norm(start, dim=0) > 1e-6]
    start = start / torch.linalg.vector_norm(start, dim=0)
    climbed = [] if p == 0 or width == 1 else [climb(white, start, p, c, up) for up in (True, False)]
    return back @ torch.cat([start, *climbed], dim=1)


def climb(white: Tensor, start: Tensor, p: float, c: Tensor, up: bool, steps: int = 12) -> Tensor:
    """A few steps towards the largest (or smallest) f on the whitened unit sphere, from the best starts."""
    order = cost(white, start, p, c).argsort(descending=up)
    z = start[:, order[:8]]
    best = cost(white, z, p, c)
    for step in range(steps):
        along = white @ z
        pull = along.sign() * along.abs().clamp(min=1e-9).pow(0.0 if math.isinf(p) else p - 1) * c[:, None]
        if math.isinf(p):
            pull = pull * (c[:, None] * along.abs() == best)
        slope = white.T @ pull
        slope = slope - z * (z * slope).sum(dim=0)
        slope = slope / torch.linalg.vector_norm(slope, dim=0).clamp(min=1e-300)
        moved = z + (slope if up else -slope) * 0.5 / (1 + step)
        moved = moved / torch.linalg.vector_norm(moved, dim=0)
        value = cost(white, moved, p, c)
        better = value > best if up else value < best
        z, best = torch.where(better, moved, z), torch.where(better, value, best)
    return z


# The laws -------------------------------------------------------------------------------------------------------------


class Slack(NamedTuple):
    """What rounding may take from an inequality, how short an axis it can hide, and how far axes are from square."""

    bound: float
    axis: float
    angle: float


def slack_of(dtype: torch.dtype) -> Slack:
    return Slack(1e-8, 1e-13, 1e-10) if dtype == torch.float64 else Slack(1e-3, 1e-5, 1e-4)


def assert_sandwich(A: Any, ellipsoid: Any, slack: Slack, importance: Any = None, factor: Any = None) -> None:
    """``|x|_M^p <= alpha f(x)`` and ``f(x) <= beta |x|_M^p``, and f vanishes where M does."""
    rows, c, p = measured(A, factor), weights_of(A, importance), ellipsoid.p
    assert not math.isnan(ellipsoid.distortion)
    sigma, axes = as_double(ellipsoid.sigma), as_double(ellipsoid.axes)
    assert bool((sigma[:-1] >= sigma[1:]).all())
    torch.testing.assert_close(axes.T @ axes, torch.eye(len(axes), dtype=torch.float64), atol=slack.angle, rtol=0)
    beyond = (rows[c > 0] @ axes[:, sigma == 0]).abs()
    assert beyond.numel() == 0 or float(beyond.max()) <= slack.axis * float(rows.abs().max()), "M lost an axis of f"
    if float(sigma.max()) == 0.0:
        return
    x = directions(rows, ellipsoid, p, c)
    size = lengths(ellipsoid, x).pow(1.0 if math.isinf(p) else p)
    f = cost(rows, x, p, c)
    lower, upper = float((size / f).max()), float((f / size).max())
    assert lower <= ellipsoid.alpha * (1 + slack.bound), f"|x|_M^p reaches {lower} f(x), above alpha {ellipsoid.alpha}"
    assert upper <= ellipsoid.beta * (1 + slack.bound), f"f(x) reaches {upper} |x|_M^p, above beta {ellipsoid.beta}"


def assert_bounded(certificate: Any, slack: float = 1e-6) -> None:
    """``lower <= error <= upper`` and ``floor <= error``."""
    assert certificate.lower <= certificate.error * (1 + slack)
    assert certificate.error <= certificate.upper * (1 + slack)
    assert certificate.floor <= certificate.error * (1 + slack)


def assert_same_product(factors: Any, other: Any, tol: float = 1e-8) -> None:
    first, second = (as_double(pair.left) @ as_double(pair.right) for pair in (factors, other))
    assert float((first - second).abs().max()) <= tol * float(first.abs().max())


def assert_same_shape(ellipsoid: Any, other: Any, size: float = 1.0, tol: float = 1e-7) -> None:
    """``M`` is ``size`` times the other M: in the directions of the longest axis, and of the shortest too."""
    M, N = shape_matrix(ellipsoid), size * shape_matrix(other)
    root = torch.linalg.cholesky(N)
    ratio = torch.linalg.solve_triangular(root, torch.linalg.solve_triangular(root, M, upper=False).T, upper=False)
    torch.testing.assert_close(ratio, torch.eye(len(M), dtype=torch.float64), atol=tol, rtol=0)


@contextlib.contextmanager
def refused(*words: str) -> Iterator[None]:
    """An InputError that says what is needed and, after a colon, what to do, and names each of ``words``."""
    with pytest.raises(ellp.InputError) as caught:
        yield
    message = str(caught.value)
    assert re.match(r"need .+: \w.+", message), message
    for word in words:
        assert word in message, message


def ellipsoid_by(method: str, A: Any, p: float, importance: Any = None, metric: Any = None, **options: Any) -> Any:
    """The ellipsoid a method finds, whichever function gives it."""
    if method == "lewis":
        return ellp.lewis_ellipsoid(A, p, importance, metric, **options)
    if method == "loewner":
        return ellp.loewner_ellipsoid(A, p, importance, metric)
    if method == "sketch":
        return ellp.sketched_ellipsoid(A, p, importance, metric, **options)
    found = ellp.factorize(A, 1, p, importance, metric, method="svd")
    proof = found.certificate
    return ellp.Ellipsoid(found.axes, found.sigma, p, proof.alpha, proof.beta, proof.steps)
