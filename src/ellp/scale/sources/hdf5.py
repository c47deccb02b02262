"""``.h5``: a dataset of an HDF5 file."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ellp.errors import InputError
from ellp.scale.sources.extras import extra
from ellp.scale.sources.flat import Flat
from ellp.scale.sources.npy import read_as
from ellp.scale.sources.place import base_name, is_url, stamp
from ellp.scale.sources.source import Source, check_span, decoding, few

LARGEST_CHUNK = 2**30  # bytes: chunks are decoded whole

_lock = threading.Lock()  # the HDF5 library does one thing at a time


@dataclass(frozen=True)
class Chunked:
    """The rows of a dataset in chunks, compressed or not."""

    path: str
    inner: str
    shape: tuple[int, int]
    stored: str
    name: str

    @property
    def dtype(self) -> torch.dtype:
        return read_as(np.dtype(self.stored), self.name)

    def read(self, first: int, last: int, into: Tensor | None = None) -> Tensor:
        check_span(self, first, last)
        rows = np.empty((last - first, self.shape[1]), np.dtype(self.stored).newbyteorder("="))
        if first < last:
            with _lock, decoding("HDF5 file", self.name), _file(self.path) as file:
                dataset = file[self.inner]
                if tuple(dataset.shape) != self.shape:
                    raise InputError(f"need {self.name} as it was, got shape {dataset.shape}: it was changed")
                dataset.read_direct(rows, np.s_[first:last])
        return torch.from_numpy(rows).to(self.dtype)

    def stamp(self) -> dict[str, Any]:
        return stamp(self.path) | {"dataset": self.inner, "shape": list(self.shape), "stored": self.stored}


def open_hdf5(path: str, name: str | None = None) -> Source:
    """A dataset by its name, which may be left out if it is the only matrix. One that lies in the file as it is, in one
    piece, is read without the HDF5 library."""
    extra("h5py", base_name(path))
    if is_url(path):
        raise InputError(f"need a local HDF5 file, got {path}: copy it to a disk")
    with _lock, decoding("HDF5 file", base_name(path)), _file(path) as file:
        inner = name or _only_matrix(file, path)
        dataset, label = _dataset(file, inner, path), f"{base_name(path)}:{inner}"
        shape, stored, offset = tuple(map(int, dataset.shape or ())), dataset.dtype, dataset.id.get_offset()
        chunk = prod(dataset.chunks or ()) * stored.itemsize
        plain = dataset.chunks is None and offset is not None and dataset.id.get_storage_size() == dataset.nbytes
    if len(shape) != 2:
        raise InputError(f"need a matrix in {label}, got shape {shape}: save a table with rows and columns")
    dtype = read_as(stored, label)
    if chunk > LARGEST_CHUNK:
        raise InputError(f"need chunks of at most 1 GB in {label}, got {chunk} bytes: repack it by rows")
    if plain and stored.kind in "fiu":
        return Flat(path, offset, (shape[0], shape[1]), stored.str, dtype, label)
    return Chunked(path, inner, (shape[0], shape[1]), stored.str, label)


@contextmanager
def _file(path: str) -> Iterator[Any]:
    with extra("h5py", base_name(path)).File(path, "r", locking=False) as file:
        yield file


def _dataset(file: Any, inner: str, path: str) -> Any:
    """A dataset whose numbers lie in this file and no other."""
    h5py = extra("h5py", base_name(path))
    try:
        links = [file.get("/".join(inner.split("/")[:depth]), getlink=True) for depth in range(1, inner.count("/") + 2)]
        found = None if any(isinstance(link, h5py.ExternalLink) for link in links) else file[inner]
    except KeyError:
        found = None
    if not isinstance(found, h5py.Dataset):
        raise InputError(f"need a dataset of {base_name(path)}, got {inner!r}: it holds {few(_matrices(file))}")
    if found.external or found.is_virtual:
        raise InputError(
            f"need numbers in {base_name(path)} itself, got {inner!r}, which lies in other files: copy it in"
        )
    return found


def _only_matrix(file: Any, path: str) -> str:
    names = _matrices(file)
    if len(names) != 1:
        told = base_name(path)
        raise InputError(
            f"need the name of one matrix, got {len(names)} in {told}: write {told}:NAME out of {few(names)}"
        )
    return names[0]


def _matrices(file: Any) -> list[str]:
    """The names of all datasets of numbers in two dimensions; links to other files are not followed."""
    names: list[str] = []

    def look(name: str, found: Any) -> None:
        if len(getattr(found, "shape", None) or ()) == 2 and found.dtype.kind in "fiub":
            names.append(name)

    file.visititems(look)
    return names
