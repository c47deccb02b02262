"""A compressed model is an ordinary transformers model: loaded, saved, reloaded and cast like any other."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

pytest.importorskip("transformers", reason="the plug-in needs transformers: pip install 'ellp[hf]'")

import tiny_models
import transformers
from safetensors import safe_open
from tiny_models import MODELS, TIED, align, answer, build, plant

from ellp import EllpConfig, InputError, compress
from ellp.hf import attach
from ellp.layers import FactorizedEmbedding, Projection

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:(?!ellp)")
KEEP = 0.5


class Journey(NamedTuple):
    """One model: before, compressed while loading, and reloaded from its folder twice."""

    dense: Any
    fresh: Any
    reloaded: Any
    again: Any
    bytes_saved: int
    numbers_saved: int
    facts: dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> None:
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


@cache
def journey(name: str, layers: str) -> Journey:
    dense = build(name)
    with TemporaryDirectory() as place:
        before, after = Path(place, "before"), Path(place, "after")
        dense.save_pretrained(before)
        kind = type(dense)
        config = EllpConfig(keep=KEEP, layers=layers, uniform=layers == "all")
        fresh = kind.from_pretrained(before, quantization_config=config)
        fresh.save_pretrained(after)
        (size, count), (smaller, fewer) = on_disk(before), on_disk(after)
        facts = json.loads((after / "config.json").read_text())["quantization_config"]
        reloaded, again = align(kind.from_pretrained(after)), kind.from_pretrained(after)
        return Journey(dense, fresh, reloaded, again, size - smaller, count - fewer, facts)


def on_disk(folder: Path) -> tuple[int, int]:
    """Bytes and numbers in a folder's weights."""
    path = folder / "model.safetensors"
    with safe_open(path, "pt") as file:
        return path.stat().st_size, sum(file.get_tensor(key).numel() for key in file.keys())  # noqa: SIM118


each_journey = pytest.mark.parametrize(
    ("name", "layers"), [(name, layers) for name in MODELS for layers in ("embeddings", "all")]
)
each_model = pytest.mark.parametrize("name", MODELS)


def same_tensors(one: nn.Module, other: nn.Module) -> bool:
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


# The round trip -------------------------------------------------------------------------------------------------------


@each_journey
def test_a_reloaded_model_is_the_compressed_one_to_the_last_bit(name: str, layers: str) -> None:
    trip = journey(name, layers)
    assert same_tensors(trip.fresh, trip.reloaded) and same_tensors(trip.reloaded, trip.again)
    torch.testing.assert_close(answer(trip.fresh), answer(trip.again))
    assert torch.equal(answer(align(trip.fresh)), answer(trip.reloaded))
    assert torch.equal(answer(align(trip.again)), answer(trip.reloaded))


@each_journey
def test_fewer_parameters_reach_the_disk(name: str, layers: str) -> None:
    trip = journey(name, layers)
    plan = trip.facts["factorized"]
    dense = sum(entry["rows"] * entry["columns"] for entry in plan)
    saved = dense - sum(entry["rank"] * (entry["rows"] + entry["columns"]) for entry in plan)
    assert saved >= (1 - KEEP) * dense - 1 > 0
    assert trip.numbers_saved == saved
    assert sum(p.numel() for p in trip.dense.parameters()) - sum(p.numel() for p in trip.fresh.parameters()) == saved
    assert trip.bytes_saved > 4 * saved - 4096  # the header names more tensors


@pytest.mark.parametrize("layers", ["embeddings", "all"])
@pytest.mark.parametrize("name", TIED)
def test_tied_layers_stay_tied(name: str, layers: str) -> None:
    trip = journey(name, layers)
    for model in (trip.fresh, trip.reloaded):
        table, head = model.get_input_embeddings(), model.get_output_embeddings()
        assert isinstance(table, FactorizedEmbedding) and isinstance(head, nn.Linear)
        assert head.weight is table.weight and head.proj.weight is table.proj.weight


@each_model
def test_layers_of_low_rank_lose_nothing(name: str, tmp_path: Path) -> None:
    dense = build(name)
    plant(dense, 6)
    expected = answer(dense)
    plan = compress(dense, rank=6, layers="all")
    assert all(layer.rank or min(layer.rows, layer.columns) < 32 for layer in plan.layers)
    torch.testing.assert_close(answer(dense), expected, rtol=1e-3, atol=1e-4)


