"""Cells put in order: what is averaged with what, and what a series and a setting are."""

import math
from typing import Any

import made_sweeps as made
import pytest

from ellp.report.curves import Estimate, Key, combined, key, panels
from ellp.report.looks import looks
from ellp.report.read import typed

SVD, L1 = Key("svd", None, None), Key("lp", 1.0, None)


def one_panel(lines: list[dict[str, Any]], **facts: Any) -> Any:
    (panel,) = panels(typed(made.facts(**facts), lines))
    return panel


def test_models_with_one_task_each_share_a_panel() -> None:
    panel = one_panel(made.cells())
    assert list(panel.tasks) == list(made.TASKS) and panel.name == "made (4 models)"
    assert panel.dense_average == pytest.approx(sum(made.TASKS.values()) / 4)
    assert [series.label for series in panel.series][:3] == ["SVD", "FWSVD", "p = 1"]
    assert [point.at for point in panel.find(Key("rounding", None, None)).points] == ["int8", "int4", "int3", "int2"]


def test_the_average_is_that_of_the_tasks() -> None:
    panel = one_panel(made.cells())
    point = panel.find(SVD).points[0]
    lines = [cell for cell in made.cells() if cell["method"] == "svd" and cell["keep"] == 0.85]
    assert point.average.value == pytest.approx(sum(cell["drop"] for cell in lines) / 4)
    half = math.sqrt(sum((cell["drop_high"] - cell["drop"]) ** 2 for cell in lines)) / 4
    assert point.average.high - point.average.value == pytest.approx(half)


def test_an_average_needs_every_task() -> None:
    lines = [cell for cell in made.cells() if not (cell["task"] == "sst2" and cell["keep"] == 0.1)]
    points = one_panel(lines).find(L1).points
    assert [point.at for point in points if point.average is None] == ["keep 0.1"]


def test_models_with_the_same_tasks_have_a_panel_each() -> None:
    models = [made.model(task, 80.0) | {"key": f"m{number}", "name": f"m{number}"} for number in (1, 2)
              for task in ("cola",)]  # fmt: skip
    lines = [made.cell("cola", "svd", 2.0, "uniform", keep, model=name, id=f"{name}{keep}") for name in ("m1", "m2")
             for keep in (0.5, 0.25)]  # fmt: skip
    found = panels(typed(made.facts(models=models), lines))
    assert [panel.name for panel in found] == ["m1", "m2"]
    assert all(len(panel.series[0].points) == 2 for panel in found)


def test_families_are_not_averaged_with_each_other() -> None:
    models = [
        made.model(task, 80.0) | {"key": f"{name}:{task}", "family": name} for name in ("a", "b") for task in made.TASKS
    ]
    lines = [made.cell(task, "svd", 2.0, "uniform", 0.5, model=f"{name}:{task}", id=f"{name}{task}")
             for name in ("a", "b") for task in made.TASKS]  # fmt: skip
    found = panels(typed(made.facts(models=models), lines))
    assert [(panel.family, panel.name) for panel in found] == [("a", "a"), ("b", "b")] and all(
        len(panel.tasks) == 4 for panel in found
    )


def test_perplexity_is_not_averaged_with_points() -> None:
    lines = [made.cell(task, "svd", 2.0, "uniform", 0.5) for task in ("cola", "mrpc")]
    lines[1] |= {"scores": {"perplexity": 30.0}, "drop": 900.0}
    models = [made.model(task, 50.0) for task in ("cola", "mrpc")]
    panel = one_panel(lines, models=models, tasks=["cola", "mrpc"])
    assert panel.scored == ("cola",) and panel.dense_average == 50.0
    assert panel.series[0].points[0].average.value == pytest.approx(lines[0]["drop"])


def test_budgets_in_bytes_are_settings_too() -> None:
    lines = [made.cell(task, "coded", 1.0, "counts", 0.5) | {"keep": None, "bytes_asked": 0.125} for task in made.TASKS]
    (series,) = one_panel(lines).series
    assert series.label == "coded, p = 1 with counts" and [point.at for point in series.points] == ["bytes 0.125"]


def test_what_is_not_finite_stays_visible_as_such() -> None:
    assert combined([Estimate(math.inf, 0, math.inf), Estimate(1, 0, 2)]).value == math.inf
    assert not combined([Estimate(math.inf, 0, math.inf)]).finite


def test_uniform_importance_is_none() -> None:
    assert key("lp", 1.0, "uniform") == L1 and key("fwsvd", 2.0, "fisher") == Key("fwsvd", None, None)


def test_what_is_shown_together_looks_different() -> None:
    norms = [("lp", p, weights) for p in (1.0, 1.5, 2.0, 3.0) for weights in ("counts", "words", "prior")]
    lines = [made.cell(task, *one, 0.5) for task in made.TASKS for one in (*made.SERIES, *norms)]
    found = looks(one_panel(lines))
    assert len({(look.color, look.dash, look.marker) for look in found}) == len(found) == 15
    shown = [look.color for look in found if look.shown]
    assert 4 <= len(shown) <= 8 and len(set(shown)) == len(shown)
