"""The verdict says what the record shows, and no more."""

from __future__ import annotations

from typing import Any

import pytest

from ellp.sweep.verdict import mean_drops, verdict


def row(gain: float, spread: float = 1.0, **facts: Any) -> dict[str, Any]:
    found = {"method": "lp", "p": 1.0, "importance": "uniform", "model": "rte", "task": "rte", "keep": 0.5}
    return found | {"gain": gain, "gain_low": gain - spread, "gain_high": gain + spread} | facts


def said(*rows: dict[str, Any], **options: Any) -> str:
    found = verdict({"comparisons": list(rows)}, **options)
    assert found is not None
    return found.text


def test_without_a_pair_there_is_no_verdict() -> None:
    assert verdict({}) is None
    assert verdict({"comparisons": [row(3.0, method="fwsvd"), row(3.0, p=1.5), row(3.0, importance="prior")]}) is None


def test_where_it_holds_and_where_it_does_not_is_listed() -> None:
    found = verdict({"comparisons": [row(3.0, keep=0.9), row(-2.0, keep=0.5), row(0.5, keep=0.1)]})
    assert found is not None
    assert [part.keep for part in found.better] == [0.9]
    assert [part.keep for part in found.worse] == [0.5]
    assert [part.keep for part in found.open] == [0.1]
    assert "holds in some places and fails in others" in found.text
    assert "rte at keep 0.9: +3.00 points (95 % between +2.00 and +4.00)" in found.text
    assert found.record()["better"][0]["gain"] == 3.0


@pytest.mark.parametrize(
    ("gains", "words"),
    [
        ([2.0, 2.0, 2.0], " holds here"),
        ([-2.0, -2.0, 0.0], "does not hold here"),
        ([0.2, -0.3, 0.0], "is not confirmed here"),
    ],
)
def test_the_answer_in_words(gains: list[float], words: str) -> None:
    assert words in said(*(row(gain, keep=0.1 * place) for place, gain in enumerate(gains, 1)))


def test_one_lucky_comparison_in_twenty_confirms_nothing() -> None:
    text = said(row(2.0), *(row(0.0, keep=0.01 * place) for place in range(1, 20)))
    assert "is not confirmed here" in text and "about 1 leave out zero by chance alone" in text


def test_the_mean_over_tasks_is_told_apart() -> None:
    text = said(row(0.0), row(0.0, task="cola"), row(-1.5, task="mean", model="", tasks=2))
    assert "does not hold here" in text and "seen in 0 of 2 comparisons" in text
    assert "keep 0.5: -1.50 points (-2.50 to -0.50, more lost)" in text


def test_other_norms_have_a_verdict_of_their_own() -> None:
    assert "l_1.5 (prior)" in said(row(2.0, p=1.5, importance="prior"), p=1.5, importance="prior")


def test_means_are_over_variants_measured_everywhere() -> None:
    def cell(task: str, keep: float, drop: float, **more: Any) -> dict[str, Any]:
        facts = {"method": "svd", "p": 2.0, "importance": "uniform", "keep": keep, "bytes_asked": None}
        return facts | {"task": task, "drop": drop, "scores": {"accuracy": 1.0}} | more

    cells = [cell("a", 0.5, 1.0), cell("b", 0.5, 3.0), cell("a", 0.1, 9.0), cell("b", 0.1, 0.0, error="no")]
    assert mean_drops(cells) == {("svd", 2.0, "uniform", 0.5, None): 2.0}
