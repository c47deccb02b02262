"""Models larger than memory: the same bytes as from memory, in bounded memory, and what cannot be done is said."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers")

from safetensors.torch import load_file, save_file
from tiny_models import build

import ellp
from ellp import InputError, memory
from ellp.recipe import Source, compress_folder
from ellp.shelf import shelved

PLAIN: dict[str, Any] = {"importance": "uniform", "sensitive": False}
TINY = 50_000  # bytes: less than any of the models here


def sharded(name: str, folder: Path) -> Path:
    build(name).save_pretrained(folder, max_shard_size="60KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    return folder


def small_memory(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    for module in ("ellp.recipe", "ellp.bundle.room"):
        monkeypatch.setattr(f"{module}.room", lambda: free)


def compress(model: Path, output: Path, **more: Any) -> dict[str, Any]:
    source = Source(str(model), tokenizer_required=False, dtype=more.pop("dtype", None))
    return compress_folder(source, output, {"keep": 0.5, "layers": "all"}, **{**PLAIN, **more})


@pytest.mark.parametrize("name", ["bert-masked", "gpt2", "llama-tied", "llama-untied", "t5", "bart", "gemma3", "xlnet"])
def test_the_same_bytes_as_from_memory(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = sharded(name, tmp_path / "model")
    compress(model, tmp_path / "from-memory")
    small_memory(monkeypatch, TINY)
    monkeypatch.setattr("ellp.shelf.SMALL", 0)
    compress(model, tmp_path / "from-disk")
    one, other = tmp_path / "from-memory", tmp_path / "from-disk"
    assert {path.name for path in one.iterdir()} == {path.name for path in other.iterdir()}
    for path in one.iterdir():
        assert path.name == "README.md" or path.read_bytes() == (other / path.name).read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["from-disk", "from-memory", "model"]


def test_the_shelf_leaves_nothing_and_keeps_everything(tmp_path: Path) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.uint8):
        tensor = torch.arange(60).reshape(5, 12).to(dtype)
        kept = shelved(tensor, tmp_path)
        assert torch.equal(kept, tensor) and kept.dtype == dtype and not any(tmp_path.iterdir())
        kept[0] = 1  # it may be written, as a parameter may
    model = torch.nn.Sequential(torch.nn.Embedding(6000, 64))
    ellp.compress(model, keep=0.9, shelf=tmp_path)
    assert model(torch.tensor([3])).shape == (1, 64) and not any(tmp_path.iterdir())


def test_a_model_that_does_not_fit_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = sharded("bert-masked", tmp_path / "model")
    (tmp_path / "texts.txt").write_text("a b c\n")
    small_memory(monkeypatch, TINY)
    with pytest.raises(InputError, match=r"to calibrate it, got too little memory \(the model takes"):
        compress(model, tmp_path / "out", calibrate=tmp_path / "texts.txt")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("importance", ["auto", "sensitivity"])
def test_sensitivity_is_left_out_and_told(importance: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ellp.bundle.find import find
    from ellp.bundle.model import Wanted

    model, _ = find("demo", Wanted(None, False, False, False))
    small_memory(monkeypatch, TINY)
    source, settings = Source(str(model)), {"keep": 0.25}
    if importance == "sensitivity":
        with pytest.raises(InputError, match="need to run the model for its sensitivity"):
            compress_folder(source, tmp_path / "out", settings, importance=importance)
        return
    record = compress_folder(source, tmp_path / "out", settings)
    assert record["weighing"]["importance"] != "uniform" and record["weighing"]["sensitivity"] is None
    assert "are free" in record["weighing"]["sensitivity_missing"]


def test_what_must_be_copied_must_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = sharded("bert-masked", tmp_path / "model")
    small_memory(monkeypatch, TINY)
    with pytest.raises(InputError, match=r"of memory to convert the weights of .*: leave --dtype out"):
        compress(model, tmp_path / "out", dtype="bfloat16")
    facts = json.loads((model / "config.json").read_text())
    facts["dtype" if "dtype" in facts else "torch_dtype"] = "float16"
    (model / "config.json").write_text(json.dumps(facts))
    with pytest.raises(InputError, match="of memory to convert the weights of"):
        compress(model, tmp_path / "out")


FULL = """
import resource, signal, sys, torch
from pathlib import Path
from ellp.shelf import shelved
resource.setrlimit(resource.RLIMIT_FSIZE, (10000, 10000))
try:
    shelved(torch.zeros(10000), Path(sys.argv[1]))
