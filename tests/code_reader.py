"""A reader of codes in plain NumPy, written from docs/format.md alone. It shares nothing with the package."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

WINDOW = 64
GROUP = 32
Array = np.ndarray[Any, np.dtype[Any]]


def read_tables(folder: Path) -> dict[str, Array]:
    """Every coded table of a model folder, decoded, by its name."""
    facts = json.loads((folder / "config.json").read_text())["quantization_config"]
    if facts["quant_method"] != "ellp" or facts["format"] != 2:
        raise ValueError("another format")
    stored = load_file(folder / "model.safetensors")
    return {entry["name"]: read_table(entry, stored) for entry in facts["coded"]}


def read_table(entry: dict[str, Any], stored: dict[str, Array]) -> Array:
    own = {name: stored[f"{entry['name']}.{name}"] for name in entry["layout"]}
    if mark_of(own) != entry["mark"]:
        raise ValueError("another mark")
    bits, rows, columns = entry["settings"]["bits"], entry["rows"], entry["columns"]
    if entry["code"] == "rounded":
        numbers = unpacked(own["code"], bits, columns) - 2.0 ** (bits - 1)
        scales = own["scales"].view(np.float16).astype(np.float32)
        return own["mean"] + scales[:, np.arange(columns) // GROUP] * numbers
    table = np.zeros((rows, columns)) + own["mean"]
    for row in range(rows):
        begin, length = place(own, row)
        if entry["code"] == "tapered":
            table[row] += own["numbers"][begin : begin + length] @ own["proj.weight"][:length]
            continue
        y = np.zeros(len(own["proj.weight"]))
        for stage, byte in enumerate(own["code"][begin : begin + length]):
            y[own["axes"][stage]] += own["scale"][stage] * own["books"][own["book"][stage], byte]
        axes = unpacked(own["proj.weight"], bits, columns) - (2.0 ** (bits - 1) - 1)
        table[row] += (y * own["proj.scale"]) @ axes
    return table


def place(own: dict[str, Array], row: int) -> tuple[int, int]:
    """Where a row begins in the stream, and how long it is."""
    first = row // WINDOW * WINDOW
    lengths = own["levels"][own["lengths"]].astype(int)
    return int(own["starts"][row // WINDOW] + lengths[first:row].sum()), int(lengths[row])


def unpacked(packed: Array, bits: int, columns: int) -> Array:
    """The integers in rows of bytes."""
    each = np.unpackbits(packed, axis=1, bitorder="little")[:, : columns * bits].reshape(len(packed), columns, bits)
    return each @ (1 << np.arange(bits))


def mark_of(own: dict[str, Array]) -> str:
    found = hashlib.blake2b(digest_size=8)
    for name in sorted(own):
        if own[name].dtype.kind in "iu":
            found.update(f"{name} {own[name].shape} ".encode() + np.ascontiguousarray(own[name]).tobytes())
    return found.hexdigest()
