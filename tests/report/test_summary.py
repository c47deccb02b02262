"""What the summary recommends and claims, on records whose answer is known."""

import json
from typing import Any

import made_sweeps as made
import pytest

from ellp.report.curves import Panel, panels
from ellp.report.read import typed
from ellp.report.summary import summarize
from ellp.report.tables import blocks, front, markdown


def panel_of(lines: list[dict[str, Any]], **facts: Any) -> Panel:
    return panels(typed(made.facts(**facts), lines))[0]


def steady(method: str, p: float | None, importance: str | None, drops: dict[float, float], half: float = 0.1) -> list:
    """Every task drops by the same known amount."""
    return [
        made.cell(task, method, p, importance, keep, drop=drop, drop_low=drop - half, drop_high=drop + half)
        for task in made.TASKS
        for keep, drop in drops.items()
    ]


SVD = steady("svd", 2.0, "uniform", {0.5: 1.0, 0.25: 4.0, 0.1: 9.0})


def test_the_smallest_setting_that_keeps_the_goal_is_recommended() -> None:
    lines = SVD + steady("lp", 1.0, "counts", {0.5: 0.1, 0.25: 0.6, 0.1: 0.8})
    summary = summarize(panel_of(lines))  # the dense average is 73.45: 99 % is 0.73 points
    assert summary.recommended is not None and summary.recommended.setting == "keep 0.25"
    assert summary.headline == "p = 1 with counts at keep 0.25 keeps 99.1 % of the score at 1/4 of the layer's bytes."
    before, after = summary.recommended.model_bytes or (0, 0)
    point = panel_of(lines).find(panel_of(lines).series[1].key).points[1]  # type: ignore[union-attr]
    assert before == 45_426_432 and after == pytest.approx(before - 2 * made.ROWS * made.COLUMNS + point.bytes)


def test_a_goal_reached_only_on_average_is_called_so() -> None:
    wide = steady("lp", 1.0, "counts", {0.25: 0.6}, half=2.0)
    summary = summarize(panel_of(SVD + wide))
    assert summary.cautious is None
    assert "No setting keeps 99 % at the worse end of its interval as well." in summary.sentences


def test_nothing_is_recommended_where_nothing_keeps_the_goal() -> None:
    summary = summarize(panel_of(SVD))
    assert summary.recommended is None and summary.headline.startswith("No setting")
    assert any("The closest is SVD, keep 0.5" in sentence for sentence in summary.sentences)


def test_a_setting_as_large_as_dense_is_no_compression() -> None:
    lines = steady("svd", 2.0, "uniform", {1.02: 0.0, 0.25: 9.0})
    assert panel_of(lines).series[0].points[0].share > 1
    assert summarize(panel_of(lines)).recommended is None


@pytest.mark.parametrize(
    ("drops", "word"),
    [
        ({0.5: 1.0, 0.25: 3.95, 0.1: 9.0}, "no measurable difference"),
        ({0.5: 1.0, 0.25: 4.0, 0.1: 5.0}, "better at 1, inside the interval at 2"),
        ({0.5: 1.0, 0.25: 7.0, 0.1: 9.0}, "worse at 1, inside the interval at 2"),
    ],
)
def test_the_robust_claim_is_judged_by_the_interval(drops: dict[float, float], word: str) -> None:
    (claim,) = summarize(panel_of(SVD + steady("lp", 1.0, "uniform", drops))).claims
    assert word in claim.verdict and claim.against == "SVD" and not claim.paired


def test_the_records_own_paired_comparisons_come_first() -> None:
    panel = panels(typed(made.facts(), made.cells()))[0]
    (claim, other) = summarize(panel, comparisons=made.comparisons()).claims
    assert claim.paired and [gain.verdict for gain in claim.gains][-1] == "better" and claim.times("better") == 1
    assert (claim.gains[0].low, claim.gains[0].high) == (-0.3, 0.7)
    assert other.against == "p = 2 with counts" and not other.paired


def test_norms_under_the_same_importances_are_paired_too() -> None:
    rows = [row | {"importance": "counts", "against": "p=2"} for row in made.comparisons()]
    panel = panels(typed(made.facts(), made.cells()))[0]
    summary = summarize(panel, comparisons=rows)
    plain, weighted = summary.claims
    assert not plain.paired and weighted.paired and weighted.times("better") == 1
    assert not any(other.paired for other in summary.others)


def test_only_failures_recommend_nothing() -> None:
    run = typed(made.facts(), [made.failure(task) for task in made.TASKS])
    (panel,) = panels(run)
    assert summarize(panel).headline.startswith("Nothing to recommend yet")
    assert list(blocks(panel)) == []


def test_a_perplexity_rises() -> None:
    lines = [made.cell("cola", "svd", 2.0, "uniform", 0.5, drop=0.2, drop_low=0.1, drop_high=0.3, score=40.2)]
    lines[0]["scores"] = {"perplexity": 40.2}
    summary = summarize(panel_of(lines, models=[made.model("cola", 40.0)], tasks=["cola"]))
    assert summary.headline == "SVD at keep 0.5 raises perplexity by 0.5 % at 1/2 of the layer's bytes."


def test_facts_are_json() -> None:
    lines = [*SVD, made.cell("cola", "lp", 1.0, "uniform", 0.5, drop="inf", drop_low="inf", drop_high="inf")]
    facts = summarize(panel_of(lines)).facts()
    assert json.loads(json.dumps(facts, allow_nan=False))["goal"] == 0.99


# The table ------------------------------------------------------------------------------------------------------------


def test_the_table_has_every_setting_and_marks_what_is_not_measurable() -> None:
    lines = SVD + steady("lp", 1.0, "counts", {0.5: 0.05, 0.25: 0.6})
    panel = panel_of(lines)
    table = {block.label: block.lines for block in blocks(panel, summarize(panel))}
    assert [line.setting for line in table["SVD"]] == ["keep 0.5", "keep 0.25", "keep 0.1"]
    assert table["p = 1 with counts"][0].entries[0].mark == "same"
    assert [entry.text for entry in table["SVD"][2].entries] == ["9.0"] * 5
    assert table["p = 1 with counts"][1].note == "recommended"
    assert [point.at for point in front(panel)] == ["keep 0.1", "keep 0.25", "keep 0.5"]


def test_a_failed_cell_is_shown_as_failed() -> None:
    lines = [cell for cell in SVD if not (cell["task"] == "cola" and cell["keep"] == 0.1)]
    failed = made.failure("cola") | {"method": "svd", "p": 2.0, "importance": "uniform", "keep": 0.1}
    panel = panel_of([*lines, failed])
    entry = next(iter(blocks(panel))).lines[2].entries[0]
    assert (entry.text, entry.detail, entry.mark) == ("failed", "out of memory", "failed")


def test_markdown_is_a_table_that_no_name_can_break() -> None:
    lines = SVD + steady("lp", 1.0, "a|b`<b>`", {0.5: 0.05})
    panel = panel_of(lines)
    text = markdown([(panel, summarize(panel))])
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 3 + 4 and {line.count("|") for line in rows} == {rows[0].count("|")}
    assert "<b>" not in text and "a&#124;b" in text


def test_a_long_table_is_shortened_and_says_so() -> None:
    panel = panel_of(made.many(3000))
    text = markdown([(panel, summarize(panel))])
    assert len(text.splitlines()) < 80 and "best settings" in text
