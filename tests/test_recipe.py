"""``ellp compress`` from folder to folder: what it writes, what it refuses, and what a kill leaves behind."""

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers")

from huggingface_hub.repocard import metadata_load
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForMaskedLM, AutoTokenizer, BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

import ellp
from ellp.bundle import open_bundle
from ellp.card import CARRIED
from ellp.cli import main
from ellp.recipe import Source, compress_folder
from ellp.record import record_of

PLAIN: dict[str, Any] = {"importance": "uniform", "sensitive": False}  # quick: what rows weigh is tested elsewhere
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{number}" for number in range(595))]


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny-bert"
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    BertForMaskedLM(BertConfig(vocab_size=len(WORDS), **sizes)).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    return folder


def cli(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from ellp.cli import main; main()", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


def refused(cwd: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command that must fail tells: code 2, one line on stderr and nothing else."""
    monkeypatch.chdir(cwd)
    monkeypatch.setattr(sys, "argv", ["ellp", *arguments])
    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        main()
    out, told = capfd.readouterr()
    assert ended.value.code == 2
    assert told.startswith("ellp: ") and told.count("\n") == 1 and not out, told
    assert sorted(path.name for path in cwd.iterdir() if path.name.startswith((".", "small"))) == []
    return told


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_the_result_reloads_with_its_tokenizer_and_tells_its_story(dense: Path, tmp_path: Path) -> None:
    before = contents(dense)
    run = cli("compress", str(dense), "--keep", "0.4", "-o", "small", "--json", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    record = json.loads(run.stdout)
    small = tmp_path / "small"
    model = AutoModelForMaskedLM.from_pretrained(small)
    batch = AutoTokenizer.from_pretrained(small)("word1 word2 word3", return_tensors="pt")
    assert model(input_ids=batch["input_ids"]).logits.shape[-1] == len(WORDS)
    assert sum(parameter.numel() for parameter in model.parameters()) == record["parameters_after"]
    assert record["bytes_after"] == (small / "model.safetensors").stat().st_size < record["bytes_before"]
    table = record["layers"][0]
    assert table["tied"] == ["cls.predictions.decoder"]
    assert table["parameters_after"] <= 0.4 * table["parameters_before"]
    card = (small / "README.md").read_text()
    assert "ellp compress" in card
    assert table["name"] in card
    recipe = json.loads((small / "config.json").read_text())["quantization_config"]
    assert recipe["quant_method"] == "ellp"
    assert recipe["factorized"][0]["rank"] == table["rank"]
    assert contents(dense) == before
    assert sorted(os.listdir(tmp_path)) == ["small"]


def test_the_same_input_gives_the_same_bytes(dense: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        compress_folder(Source(str(dense)), tmp_path / name, {"keep": 0.4}, command="the same")
    one, two = contents(tmp_path / "one"), contents(tmp_path / "two")
    del one["README.md"], two["README.md"]  # names the folder
    assert one == two


def test_a_preset_names_rate_and_folder(dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    record = compress_folder(Source(str(dense)), None, {}, preset="re-tiny")
    assert record["output"] == "RE-tiny-bert-tiny"
    assert record["keep"] == 0.72
    assert (tmp_path / "RE-tiny-bert-tiny" / "model.safetensors").is_file()


def test_calibrated_layers_are_closer_on_the_text(dense: Path, tmp_path: Path) -> None:
    randomly = random.Random(0)
    (tmp_path / "texts.txt").write_text(
        "\n".join(" ".join(randomly.choices(WORDS[5:60], k=24)) for _ in range(120)), encoding="utf-8"
    )
    settings = {"rank": 16, "layers": "linear"}
    plain = compress_folder(Source(str(dense)), tmp_path / "plain", settings)
    fitted = compress_folder(Source(str(dense)), tmp_path / "fitted", settings, calibrate=tmp_path / "texts.txt")
    assert not any(layer["calibrated"] for layer in plain["layers"])
    assert all(layer["calibrated"] for layer in fitted["layers"] if layer["rank"])
    batch = AutoTokenizer.from_pretrained(dense)(
        [" ".join(randomly.choices(WORDS[5:60], k=24)) for _ in range(16)], return_tensors="pt"
    )["input_ids"]
    whole, weights, outputs = (
        AutoModelForMaskedLM.from_pretrained(folder).eval()(input_ids=batch).logits.detach()
        for folder in (dense, tmp_path / "plain", tmp_path / "fitted")
    )
    assert (outputs - whole).norm() < (weights - whole).norm()


FRONT = """---
license: mit
language: [en, de]
pipeline_tag: fill-mask
license_link: 3
tags: [old]
---
# The original
"""


@pytest.mark.parametrize(
    ("card", "carried"),
    [
        (FRONT, {"license": "mit", "language": ["en", "de"], "pipeline_tag": "fill-mask"}),
        (FRONT.replace("mit", "[mit, x]"), {"language": ["en", "de"], "pipeline_tag": "fill-mask"}),
        ("---\nlicense: [\n---\n", {}),
        ("---\n- a\n---\n", {}),
        ("no front matter", {}),
    ],
)
def test_what_the_original_says_of_itself_is_carried_over(
    dense: Path, tmp_path: Path, card: str, carried: dict[str, Any]
) -> None:
    model = Path(shutil.copytree(dense, tmp_path / "model"))
    (model / "README.md").write_text(card)
    record = compress_folder(Source(str(model)), tmp_path / "small", {"keep": 0.4}, **PLAIN)
    assert {key: record[key] for key in CARRIED if key in record} == carried
    assert metadata_load(tmp_path / "small" / "README.md") == {
        "library_name": "transformers",
        "tags": ["ellp", "low-rank"],
        **carried,
    }


def test_a_model_from_the_hub_is_named_as_the_base(dense: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"base_model_name_or_path": "some/base"}')
    (adapter / "README.md").write_text(FRONT)
    bundle = open_bundle(str(dense))
    plan = ellp.Plan((), ellp.Options(keep=0.5))
    places = {"some/model": None, str(dense): None, str(adapter): adapter}
    opened = [replace(bundle, source=source, adapter=adapter) for source, adapter in places.items()]
    records = [record_of(one, tmp_path / "small", plan, 1, None, None, "") for one in opened]
    assert [record["base_model"] for record in records] == ["some/model", None, "some/base"]
    assert [record.get("license") for record in records] == [None, None, "mit"]


BAD = {
    "no rate": [],
    "two rates": ["--keep", "0.5", "--preset", "re-base"],
    "a rate out of range": ["--keep", "1.5"],
    "an unknown layer": ["--keep", "0.5", "--layers", "no.such.layer"],
    "a rank that would grow every layer": ["--rank", "1000"],
    "a tolerance of nothing": ["--keep", "0.5", "--tol", "0"],
    "an impossible norm": ["--keep", "0.5", "--p", "-1"],
    "an unknown preset": ["--preset", "re-huge"],
    "an importance that is none": ["--keep", "0.5", "--importance", "magic"],
    "no such text": ["--keep", "0.5", "--text", "nothing.txt"],
    "an unknown dtype": ["--keep", "0.5", "--dtype", "int7"],
    "a base without an adapter": ["--keep", "0.5", "--base", "demo"],
    "no calibration file": ["--keep", "0.5", "--layers", "linear", "--calibrate", "nothing.txt"],
    "an empty calibration file": ["--keep", "0.5", "--layers", "linear", "--calibrate", "empty.txt"],
}


@pytest.mark.parametrize("arguments", BAD.values(), ids=BAD.keys())
def test_bad_options_are_one_line_and_code_2(
    dense: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    arguments: list[str],
) -> None:
    (tmp_path / "empty.txt").touch()
    refused(tmp_path, monkeypatch, capfd, "compress", str(dense), *arguments, "-o", "small")


DAMAGES = {
    "truncated": "complete safetensors",
    "not a number": "encoder.layer.1.output.dense.weight",
    "no tokenizer": "--no-tokenizer",
    "half a tokenizer": "readable tokenizer.json",
    "no such folder": "elsewhere",
    "no config": "config.json",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_models_are_one_line_and_code_2(
    dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], damage: str
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for path in dense.iterdir():
        (model / path.name).write_bytes(path.read_bytes())
    weights = model / "model.safetensors"
    if damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:-1000])
    elif damage == "not a number":
        broken = BertForMaskedLM.from_pretrained(dense)
        broken.bert.encoder.layer[1].output.dense.weight.data[3, 4] = torch.nan
        broken.save_pretrained(model)
    elif damage == "no tokenizer":
        (model / "tokenizer.json").unlink()
    elif damage == "half a tokenizer":
        (model / "tokenizer.json").write_text((model / "tokenizer.json").read_text()[:-1000])
    elif damage == "no config":
        (model / "config.json").unlink()
    name = "./elsewhere" if damage == "no such folder" else "model"
    told = refused(tmp_path, monkeypatch, capfd, "compress", name, "--keep", "0.5", "-o", "small")
    assert DAMAGES[damage] in told


def test_the_program_itself_says_what_it_refuses(dense: Path, tmp_path: Path) -> None:
    run = cli("compress", str(dense), "--keep", "0.5", "--layers", "no.such.layer", "-o", "small", cwd=tmp_path)
    assert run.returncode == 2
    assert run.stderr.startswith("ellp: need the name of a layer") and run.stderr.count("\n") == 1


def test_an_existing_folder_is_kept_unless_forced(dense: Path, tmp_path: Path) -> None:
    compress_folder(Source(str(dense)), tmp_path / "small", {"keep": 0.4}, **PLAIN)
    with pytest.raises(ellp.InputError, match="--force"):
        compress_folder(Source(str(dense)), tmp_path / "small", {"keep": 0.3}, **PLAIN)
    kept = json.loads((tmp_path / "small" / "config.json").read_text())["quantization_config"]["keep"]
    compress_folder(Source(str(dense)), tmp_path / "small", {"keep": 0.3}, force=True, **PLAIN)
    assert kept == 0.4
    assert json.loads((tmp_path / "small" / "config.json").read_text())["quantization_config"]["keep"] == 0.3


KILLS = """
import itertools, os, random, signal, sys, time
from pathlib import Path
import torch
from transformers import BertForMaskedLM  # imported once, here, so that the kills meet real work
import ellp.hf
from ellp.recipe import Source, compress_folder

torch.set_num_threads(1)
source, rounds, chance = Source(sys.argv[1]), int(sys.argv[2]), random.Random(1)

def compress(keep):
    compress_folder(source, Path("small"), {"keep": keep}, force=True, importance="uniform", sensitive=False)

def tried(work):  # in a process of its own: threads that the work starts do not survive a fork
    child = os.fork()
    if child:
        return child
    work()
    os._exit(0)

def forever():
    for keep in itertools.cycle((0.4, 0.3)):
        compress(keep)

os.waitpid(tried(lambda: compress(0.3)), 0)  # what is read from the disk the first time is in memory now
start = time.monotonic()
os.waitpid(tried(lambda: compress(0.3)), 0)
once = time.monotonic() - start
for _ in range(rounds):
    child = tried(forever)
    time.sleep(chance.uniform(0, 2 * once))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print(sum(path.name.startswith(".small") for path in Path().iterdir()), flush=True)
    sys.stdin.readline()
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked processes")
def test_a_kill_at_any_moment_leaves_the_old_folder_or_the_new_one(dense: Path, tmp_path: Path) -> None:
    rounds, states, left = int(os.environ.get("ELLP_KILLS", "12")), [], 0
    for keep in ("0.3", "0.4"):
        compress_folder(Source(str(dense)), tmp_path / keep, {"keep": float(keep)}, **PLAIN)
        states.append({name: digest for name, digest in contents(tmp_path / keep).items() if name != "README.md"})
    command = [sys.executable, "-c", KILLS, str(dense), str(rounds)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=tmp_path, text=True, **pipes) as killer:  # type: ignore[call-overload]
        for _ in range(rounds):
            left += int(killer.stdout.readline())
            found = {name: digest for name, digest in contents(tmp_path / "small").items() if name != "README.md"}
            assert found in states
            killer.stdin.write("\n")
            killer.stdin.flush()
    assert killer.returncode == 0
    assert left or rounds < 50, "no kill met a folder being written"
    AutoModelForMaskedLM.from_pretrained(tmp_path / "small")
    compress_folder(Source(str(dense)), tmp_path / "small", {"keep": 0.3}, force=True, **PLAIN)
    assert sorted(os.listdir(tmp_path)) == ["0.3", "0.4", "small"]
