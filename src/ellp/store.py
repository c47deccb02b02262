"""Matrices read from disk, and results written to it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ellp.arrays import Array
from ellp.errors import InputError, first_line
from ellp.factor.factors import Certificate
from ellp.folder import replacing


def read_matrix(source: str) -> Array:
    """The matrix in ``IN.npy`` or ``IN.safetensors[:tensor]``; the tensor's name may be left out if it is the only
    matrix. Nothing in the file is executed: pickled arrays are refused."""
    path, tensor = _split(source)
    if not path.is_file():
        raise InputError(f"need an existing file, got {path}: check the path")
    if path.suffix == ".npy":
        return _read_npy(path)
    if path.suffix == ".safetensors":
        return _read_safetensors(path, tensor)
    raise InputError(f"need a .npy or .safetensors file, got {path.name}: convert it, or rename it if it is one")


def _split(source: str) -> tuple[Path, str | None]:
    whole = Path(source)
    head, colon, tensor = source.rpartition(":")
    if whole.exists() or not colon or not head.endswith(".safetensors"):
        return whole, None
    return Path(head), tensor


def _read_npy(path: Path) -> Array:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception:  # a damaged header is parsed as Python, and fails in as many ways
        raise InputError(
            f"need a complete .npy file of numbers, got {path.name}, which is truncated, holds objects or is something "
            "else: save it again with numpy.save"
        ) from None


def _read_safetensors(path: Path, tensor: str | None) -> Tensor:
    try:
        with safe_open(path, "pt") as tensors:
            names = list(tensors.keys())
            if tensor is None:
                matrices = [name for name in names if len(tensors.get_slice(name).get_shape()) == 2]
                if len(matrices) != 1:
                    raise InputError(
                        f"need the name of one matrix, got {len(matrices)} in {path.name}: write "
                        f"{path.name}:NAME with NAME out of {_few(matrices)}"
                    )
                tensor = matrices[0]
            if tensor not in names:
                raise InputError(f"need a tensor that is in {path.name}, got {tensor!r}: it holds {_few(names)}")
            found: Tensor = tensors.get_tensor(tensor)
            return found
    except SafetensorError as error:
        raise InputError(
            f"need a complete safetensors file, got {path.name} ({first_line(error)}): copy or download it again"
        ) from None


def _few(names: list[str]) -> str:
    return ", ".join(sorted(names)[:6]) + (", ..." if len(names) > 6 else "") if names else "nothing"


def write_tensors(path: Path, tensors: dict[str, Tensor], facts: dict[str, object]) -> int:
    """Write ``tensors`` as safetensors with ``facts`` (as JSON) in its metadata; the bytes written."""
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with replacing(path) as draft:
        save_file(whole, draft, metadata={"ellp": json.dumps(facts, sort_keys=True)})
    return path.stat().st_size


def factor_record(
    source: str,
    output: str | None,
    shape: tuple[int, int],
    itemsize: int,
    rank: int,
    proof: Certificate,
    svd_error: float | None,
    method: str,
) -> dict[str, Any]:
    """The facts of one factorization, ready for JSON."""
    rows, columns = shape
    return {
        "source": source,
        "output": output,
        "shape": [rows, columns],
        "rank": rank,
        "method": method,
        "p": _plain(proof.p),
        "parameters_before": rows * columns,
        "parameters_after": rank * (rows + columns),
        "bytes_before": rows * columns * itemsize,
        "factor_bytes": rank * (rows + columns) * itemsize,
        "certificate": {
            "alpha": _plain(proof.alpha),
            "beta": _plain(proof.beta),
            "distortion": _plain(proof.distortion),
            "lower": _plain(proof.lower),
            "upper": _plain(proof.upper),
            "floor": _plain(proof.floor),
            "error": _plain(proof.error),
            "steps": proof.steps,
        },
        "svd_error": None if svd_error is None else _plain(svd_error),
    }


def _plain(value: float) -> float | str:
    """A number as JSON can hold it."""
    return value if math.isfinite(value) else str(value)
