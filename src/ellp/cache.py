"""What was measured once and is the same every time: tensors on the user's disk, under a key made of everything that
they depend on. Never in a model's folder, which is the user's; and a cache that cannot be written is done without."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ellp.errors import InputError
from ellp.store import write_tensors


def folder() -> Path:
    """Where things are kept: ``ELLP_CACHE``, else ``ellp`` in ``XDG_CACHE_HOME``, else ``~/.cache/ellp``."""
    own, usual = os.environ.get("ELLP_CACHE"), os.environ.get("XDG_CACHE_HOME")
    return Path(own) if own else (Path(usual) if usual else Path.home() / ".cache") / "ellp"


def key_of(model: nn.Module, *facts: object) -> str:
    """A key that changes with any weight of a model and with any of the facts."""
    digest = hashlib.blake2b(f"{type(model).__name__} {getattr(model, 'config', None)}".encode(), digest_size=20)
    for name, tensor in model.named_parameters():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    for fact in facts:
        digest.update(b"\0" + repr(fact).encode())
    return digest.hexdigest()


def read(key: str) -> dict[str, Tensor] | None:
    """What is kept under a key; None if nothing is, or nothing whole."""
    path = folder() / f"{key}.safetensors"
    try:
        return load_file(path) if path.is_file() else None
    except (OSError, SafetensorError):
        return None


def write(key: str, tensors: Mapping[str, Tensor]) -> None:
    """Keep tensors under a key, whole or not at all."""
    try:
        folder().mkdir(parents=True, exist_ok=True)
        write_tensors(folder() / f"{key}.safetensors", dict(tensors), {})
    except (OSError, InputError):
        return
