"""The paper's table and figure come out of a record, with the published numbers beside ours and none made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_sweeps import write_data, write_models
from typer.testing import CliRunner

from ellp import InputError
from ellp.cli import app
from ellp.presets import REMOVED
from ellp.reproduce import HUB, PUBLISHED, hub_models, markdown, table1
from ellp.sweep.record import open_run, read_run
from ellp.tasks.glue import GLUE

SETTINGS: dict[str, Any] = {"seed": 0, "limit": None, "layers": "embeddings", "data": {}, "tasks": ["rte", "mrpc"]}


def record(folder: Path, architecture: str, keeps: tuple[float, ...], family: str = "") -> Path:
    """A record with drops that can be told apart: 1 for p = 1, 2 for the SVD, plus the share removed."""
    prefix = f"{family}:" if family else ""
    with open_run(folder, SETTINGS) as run:
        for task in ("rte", "mrpc"):
            layer = {"name": "t", "rows": 100, "columns": 40, "parameters": 4000, "bytes_fp16": 8000}
            dense = {task: {"score": 80.0, "scores": {"accuracy": 80.0}, "examples": 9, "seconds": 1.0}}
            model = {"key": f"{prefix}{task}", "family": family, "name": f"small-{task}", "architecture": architecture}
            run.facts["models"].append(model | {"source": "x", "layers": [layer], "dense": dense})
            for method, p, drop in (("lp", 1.0, 1.0), ("svd", 2.0, 2.0), ("lp", 1.5, 50.0), ("fwsvd", 2.0, 60.0)):
                for keep in keeps:
                    value = drop + (1 - keep)
                    cell = {"id": f"{prefix}{task}/{method}{p}/{keep}", "model": f"{prefix}{task}", "task": task}
                    cell |= {"layers": "embeddings", "layer": "t", "method": method, "p": p, "keep": keep, "rank": 9}
                    cell |= {"importance": "fisher" if method == "fwsvd" else "uniform", "bytes_asked": None}
                    cell |= {"rate": 1 - keep, "parameters": 1, "bytes": 8, "bytes_share": keep, "changed": 1}
                    cell |= {
                        "score": 80 - value,
                        "scores": {"accuracy": 80 - value},
                        "drop": value,
                        "certificate": None,
                    }
                    run.append(
                        cell | {"drop_low": value - 1, "drop_high": value + 1, "relative_error": {}, "seconds": {}}
                    )
        run.save()
    return folder


def test_rows_are_the_rates_of_the_paper(tmp_path: Path) -> None:
    folder = record(tmp_path / "run", "RobertaForSequenceClassification", (0.85, 0.72, 0.59, 0.5))
    rows = table1(folder)
    assert [(row.name, row.rate) for row in rows] == [
        ("RE-small-base", 0.15),
        ("RE-small-small", 0.28),
        ("RE-small-tiny", 0.41),
    ]
    assert rows[1].mean is not None and rows[1].mean.value == pytest.approx(1.28)
    assert rows[1].svd_mean is not None and rows[1].svd_mean.value == pytest.approx(2.28)
    assert {task: drop and round(drop.value, 2) for task, drop in rows[1].drops.items()} == {"rte": 1.28, "mrpc": 1.28}
    text = markdown(rows)
    assert "| RE-small-small | 28% | p = 1 | 1.28 | 1.28 | 1.28 (" in text and "| 0.63 |" in text and "| 11 |" in text
    assert text.count("not available |") == 4  # two rates without a published mean, two methods each
    assert "2009.05647" in text


@pytest.mark.parametrize(
    ("architecture", "rates"),
    [("BertForX", [0.15, 0.21, 0.28]), ("XLNetForX", [0.15, 0.21, 0.28]), ("DistilBertForX", [0.15]), ("GPT2X", [])],
)
def test_each_kind_has_rates_of_its_own(tmp_path: Path, architecture: str, rates: list[float]) -> None:
    rows = table1(record(tmp_path / "run", architecture, (0.85, 0.79, 0.72, 0.59)))
    assert [row.rate for row in rows] == rates
    assert all(row.published is None for row in rows)


def test_families_have_rows_of_their_own(tmp_path: Path) -> None:
    folder = record(tmp_path / "run", "BertForX", (0.85,), "bert-base")
    assert [row.name for row in table1(folder)] == ["RE-bert-base-base"]


def test_without_the_paper_rates_there_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="paper's rates"):
        markdown(table1(record(tmp_path / "run", "BertForX", (0.5,))))


def test_published_numbers_are_of_known_models_and_rates() -> None:
    assert all(preset in REMOVED[kind] for kind, preset in PUBLISHED)


def test_hub_models_are_fine_tuned_for_their_tasks() -> None:
    entries = hub_models()
    assert len({entry.key for entry in entries}) == len(entries) and {entry.family for entry in entries} == set(HUB)
    assert {task for entry in entries for task in entry.tasks} < set(GLUE)
    assert "textattack/roberta-base-STS-B" in {entry.source for entry in entries}


def run(*words: object) -> Any:
    return CliRunner().invoke(app, ["reproduce", *map(str, words)])


def test_the_command_measures_and_writes(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    models, data = write_models(tmp_path / "models"), write_data(tmp_path / "data")
    options = ("--models", models, "--data", data, "-o", tmp_path / "run", "--jobs", 1)
    done = run("table1", *options)
    assert done.exit_code == 0, done.output
    assert "| RE-bert-base | 15% | p = 1 |" in done.stdout
    facts = json.loads((tmp_path / "run" / "table1.json").read_text())
    assert [row["rate"] for row in facts["rows"]] == [0.15, 0.21, 0.28]
    assert all(set(row["drops"]) == {"mrpc", "stsb"} for row in facts["rows"])
    assert (tmp_path / "run" / "table1.md").read_text().startswith("| model | rate |")
    done = run("figure1", *options, "--json")
    assert done.exit_code == 0, done.output
    assert len(read_run(tmp_path / "run").cells) == 2 * 2 * (7 + 1)  # the figure's rates, and 21 % of the table
    for kind, start in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        assert (tmp_path / "run" / f"figure1.{kind}").read_bytes().startswith(start)
    again = run("table1", "-o", tmp_path / "run")  # from the record alone
    assert again.exit_code == 0 and "28%" in again.stdout


def test_kinds_that_the_paper_does_not_have_are_refused_before_any_work(tmp_path: Path) -> None:
    models, data = write_models(tmp_path / "models", ("mrpc",)), write_data(tmp_path / "data", ("mrpc",))
    config = models / "mrpc" / "config.json"
    config.write_text(config.read_text().replace('"model_type": "bert"', '"model_type": "electra"'))
    done = run("table1", "--models", models, "--data", data, "-o", tmp_path / "run")
    assert isinstance(done.exception, InputError) and "electra" in str(done.exception)
    assert not (tmp_path / "run").exists()
