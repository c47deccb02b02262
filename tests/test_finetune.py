"""``ellp finetune``: what was lost comes back, only what should change does, and an interrupted run goes on."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("transformers", reason="needs transformers: pip install 'ellp[hf]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'ellp[finetune]'")
pytest.importorskip("sklearn", reason="needs scikit-learn: pip install 'ellp[eval]'")

import transformers
from safetensors.torch import load_file
from tiny_tasks import bert, save, sentences, write_tasks, write_tokenizer, write_tsv

from ellp import InputError, cli
from ellp.finetune import Training, finetune
from ellp.layers import FactorizedEmbedding
from ellp.predict import guesses, prepare
from ellp.quiet import quiet
from ellp.recipe import Source, compress_folder
from ellp.recovery import recovery_section, summary, with_section
from ellp.tasks.glue import TASKS
from ellp.training import ByLength, hidden_loss, teacher_loss

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
QUICK = Training(epochs=2, rate=0.02, batch=16)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, a dense model that knows the task, and the same model compressed."""
    root = tmp_path_factory.mktemp("finetune")
    write_tasks(root / "data", 96)
    save(bert(num_labels=2, hidden_dropout_prob=0.0), root / "new")
    done = finetune(
        Source(str(root / "new")),
        "sst2",
        root / "data",
        root / "dense",
        Training("all", epochs=6, rate=5e-3, batch=16, patience=6),
        cpu=True,
    )
    assert done["after"]["accuracy"] > 95
    compress_folder(Source(str(root / "dense")), root / "small", {"rank": 1}, importance="uniform", sensitive=False)
    save(bert(num_labels=1), root / "number")
    compress_folder(Source(str(root / "number")), root / "number-small", {"rank": 2})
    return root


def tune(place: Path, output: Path, training: Training = QUICK, **options: Any) -> dict[str, Any]:
    return finetune(Source(str(place / "small")), "sst2", place / "data", output, training, cpu=True, **options)


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def changed(one: Path, other: Path) -> set[str]:
    before, after = tensors(one), tensors(other)
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name], after[name])}


# What comes back ------------------------------------------------------------------------------------------------------


