"""From the name of a place to the table that lies there."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from ellp.errors import InputError
from ellp.scale.sources.hdf5 import open_hdf5
from ellp.scale.sources.npy import open_npy
from ellp.scale.sources.parquet import open_parquet
from ellp.scale.sources.place import absolute, base_name, found, is_file, is_folder
from ellp.scale.sources.source import Source
from ellp.scale.sources.stacked import stack
from ellp.scale.sources.tensors import open_indexed, open_tensor
from ellp.scale.sources.word2vec import open_binary_vectors, open_text_vectors
from ellp.scale.sources.zarr import is_zarr, open_zarr

INDEX = ".safetensors.index.json"
FORMATS: dict[str, Callable[[str, str | None], Source]] = {
    ".npy": open_npy,
    ".safetensors": open_tensor,
    INDEX: open_indexed,
    ".parquet": open_parquet,
    ".h5": open_hdf5,
    ".hdf5": open_hdf5,
    ".zarr": open_zarr,
    ".vec": open_text_vectors,
    ".txt": open_text_vectors,
    ".bin": open_binary_vectors,
}
"""Suffixes, and what opens the table in such a file, by the name of what is meant in it."""


def open_source(place: str) -> Source:
    """The table at ``place``; nothing in a file is executed.

    ``FILE`` or ``FILE:NAME`` with NAME the tensor, dataset, array or column meant, where a file holds several; a folder
    of parts, a pattern with ``*``, or a URL that fsspec knows.
    """
    path, name = split(place)
    path = absolute(path)
    if "*" in path or "?" in path:
        return stack(_alike(found(path), place), path, lambda part: _open_file(part, name))
    if is_folder(path) and not is_zarr(path):
        parts = [part for part in found(f"{path.rstrip('/')}/*") if suffix_of(part) not in (None, INDEX)]
        return stack(_alike(parts, place), path, lambda part: _open_file(part, name))
    return _open_file(path, name)


def split(place: str) -> tuple[str, str | None]:
    """``FILE:NAME`` as a place and a name."""
    if not os.path.exists(place):
        for suffix in sorted(FORMATS, key=len, reverse=True):
            head, colon, name = place.partition(f"{suffix}:")
            if colon:
                return head + suffix, name or None
        folder, colon, name = place.rpartition(":")
        if colon and os.path.isdir(folder):
            return folder, name
    return place, None


def suffix_of(path: str) -> str | None:
    """Which of the formats' endings a file has."""
    return next((suffix for suffix in sorted(FORMATS, key=len, reverse=True) if path.endswith(suffix)), None)


def _open_file(path: str, name: str | None) -> Source:
    suffix = ".zarr" if is_zarr(path) else suffix_of(path)
    if suffix != ".zarr" and not is_file(path):
        raise InputError(f"need an existing file, got {path}: check the path")
    if suffix is None:
        known = ", ".join(sorted(FORMATS))
        raise InputError(f"need a file of a known kind ({known}), got {base_name(path)}: convert it, or rename it")
    return FORMATS[suffix](path, name)


def _alike(parts: list[str], place: str) -> list[str]:
    """Files of a table in parts, which are all of one kind."""
    kinds = {suffix_of(part) for part in parts}
    if len(kinds) != 1 or None in kinds:
        told = ", ".join(sorted(re.sub(r"^None$", "others", str(kind)) for kind in kinds)) or "none"
        raise InputError(f"need parts of one kind in {place}, got {told}: name them with a pattern, as PART-*.parquet")
    return parts
