"""The record survives: a line is there in full or not at all, and nothing is mixed that does not belong together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ellp import InputError
from ellp.sweep.record import open_run, plain, read_run

SETTINGS: dict[str, Any] = {"seed": 0, "limit": None, "layers": "embeddings", "data": {"mrpc": "1234"}}


def cell(name: str, **facts: Any) -> dict[str, Any]:
    return {"id": name, "score": 1.5, **facts}


def test_what_is_appended_is_read_again(tmp_path: Path) -> None:
    with open_run(tmp_path / "run", SETTINGS) as run:
        run.append(cell("a", p=float("inf"), scores={"f1": 2.0}))
        run.append(cell("b", error="why"))
        run.facts["note"] = (1, 2)
        run.save()
    found = read_run(tmp_path / "run")
    assert found.cells == {"a": cell("a", p="inf", scores={"f1": 2.0}), "b": cell("b", error="why")}
    assert found.facts["note"] == [1, 2] and found.facts["seed"] == 0
    with open_run(tmp_path / "run", SETTINGS) as again:
        assert again.cells == found.cells


def test_a_line_cut_anywhere_costs_only_itself(tmp_path: Path) -> None:
    with open_run(tmp_path / "run", SETTINGS) as run:
        for name in "abc":
            run.append(cell(name, text='quotes " and \\ and ü'))
    path = tmp_path / "run" / "cells.jsonl"
    whole = path.read_bytes()
    ends = [number for number, byte in enumerate(whole, 1) if byte == ord("\n")]
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        kept = "".join("abc"[: sum(end <= length for end in ends)])
        assert "".join(read_run(path.parent).cells) == kept
        with open_run(path.parent, SETTINGS) as run:
            assert path.read_bytes() == whole[: ends[len(kept) - 1] if kept else 0]  # mended before anything is added
            run.append(cell("d"))
        assert "".join(read_run(path.parent).cells) == kept + "d"


def test_zeros_at_the_end_are_cut_as_well(tmp_path: Path) -> None:
    with open_run(tmp_path / "run", SETTINGS) as run:
        run.append(cell("a"))
    path = tmp_path / "run" / "cells.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b"\0" * 4096)
    with open_run(path.parent, SETTINGS) as run:
        assert list(run.cells) == ["a"]
    assert path.read_bytes() == whole


def test_damage_in_the_middle_is_named(tmp_path: Path) -> None:
    with open_run(tmp_path / "run", SETTINGS) as run:
        for name in "abc":
            run.append(cell(name))
    path = tmp_path / "run" / "cells.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1][:10], lines[2]]) + "\n")
    with pytest.raises(InputError, match="line 2"):
        read_run(path.parent)


def test_a_later_line_replaces_an_earlier_one(tmp_path: Path) -> None:
    with open_run(tmp_path / "run", SETTINGS) as run:
        run.append(cell("a", error="no memory"))
        run.append(cell("a"))
    assert read_run(tmp_path / "run").cells == {"a": cell("a")}


def test_a_kill_while_the_folder_is_made_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "run" / ".run.json.4000000.part").mkdir(parents=True)
    (tmp_path / "run" / "cache").mkdir()
    with open_run(tmp_path / "run", SETTINGS) as run:
        run.append(cell("a"))
    assert not list((tmp_path / "run").glob("*.part")) and list(read_run(tmp_path / "run").cells) == ["a"]


def test_only_one_sweep_writes_to_a_folder(tmp_path: Path) -> None:
    first = open_run(tmp_path / "run", SETTINGS)
    with first, pytest.raises(InputError, match="no sweep is writing"), open_run(tmp_path / "run", SETTINGS):
        pass
    with open_run(tmp_path / "run", SETTINGS):
        pass


@pytest.mark.parametrize(
    "other",
    [{"seed": 1}, {"limit": 10}, {"layers": "all"}, {"data": {"mrpc": "5678"}}],
    ids=lambda other: next(iter(other)),
)
def test_runs_that_differ_are_not_mixed(tmp_path: Path, other: dict[str, Any]) -> None:
    with open_run(tmp_path / "run", SETTINGS):
        pass
    with pytest.raises(InputError, match="begun with"), open_run(tmp_path / "run", SETTINGS | other):
        pass


def test_new_tasks_may_come_later(tmp_path: Path) -> None:
    with open_run(tmp_path / "run", SETTINGS):
        pass
    with open_run(tmp_path / "run", SETTINGS | {"data": {"cola": "9"}}) as run:
        assert run.facts["data"] == {"mrpc": "1234", "cola": "9"}


def test_strange_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("x")
    with pytest.raises(InputError, match=r"precious\.txt"), open_run(tmp_path, SETTINGS):
        pass
    with pytest.raises(InputError, match="the file"), open_run(tmp_path / "precious.txt", SETTINGS):
        pass
    with pytest.raises(InputError, match="create it first"), open_run(tmp_path / "no" / "run", SETTINGS):
        pass
    with pytest.raises(InputError, match="record of a sweep"):
        read_run(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(InputError, match="format 1, got 99"):
        read_run(tmp_path)


def test_infinite_numbers_are_words() -> None:
    assert plain({"a": [float("inf"), -float("inf"), 1.0]}) == {"a": ["inf", "-inf", 1.0]}
