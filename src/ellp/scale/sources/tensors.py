"""``.safetensors``: one matrix among the tensors of a file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch

from ellp.errors import InputError
from ellp.scale.sources.flat import HALF, Flat

STORED = {
    "F64": ("<f8", torch.float64),
    "F32": ("<f4", torch.float32),
    "F16": ("<f2", torch.float16),
    "BF16": (HALF, torch.bfloat16),
    "I64": ("<i8", torch.float32),
    "I32": ("<i4", torch.float32),
    "I16": ("<i2", torch.float32),
    "I8": ("<i1", torch.float32),
    "U8": ("<u1", torch.float32),
    "BOOL": ("?", torch.float32),
}
LONGEST_HEADER = 100 * 10**6


def split(place: str) -> tuple[Path, str | None]:
    """``IN.safetensors:NAME`` as a path and a name."""
    whole = Path(place)
    head, colon, tensor = place.rpartition(":")
    if whole.exists() or not colon or not head.endswith(".safetensors"):
        return whole, None
    return Path(head), tensor


def open_tensor(path: Path, tensor: str | None) -> Flat:
    """A matrix by its name, which may be left out if it is the only one in the file."""
    header, start = read_header(path)
    if tensor is None:
        matrices = [name for name, facts in header.items() if len(facts["shape"]) == 2]
        if len(matrices) != 1:
            raise InputError(
                f"need the name of one matrix, got {len(matrices)} in {path.name}: write {path.name}:NAME with NAME "
                f"out of {few(matrices)}"
            )
        tensor = matrices[0]
    if tensor not in header:
        raise InputError(f"need a tensor that is in {path.name}, got {tensor!r}: it holds {few(list(header))}")
    facts, name = header[tensor], f"{path.name}:{tensor}"
    if len(facts["shape"]) != 2:
        raise InputError(
            f"need a matrix in {name}, got shape {tuple(facts['shape'])}: save a table with rows and columns"
        )
    if facts["dtype"] not in STORED:
        raise InputError(f"need real numbers, got {facts['dtype']} in {name}: convert the tensor to a float dtype")
    stored, dtype = STORED[facts["dtype"]]
    rows, columns = facts["shape"]
    return Flat(os.path.abspath(path), start + facts["data_offsets"][0], (rows, columns), stored, dtype, name)


def read_header(path: Path) -> tuple[dict[str, dict[str, Any]], int]:
    """The tensors' facts by name, and where their bytes start."""
    try:
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            raw = file.read(size) if 2 <= size <= LONGEST_HEADER else b""
        header = json.loads(raw.decode())
        tensors = {name: facts for name, facts in header.items() if name != "__metadata__"}
        for facts in tensors.values():
            begin, end = facts["data_offsets"]
            sound = 0 <= begin <= end and all(isinstance(extent, int) and extent >= 0 for extent in facts["shape"])
            if not sound or not isinstance(facts["dtype"], str):
                raise ValueError("a tensor with impossible facts")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"need a complete safetensors file, got {path.name} (its header cannot be read: {type(error).__name__}): "
            "copy or download it again"
        ) from None
    return tensors, 8 + size


def few(names: list[str]) -> str:
    """The first names of many, for a message."""
    return ", ".join(sorted(names)[:6]) + (", ..." if len(names) > 6 else "") if names else "nothing"
