"""Tapered rows fit their numbers, and beat one length for all."""

from __future__ import annotations

import pytest
import tables
import torch
from laws import refused

import ellp
from ellp.code.search import decode_table
from ellp.code.tapered import taper_table

TABLE, IMPORTANCE = tables.table(2000), tables.importances(2000)


@pytest.mark.parametrize("share", [0.15, 0.3, 0.6])
def test_numbers_and_row_map_fit(share: float) -> None:
    numbers = int(share * TABLE.numel())
    found = taper_table(TABLE, numbers, IMPORTANCE)
    real = sum(part.numel() for part in found.tensors.values() if part.is_floating_point())
    others = sum(part.numel() * part.element_size() for part in found.tensors.values() if not part.is_floating_point())
    assert real + others / 4 <= numbers
    read = decode_table(found, (2000, 48))
    assert found.error == pytest.approx(tables.weighted_error(TABLE, read, IMPORTANCE, torch.eye(48)), rel=1e-3)


def test_more_numbers_err_less_and_all_of_them_nothing() -> None:
    errors = [taper_table(TABLE, int(share * TABLE.numel()), IMPORTANCE).error for share in (0.1, 0.2, 0.4, 0.8, 1.2)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-9


def test_rows_longer_than_a_byte_can_tell() -> None:
    """There are 256 levels; lengths between them are rounded."""
    table = tables.table(900, 400)
    found = taper_table(table, int(0.5 * table.numel()), tables.importances(900))
    read = decode_table(found, (900, 400))
    assert 128 < int(found.tensors["levels"].max()) < 400
    assert found.error == pytest.approx(
        tables.weighted_error(table, read, tables.importances(900), torch.eye(400)), rel=1e-3
    )


def test_rows_of_unequal_worth_are_better_off_than_at_one_rank() -> None:
    numbers = int(0.3 * TABLE.numel())
    rank = numbers // (2000 + 48)
    flat = ellp.factorize(TABLE, rank, 2.0, importance=IMPORTANCE)
    one = tables.weighted_error(TABLE, flat.left @ flat.right, IMPORTANCE, torch.eye(48))
    assert taper_table(TABLE, numbers, IMPORTANCE).error < 0.6 * one


def test_too_few_numbers_are_refused() -> None:
    with refused("numbers", "larger share"):
        taper_table(TABLE, 100, IMPORTANCE)
