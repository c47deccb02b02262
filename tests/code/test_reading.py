"""Rows are read alike one by one and all at once, by places and by padding, in any order and as often as asked."""

from __future__ import annotations

import pytest
import tables
import torch

from ellp.code.reading import read_rows
from ellp.code.search import Coded, code_table, decode_table
from ellp.code.tapered import taper_table

TABLE, IMPORTANCE = tables.table(), tables.importances(700)


@pytest.fixture(scope="module", params=["codebook", "scalar", "int8", "rounding", "tapered"])
def coded(request: pytest.FixtureRequest) -> Coded:
    if request.param == "tapered":
        return taper_table(TABLE, TABLE.numel() // 2, IMPORTANCE)
    return code_table(TABLE, TABLE.numel(), IMPORTANCE, how=request.param)


@pytest.mark.parametrize("traced", [False, True])
def test_some_rows_are_rows_of_the_whole(coded: Coded, traced: bool) -> None:
    whole = decode_table(coded, (700, 48))
    for rows in ([], [0], [699], [5, 5, 5], list(range(699, 0, -7)), [63, 64, 127, 128]):
        asked = torch.tensor(rows, dtype=torch.long)
        found = read_rows(coded.kind, coded.tensors, coded.bits, 48, asked, traced)
        assert found.shape == (len(rows), 48)
        assert torch.allclose(found, whole[asked], atol=1e-5)


def test_rows_come_in_the_dtype_of_the_real_numbers(coded: Coded) -> None:
    half = {name: part.bfloat16() if part.is_floating_point() else part for name, part in coded.tensors.items()}
    found = read_rows(coded.kind, half, coded.bits, 48, torch.arange(700))
    assert found.dtype == torch.bfloat16
    assert torch.allclose(found.float(), decode_table(coded, (700, 48)), atol=0.05)
