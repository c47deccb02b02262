"""``.npy``: numpy's own format, in row or column order."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

from ellp.errors import InputError
from ellp.scale.sources.flat import Flat

FLOATS = {2: torch.float16, 4: torch.float32, 8: torch.float64}


def open_npy(path: Path) -> Flat:
    """The matrix in a ``.npy`` file; whole numbers are read as float64, as in memory."""
    shape, offset, stored, columns = _header(path)
    if len(shape) != 2:
        raise InputError(f"need a matrix in {path.name}, got shape {shape}: save a table with rows and columns")
    return Flat(
        os.path.abspath(path), offset, (shape[0], shape[1]), stored.str, _read_as(path, stored), path.name, columns
    )


def open_vector(path: Path) -> Flat:
    """The numbers in a ``.npy`` file of one dimension, as a table of one column."""
    shape, offset, stored, _ = _header(path)
    if sum(size != 1 for size in shape) > 1:
        raise InputError(f"need one number per row in {path.name}, got shape {shape}: save a vector")
    return Flat(os.path.abspath(path), offset, (int(np.prod(shape)), 1), stored.str, _read_as(path, stored), path.name)


def _header(path: Path) -> tuple[tuple[int, ...], int, np.dtype[np.generic], bool]:
    try:
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)  # only the header is read; the map ends here
        return mapped.shape, int(mapped.offset), mapped.dtype, not mapped.flags.c_contiguous
    except Exception:  # a damaged header is parsed as Python, and fails in as many ways
        raise InputError(
            f"need a complete .npy file of numbers, got {path.name}, which is truncated, holds objects or is something "
            "else: save it again with numpy.save"
        ) from None


def _read_as(path: Path, stored: np.dtype[np.generic]) -> torch.dtype:
    if stored.kind not in "fiub":
        raise InputError(f"need real numbers, got dtype {stored} in {path.name}: convert the array to a float dtype")
    return FLOATS.get(stored.itemsize, torch.float64) if stored.kind == "f" else torch.float64
