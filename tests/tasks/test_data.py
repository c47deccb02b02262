"""Labelled files: every format says the same, and every way to be wrong is named."""

from __future__ import annotations

import csv
import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ellp import InputError
from ellp.tasks.data import read_task
from ellp.tasks.glue import TASKS
from ellp.tasks.load import load_task
from ellp.tasks.task import Task

ROWS = [
    {"sentence1": 'a "quoted" one', "sentence2": "two, with a comma", "label": "1"},
    {"sentence1": "ünïcödé", "sentence2": "NULL", "label": "0"},
    {"sentence1": "third", "sentence2": "another", "label": "1"},
]
MRPC, STSB, COLA = TASKS["mrpc"], TASKS["stsb"], TASKS["cola"]
OWN = Task("file", "classify", ("accuracy",), ("no", "yes"))


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix in (".tsv", ".csv"):
        with path.open("w", encoding="utf-8", newline="") as file:
            names = list(rows[0])
            if path.suffix == ".csv":
                writer = csv.DictWriter(file, names)
                writer.writeheader()
                writer.writerows(rows)
            else:
                file.write("\n".join("\t".join(row.values()) for row in [dict(zip(names, names, strict=True)), *rows]))
    elif path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    else:
        path.write_text(json.dumps(rows))
    return path


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".json", ".jsonl", ".parquet"])
@pytest.mark.parametrize("place", ["mrpc/dev", "dev", "mrpc/validation"])
def test_every_format_reads_the_same(tmp_path: Path, suffix: str, place: str) -> None:
    write(tmp_path / f"{place}{suffix}", ROWS)
    found = read_task(MRPC, tmp_path)
    assert found.texts == [(row["sentence1"], row["sentence2"]) for row in ROWS]
    assert found.labels.tolist() == [1, 0, 1]


def test_texts_may_be_labels_and_numbers_may_be_labels(tmp_path: Path) -> None:
    named = [{**row, "label": ("equivalent" if row["label"] == "1" else "not_equivalent")} for row in ROWS]
    assert read_task(MRPC, write(tmp_path / "named.csv", named)).labels.tolist() == [1, 0, 1]
    scored = [{**row, "label": value} for row, value in zip(ROWS, ("5.0", "-0.25", "2"), strict=True)]
    assert read_task(STSB, write(tmp_path / "scored.tsv", scored)).labels.tolist() == [5.0, -0.25, 2.0]


def test_a_task_of_any_file_takes_one_text_or_two(tmp_path: Path) -> None:
    assert read_task(OWN, write(tmp_path / "two.csv", ROWS)).texts[2] == ("third", "another")
    single = [{"sentence1": "alone", "label": "yes"}]
    assert read_task(OWN, write(tmp_path / "one.csv", single)).texts == [("alone",)]


def test_glues_own_column_names_are_known(tmp_path: Path) -> None:
    rows = [{"question1": "a", "question2": "b", "label": "1", "idx": "0"}]
    assert read_task(TASKS["qqp"], write(tmp_path / "dev.tsv", rows)).texts == [("a", "b")]
    assert read_task(COLA, write(tmp_path / "c.tsv", [{"sentence": "a", "label": "1"}])).texts == [("a",)]


def test_mnli_has_two_halves(tmp_path: Path) -> None:
    rows = [{"premise": "a", "hypothesis": "b", "label": "contradiction"}]
    write(tmp_path / "mnli" / "dev_matched.jsonl", rows * 3)
    write(tmp_path / "mnli" / "dev_mismatched.jsonl", rows * 2)
    found = read_task(TASKS["mnli"], tmp_path, limit=2)
    assert found.parts == (("matched", 2), ("mismatched", 2)) and found.labels.tolist() == [2, 2, 2, 2]
    found = read_task(TASKS["mnli"], tmp_path)
    guesses = np.array([2, 2, 0, 2, 0])
    assert TASKS["mnli"].scores(found, guesses) == {
        "accuracy_matched": pytest.approx(200 / 3),
        "accuracy_mismatched": 50.0,
    }


def test_a_single_mnli_file_is_one_part(tmp_path: Path) -> None:
    write(tmp_path / "dev.json", [{"sentence1": "a", "sentence2": "b", "label": "neutral"}])
    assert read_task(TASKS["mnli"], tmp_path).parts == (("", 1),)


