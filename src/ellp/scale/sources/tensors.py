"""``.safetensors``: one matrix among the tensors of a file."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch

from ellp.errors import InputError
from ellp.scale.sources.flat import HALF, Flat
from ellp.scale.sources.place import base_name, is_file, piece
from ellp.scale.sources.place import size as place_size
from ellp.scale.sources.source import few

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


def open_tensor(path: str, tensor: str | None = None) -> Flat:
    """A matrix by its name, which may be left out if it is the only one in the file."""
    (header, start), file = read_header(path), base_name(path)
    if tensor is None:
        matrices = [name for name, facts in header.items() if len(facts["shape"]) == 2]
        if len(matrices) != 1:
            raise InputError(
                f"need the name of one matrix, got {len(matrices)} in {file}: write {file}:NAME with NAME out of "
                f" {few(matrices)}"
            )
        tensor = matrices[0]
    if tensor not in header:
        raise InputError(f"need a tensor that is in {file}, got {tensor!r}: it holds {few(list(header))}")
    facts, name = header[tensor], f"{file}:{tensor}"
    if len(facts["shape"]) != 2:
        raise InputError(
            f"need a matrix in {name}, got shape {tuple(facts['shape'])}: save a table with rows and columns"
        )
    if facts["dtype"] not in STORED:
        raise InputError(f"need real numbers, got {facts['dtype']} in {name}: convert the tensor to a float dtype")
    stored, dtype = STORED[facts["dtype"]]
    rows, columns = facts["shape"]
    begin, end = facts["data_offsets"]
    if end - begin != rows * columns * (2 if stored == HALF else np.dtype(stored).itemsize):
        raise damaged(path, f"{rows} x {columns} numbers in {end - begin} bytes")
    return Flat(path, start + facts["data_offsets"][0], (rows, columns), stored, dtype, name)


def open_indexed(path: str, tensor: str | None = None) -> Flat:
    """A matrix of a model in shards, found through the index that says which file holds which tensor."""
    file = base_name(path)
    try:
        table = json.loads(piece(path, 0, LONGEST_HEADER).decode())["weight_map"]
        sound = all(isinstance(shard, str) and base_name(shard) == shard for shard in table.values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        sound = False
    if not sound:
        raise InputError(f"need a table of tensors and files in {file}, got something else: restore it")
    if tensor not in table:
        raise InputError(
            f"need the name of a tensor in {file}, got {tensor}: write {file}:NAME out of {few(list(table))}"
        )
    shard = path[: len(path) - len(file)] + table[tensor]
    if not is_file(shard):
        raise InputError(f"need {table[tensor]}, which holds {tensor}, got no such file beside {file}: download it")
    return open_tensor(shard, tensor)


def read_header(path: str) -> tuple[dict[str, dict[str, Any]], int]:
    """The tensors' facts by name, and where their bytes start."""
    size = int.from_bytes(piece(path, 0, 8), "little")
    raw = piece(path, 8, size) if 2 <= size <= LONGEST_HEADER else b""
    try:
        header = json.loads(raw.decode())
        tensors = {name: facts for name, facts in header.items() if name != "__metadata__"}
        for facts in tensors.values():
            begin, end = facts["data_offsets"]
            sides = all(isinstance(extent, int) and extent >= 0 for extent in facts["shape"])
            if not (sides and 0 <= begin <= end and isinstance(facts["dtype"], str)):
                raise ValueError("a tensor with impossible facts")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(path, f"its header cannot be read: {type(error).__name__}") from None
    needed = 8 + size + max((facts["data_offsets"][1] for facts in tensors.values()), default=0)
    if place_size(path) != needed:
        raise damaged(path, f"{place_size(path)} bytes in place of {needed}")
    return tensors, 8 + size


def damaged(path: str, why: str) -> InputError:
    return InputError(f"need a complete safetensors file, got {base_name(path)} ({why}): copy or download it again")