def test_factors_recover_with_a_teacher(place: Path, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    record = tune(
        place,
        tmp_path / "out",
        Training(epochs=4, rate=0.02, batch=16, patience=4),
        teacher=Source(str(place / "dense")),
        progress=lambda *step: told.append(step),
        command="ellp finetune small",
    )
    assert record["drop_before"] > 5 and record["recovered"] > 0.5
    assert record["gain"] == pytest.approx(record["drop_before"] - record["drop_after"])
    for name in ("gain", "drop_before", "drop_after"):
        assert record[f"{name}_low"] <= record[name] <= record[f"{name}_high"]
    assert record["processor_seconds"] > 0
    names = {"bert.embeddings.word_embeddings.weight", "bert.embeddings.word_embeddings.proj.weight"}
    assert changed(place / "small", tmp_path / "out") == names
    assert record["trained_parameters"] == 160 + 64
    assert max(entry["score"] for entry in record["epochs_run"]) == record["best_score"]
    assert record["best_score"] == pytest.approx(record["after"]["accuracy"])
    assert any(text.startswith("epoch") for text, _, _ in told) and told[-1][0] == "score: after"
    assert not (tmp_path / "out.training").exists()
    assert "came back" in summary(record)


def test_the_result_is_an_ordinary_folder(place: Path, tmp_path: Path) -> None:
    record = tune(place, tmp_path / "out", command="ellp finetune it")
    with quiet():
        model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert isinstance(model.get_input_embeddings(), FactorizedEmbedding)
    from ellp.opening import open_any
    from ellp.tasks.data import read_task

    bundle = open_any(Source(str(tmp_path / "out")))
    examples = read_task(TASKS["sst2"], place / "data")
    prepared = prepare(bundle, TASKS["sst2"], examples)
    assert TASKS["sst2"].scores(examples, guesses(model, prepared)) == record["after"]
    batch = tokenizer(["good word1", "bad word2"], return_tensors="pt")
    with torch.no_grad():
        one, other = model(**batch).logits, bundle.model(**batch).logits
    assert torch.equal(one, other)
    report = json.loads((tmp_path / "out" / "finetune.json").read_text())
    assert report["before"] == record["before"] and report["after"] == record["after"]
    card = (tmp_path / "out" / "README.md").read_text()
    assert "## Fine-tuning after compression" in card and "ellp finetune it" in card
    assert "No task accuracy was measured" not in card and "## Layers" in card


def test_everything_may_be_trained(place: Path, tmp_path: Path) -> None:
    record = tune(place, tmp_path / "out", Training("all", epochs=1, rate=1e-3, batch=16))
    moved = changed(place / "small", tmp_path / "out")
    assert {"classifier.weight", "bert.embeddings.word_embeddings.weight"} <= moved
    assert record["trained_parameters"] == sum(tensor.numel() for tensor in tensors(tmp_path / "out").values())


def test_a_lora_is_merged_into_the_dense_layers(place: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="adapters need peft")
    record = tune(place, tmp_path / "out", Training("lora", epochs=2, rate=5e-3, batch=16))
    moved = changed(place / "small", tmp_path / "out")
    assert "bert.encoder.layer.0.attention.self.query.weight" in moved and "classifier.weight" in moved
    assert not any("word_embeddings" in name for name in moved)
    assert not (tmp_path / "out" / "adapter_config.json").exists()
    with quiet():
        model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    assert isinstance(model.get_input_embeddings(), FactorizedEmbedding)
    from ellp.evaluation import evaluate

    again = evaluate(Source(str(tmp_path / "out")), ["sst2"], place / "data")
    assert again["tasks"][0]["scores"] == record["after"]


def test_a_number_is_learned_too(place: Path, tmp_path: Path) -> None:
    record = finetune(
        Source(str(place / "number-small")),
        "stsb",
        place / "data",
        tmp_path / "out",
        QUICK,
        teacher=Source(str(place / "number")),
        cpu=True,
    )
    assert record["before"].keys() == {"pearson", "spearman"} and len(record["epochs_run"]) == 2


def test_it_stops_when_nothing_gets_better(place: Path, tmp_path: Path) -> None:
    record = tune(place, tmp_path / "out", Training(epochs=9, rate=1e-9, batch=32, patience=2))
    assert len(record["epochs_run"]) == 3
    assert record["after"] == record["before"]


def test_the_limit_takes_the_first_training_examples(place: Path, tmp_path: Path) -> None:
    record = tune(place, tmp_path / "out", Training(epochs=1, batch=16, limit=20))
    assert (record["train_examples"], record["dev_examples"], record["steps"]) == (20, 96, 2)


# Interrupted ----------------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from ellp.finetune import Training, finetune
from ellp.recipe import Source
place, output = Path(sys.argv[1]), Path(sys.argv[2])
def progress(text, done, total):
    if text.startswith("epoch 3"):
        os.kill(os.getpid(), signal.SIGKILL)
training = Training(epochs=4, rate=0.02, batch=16, patience=4)
finetune(Source(str(place / "small")), "sst2", place / "data", output, training, cpu=True, progress=progress)
"""
LONG = Training(epochs=4, rate=0.02, batch=16, patience=4)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_killed_training_ends_as_an_undisturbed_one(place: Path, tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(place), str(tmp_path / "out")], capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (tmp_path / "out").exists()
    work = tmp_path / "out.training"
    with pytest.raises(InputError, match=r"need no unfinished training, got .* --resume"):
        tune(place, tmp_path / "out", LONG)
    with pytest.raises(InputError, match="got another rate"):
        tune(place, tmp_path / "out", Training(epochs=4, rate=0.01, batch=16, patience=4), resume=True)
    half = work / "checkpoint-99"  # as if killed while writing it
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    record = tune(place, tmp_path / "out", LONG, resume=True)
    plain = tune(place, tmp_path / "plain", LONG)
    assert record["resumed"] and not plain["resumed"]
    assert record["epochs_run"] == plain["epochs_run"] and record["after"] == plain["after"]
    assert not changed(tmp_path / "out", tmp_path / "plain")
    assert not work.exists()


class Trap:
    """A pickle that leaves a mark when it is opened."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("name", ["optimizer.pt", "rng_state.pth", "scheduler.pt"])
def test_pickles_in_a_checkpoint_are_not_opened(place: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        tune(place, tmp_path / "out", QUICK, progress=interrupt_in_the_second_epoch)
    (checkpoint,) = (tmp_path / "out.training").glob("checkpoint-*")
    (checkpoint / name).write_bytes(pickle.dumps(Trap(tmp_path / "mark")))
    with pytest.raises(InputError, match=f"need a checkpoint of tensors and numbers, got .*{name}"):
        tune(place, tmp_path / "out", QUICK, resume=True)
    assert not (tmp_path / "mark").exists()


def interrupt_in_the_second_epoch(text: str, done: int, total: int) -> None:
    if text.startswith("epoch 2"):
        raise KeyboardInterrupt


def test_there_must_be_something_to_resume(place: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="need an unfinished training to resume"):
        tune(place, tmp_path / "out", resume=True)


# What cannot be done --------------------------------------------------------------------------------------------------


def test_what_cannot_be_trained_is_named(place: Path, tmp_path: Path) -> None:
    (tmp_path / "only" / "sst2").mkdir(parents=True)
    write_tsv(tmp_path / "only" / "sst2" / "dev.tsv", sentences(4))
    save(bert("BertModel"), tmp_path / "encoder")
    save(bert(num_labels=2), tmp_path / "stranger")
    write_tokenizer(tmp_path / "stranger", ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good"])
    small, data, out = Source(str(place / "small")), place / "data", tmp_path / "out"
    dense = Source(str(place / "dense"))
    cases: list[tuple[str, Any]] = [
        ("train.tsv", lambda: finetune(small, "sst2", tmp_path / "only", out)),
        ("got a dense one: ellp compress it first", lambda: finetune(dense, "sst2", data, out, cpu=True)),
        ("need a regression head", lambda: finetune(small, "stsb", data, out)),
        ("need a task with labels", lambda: finetune(small, "perplexity", data, out)),
        ("need a sequence classifier", lambda: finetune(Source(str(tmp_path / "encoder")), "sst2", data, out)),
        (
            "model's own tokenizer",
            lambda: finetune(small, "sst2", data, out, teacher=Source(str(tmp_path / "stranger"))),
        ),
        ("at least 1 for epochs", lambda: Training(epochs=0)),
        ("factors, all or lora", lambda: Training("some")),  # type: ignore[arg-type]
        ("a learning rate between", lambda: Training(rate=2.0)),
        ("holds the model that is read", lambda: finetune(small, "sst2", data, place / "small", force=True)),
    ]
    for message, call in cases:
        with pytest.raises(InputError, match=message):
            call()
        assert not out.with_name("out.training").exists(), message
        assert not out.exists()


def test_the_command(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["finetune", place / "small", "--task", "sst2", "--data", place / "data", "-o", tmp_path / "out"]
    monkeypatch.setattr(sys, "argv", ["ellp", *map(str, words), "--epochs", "1", "--cpu", "--json"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert not stopped.value.code
    out, err = capsys.readouterr()
    assert json.loads(out)["output"] == str(tmp_path / "out") and err == ""
    monkeypatch.setattr(sys, "argv", ["ellp", *map(str, words), "--cpu"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    out, err = capsys.readouterr()
    assert stopped.value.code == 2 and out == "" and err.count("\n") == 1 and "--force" in err


# The pieces -----------------------------------------------------------------------------------------------------------


def test_every_epoch_has_every_row_once_in_an_order_of_its_own() -> None:
    lengths = torch.randint(3, 50, (333,), generator=torch.Generator().manual_seed(0)).tolist()
    sampler = ByLength(lengths, 16, seed=5)
    orders = []
    for epoch in (0, 1, 0):
        sampler.set_epoch(epoch)
        orders.append(list(sampler))
    assert orders[0] == orders[2] != orders[1]
    assert all(sorted(order) == list(range(333)) for order in orders)
    batches = [orders[0][first : first + 16] for first in range(0, 333, 16)]
    padding = sum(max(lengths[row] for row in batch) - lengths[row] for batch in batches for row in batch)
    assert padding < 0.1 * sum(lengths)
    assert len(batches[-1]) == 333 % 16


def test_the_teachers_loss_is_a_divergence() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0], [1.0, 0.0, 0.0]])
    other = torch.tensor([[1.0, 0.0, 1.0], [0.0, 3.0, 0.0]])
    own, told = (F.softmax(side / 2, dim=1) for side in (logits, other))
    wanted = 4 * (told * (told / own).log()).sum(1).mean()
    assert float(teacher_loss(TASKS["mnli"], logits, other)) == pytest.approx(float(wanted), rel=1e-5)
    assert float(teacher_loss(TASKS["stsb"], logits[:, :1], other[:, :1])) == 1.0


def test_hidden_states_count_where_there_is_text() -> None:
    told, mask = torch.ones(2, 3, 4), torch.tensor([[1, 1, 0], [1, 0, 0]])
    hidden = told.clone()
    hidden[0, 2] = hidden[1, 1] = 99.0
    assert float(hidden_loss(hidden, told, mask)) == 0
    assert float(hidden_loss(2 * told, told, mask)) == 1
    assert float(hidden_loss(torch.ones(2, 3, 5), told, mask)) == 0


def test_a_card_has_one_section_however_often_a_model_is_tuned() -> None:
    record = {
        "train_examples": 10,
        "dev_examples": 5,
        "task": "sst2",
        "train": "factors",
        "trained_parameters": 7,
        "epochs_run": [{}],
        "seconds": 60.0,
        "before": {"accuracy": 50.0},
        "after": {"accuracy": 75.0},
    }
    card = "# Name\n\n## Accuracy\n\n**No task accuracy was measured for this model.** So.\n\n## Use\n\nhow\n"
    once = with_section(card, record)
    twice = with_section(once, {**record, "after": {"accuracy": 80.0}})
    assert once.index("## Fine-tuning") < once.index("## Use") and "75.00" in once
    assert twice.count("## Fine-tuning") == 1 and "80.00" in twice and "75.00" not in twice
    assert with_section("", record) == recovery_section(record)
