"""The file of a coded table: drafted by parts whose codes differ in length, put together at the end, read by rows.

Where a part's codes come to lie is known only when all are done. Every part therefore writes them where they can never
meet another part's, into a file with holes; at last they are moved together.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ellp.code.checking import LAYOUTS, check_code
from ellp.code.prefixes import WINDOW
from ellp.code.reading import read_rows
from ellp.errors import InputError, first_line
from ellp.scale.journal import on_disk
from ellp.scale.parts import Part

PIECE = 2**20 // WINDOW * WINDOW  # rows, or bytes, moved at a time
NAMES = {torch.float32: "F32", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.int64: "I64"}


@dataclass(frozen=True)
class Streams:
    """A draft: a byte for the length of each of ``count`` rows, then room for ``most`` bytes for each."""

    path: str
    count: int
    most: int

    def keep(self, first: int, choice: Tensor, stream: Tensor) -> None:
        with open(self.path, "r+b", buffering=0) as file:
            for place, part in ((first, choice), (self.count + first * self.most, stream)):
                view, done = part.numpy().data, 0
                file.seek(place)
                while done < len(view):
                    done += file.write(view[done:])

    def lengths(self) -> Iterator[Tensor]:
        """The stored bytes of rows, whole windows at a time, with zeros behind the last row."""
        for first in range(0, self.count, PIECE):
            last = min(first + PIECE, self.count)
            found = np.zeros(-(-(last - first) // WINDOW) * WINDOW, np.uint8)
            with open(self.path, "rb") as file:
                file.seek(first)
                found[: last - first] = np.fromfile(file, np.uint8, last - first)
            yield torch.from_numpy(found)

    def codes(self, part: Part, levels: Tensor) -> Iterator[bytes]:
        """The codes of a part."""
        with open(self.path, "rb") as file:
            file.seek(part.first)
            choice = torch.from_numpy(np.fromfile(file, np.uint8, part.last - part.first))
            left = int(levels[choice.int()].long().sum())
            file.seek(self.count + part.first * self.most)
            while left:
                piece = file.read(min(left, PIECE))
                yield piece
                left -= len(piece)


def write_code(
    path: Path, streams: Streams, parts: list[Part], small: dict[str, Tensor], total: int, record: dict[str, Any]
) -> None:
    """The complete file: ``small`` are all tensors but those of the rows; the codes take ``total`` bytes."""
    windows = -(-streams.count // WINDOW)
    shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {"weight": ((streams.count, 0), torch.float32)}
    shapes |= {name: (tuple(part.shape), part.dtype) for name, part in small.items()}
    shapes |= {"starts": ((windows + 1,), torch.int64), "lengths": ((windows * WINDOW,), torch.uint8)}
    shapes["code"] = ((total,), torch.uint8)
    header: dict[str, Any] = {"__metadata__": {"ellp": json.dumps(record, sort_keys=True)}}
    end = 0
    for name, (shape, dtype) in shapes.items():
        begin, end = end, end + prod(shape) * dtype.itemsize
        header[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for part in small.values():
            file.write(part.contiguous().numpy().tobytes())
        _write_starts(file, streams, small["levels"])
        for lengths in streams.lengths():
            file.write(lengths.numpy().data)
        for each in parts:
            for piece in streams.codes(each, small["levels"]):
                file.write(piece)
    on_disk(path)


def _write_starts(file: BinaryIO, streams: Streams, levels: Tensor) -> None:
    """Where every window of rows starts, and where the last one ends."""
    start, left = 0, streams.count
    file.write((0).to_bytes(8, "little"))
    for stored in streams.lengths():
        lengths = levels[stored.int()].long()
        lengths[left:] = 0
        ends = start + lengths.view(-1, WINDOW).sum(dim=1).cumsum(0)
        file.write(ends.numpy().tobytes())
        start, left = int(ends[-1]), left - len(stored)


@dataclass(frozen=True)
class CodedFile:
    """A coded table in a file, which is mapped: only what the asked rows need is read.

    >>> import numpy as np, tempfile
    >>> from ellp.scale.coded import CodeJob, Place, code_file
    >>> folder = Path(tempfile.mkdtemp())
    >>> np.save(folder / "a.npy", np.random.default_rng(0).standard_normal((4000, 16), dtype=np.float32))
    >>> record = code_file(f"{folder}/a.npy", CodeJob(size=16000), Place(folder / "a.safetensors"))
    >>> open_coded(folder / "a.safetensors").rows(torch.tensor([3, 999])).shape
    torch.Size([2, 16])
    """

    kind: str
    bits: int
    shape: tuple[int, int]
    tensors: dict[str, Tensor]

    def rows(self, ids: Tensor) -> Tensor:
        """Rows by their numbers (float32)."""
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < self.shape[0]:
            raise InputError(
                f"need rows below {self.shape[0]}, got {int(ids.min())} to {int(ids.max())}: check the ids"
            )
        return read_rows(self.kind, self.tensors, self.bits, self.shape[1], ids)


def open_coded(path: str | Path) -> CodedFile:
    """The coded table in a file that ``ellp factor --bytes`` wrote."""
    try:
        with safe_open(path, "pt") as file:
            facts = json.loads((file.metadata() or {}).get("ellp", "{}"))
            tensors = {name: file.get_tensor(name) for name in LAYOUTS.get(facts.get("kind"), {})}
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"need a complete coded table, got {path} ({first_line(error)}): write it again") from None
    if not tensors:
        raise InputError(f"need a coded table, got {path}, which is none: write one with ellp factor --bytes")
    rows, columns = facts["shape"]
    check_code(facts["kind"], tensors, facts["bits"], (rows, columns))
    return CodedFile(facts["kind"], facts["bits"], (rows, columns), tensors)
