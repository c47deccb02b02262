"""Whether a model can be loaded here. Weights are used where they lie in their files, and may be larger than memory;
what has to be copied on the way must fit."""

from __future__ import annotations

import importlib
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from ellp.bundle.model import DTYPES, Wanted
from ellp.bundle.weights import has_safetensors, weight_files
from ellp.errors import InputError
from ellp.memory import room

FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def check_room(folder: Path, config: Any, wanted: Wanted, *, merged: bool) -> None:
    """That there is memory for what transformers will copy; an error in place of a machine that stands still."""
    files = weight_files(folder, wanted.allow_pickle)
    whole = sum(file.stat().st_size for file in files)
    if whole < (space := room()):
        return
    needs = {
        "read pickled weights": (0 if has_safetensors(folder) else whole, "convert them to safetensors"),
        "merge an adapter": (whole if merged else 0, "merge it on a machine with more"),
        f"put together the tensors of a {config.model_type}": (whole if _assembled(config) else 0, "use one with more"),
        "convert the weights": (
            _converted(files, config, wanted),
            "leave --dtype out, or convert them elsewhere first",
        ),
    }
    for what, (needed, remedy) in needs.items():
        if needed > space:
            raise InputError(
                f"need {needed / 1e9:.1f} GB of memory to {what} of {folder}, got {space / 1e9:.1f} GB: {remedy}"
            )


def _converted(files: list[Path], config: Any, wanted: Wanted) -> int:
    """Bytes of the tensors that are loaded in another dtype than their file's."""
    target = DTYPES[wanted.dtype] if wanted.dtype else getattr(config, "dtype", None)
    if not isinstance(target, torch.dtype):
        return 0
    needed = 0
    for file in files:
        if file.suffix != ".safetensors":
            continue
        with safe_open(file, "pt") as content:
            parts = [content.get_slice(name) for name in content.keys()]  # noqa: SIM118
        stored = [(FLOATS.get(part.get_dtype(), target), prod(part.get_shape())) for part in parts]
        needed += sum(count * target.itemsize for dtype, count in stored if dtype != target)
    return needed


def _assembled(config: Any) -> bool:
    """Whether transformers builds tensors of this kind of model out of several in its files, as of experts."""
    try:
        known = importlib.import_module("transformers.conversion_mapping").get_checkpoint_conversion_mapping
    except (ImportError, AttributeError):  # before version 5
        return False
    kinds = {config.model_type, config.get_text_config().model_type}
    steps = [step for kind in kinds for step in known(kind) or []]
    return any(getattr(step, "operations", None) for step in steps)
