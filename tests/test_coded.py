"""A coded table is an ordinary layer of an ordinary model: same outputs after a round trip, whatever reads it."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("transformers", reason="the plug-in needs transformers: pip install 'ellp[hf]'")

import transformers
from safetensors.torch import load_file, save_file
from tiny_models import MODELS, TIED, align, answer, build, questions

import ellp
from ellp import EllpConfig, InputError
from ellp.coded import CodedEmbedding, CodedHead
from ellp.hf import attach

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:(?!ellp)")
WAYS: dict[str, dict[str, Any]] = {
    "codebook": {"bytes": 0.75, "coder": "codebook"},
    "rounding": {"bytes": 0.4, "coder": "rounding"},
    "tapered": {"keep": 0.6, "tapered": True},
}
each_way = pytest.mark.parametrize("way", WAYS)


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> None:
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def coded_tables(model: nn.Module) -> list[CodedEmbedding]:
    return [module for module in model.modules() if isinstance(module, CodedEmbedding)]


@pytest.mark.parametrize("name", MODELS)
@each_way
def test_a_coded_model_reloads_as_it_was(name: str, way: str, tmp_path: Path) -> None:
    model = build(name)
    model.save_pretrained(tmp_path / "dense")
    fresh = type(model).from_pretrained(tmp_path / "dense", quantization_config=EllpConfig(**WAYS[way]))
    fresh.save_pretrained(tmp_path / "coded")
    again = align(type(model).from_pretrained(tmp_path / "coded"))
    assert coded_tables(again) and coded_tables(again)[0].kind == {"codebook": "staged"}.get(
        way, {"rounding": "rounded"}.get(way, way)
    )
    assert torch.equal(answer(align(fresh)), answer(again))
    again.save_pretrained(tmp_path / "again")
    first, second = (load_file(tmp_path / place / "model.safetensors") for place in ("coded", "again"))
    assert sum(map(torch.numel, first.values())) == sum(map(torch.numel, second.values()))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items() if name in second)
    assert (tmp_path / "coded" / "config.json").read_text() == (tmp_path / "again" / "config.json").read_text()


@pytest.mark.parametrize("name", TIED)
def test_a_tied_head_reads_the_code(name: str) -> None:
    model = build(name)
    ellp.compress(model, bytes=0.75, coder="codebook")
    (table,) = coded_tables(model)
    rows = table.rows(torch.arange(table.num_embeddings))
    heads = [module for module in model.modules() if isinstance(module, CodedHead)]
    assert heads and all(head.table is table for head in heads)
    given = torch.randn(2, 3, rows.shape[1])
    bias = heads[0].bias
    assert torch.allclose(heads[0](given), given @ rows.T + (0 if bias is None else bias), atol=1e-5)
    dense = build(name)
    dense.get_input_embeddings().weight.data = rows
    dense.tie_weights()
    assert torch.allclose(answer(model), answer(dense), atol=1e-4)


@each_way
def test_lookups_are_rows_and_nothing_else(way: str) -> None:
    model = nn.Sequential(nn.Embedding(300, 48))
    ellp.compress(model, **WAYS[way])
    (table,) = coded_tables(model)
    whole = table.rows(torch.arange(300))
    ids = torch.tensor([[3, 3, 299], [0, 64, 63]])
    assert torch.allclose(table(ids), whole[ids], atol=1e-6)
    assert table(ids[:, :0]).shape == (2, 0, 48)
    for outside in (300, -1, 319):
        with pytest.raises(IndexError):
            table(torch.tensor([outside, 5]))
        with pytest.raises(IndexError):
            table(torch.tensor([outside]))


@each_way
def test_a_padding_row_of_zeros_stays_zero(way: str) -> None:
    model = nn.Sequential(nn.Embedding(300, 48, padding_idx=7))
    ellp.compress(model, **WAYS[way])
    assert not bool(model[0](torch.tensor([7, 7, 1]))[:2].any())


@each_way
def test_copies_and_pickles(way: str) -> None:
    model = build("gemma3")
    ellp.compress(model, **WAYS[way])
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(answer(other), answer(model))


@each_way
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_casting_changes_real_numbers_only(way: str, dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Embedding(300, 48))
    ellp.compress(model, **WAYS[way])
    ids = torch.arange(300)
    wanted = model(ids)
    found = model.to(dtype)(ids)
    assert found.dtype == dtype
    assert torch.allclose(found.float(), wanted, atol=0.05)


@each_way
def test_compiled_and_exported_lookups_agree(way: str) -> None:
    model = nn.Sequential(nn.Embedding(300, 48))
    ellp.compress(model, **WAYS[way])
    model.requires_grad_(False)
    ids = torch.randint(300, (2, 9), generator=torch.Generator().manual_seed(0))
    exported = torch.export.export(
        model, (ids,), dynamic_shapes=({0: torch.export.Dim("b"), 1: torch.export.Dim("t")},)
    )
    assert torch.allclose(exported.module()(ids), model(ids), atol=1e-5)
    other = torch.randint(300, (3, 5), generator=torch.Generator().manual_seed(1))
    assert torch.allclose(exported.module()(other), model(other), atol=1e-5)


def test_training_moves_the_real_numbers() -> None:
    model = build("bert-classifier")
    ellp.compress(model, bytes=0.75, coder="codebook")
    (table,) = coded_tables(model)
    model.train()
    loss = model(**questions(model), labels=torch.tensor([0, 2])).loss
    loss.backward()
    assert all(part.grad is not None and bool(part.grad.any()) for part in (table.mean, table.scale, table.proj.scale))


@each_way
def test_damage_is_noticed(way: str, tmp_path: Path) -> None:
    model = build("bert")
    attach_plan = ellp.compress(model, **WAYS[way])
    attach(model, EllpConfig.of(attach_plan.options), attach_plan)
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    name = next(
        key
        for key in tensors
        if key.endswith("word_embeddings.lengths" if way != "rounding" else "word_embeddings.mean")
    )
    damaged = dict(tensors)
    damaged[name] = tensors[name] + (7 if way != "rounding" else float("nan"))
    save_file(damaged, file, metadata={"format": "pt"})
    with pytest.raises(InputError, match="damaged"):
        type(model).from_pretrained(tmp_path)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="upgrade"):
        EllpConfig(bytes=0.5, format=99)