def test_the_limit_takes_the_first(tmp_path: Path) -> None:
    assert len(read_task(MRPC, write(tmp_path / "dev.tsv", ROWS), limit=2)) == 2
    with pytest.raises(InputError, match="at least 1 example, got 0"):
        read_task(MRPC, tmp_path / "dev.tsv", limit=0)


WRONG = {
    "a missing column": (MRPC, "dev.tsv", [{"sentence1": "a", "label": "1"}], "rename or add sentence2"),
    "no label column": (COLA, "dev.csv", [{"sentence1": "a"}], "need the columns sentence1, label .* got sentence1"),
    "an unknown label": (MRPC, "dev.csv", [{**ROWS[0], "label": "perhaps"}], "need one of not_equivalent, equivalent"),
    "a class too many": (MRPC, "dev.csv", [{**ROWS[0], "label": "2"}], "0 to 1 as label, got '2' in example 1"),
    "a class in between": (MRPC, "dev.csv", [{**ROWS[0], "label": "0.5"}], "got '0.5'"),
    "a number that is none": (STSB, "dev.csv", [{**ROWS[0], "label": "nan"}], "need a number as label, got 'nan'"),
    "words for a number": (STSB, "dev.csv", [{**ROWS[0], "label": "alike"}], "need a number as label, got 'alike'"),
    "a split without labels": (MRPC, "dev.csv", [{**ROWS[0], "label": "-1"}], "pass a split that has labels"),
    "an empty label": (STSB, "dev.csv", [{**ROWS[0], "label": ""}], "pass a split that has labels"),
    "a null label": (COLA, "dev.json", [{"sentence1": "a", "label": None}], "pass a split that has labels"),
    "a null text": (COLA, "dev.json", [{"sentence1": None, "label": 1}], "need a text under sentence1"),
    "an object for a text": (COLA, "dev.json", [{"sentence1": {"a": 1}, "label": 1}], "sentence1, got a dict"),
    "a list of lists": (COLA, "dev.json", [[1, 2]], "need objects in dev.json"),
    "an empty list": (COLA, "dev.json", [], "need labelled examples, got none in dev.json"),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_named(tmp_path: Path, case: tuple[Task, str, list[Any], str]) -> None:
    task, name, rows, message = case
    with pytest.raises(InputError, match=message):
        read_task(task, write(tmp_path / name, rows))


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".json", ".jsonl"])
def test_an_empty_file_is_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"dev{suffix}"
    path.write_bytes(b"")
    with pytest.raises(InputError, match=f"need labelled examples, got none in dev{suffix}"):
        read_task(COLA, path)


def test_a_header_alone_is_empty(tmp_path: Path) -> None:
    (tmp_path / "dev.tsv").write_text("sentence1\tlabel\n")
    with pytest.raises(InputError, match="got none in"):
        read_task(COLA, tmp_path)


@pytest.mark.parametrize(("name", "between"), [("dev.tsv", "\t"), ("dev.csv", ",")])
def test_columns_of_one_name_are_refused(tmp_path: Path, name: str, between: str) -> None:
    (tmp_path / name).write_text(between.join(["sentence1", "sentence1", "label"]) + "\n")
    with pytest.raises(InputError, match="got 'sentence1' twice"):
        read_task(COLA, tmp_path)


def test_a_short_line_has_no_label(tmp_path: Path) -> None:
    (tmp_path / "dev.tsv").write_text("sentence1\tlabel\nonly a text\n")
    with pytest.raises(InputError, match="pass a split that has labels"):
        read_task(COLA, tmp_path)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00a", b"{", b"PAR1"])
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_broken_file_is_named(tmp_path: Path, suffix: str, content: bytes) -> None:
    if suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        pytest.skip("needs pyarrow")
    path = tmp_path / f"dev{suffix}"
    path.write_bytes(content)
    with pytest.raises(InputError, match="save it again"):
        read_task(COLA, path)


def test_places_without_data_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"need cola/dev.tsv \(or"):
        read_task(COLA, tmp_path)
    with pytest.raises(InputError, match=r"need cola/train\.tsv"):
        read_task(COLA, tmp_path, split="train")
    with pytest.raises(InputError, match="need a file or folder"):
        read_task(COLA, tmp_path / "nowhere")
    (tmp_path / "data.xlsx").write_text("")
    with pytest.raises(InputError, match=r"need one of .tsv, .*, got data.xlsx"):
        read_task(COLA, tmp_path / "data.xlsx")
    with pytest.raises(InputError, match="pass --data FILE"):
        load_task(OWN)
