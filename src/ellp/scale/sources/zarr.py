"""``.zarr``: arrays in chunks, of version 2 or 3 of the format, through the zarr package."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ellp.errors import InputError
from ellp.scale.sources.extras import extra
from ellp.scale.sources.npy import read_as
from ellp.scale.sources.place import base_name, found, is_file, is_folder, piece, stamp_folder
from ellp.scale.sources.source import check_span, decoding

LARGEST_CHUNK = 2**30  # bytes: chunks are decoded whole
NUMBERS = re.compile(r"[<>|]?[fiub]\d+|float(16|32|64)|u?int(8|16|32|64)|bool")


@dataclass(frozen=True)
class Zarr:
    """The rows of one array."""

    path: str
    shape: tuple[int, int]
    stored: str
    name: str

    @property
    def dtype(self) -> torch.dtype:
        return read_as(np.dtype(self.stored), self.name)

    def read(self, first: int, last: int, into: Tensor | None = None) -> Tensor:
        check_span(self, first, last)
        if first == last:
            return torch.empty(0, self.shape[1], dtype=self.dtype)
        with decoding("zarr array", self.name):
            rows = np.ascontiguousarray(self._array[first:last], np.dtype(self.stored).newbyteorder("="))
        if rows.shape != (last - first, self.shape[1]):
            raise InputError(f"need rows {first} to {last} of {self.name}, got shape {rows.shape}: it was changed")
        if _blank(rows, self._array):
            _check_whole(self._array, self.name)
        return torch.from_numpy(rows).to(self.dtype)

    def stamp(self) -> dict[str, Any]:
        return stamp_folder(self.path) | {"shape": list(self.shape), "stored": self.stored}

    @cached_property
    def _array(self) -> Any:
        return _open(self.path)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_array"}


def is_zarr(path: str) -> bool:
    """Whether a folder is an array or a group of them."""
    if not is_folder(path):
        return False
    return any(is_file(f"{path.rstrip('/')}/{file}") for file in ("zarr.json", ".zarray", ".zgroup"))


def open_zarr(path: str, name: str | None = None) -> Zarr:
    """An array, by its name where ``path`` is a group of several."""
    extra("zarr", base_name(path))
    path = path.rstrip("/")
    if not is_zarr(path):
        raise InputError(f"need a zarr folder, got {path}, which is none: check the path")
    place, label = _inside(path, name), base_name(path) + (f":{name}" if name else "")
    _check_numbers(_metadata(place, label), label)
    with decoding("zarr array", label):
        array = _open(place)
        shape, stored, chunks = array.shape, np.dtype(array.dtype), array.chunks
        _check_whole(array, label)
    if len(shape) != 2:
        raise InputError(f"need a matrix in {label}, got shape {shape}: save a table with rows and columns")
    read_as(stored, label)
    if prod(chunks) * stored.itemsize > LARGEST_CHUNK:
        raise InputError(f"need chunks of at most 1 GB in {label}, got {chunks}: rechunk it by rows")
    return Zarr(place, (int(shape[0]), int(shape[1])), stored.str, label)


def _open(place: str) -> Any:
    return extra("zarr", place).open_array(place, mode="r")


def _blank(rows: np.ndarray[Any, Any], array: Any) -> bool:
    """Whether some rows of some chunk look as if it was not there."""
    across = array.chunks[1]
    blocks = (rows[:, first : first + across] for first in range(0, rows.shape[1], across))
    return any(bool((block == array.fill_value).all(axis=1).any()) for block in blocks)


def _check_whole(array: Any, name: str) -> None:
    """That every chunk is there: one that is not would be read as its fill value."""
    with decoding("zarr array", name):
        stored = getattr(array, "shards", None) or array.chunks
        wanted = prod(-(-side // step) for side, step in zip(array.shape, stored, strict=True))
        there = array.nchunks_initialized // (prod(stored) // prod(array.chunks))
    if there < wanted:
        raise InputError(
            f"need all {wanted} chunks of {name}, got {there}, the others would be read as {array.fill_value}: copy it "
            "again, or write empty chunks too (write_empty_chunks=True)"
        )


def _inside(path: str, name: str | None) -> str:
    """The folder of an array in a group."""
    if name is not None:
        place = f"{path}/{name.strip('/')}"
        if ".." in name.split("/") or not is_zarr(place):
            raise InputError(f"need an array in {base_name(path)}, got {name!r}: it holds {_arrays(path) or 'none'}")
        return place
    if is_file(f"{path}/.zgroup") or json_of(f"{path}/zarr.json").get("node_type") == "group":
        inside = _arrays(path)
        if len(inside) != 1:
            raise InputError(f"need the name of one array in {base_name(path)}, got {inside}: write {path}:NAME")
        return f"{path}/{inside[0]}"
    return path


def _arrays(path: str) -> list[str]:
    return sorted({file.rsplit("/", 2)[-2] for end in (".zarray", "zarr.json") for file in found(f"{path}/*/{end}")})


def _metadata(place: str, name: str) -> dict[str, Any]:
    facts = json_of(f"{place}/.zarray") or json_of(f"{place}/zarr.json")
    if not facts:
        raise InputError(f"need the facts of an array in {name}, got none that can be read: restore its folder")
    return facts


def json_of(path: str) -> dict[str, Any]:
    """The object in a JSON file; empty if there is none."""
    if not is_file(path):
        return {}
    try:
        facts = json.loads(piece(path, 0, 10**7))
    except (ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _check_numbers(facts: dict[str, Any], name: str) -> None:
    """That an array holds numbers, and that nothing is needed to decode it that would run what it holds."""
    kind = facts.get("dtype", facts.get("data_type"))
    if not isinstance(kind, str) or not NUMBERS.fullmatch(kind):
        raise InputError(f"need real numbers, got dtype {kind} in {name}: convert the array to a float dtype")
    if "pickle" in json.dumps([facts.get(part) for part in ("filters", "compressor", "codecs")]).lower():
        raise InputError(f"need an array stored without pickles, got one in {name}: save it as plain numbers")
