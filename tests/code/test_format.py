"""docs/format.md is enough: a NumPy program written from it reads what the package writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tables
import torch

pytest.importorskip("transformers", reason="the plug-in needs transformers: pip install 'ellp[hf]'")

import transformers
from code_reader import read_tables

import ellp
from ellp.hf import attach

WAYS: dict[str, dict[str, Any]] = {
    "codebook": {"bytes": 0.4, "coder": "codebook"},
    "scalar": {"bytes": 0.4, "coder": "scalar"},
    "int8": {"bytes": 0.6, "coder": "int8"},
    "rounding to 4": {"bytes": 0.33, "coder": "rounding"},
    "rounding to 3": {"bytes": 0.27, "coder": "rounding"},
    "tapered": {"keep": 0.6, "tapered": True},
}


@pytest.mark.parametrize("way", WAYS)
def test_another_reader_agrees(way: str, tmp_path: Path) -> None:
    config = transformers.BertConfig(
        vocab_size=700, hidden_size=48, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )
    model = transformers.BertModel(config)
    model.get_input_embeddings().weight.data = tables.table()
    importance = tables.importances(700)
    done = ellp.compress(model, importance=importance, **WAYS[way])
    attach(model, ellp.EllpConfig.of(done.options), done)
    model.save_pretrained(tmp_path)
    (name,) = (layer.name for layer in done.chosen)
    found = read_tables(tmp_path)[name]
    with torch.no_grad():
        rows = model.get_input_embeddings()(torch.arange(700))
    assert np.allclose(found, rows.numpy(), atol=1e-4)
