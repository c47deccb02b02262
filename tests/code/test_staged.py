"""Every byte refines a row: what was promised while encoding is what decoding gives."""

from __future__ import annotations

import pytest
import tables
import torch
from torch import Tensor

from ellp.code.basis import Basis, basis
from ellp.code.staged import (
    WIDTHS,
    Coder,
    Stages,
    all_levels,
    choose,
    cluster,
    decode,
    encode,
    find_stages,
    grid,
    nearest,
    price,
)

each_coder = pytest.mark.parametrize("coder", list(WIDTHS))
Found = tuple[Basis, Tensor, dict[str, Stages]]


@pytest.fixture(scope="module")
def found() -> Found:
    whole = basis(tables.table(), tables.importances(700))
    return whole, whole.coordinates(slice(None)), {coder: find_stages(whole, 48, 30, coder) for coder in WIDTHS}


@each_coder
def test_the_error_told_is_that_of_the_decoded_row(coder: Coder, found: Found) -> None:
    _, y, stages = found
    codes, errors = encode(y, stages[coder])
    for length in (0, 1, 7, stages[coder].count):
        read = decode(codes, torch.full((700,), length), stages[coder])
        lost = torch.nn.functional.pad(read, (0, 48 - read.shape[1])) - y
        assert torch.allclose(lost.square().sum(1), errors[:, length], rtol=1e-3, atol=1e-4)


@each_coder
def test_more_bytes_err_less_in_the_mean(coder: Coder, found: Found) -> None:
    whole, y, stages = found
    _, errors = encode(y, stages[coder])
    told = whole.weight @ errors
    assert bool((told.diff() <= 0).all())
    assert float(told[-1] / told[0]) < {"codebook": 0.02, "scalar": 0.05, "int8": 0.3}[coder]


def test_the_first_stages_alone_read_the_same(found: Found) -> None:
    _, y, stages = found
    codes, _ = encode(y, stages["codebook"])
    fewer = stages["codebook"].first(5)
    assert fewer.count == 5
    again, _ = encode(y, fewer)
    assert torch.equal(again, codes[:, :5])


def test_rows_that_do_not_pay_are_given_up(found: Found) -> None:
    whole, y, _ = found
    stages = find_stages(whole, 48, 96, "codebook")
    _, full = encode(y, stages)
    _, some = encode(y, stages, torch.full((700,), 1e9))
    reached = torch.isfinite(some)
    assert not bool(reached.all())
    assert torch.allclose(some[reached], full[reached], rtol=1e-3, atol=1e-4)
    taken = choose(some, torch.zeros(700), all_levels(96, y.device), 1.0)
    assert not bool(taken.any())


@pytest.mark.parametrize("room", [0.0, 500.0, 3000.0, 1e9])
def test_rows_fit_into_the_room_at_the_price(room: float, found: Found) -> None:
    whole, y, stages = found
    _, errors = encode(y, stages["codebook"])
    levels = all_levels(30, y.device)
    mu = price(errors, whole.weight, levels, room)
    taken = levels[choose(errors, whole.weight, levels, mu)].float()
    assert float(taken.sum()) <= room or mu > 1e5
    cheaper = levels[choose(errors, whole.weight, levels, mu / 1.5)].float()
    assert float(cheaper.sum()) >= min(room, float(levels[errors.argmin(1)].sum())) * 0.999


def test_important_rows_are_read_further(found: Found) -> None:
    whole, y, stages = found
    _, errors = encode(y, stages["codebook"])
    levels = all_levels(30, y.device)
    taken = levels[choose(errors, whole.weight, levels, price(errors, whole.weight, levels, 4000))].float()
    assert float(taken[:70].mean()) > 1.5 * float(taken[-70:].mean())


def test_nearest_is_the_nearest() -> None:
    generator = torch.Generator().manual_seed(0)
    points, centres = (torch.randn(count, 5, generator=generator) for count in (300, 256))
    least = torch.cdist(points.double(), centres.double())
    assert torch.allclose(least.gather(1, nearest(points, centres)[:, None])[:, 0], least.min(1).values)


def test_clusters_follow_the_weights() -> None:
    points = torch.randn(2000, 4, generator=torch.Generator().manual_seed(0))
    weight = torch.where(points[:, 0] > 0, 100.0, 0.01)
    centres = cluster(points, weight, torch.Generator().manual_seed(0))
    lost = (points - centres[nearest(points, centres)]).square().sum(1)
    assert float(lost[weight > 1].mean()) < 0.3 * float(lost[weight < 1].mean())


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_a_grid_has_its_levels_on_every_axis(width: int) -> None:
    entries = grid(width, torch.device("cpu"))
    assert entries.shape == (256, width)
    assert all(len(entries[:, axis].unique()) == int(256 ** (1 / width) + 1e-9) for axis in range(width))


def test_a_table_of_one_row_again_and_again_needs_no_stage() -> None:
    assert find_stages(basis(torch.ones(300, 40)), 40, 8).count == 0