except ValueError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files")
def test_a_full_disk_is_one_clear_error(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("need room for") and not any(tmp_path.iterdir())


WATCHED = """
import sys, threading, time
from pathlib import Path
import torch
import ellp.bundle.room, ellp.recipe
torch.set_num_threads(1)
small, model, output, free = sys.argv[1:]
if free != "all":
    ellp.recipe.room = ellp.bundle.room.room = lambda: int(free)
def anonymous():
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) * 1024
def run(model, output):
    settings = {"keep": 0.8, "layers": "linear", "uniform": True, "p": 2.0, "method": "svd"}
    source = ellp.recipe.Source(model, tokenizer_required=False)
    ellp.recipe.compress_folder(source, Path(output), settings, importance="uniform", sensitive=False)
run(small, output + "-small")  # everything is imported now
before = peak = anonymous()
def watch():
    global peak
    while True:
        peak = max(peak, anonymous())
        time.sleep(0.002)
threading.Thread(target=watch, daemon=True).start()
run(model, output)
print(peak - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_the_model(tmp_path: Path) -> None:
    """133 MB of weights whose factors take 105 MB, in less than a third of it: the largest layer takes 2 MB."""
    import transformers

    facts: dict[str, Any] = {"vocab_size": 512, "hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 14}
    sharded("llama-tied", tmp_path / "small")
    config = transformers.LlamaConfig(**facts, num_attention_heads=4, tie_word_embeddings=True)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(tmp_path / "model")
    chance, where = torch.Generator().manual_seed(0), {}
    for number, layer in enumerate([model.model.embed_tokens, *model.model.layers, model.model.norm]):
        prefix = next(name for name, module in model.named_modules() if module is layer)
        shapes = {f"{prefix}.{name}": tensor.shape for name, tensor in layer.state_dict().items()}
        file = f"model-{number + 1:05d}-of-00016.safetensors"
        tensors = {name: torch.randn(shape, generator=chance) / 30 for name, shape in shapes.items()}
        save_file(tensors, tmp_path / "model" / file, metadata={"format": "pt"})
        where |= dict.fromkeys(tensors, file)
    index = {"metadata": {}, "weight_map": where}
    (tmp_path / "model" / "model.safetensors.index.json").write_text(json.dumps(index))
    size = sum(path.stat().st_size for path in (tmp_path / "model").glob("*.safetensors"))
    peaks = {}
    for name, free in (("shelved", size // 2), ("in-memory", "all")):
        places = [str(tmp_path / place) for place in ("small", "model", name)]
        command = [sys.executable, "-c", WATCHED, *places, str(free)]
        told = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, env={**os.environ})
        peaks[name] = int(told.stdout)
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in peaks)
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    assert peaks["shelved"] < size / 3 and size * 2 / 3 < peaks["in-memory"], (size, peaks)


def test_room_is_what_the_machine_and_its_groups_leave(tmp_path: Path) -> None:
    assert 0 < memory.room() < 2**60
    for version, folder, names, line in (
        (2, "", ("memory.max", "memory.current", "inactive_file", "active_file"), "0::/job/step"),
        (
            1,
            "memory",
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file"),
            "",
        ),
    ):
        own, mount = tmp_path / f"own{version}", tmp_path / f"mount{version}"
        own.write_text(line or "4:cpu:/\n7:memory:/job/step")
        for group, limit, used in (("job", "1000", "700"), ("job/step", "max", "10")):
            (mount / folder / group).mkdir(parents=True, exist_ok=True)
            (mount / folder / group / names[0]).write_text(limit)
            (mount / folder / group / names[1]).write_text(used)
            (mount / folder / group / "memory.stat").write_text(f"{names[2]} 100\n{names[3]} 50\nanon 7\n")
        assert list(memory._left_in_groups(own, mount)) == [450]
