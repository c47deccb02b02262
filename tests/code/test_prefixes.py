"""A row map tells every row's own places, without one place told twice, in 1.1 bytes a row."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from laws import refused

from ellp.code.prefixes import Prefixes, check_map, levels_up_to, map_bytes, map_rows, ragged

lengths = some.lists(some.integers(0, 30), min_size=1, max_size=200)


def made(wanted: list[int]) -> Prefixes:
    return map_rows(torch.tensor(wanted), levels_up_to(30))


@settings(max_examples=60, deadline=None)
@given(lengths)
def test_rows_lie_one_after_another(wanted: list[int]) -> None:
    found = made(wanted)
    start, length = found.spans(torch.arange(len(wanted)))
    assert length.tolist() == wanted
    assert start.tolist() == [sum(wanted[:row]) for row in range(len(wanted))]
    assert found.total == sum(wanted)
    check_map(found, len(wanted), sum(wanted), 30)
    assert sum(part.numel() * part.element_size() for part in (found.lengths, found.levels, found.starts)) == map_bytes(
        len(wanted), 31
    )


@settings(max_examples=60, deadline=None)
@given(lengths, some.data())
def test_any_rows_may_be_asked_for(wanted: list[int], data: some.DataObject) -> None:
    rows = torch.tensor(data.draw(some.lists(some.integers(0, len(wanted) - 1), max_size=20)), dtype=torch.long)
    start, length = made(wanted).spans(rows)
    row, step, place = ragged(start, length)
    expected = [(i, t, sum(wanted[:r]) + t) for i, r in enumerate(rows.tolist()) for t in range(wanted[r])]
    assert list(zip(row.tolist(), step.tolist(), place.tolist(), strict=True)) == expected


@settings(max_examples=60, deadline=None)
@given(lengths, some.data())
def test_a_changed_map_is_refused_or_still_inside(wanted: list[int], data: some.DataObject) -> None:
    found = made(wanted)
    parts = {"lengths": found.lengths.clone(), "levels": found.levels.clone(), "starts": found.starts.clone()}
    name = data.draw(some.sampled_from(sorted(parts)))
    place = data.draw(some.integers(0, len(parts[name]) - 1))
    limits = torch.iinfo(parts[name].dtype)
    parts[name][place] = data.draw(some.integers(limits.min, limits.max))
    changed = Prefixes(**parts)
    try:
        check_map(changed, len(wanted), sum(wanted), 30)
    except ValueError:
        return
    start, length = changed.spans(torch.arange(len(wanted)))
    assert int(start.min()) >= 0 and int(length.min()) >= 0
    assert int((start + length).max()) <= sum(wanted)


@pytest.mark.parametrize("most", [0, 1, 200, 255, 256, 768, 5000])
def test_levels_rise_from_nothing_to_all(most: int) -> None:
    levels = levels_up_to(most).long()
    assert levels[0] == 0 and levels[-1] == most and len(levels) <= 256
    assert bool((levels.diff() > 0).all())


def test_a_map_of_other_rows_is_refused() -> None:
    with refused("row map", "damaged"):
        check_map(made([1, 2, 3]), 70, 6, 30)
