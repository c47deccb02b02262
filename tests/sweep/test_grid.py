"""The cross product is complete, each cell once, under a name that does not depend on the rest of the grid."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from ellp import InputError
from ellp.sweep.grid import Entry, Grid, read_importances, read_models, read_norms, read_shares
from ellp.sweep.methods import METHODS, Method, low_rank, register

MODELS = (Entry("mrpc", "a", ("mrpc",)), Entry("both", "b", ("cola", "sst2"), "both"))


def test_every_axis_meets_every_other() -> None:
    grid = Grid(MODELS, ("svd", "lp", "int4"), p=(1.0, 1.5), importances=("uniform", "prior"), keep=(0.5, 0.25))
    cells = grid.cells()
    variants = 1 * 2 + 2 * 2 * 2 + 1  # svd has no axes but keep, int4 none at all
    assert len(cells) == 3 * variants and len({cell.id for cell in cells}) == len(cells)
    wanted = set(itertools.product((1.0, 1.5), ("uniform", "prior"), (0.5, 0.25)))
    found = {
        (cell.variant.p, cell.variant.importance, cell.variant.keep) for cell in cells if cell.variant.method == "lp"
    }
    assert found == wanted


def test_names_do_not_depend_on_the_rest_of_the_grid() -> None:
    small = {cell.id for cell in Grid(MODELS[:1], ("svd", "lp"), keep=(0.5,)).cells()}
    large = {cell.id for cell in Grid(MODELS, ("int8", "lp", "svd"), p=(1.0, 2.0), keep=(0.25, 0.5)).cells()}
    assert small < large
    assert "mrpc/mrpc/embeddings/lp-p1-uniform-keep0.5" in small


def test_different_cells_have_different_names() -> None:
    keeps = (0.5, 0.50001, 0.1, 1 / 3, 1.0)
    cells = Grid(MODELS, ("svd", "lp", "fwsvd"), p=(0.5, 1.0, float("inf")), keep=keeps).cells()
    assert len({cell.id for cell in cells}) == len(cells) == 3 * (2 * 5 + 3 * 5)


def test_bytes_are_an_axis_of_methods_that_live_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ellp.sweep.methods.METHODS", METHODS)
    method = register(Method("by-bytes", low_rank, budget="bytes", axes=("importance",)))
    try:
        cells = Grid(MODELS[:1], ("by-bytes", "svd"), keep=(0.5,), shares=(1 / 8, 1 / 16)).cells()
        assert [cell.id.rpartition("/")[2] for cell in cells] == [
            "by-bytes-uniform-bytes0.125",
            "by-bytes-uniform-bytes0.0625",
            "svd-keep0.5",
        ]
        assert cells[0].facts()["bytes_asked"] == 1 / 8 and cells[0].facts()["keep"] is None
        with pytest.raises(InputError, match="--bytes"):
            Grid(MODELS, ("by-bytes",), keep=(0.5,))
        with pytest.raises(InputError, match="taken"):
            register(method)
    finally:
        del METHODS["by-bytes"]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"methods": ("pca",)}, "'pca'"),
        ({"keep": ()}, "--keep"),
        ({"methods": ()}, "got none of one of them"),
        ({"p": ()}, "got none of one of them"),
        ({"keep": (1.5,)}, "at most 1"),
        ({"keep": (0.0,)}, "above 0"),
        ({"p": (-1.0,)}, "p of 0"),
        ({"p": (float("nan"),)}, "p of 0"),
        ({"models": (MODELS[0], MODELS[0])}, "twice"),
    ],
)
def test_impossible_grids_are_refused(changes: dict[str, object], match: str) -> None:
    with pytest.raises(InputError, match=match):
        Grid(**({"models": MODELS, "methods": ("lp",), "keep": (0.5,)} | changes))


def test_shares_and_norms_are_read_as_people_write_them() -> None:
    assert read_shares("1/8, 0.5,") == (0.125, 0.5)
    assert read_norms("1, 1.5,inf") == (1.0, 1.5, float("inf"))
    for read, text in ((read_shares, "half"), (read_shares, "1/0"), (read_norms, "one")):
        with pytest.raises(InputError, match=text):
            read(text)


def test_importances_may_hold_commas() -> None:
    assert read_importances(["uniform,words:en,de,prior", "prior"]) == ("uniform", "words:en,de", "prior")
    with pytest.raises(InputError, match="nonsense"):
        read_importances(["nonsense"])


def test_models_say_which_tasks_they_are_for(tmp_path: Path) -> None:
    found = read_models(["mrpc=fine", "big=other", "big:cola=third", "plain"], ["sst2", "rte"])
    assert [(entry.key, entry.source, entry.tasks, entry.family) for entry in found] == [
        ("mrpc", "fine", ("mrpc",), ""),
        ("big", "other", ("sst2", "rte"), "big"),
        ("big:cola", "third", ("cola",), "big"),
        ("plain", "plain", ("sst2", "rte"), ""),
    ]
    odd = tmp_path / "mrpc=odd"
    odd.mkdir()
    assert read_models([str(odd)], ["rte"])[0].source == str(odd)  # a folder that is there is a folder


def test_a_folder_of_task_folders_stands_for_all_of_them(tmp_path: Path) -> None:
    for task in ("stsb", "cola"):
        (tmp_path / task).mkdir()
        (tmp_path / task / "adapter_config.json").write_text("{}")
    assert [entry.key for entry in read_models([str(tmp_path)], [])] == ["cola", "stsb"]
    assert [entry.key for entry in read_models([f"mini={tmp_path}"], ["stsb"])] == ["mini:stsb"]
    with pytest.raises(InputError, match="cola, stsb"):
        read_models([str(tmp_path)], ["rte"])


@pytest.mark.parametrize(
    ("models", "tasks"), [(["a"], []), ([], ["rte"]), (["a"], ["chess"]), (["x:chess=a"], ["rte"])]
)
def test_models_without_tasks_and_tasks_that_are_none_are_refused(models: list[str], tasks: list[str]) -> None:
    with pytest.raises(InputError, match="need"):
        read_models(models, tasks)
