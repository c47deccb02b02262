"""Where rows lie on disk, and how a span of them is read."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from ellp.errors import InputError


class Source(Protocol):
    """A table's rows on disk: cheap to pickle (paths and facts, no open files), safe to read from several threads."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows as read: float16, bfloat16, float32 or float64."""

    @property
    def name(self) -> str:
        """For messages and records."""

    def read(self, first: int, last: int, into: Tensor | None = None) -> Tensor:
        """Rows first to last - 1, (last - first) x d, in memory.

        ``into`` has the source's dtype and at least as many rows; it may be filled and returned in part, or ignored.
        A file that ends too early is an :class:`ellp.InputError`.
        """

    def stamp(self) -> dict[str, Any]:
        """What tells this content from another, as JSON can hold it: paths, sizes, times, facts of the header."""


def open_source(place: str) -> Source:
    """The table at ``place``: ``IN.npy``, or ``IN.safetensors[:tensor]``. Nothing in a file is executed."""
    from ellp.scale.sources.npy import open_npy
    from ellp.scale.sources.tensors import open_tensor, split

    path, tensor = split(place)
    if not path.is_file():
        raise InputError(f"need an existing file, got {path}: check the path")
    if path.suffix == ".npy":
        return open_npy(path)
    if path.suffix == ".safetensors":
        return open_tensor(path, tensor)
    raise InputError(f"need a .npy or .safetensors file, got {path.name}: convert it, or rename it if it is one")
