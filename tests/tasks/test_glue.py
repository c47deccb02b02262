"""The nine tasks, with their official metrics, from the hub or without it; and the user's own."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from ellp import InputError
from ellp.tasks.glue import GLUE, task_named
from ellp.tasks.load import load_task

OFFICIAL = {
    "cola": ("matthews",),
    "sst2": ("accuracy",),
    "mrpc": ("accuracy", "f1"),
    "stsb": ("pearson", "spearman"),
    "qqp": ("accuracy", "f1"),
    "mnli": ("accuracy",),
    "qnli": ("accuracy",),
    "rte": ("accuracy",),
    "wnli": ("accuracy",),
}
COLUMNS = {  # of nyu-mll/glue
    "cola": ["sentence"],
    "sst2": ["sentence"],
    "mrpc": ["sentence1", "sentence2"],
    "stsb": ["sentence1", "sentence2"],
    "qqp": ["question1", "question2"],
    "mnli": ["premise", "hypothesis"],
    "qnli": ["question", "sentence"],
    "rte": ["sentence1", "sentence2"],
    "wnli": ["sentence1", "sentence2"],
}


class Table(list[dict[str, Any]]):
    def select(self, rows: range) -> Table:
        return Table(self[row] for row in rows)


class Hub:
    """What of ``datasets`` is used; it remembers what was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str]] = []

    def load_dataset(self, repository: str, name: str, split: str) -> Table:
        self.asked.append((repository, name, split))
        return Table({**dict.fromkeys(COLUMNS[name], "text"), "label": 1, "idx": row} for row in range(5))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    found = Hub()
    monkeypatch.setitem(sys.modules, "datasets", found)
    return found


def test_all_nine_have_their_official_metrics() -> None:
    assert {name: task.metrics for name, task in GLUE.items()} == OFFICIAL


@pytest.mark.parametrize("name", OFFICIAL)
def test_tasks_come_from_the_hub(hub: Hub, name: str) -> None:
    found = load_task(GLUE[name], limit=3)
    splits = ["validation_matched", "validation_mismatched"] if name == "mnli" else ["validation"]
    assert hub.asked == [("nyu-mll/glue", name, split) for split in splits]
    assert len(found) == 3 * len(splits) and len(found.texts[0]) == len(COLUMNS[name])
    load_task(GLUE[name], split="train")
    assert hub.asked[-1] == ("nyu-mll/glue", name, "train")


def test_sts_uses_the_texts_of_stsb(hub: Hub) -> None:
    load_task(task_named("sts"))
    assert hub.asked == [("nyu-mll/glue", "stsb", "validation")]


def test_without_the_hub_the_way_out_is_named(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*arguments: Any, **options: Any) -> None:
        raise ConnectionError("Couldn't reach the hub")

    monkeypatch.setattr(hub, "load_dataset", offline, raising=False)
    with pytest.raises(InputError, match=r"cannot be fetched \(Couldn't reach.*--data DIR with rte/dev.tsv"):
        load_task(GLUE["rte"])
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"need datasets .* pip install 'ellp\[eval\]'"):
        load_task(GLUE["rte"])


def test_the_users_own_task_follows_the_head() -> None:
    three = task_named("file", SimpleNamespace(id2label={0: "no", 1: "maybe", 2: "yes"}))
    assert three.kind == "classify" and three.classes == ("no", "maybe", "yes") and three.pair is None
    assert task_named("file", SimpleNamespace(id2label={0: "LABEL_0"})).kind == "regress"
    several = SimpleNamespace(id2label={0: "a", 1: "b"}, problem_type="multi_label_classification")
    for config, message in ((several, "one label an example"), (None, "need a model with labels")):
        with pytest.raises(InputError, match=message):
            task_named("file", config)


def test_an_unknown_task_is_named() -> None:
    with pytest.raises(InputError, match=r"need a task out of cola, .*, got 'imdb'"):
        task_named("imdb")
