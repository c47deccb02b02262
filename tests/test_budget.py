"""Ranks from shares: never above the budget, never needlessly below it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ellp import InputError
from ellp.budget import break_even, rank_for

sides = st.integers(2, 5000)


@given(sides, sides, st.floats(0.01, 1.0))
def test_the_rank_is_the_largest_within_the_share(rows: int, columns: int, keep: float) -> None:
    try:
        rank = rank_for((rows, columns), keep)
    except InputError:
        rank = 0
    assert rank * (rows + columns) <= keep * rows * columns * (1 + 1e-9)
    assert (rank + 1) * (rows + columns) > keep * rows * columns * (1 - 1e-9)


@given(sides, sides)
def test_break_even_is_where_factors_stop_being_smaller(rows: int, columns: int) -> None:
    rank = break_even((rows, columns))
    assert rank * (rows + columns) < rows * columns <= (rank + 1) * (rows + columns)


@pytest.mark.parametrize("keep", [0.0, -0.1, 1.1, float("nan")])
def test_a_share_out_of_range_is_refused(keep: float) -> None:
    with pytest.raises(InputError, match="share"):
        rank_for((100, 10), keep)