# Other architectures of the same base model ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A masked language model and its base model: as they were, and compressed."""
    root = tmp_path_factory.mktemp("folders")
    masked = build("bert-masked")
    masked.save_pretrained(root / "masked")
    masked.bert.save_pretrained(root / "base")
    for name, kind in (("masked", transformers.BertForMaskedLM), ("base", transformers.BertModel)):
        config = EllpConfig(keep=KEEP, layers="all", uniform=True)
        kind.from_pretrained(root / name, quantization_config=config).save_pretrained(root / f"{name}-small")
    return {path.name: path for path in root.iterdir()}


@pytest.mark.parametrize("source", ["masked-small", "base-small"])
@pytest.mark.parametrize(
    "kind", ["BertModel", "BertForMaskedLM", "BertForSequenceClassification", "BertForTokenClassification"]
)
def test_another_head_can_be_put_on_a_compressed_model(
    folders: dict[str, Path], source: str, kind: str, tmp_path: Path
) -> None:
    model = getattr(transformers, kind).from_pretrained(folders[source]).eval()
    body = model if kind == "BertModel" else model.bert
    expected = transformers.BertModel.from_pretrained(folders["base-small"], add_pooling_layer=False).state_dict()
    found = body.state_dict()
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    if kind == "BertForMaskedLM":
        head = model.get_output_embeddings()
        assert head.weight is model.get_input_embeddings().weight and isinstance(head.proj, Projection)
    model.save_pretrained(tmp_path / "again")
    again = type(model).from_pretrained(tmp_path / "again").eval()
    assert same_tensors(model, again) and torch.equal(answer(align(model)), answer(align(again)))


def test_the_names_of_a_plan_follow_the_architecture(folders: dict[str, Path]) -> None:
    plan = transformers.BertModel.from_pretrained(folders["masked-small"]).config.quantization_config.factorized
    assert plan[0]["name"] == "embeddings.word_embeddings" and plan[0]["tied"] == []
    plan = transformers.BertForMaskedLM.from_pretrained(folders["base-small"]).config.quantization_config.factorized
    assert plan[0]["tied"] == [["cls.predictions.decoder", "head"]]
    assert plan[1]["name"].startswith("bert.encoder.")


def test_the_automatic_classes_know_a_compressed_folder(folders: dict[str, Path]) -> None:
    for auto in (transformers.AutoModel, transformers.AutoModelForMaskedLM):
        assert isinstance(auto.from_pretrained(folders["masked-small"]).get_input_embeddings(), FactorizedEmbedding)


# What else is done with a model ---------------------------------------------------------------------------------------


