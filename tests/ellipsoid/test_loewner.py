"""The ellipsoid method, and the Lewis ellipsoid checked against it."""

import math
from itertools import pairwise

import laws
import pytest
import torch
from torch import Tensor

import ellp
from ellp.ellipsoid.loewner import WIDEST, Body, cut, loewner
from ellp.rows import read_rows

POWERS = laws.SUPPORTED["loewner"]


@pytest.mark.parametrize("p", POWERS)
@pytest.mark.parametrize("table", ["gaussian", "heavy", "stretched", "orthogonal", "clusters", "column"])
def test_lewis_is_never_worse(p: float, table: str) -> None:
    A = laws.rows_of(table)
    d = A.shape[1]
    lewis, method = ellp.lewis_ellipsoid(A, p, tol=0.01), ellp.loewner_ellipsoid(A, p)
    assert lewis.distortion <= 1.01 * method.distortion
    assert method.alpha == 1.0
    assert method.beta <= (d * (d + 1)) ** (p / 2) * (1 + 1e-9)
    low, high = relative_stretch(method, lewis)
    assert high <= (method.alpha * lewis.beta) ** (2 / p) * (1 + 1e-8)
    assert low >= (lewis.alpha * method.beta) ** (-2 / p) * (1 - 1e-8)


def relative_stretch(one: ellp.Ellipsoid, other: ellp.Ellipsoid) -> tuple[float, float]:
    """The range of ``|x|_one^2 / |x|_other^2``."""
    back = other.axes / other.sigma
    values = torch.linalg.eigvalsh(back.T @ laws.shape_matrix(one) @ back)
    return float(values[0]), float(values[-1])


@pytest.mark.parametrize("p", POWERS)
def test_every_iterate_contains_the_body_and_is_smaller_than_the_last(p: float) -> None:
    A = laws.rows_of("heavy")
    shapes: list[Tensor] = []
    found = loewner(read_rows(A, None, None), p, watch=lambda shape: shapes.append(shape.clone()))
    assert found.steps == len(shapes) - 1
    volumes = [float(torch.linalg.slogdet(shape).logabsdet) for shape in shapes]
    assert all(after < before for before, after in pairwise(volumes))


@pytest.mark.parametrize("p", POWERS)
def test_the_subgradient_supports_the_gauge(p: float) -> None:
    body = Body(laws.rows_of("gaussian"), laws.importances(60), p)
    points = laws.draw(5, 12, seed=1)
    values = body.gauge(points)
    for point, value in zip(points.T, values, strict=True):
        normal = body.subgradient(point)
        assert float(normal @ point) == pytest.approx(float(value), rel=1e-9)
        assert bool(((normal @ points).abs() <= values * (1 + 1e-9)).all())


@pytest.mark.parametrize("d", [1, 2, 5])
def test_a_cut_keeps_the_slab_and_loses_volume(d: int) -> None:
    root = laws.draw(d, d) + 3 * torch.eye(d, dtype=torch.float64)
    shape = root @ root.T
    normal = laws.draw(d, seed=1)
    normal = normal * (2 * math.sqrt(d) / math.sqrt(float(normal @ shape @ normal)))
    smaller = cut(shape, normal)
    assert float(torch.linalg.det(smaller)) < float(torch.linalg.det(shape))
    x = root @ torch.nn.functional.normalize(laws.draw(d, 4000, seed=2), dim=0)  # on the boundary
    x = torch.cat([x, x * laws.chances(4000, seed=3)], dim=1)
    kept = x[:, (normal @ x).abs() <= 1]
    assert kept.shape[1] > 100
    assert float((kept * torch.linalg.solve(smaller, kept)).sum(dim=0).max()) <= 1 + 1e-9


@pytest.mark.parametrize("p", [0.5, 0.0, math.inf])
def test_powers_out_of_reach(p: float) -> None:
    with laws.refused("ellipsoid method", "method='lewis'"):
        ellp.loewner_ellipsoid(laws.draw(9, 2), p)


def test_too_wide() -> None:
    with laws.refused(str(WIDEST), "method='lewis'"):
        ellp.loewner_ellipsoid(laws.draw(WIDEST + 2, WIDEST + 1))


def test_too_few_cuts() -> None:
    with pytest.raises(ellp.NotConverged, match="raise max_cuts") as caught:
        loewner(read_rows(laws.rows_of("heavy"), None, None), 1.0, max_cuts=3)
    laws.assert_sandwich(laws.rows_of("heavy"), caught.value.ellipsoid, laws.slack_of(torch.float64))


def test_a_start_hidden_by_rounding() -> None:
    A = torch.tensor([[0.0, 0.0, -1.0], [0.0, 1.0, 0.0], [-1.0, -1.0, -1.0]])
    with laws.refused("p = 10.0", "lower p"):
        ellp.loewner_ellipsoid(A, 10.0, torch.tensor([2.0, 1e-3, 100.0]))
