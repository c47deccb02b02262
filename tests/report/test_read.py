"""Records as they are found: whole, cut short, with failures, with numbers that are not finite."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import made_sweeps as made
import pytest

from ellp.errors import InputError
from ellp.report.read import Cell, read_run, typed


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    lines = made.cells()
    run = read_run(made.write(tmp_path, lines=lines))
    assert len(run.cells) == len(lines) and not run.failures and not run.unread
    first = run.cells[0]
    assert (first.method, first.p, first.importance, first.keep) == ("svd", 2.0, None, 0.85)
    assert first.names == (made.LAYER,) and first.layers == "embeddings"
    assert (first.drop, first.low, first.high) == (lines[0]["drop"], lines[0]["drop_low"], lines[0]["drop_high"])


def test_a_line_cut_short_is_no_cell(tmp_path: Path) -> None:
    folder = made.write(tmp_path, lines=made.cells()[:3])
    with (folder / "cells.jsonl").open("a") as file:
        file.write('{"id": "torn", "dro')
    run = read_run(folder)
    assert len(run.cells) == 3 and run.unread == 0


def test_a_cell_measured_again_replaces_its_failure(tmp_path: Path) -> None:
    again = made.cell("cola", "lp", 1.0, "broken", 0.1)
    run = read_run(made.write(tmp_path, lines=[made.failure("cola"), again]))
    assert [cell.id for cell in run.cells] == [again["id"]] and not run.failures


def test_a_cell_without_its_numbers_is_counted_not_guessed() -> None:
    whole, broken = made.cell("cola", "svd", 2.0, "uniform", 0.5), made.cell("mrpc", "svd", 2.0, "uniform", 0.5)
    del broken["drop"]
    run = typed(made.facts(), [whole, broken])
    assert len(run.cells) == 1 and run.unread == 1


def test_infinite_numbers_are_strings_in_json() -> None:
    line = made.cell("cola", "lp", 1.0, "uniform", 0.5, drop="inf", drop_low="-inf") | {"p": "inf"}
    cell = typed(made.facts(), [json.loads(json.dumps(line))]).cells[0]
    assert isinstance(cell, Cell) and math.isinf(cell.drop) and cell.low == -math.inf and math.isinf(cell.p or 0)


@pytest.mark.parametrize("content", [None, "[]", "{", '{"format": 99}'])
def test_what_is_no_record_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(InputError, match="need"):
        read_run(tmp_path)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to everything in an object; of long lists to the first two."""
    yield at
    parts = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, part in parts:
        yield from places(part, (*at, key))


def damaged(facts: dict[str, Any], at: tuple[Any, ...], value: Any) -> dict[str, Any]:
    copy = json.loads(json.dumps(facts))
    inner = copy
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = value
    return copy


@pytest.mark.parametrize("value", [None, "x", "inf", -1, [], {}], ids=repr)
def test_a_damaged_record_is_refused_or_shown_never_met_half_way(value: Any) -> None:
    pytest.importorskip("jinja2")
    facts = made.facts(comparisons=made.comparisons()[:1], models=[made.model("cola", 31.5)])
    cells = [made.cell("cola", "lp", p, "uniform", 0.85) for p in (1.0, 2.0)]
    ways = [at for at in places(facts) if at and at[-1] not in {"format", 1}]
    refused = [at for at in ways if isinstance(attempt(damaged(facts, at, value), cells), InputError)]
    assert refused or value is None
    assert all(isinstance(attempt(facts, [cells[0] | {name: value}, cells[1]]), str) for name in cells[0])


def attempt(facts: dict[str, Any], cells: list[dict[str, Any]]) -> str | InputError:
    """The page, or the refusal; any other error is a failure of the test."""
    from ellp.report.page import page

    try:
        return page(typed(facts, cells))
    except InputError as error:
        return error
