"""What passes found, kept beside the output until it is complete, so that a run that was stopped goes on.

A pass is a function of the table, the kernel and its state. The journal knows each by a fingerprint of all three:
the same command meets its own passes again, whatever stopped it, and another command meets those it shares.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import filelock
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ellp.errors import InputError, first_line
from ellp.rows import Sums
from ellp.scale.ondisk import Task
from ellp.scale.parts import FAN, PART, Tree


@dataclass(frozen=True)
class Journal:
    """The folder of a run; without one nothing is kept."""

    folder: Path | None = None
    draft: Path | None = None
    """The file that the running pass writes: on the disk before the journal says that it is."""

    def key(self, stamp: dict[str, Any], task: Task) -> str:
        """The fingerprint of a pass."""
        if self.folder is None:
            return ""
        facts = (stamp, PART, FAN, torch.__version__, task.kernel.__module__, task.kernel.__qualname__)
        return fingerprint(facts, task.stored.unit, task.view, task.state)

    def recall(self, key: str) -> Sums | None:
        """What a pass found, if it was made before."""
        found = self._read(f"pass-{key}")
        return None if found is None else _in_order(found[0])

    def keep(self, key: str, sums: Sums) -> None:
        self._write(f"pass-{key}", {str(place): part for place, part in enumerate(sums)}, {})
        self._path(f"part-{key}").unlink(missing_ok=True) if self.folder else None

    def recall_tree(self, key: str) -> Tree:
        """How far a pass came."""
        found = self._read(f"part-{key}")
        if found is None:
            return Tree()
        tensors, facts = found
        levels: list[tuple[int, Sums] | None] = []
        for level, count in enumerate(facts["counts"]):
            own = {name.split(".")[1]: part for name, part in tensors.items() if name.startswith(f"{level}.")}
            levels.append((count, _in_order(own)) if count else None)
        return Tree(facts["done"], levels)

    def keep_tree(self, key: str, tree: Tree) -> None:
        tensors = {
            f"{level}.{place}": part
            for level, held in enumerate(tree.levels)
            for place, part in enumerate(held[1] if held else ())
        }
        self._write(
            f"part-{key}", tensors, {"done": tree.done, "counts": [held[0] if held else 0 for held in tree.levels]}
        )

    def _path(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{name}.safetensors"

    def _read(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        if self.folder is None or not self._path(name).exists():
            return None
        try:
            with safe_open(self._path(name), "pt") as file:
                names = list(file.keys())
                return {key: file.get_tensor(key).clone() for key in names}, json.loads(file.metadata()["ellp"])
        except (SafetensorError, KeyError, ValueError):
            return None  # written while the power failed

    def _write(self, name: str, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        if self.folder is None:
            return
        for path in (self.draft,) if self.draft else ():
            on_disk(path)
        path = self._path(name)
        draft = path.with_suffix(".new")
        whole = {key: part.contiguous().clone() for key, part in tensors.items()}
        save_file(whole, draft, metadata={"ellp": json.dumps(facts)})
        on_disk(draft)
        os.replace(draft, path)


@contextmanager
def run_folder(output: Path) -> Iterator[Path]:
    """The folder of a run into ``output``, its alone; it outlives a failure, and is gone after success."""
    folder = output.parent / f".{output.name}.run"
    lock = filelock.FileLock(folder / "lock")
    try:
        folder.mkdir(exist_ok=True)
        with lock.acquire(blocking=False):
            try:
                yield folder
                shutil.rmtree(folder, ignore_errors=True)
            except BaseException as error:
                worth = "pass-*" if isinstance(error, InputError) else "pa*"  # half a scan of bad data is worth nothing
                if not any(folder.glob(worth)):
                    shutil.rmtree(folder, ignore_errors=True)
                raise
    except filelock.Timeout:
        raise InputError(f"need {output} for this run alone, got another run that is writing it: wait for it") from None
    except FileNotFoundError as error:
        raise InputError(f"need {error.filename or 'a file'}, which was there before, got none: restore it") from error
    except (OSError, SafetensorError) as error:
        kept = " what is done is kept, and the same command goes on from there" if folder.is_dir() else ""
        raise InputError(
            f"need room and permission to write {output}, got {first_line(error)}: make room;{kept}"
        ) from error


def on_disk(path: Path) -> None:
    """Everything written to a file has reached the disk."""
    handle = os.open(path, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fingerprint(*parts: Any) -> str:
    """A short name for anything made of tensors, numbers, texts, dataclasses and containers of these."""
    found = hashlib.blake2b(digest_size=12)
    _feed(found, parts)
    return found.hexdigest()


def _feed(found: Any, part: Any) -> None:
    if isinstance(part, Tensor):
        found.update(f"{part.dtype}{tuple(part.shape)}".encode())
        found.update(part.contiguous().view(-1).view(torch.uint8).numpy())
    elif isinstance(part, dict):
        _feed(found, sorted(part.items()))
    elif isinstance(part, (tuple, list)):
        found.update(f"({len(part)}".encode())
        for each in part:
            _feed(found, each)
    elif is_dataclass(part) and not isinstance(part, type):
        _feed(found, (type(part).__qualname__, *(getattr(part, each.name) for each in fields(part))))
    elif callable(part):
        found.update(f"{part.__module__}.{part.__qualname__};".encode())
    else:
        found.update(f"{type(part).__name__}{part!r};".encode())


def _in_order(tensors: dict[str, Tensor]) -> Sums:
    return tuple(tensors[str(place)] for place in range(len(tensors)))
