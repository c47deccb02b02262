"""Coordinates are another way to write a table: lengths in them are errors in the metric."""

from __future__ import annotations

import pytest
import tables
import torch

from ellp.code.axes import read_axes, store_axes
from ellp.code.basis import Basis, basis


@pytest.fixture(scope="module", params=["plain", "weighted"])
def found(request: pytest.FixtureRequest) -> Basis:
    if request.param == "plain":
        return basis(tables.table())
    return basis(tables.table(), tables.importances(700), tables.metric(48))


def test_coordinates_and_back_is_the_table(found: Basis) -> None:
    again = found.mean + found.coordinates(slice(None)) @ found.back
    assert torch.allclose(again, found.matrix, atol=1e-4)


def test_squared_coordinates_are_errors_in_the_metric() -> None:
    table, importance, metric = tables.table(), tables.importances(700), tables.metric(48)
    found = basis(table, importance, metric)
    moved = table + 0.1 * torch.randn(table.shape, generator=torch.Generator().manual_seed(2))
    rows = torch.arange(700)
    wanted = tables.weighted_error(table, moved, importance, metric)
    assert found.error(rows, moved) / found.size == pytest.approx(wanted, rel=1e-4)


def test_axes_come_in_the_order_of_their_weighted_variance(found: Basis) -> None:
    own = found.weight.double() @ found.coordinates(slice(None)).double().square() / 700
    assert torch.allclose(own, found.variance, rtol=1e-4)
    assert torch.equal(found.variance, found.variance.sort(descending=True).values)


@pytest.mark.parametrize("axes", [48, 20])
def test_coordinates_on_rounded_axes_err_least(found: Basis, axes: int) -> None:
    """With all axes nothing is lost to their rounding; with some, no other coordinates would lose less."""
    packed, scale = store_axes(found.back[:axes], 4)
    onto = found.onto(read_axes(packed, 4, 48) * scale[:, None])
    rows = torch.arange(700)
    y = onto.coordinates(rows)
    error = found.error(rows, found.mean + y @ onto.back)
    assert axes < 48 or error < 1e-6 * found.size
    for seed in range(3):
        other = y + 0.02 * torch.randn(y.shape, generator=torch.Generator().manual_seed(seed))
        assert found.error(rows, found.mean + other @ onto.back) > error


def test_a_sample_is_unbiased(found: Basis) -> None:
    whole = float(found.weight.sum())
    told = [float(weight.sum()) for _, weight in (found.sample(150, seed) for seed in range(60))]
    assert sum(told) / 60 == pytest.approx(whole, rel=0.05)
    rows, weight = found.sample(10_000, 0)
    assert len(rows) == 700 and torch.equal(weight, found.weight)
