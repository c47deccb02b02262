"""Factors on disk: room for all of them is taken first, and every row of the left one has its fixed place."""

from __future__ import annotations

import io
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from ellp.errors import InputError
from ellp.folder import put
from ellp.scale.journal import fingerprint, on_disk

HEADER = 16 * 2**10  # bytes: the header is written last, when the record is known, into room kept for it
NAMES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


@dataclass(frozen=True)
class InFile:
    """A left factor that lies in a file from ``offset`` on. Rows written twice are the same rows."""

    path: str
    offset: int
    rank: int

    def keep(self, first: int, left: Tensor) -> None:
        view = left.contiguous().view(torch.uint8).numpy().reshape(-1).data
        done, place = 0, self.offset + first * self.rank * left.itemsize
        with open(self.path, "r+b", buffering=0) as file:
            file.seek(place)
            while done < len(view):
                done += file.write(view[done:])


@dataclass(frozen=True)
class Output:
    """The factors of an n x d table: one ``.safetensors`` file, or a folder of ``.npy`` files."""

    target: Path
    shape: tuple[int, int]
    rank: int
    dtype: torch.dtype

    @property
    def single(self) -> bool:
        return self.target.suffix == ".safetensors"

    @property
    def size(self) -> int:
        """Bytes of all factors, at most."""
        n, d = self.shape
        wide = max(4, self.dtype.itemsize)
        return HEADER + self.rank * (n + d) * self.dtype.itemsize + d * (d + 1) * wide

    @property
    def left_bytes(self) -> int:
        return self.shape[0] * self.rank * self.dtype.itemsize

    def check_room(self, folder: Path) -> None:
        """Before any work: the disk has room for the output."""
        free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize if hasattr(os, "statvfs") else self.size
        there = sum(path.stat().st_blocks * 512 for path in folder.glob("draft-*/left*") if hasattr(os, "statvfs"))
        if free + there < self.size:
            raise InputError(
                f"need {self.size:,} bytes of room beside {self.target}, got {free + there:,}: make room, or write "
                "the output elsewhere"
            )

    def draft(self, folder: Path, *made_of: Any) -> InFile:
        """A file with room for the left factor; the same one for a run that goes on with the same factors."""
        place = folder / f"draft-{fingerprint(self.shape, self.rank, str(self.dtype), made_of)}"
        place.mkdir(exist_ok=True)
        path = place / ("left.safetensors" if self.single else "left.npy")
        offset = HEADER if self.single else len(self._npy_header((self.shape[0], self.rank)))
        with open(path, "ab") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, offset + self.left_bytes)
            else:
                file.truncate(offset + self.left_bytes)
        return InFile(str(path), offset, self.rank)

    def publish(self, draft: InFile, small: dict[str, Tensor], record: dict[str, Any], force: bool) -> int:
        """Write the small factors and the header, and put everything in its place in one step; the bytes written."""
        path = Path(draft.path)
        written = self._finish_file(path, small, record) if self.single else self._finish_folder(path, small, record)
        if self.target.exists() and not force:
            raise InputError(f"need an output that does not exist yet, got {self.target}: pass --force to replace it")
        put(path if self.single else path.parent, self.target)
        return written

    def left(self) -> Tensor:
        """The left factor, mapped: pages are read when they are used."""
        if self.single:
            with safe_open(self.target, "pt") as file:
                found: Tensor = file.get_tensor("left")
                return found
        return torch.from_numpy(np.load(self.target / "left.npy", mmap_mode="c"))

    def _finish_file(self, path: Path, small: dict[str, Tensor], record: dict[str, Any]) -> int:
        shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {"left": ((self.shape[0], self.rank), self.dtype)}
        shapes |= {name: (tuple(part.shape), part.dtype) for name, part in small.items()}
        tensors, begin = {}, 0
        for name, (shape, dtype) in shapes.items():
            end = begin + int(np.prod(shape)) * dtype.itemsize
            tensors[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
            begin = end
        record["bytes_written"] = HEADER + begin
        header = {"__metadata__": {"ellp": json.dumps(record, sort_keys=True)}, **tensors}
        text = json.dumps(header, separators=(",", ":")).encode()
        if len(text) > HEADER - 8:
            raise InputError(f"need a record of at most {HEADER} bytes, got {len(text)}: use shorter names of files")
        with open(path, "r+b") as file:
            file.write((HEADER - 8).to_bytes(8, "little") + text.ljust(HEADER - 8))
            file.seek(HEADER + self.left_bytes)
            for part in small.values():
                file.write(part.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
            file.truncate()
        on_disk(path)
        return HEADER + begin

    def _finish_folder(self, path: Path, small: dict[str, Tensor], record: dict[str, Any]) -> int:
        with open(path, "r+b") as file:
            file.write(self._npy_header((self.shape[0], self.rank)))
        for name, part in small.items():
            np.save(path.with_name(f"{name}.npy"), part.numpy())
        written = sum(each.stat().st_size for each in path.parent.glob("*.npy"))
        record["bytes_written"] = written
        path.with_name("record.json").write_text(json.dumps(record, sort_keys=True, indent=1) + "\n")
        for each in path.parent.iterdir():
            on_disk(each)
        return written

    def _npy_header(self, shape: tuple[int, int]) -> bytes:
        header = io.BytesIO()
        stored = np.dtype(str(self.dtype).removeprefix("torch."))
        np.lib.format.write_array_header_1_0(
            header, {"descr": np.lib.format.dtype_to_descr(stored), "fortran_order": False, "shape": shape}
        )
        return header.getvalue()


def check_target(target: Path, dtype: torch.dtype, force: bool) -> None:
    """Before any work: a place for the output, new or to be replaced."""
    folder = target.suffix != ".safetensors"
    if folder and target.suffix:
        raise InputError(
            f"need an output that ends in .safetensors, or has no suffix (a folder of .npy files), got {target.name}: "
            "rename it"
        )
    if folder and dtype == torch.bfloat16:
        raise InputError(f"need .safetensors for bfloat16, which .npy does not know, got {target.name}: rename it")
    if target.exists() and not force:
        raise InputError(f"need an output that does not exist yet, got {target}: pass --force to replace it")
    if target.is_dir() and not (folder and (target / "record.json").exists() and (target / "left.npy").exists()):
        raise InputError(f"need an output that is new or an earlier one, got the folder {target}: choose another name")
    if target.is_file() and folder:
        raise InputError(f"need a folder to write, got the file {target}: choose another name")
    if not target.absolute().parent.is_dir():
        raise InputError(f"need an existing folder for the output, got {target.parent}: create it first")