def test_a_model_saved_in_shards_reloads(folders: dict[str, Path], tmp_path: Path) -> None:
    model = transformers.BertForMaskedLM.from_pretrained(folders["masked-small"])
    model.save_pretrained(tmp_path, max_shard_size="15KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    again = transformers.BertForMaskedLM.from_pretrained(tmp_path)
    assert same_tensors(model, again) and torch.equal(answer(align(model)), answer(align(again)))


@pytest.mark.parametrize("name", ["bert-masked", "gpt2", "t5"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_narrow_types(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    build(name).save_pretrained(tmp_path / "dense")
    kind = tiny_models.MODELS[name]().__class__
    config = EllpConfig(keep=KEEP, layers="all", uniform=True)
    fresh = kind.from_pretrained(tmp_path / "dense", dtype=dtype, quantization_config=config)
    fresh.save_pretrained(tmp_path / "small")
    again = kind.from_pretrained(tmp_path / "small", dtype="auto")
    assert again.dtype == dtype and same_tensors(fresh, again)
    assert torch.equal(answer(align(fresh)), answer(align(again)))
    wide = kind.from_pretrained(tmp_path / "small", dtype=torch.float32)
    torch.testing.assert_close(answer(wide), answer(again).float(), rtol=0.1, atol=0.1)
    cast = wide.half() if dtype == torch.float16 else wide.to(dtype)
    assert {parameter.dtype for parameter in cast.parameters()} == {dtype}
    torch.testing.assert_close(answer(cast), answer(again), rtol=0.1, atol=0.1)


def test_a_model_compressed_in_memory_is_saved_like_one_compressed_while_loading(tmp_path: Path) -> None:
    model = build("bert-masked")
    config = EllpConfig(keep=KEEP)
    attach(model, config, compress(model, config.options()))
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert same_tensors(model, again) and torch.equal(answer(align(model)), answer(align(again)))
    assert not getattr(again, "is_quantized", False)


def test_new_tokens_can_be_added_when_the_head_is_tied(folders: dict[str, Path], tmp_path: Path) -> None:
    model = transformers.BertForMaskedLM.from_pretrained(folders["masked-small"])
    before = answer(model)
    model.resize_token_embeddings(tiny_models.VOCABULARY + 7)
    after = answer(model)
    assert after.shape[-1] == tiny_models.VOCABULARY + 7
    torch.testing.assert_close(after[..., : tiny_models.VOCABULARY], before)
    model.save_pretrained(tmp_path)
    again = transformers.BertForMaskedLM.from_pretrained(tmp_path)
    assert same_tensors(model, again) and torch.equal(answer(align(model)), answer(align(again)))


def test_new_tokens_break_loudly_when_the_head_is_a_factored_layer_of_its_own() -> None:
    model = build("llama-untied")
    compress(model, keep=KEEP, layers="all", uniform=True)

    def resized_and_used() -> None:
        model.resize_token_embeddings(tiny_models.VOCABULARY + 7)
        answer(model)

    with pytest.raises((RuntimeError, AttributeError, ValueError)):
        resized_and_used()


@pytest.mark.parametrize("name", ["gpt2", "llama-tied", "t5"])
def test_generation_with_a_cache_agrees_after_a_reload(name: str) -> None:
    trip = journey(name, "embeddings")
    asked = {"input_ids": torch.tensor([[5, 6, 7]]), "attention_mask": torch.ones(1, 3, dtype=torch.long)}
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    texts = [align(model).generate(**asked, **options) for model in (trip.fresh, trip.reloaded)]
    assert torch.equal(*texts)


# The configuration ----------------------------------------------------------------------------------------------------


def test_a_configuration_survives_its_dictionary() -> None:
    config = EllpConfig(rank=7, layers=["a.*", "b"], p=1.5, method="sketch", tol=0.1, refine="rows", seed=3)
    facts = json.loads(json.dumps(config.to_dict()))
    assert EllpConfig.from_dict(facts).to_dict() == config.to_dict() and facts["quant_method"] == "ellp"
    assert json.loads(config.to_json_string(use_diff=False)) == facts
    assert '"rank": 7' in repr(config)


def test_the_infinite_power_survives_json() -> None:
    config = EllpConfig(keep=0.5, p="inf")
    assert EllpConfig.from_dict(json.loads(json.dumps(config.to_dict()))).options().p == float("inf")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"keep": 0.5, "kepp": 1}, "kepp"),
        ({"keep": 0.5, "format": 99}, "upgrade"),
        ({}, "keep"),
        ({"keep": 0.5, "rank": 3}, "at most one"),
        ({"keep": 1.5}, "share"),
        ({"keep": 0.0}, "share"),
        ({"rank": 0}, "rank"),
    ],
)
def test_what_cannot_be_done_is_refused_before_a_model_is_loaded(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        EllpConfig(**options)


def test_a_folder_of_a_newer_format_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "newer"
    folder.mkdir()
    for file in folders["base-small"].iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    facts = json.loads((folder / "config.json").read_text())
    facts["quantization_config"]["format"] = 99
    (folder / "config.json").write_text(json.dumps(facts))
    with pytest.raises(InputError, match="upgrade ellp"):
        transformers.BertModel.from_pretrained(folder)


def test_transformers_warns_that_a_compressed_model_keeps_its_own_plan(folders: dict[str, Path]) -> None:
    with pytest.warns(UserWarning, match="will be used"):
        model = transformers.BertModel.from_pretrained(folders["base-small"], quantization_config=EllpConfig(rank=1))
    assert model.get_input_embeddings().weight.shape[1] > 1


# Where it is imported -------------------------------------------------------------------------------------------------


LOAD = "; model = transformers.AutoModelForMaskedLM.from_pretrained(sys.argv[1]); import ellp.layers; "
LOAD += "assert isinstance(model.get_input_embeddings(), ellp.layers.FactorizedEmbedding)"


def python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "imports",
    [
        "import sys, ellp; assert not {'transformers', 'torch'} & set(sys.modules); import transformers",
        "import sys, transformers, ellp",
        (
            "import sys, transformers, transformers.quantizers.auto, ellp, importlib; importlib.reload(ellp); "
            "sys.modules.pop('ellp.hf'); import ellp.hf"
        ),
    ],
    ids=["before transformers", "after transformers", "twice"],
)
def test_importing_the_package_is_enough(folders: dict[str, Path], imports: str) -> None:
    run = python(imports + LOAD, folders["masked-small"])
    assert run.returncode == 0, run.stderr[-2000:]


def test_without_the_package_loading_stops_at_the_shapes(folders: dict[str, Path]) -> None:
    code = "import sys, transformers; transformers.AutoModelForMaskedLM.from_pretrained(sys.argv[1])"
    run = python(code, folders["masked-small"])
    assert run.returncode != 0
    assert "Unknown quantization type, got ellp" in run.stderr
    assert "mismatch" in run.stderr.lower() and "word_embeddings" in run.stderr.replace(
        "for Embedding", "word_embeddings"
    )
