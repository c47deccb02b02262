"""Ranks from shares: never above the budget, never needlessly below it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ellp import InputError
from ellp.budget import Curve, break_even, rank_for, spread

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


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    """A layer of any shape whose loss falls to nothing at full rank, as fast or slowly as it likes."""
    shape = draw(st.integers(4, 60)), draw(st.integers(4, 60))
    axes = sorted(draw(st.lists(st.floats(1e-3, 1e3), min_size=min(shape), max_size=min(shape))), reverse=True)
    return Curve(shape, tuple(sum(axes[rank:]) for rank in range(len(axes) + 1)))


def lost(curve: Curve, rank: int | None) -> float:
    return 0.0 if rank is None else curve.losses[rank]


@settings(max_examples=60, deadline=None)
@given(st.lists(curves(), min_size=1, max_size=4), st.floats(0.05, 1.0))
def test_a_spread_stays_within_the_budget(layers: list[Curve], keep: float) -> None:
    try:
        ranks = spread(layers, keep)
    except InputError:
        assert sum(curve.cost(1) for curve in layers) > keep * sum(curve.dense for curve in layers)
        return
    assert sum(map(Curve.cost, layers, ranks)) <= keep * sum(curve.dense for curve in layers) * (1 + 1e-9)
    assert all(
        rank is None or 1 <= rank <= max(1, break_even(one.shape)) for one, rank in zip(layers, ranks, strict=True)
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(curves(), min_size=1, max_size=4), st.floats(1e-3, 1e3))
def test_a_spread_is_the_best_use_of_its_parameters(layers: list[Curve], price: float) -> None:
    """At each price of a parameter some ranks are best; given just what these cost, nothing loses less."""
    best: list[int | None] = []
    for curve in layers:
        possible: list[int | None] = [*range(1, max(1, break_even(curve.shape)) + 1), None]
        best.append(min(possible, key=lambda rank, curve=curve: lost(curve, rank) + price * curve.cost(rank)))
    budget = sum(map(Curve.cost, layers, best))
    ranks = spread(layers, budget / sum(curve.dense for curve in layers))
    assert sum(map(lost, layers, ranks)) <= sum(map(lost, layers, best)) * (1 + 1e-9) + 1e-9


@pytest.mark.parametrize("keep", [0.0, -0.1, 1.1, float("nan")])
def test_a_share_out_of_range_is_refused(keep: float) -> None:
    with pytest.raises(InputError, match="share"):
        rank_for((100, 10), keep)
