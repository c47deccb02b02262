"""What may be combined: coded tables with factored linear layers, training, int8 and int4, and exporting."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("transformers", reason="the plug-in needs transformers: pip install 'ellp[hf]'")

import transformers
from safetensors.torch import load_file
from tiny_models import align, answer, build, questions
from tiny_tasks import bert, save, write_tasks

import ellp
from ellp.coded import CodedEmbedding, CodedHead
from ellp.finetune import Training, finetune
from ellp.layers import FactorizedLinear
from ellp.recipe import Source, compress_folder

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
BOTH: dict[str, Any] = {"bytes": 0.75, "coder": "codebook", "keep": 0.6, "layers": "all", "uniform": True}


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> None:
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


@pytest.mark.parametrize("name", ["bert-classifier", "bert-masked", "gpt2", "t5"])
def test_coded_tables_and_factored_layers_reload_together(name: str, tmp_path: Path) -> None:
    build(name).save_pretrained(tmp_path / "dense")
    kind = type(build(name))
    both = kind.from_pretrained(tmp_path / "dense", quantization_config=ellp.EllpConfig(**BOTH))
    both.save_pretrained(tmp_path / "both")
    again = kind.from_pretrained(tmp_path / "both")
    assert any(isinstance(layer, CodedEmbedding) for layer in again.modules())
    assert torch.equal(answer(align(both)), answer(align(again)))


def test_training_moves_real_numbers_and_never_integers(tmp_path: Path) -> None:
    """Recipe: code the table and factor the linear layers, then train what is left to train."""
    pytest.importorskip("accelerate", reason="needs accelerate: pip install 'ellp[finetune]'")
    write_tasks(tmp_path / "data", 48)
    save(bert(num_labels=2, hidden_dropout_prob=0.0), tmp_path / "dense")
    compress_folder(Source(str(tmp_path / "dense")), tmp_path / "small", {**BOTH, "bytes": 1.5}, importance="uniform")
    quick = Training(epochs=1, rate=0.02, batch=16)
    finetune(Source(str(tmp_path / "small")), "sst2", tmp_path / "data", tmp_path / "tuned", quick, cpu=True)
    before, after = (load_file(tmp_path / folder / "model.safetensors") for folder in ("small", "tuned"))
    assert before.keys() == after.keys()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    table = "bert.embeddings.word_embeddings"
    assert {f"{table}.mean", f"{table}.scale", f"{table}.proj.scale"} <= moved
    assert all(before[name].is_floating_point() for name in moved)
    transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "tuned")  # its mark still holds


def own_weight(layer: nn.Module, name: str) -> bool:
    """Linear layers with numbers of their own; a head that reads a code has none."""
    return isinstance(layer, nn.Linear) and layer.weight.numel() > 0


@pytest.mark.parametrize("name", ["bert-classifier", "bert-masked", "t5"])
@pytest.mark.parametrize("bits", ["int8", "int8 with activations", "int4"])
def test_linear_layers_beside_a_code_may_be_rounded(name: str, bits: str) -> None:
    torchao = pytest.importorskip("torchao.quantization", reason="needs torchao: pip install 'ellp[int8]'")
    settings = {
        "int8": lambda: torchao.Int8WeightOnlyConfig(),
        "int8 with activations": lambda: torchao.Int8DynamicActivationInt8WeightConfig(),
        "int4": lambda: torchao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=torchao.PerAxis(0)),
    }
    model = build(name)
    ellp.compress(model, **BOTH)
    rounded = copy.deepcopy(model)
    torchao.quantize_(rounded, settings[bits](), filter_fn=own_weight)
    kinds = {type(layer.weight).__name__ for layer in rounded.modules() if isinstance(layer, FactorizedLinear)}
    assert kinds and kinds != {"Parameter"}
    lost = (answer(rounded) - answer(model)).norm() / answer(model).norm()
    assert 0 < float(lost) < (0.3 if bits == "int4" else 0.05)


@pytest.mark.parametrize("name", ["bert-classifier", "bert-masked"])
@pytest.mark.parametrize("settings", [BOTH, {"bytes": 0.4, "coder": "rounding"}, {"keep": 0.6, "tapered": True}])
def test_it_exports_to_onnx(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package, reason=f"exporting needs {package}")
    onnxruntime = pytest.importorskip("onnxruntime", reason="checking an export needs onnxruntime")
    model = build(name).eval()
    ellp.compress(model, **settings)
    asked = questions(model)
    path = tmp_path / "model.onnx"
    torch.onnx.export(
        model, (), str(path), kwargs=asked, dynamo=True, verbose=False, output_names=["logits"], external_data=False
    )
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (found,) = session.run(["logits"], {key: tensor.numpy() for key, tensor in asked.items()})
    torch.testing.assert_close(torch.from_numpy(found), answer(model), rtol=1e-3, atol=1e-3)


class Largest(TorchDispatchMode):
    """The most numbers that any tensor made meanwhile has."""

    most = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        for tensor in found if isinstance(found, (tuple, list)) else [found]:
            if isinstance(tensor, Tensor) and not tensor.is_meta:
                self.most = max(self.most, tensor.numel())
        return found


def test_neither_lookup_nor_head_nor_loading_holds_the_dense_table(tmp_path: Path) -> None:
    config = transformers.BertConfig(
        vocab_size=9000, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )
    model = transformers.BertForMaskedLM(config).eval()
    done = ellp.compress(model, bytes=0.25, coder="codebook")
    ellp.hf.attach(model, ellp.EllpConfig.of(done.options), done)
    model.save_pretrained(tmp_path)
    with Largest() as largest, torch.no_grad():
        again = transformers.BertForMaskedLM.from_pretrained(tmp_path)
        ids = torch.arange(100, 102)[None]
        assert isinstance(again.get_output_embeddings(), CodedHead)
        logits = again(input_ids=ids).logits
    assert logits.shape == (1, 2, 9000)
    assert largest.most < 9000 * 64 * 0.75
