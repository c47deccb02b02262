"""``.npy``: numpy's own format, in row or column order."""

from __future__ import annotations

import io
from math import prod

import numpy as np
import torch

from ellp.errors import InputError
from ellp.scale.sources.flat import Flat
from ellp.scale.sources.place import base_name, piece

LONGEST_HEADER = 2**16
FLOATS = {2: torch.float16, 4: torch.float32, 8: torch.float64}


def open_npy(path: str, name: str | None = None) -> Flat:
    """The matrix in a ``.npy`` file; whole numbers are read as float64, as in memory."""
    if name is not None:
        raise InputError(f"need no name in {base_name(path)}, which holds one array, got {name!r}: leave it out")
    shape, offset, stored, columns = _header(path)
    if len(shape) != 2:
        raise InputError(f"need a matrix in {base_name(path)}, got shape {shape}: save a table with rows and columns")
    named = base_name(path)
    return Flat(path, offset, (shape[0], shape[1]), stored.str, read_as(stored, named), named, columns)


def open_vector(path: str) -> Flat:
    """The numbers in a ``.npy`` file of one dimension, as a table of one column."""
    shape, offset, stored, _ = _header(path)
    named = base_name(path)
    if sum(size != 1 for size in shape) > 1:
        raise InputError(f"need one number per row in {named}, got shape {shape}: save a vector")
    return Flat(path, offset, (prod(shape), 1), stored.str, read_as(stored, named), named)


def read_as(stored: np.dtype[np.generic], name: str) -> torch.dtype:
    """The dtype in which stored numbers are read; numbers only, since reading anything else might run it."""
    if stored.kind not in "fiub":
        raise InputError(f"need real numbers, got dtype {stored} in {name}: convert the array to a float dtype")
    return FLOATS.get(stored.itemsize, torch.float64) if stored.kind == "f" else torch.float64


def _header(path: str) -> tuple[tuple[int, ...], int, np.dtype[np.generic], bool]:
    """Shape, first byte, dtype, and whether the numbers are in the order of columns."""
    start = io.BytesIO(piece(path, 0, LONGEST_HEADER))
    try:
        version = np.lib.format.read_magic(start)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, columns, stored = read(start)
        if stored.hasobject or any(side < 0 for side in shape):
            raise ValueError("not an array of numbers")
        return tuple(int(side) for side in shape), start.tell(), stored, bool(columns) and len(shape) > 1
    except Exception:  # a damaged header is parsed as Python, and fails in as many ways
        raise InputError(
            f"need a complete .npy file of numbers, got {base_name(path)}, which is truncated, holds objects or is "
            "something else: save it again with numpy.save"
        ) from None
