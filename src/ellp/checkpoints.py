"""The folder of an unfinished training, and the checkpoint to resume from: whole, and holding nothing but numbers."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ellp.errors import InputError, first_line


def begin(work: Path, request: dict[str, Any], resume: bool) -> Path | None:
    """Make the folder of checkpoints, or find the last whole one in it."""
    note = work / "request.json"
    if not resume:
        if work.exists() and os.environ.get("RANK", "0") == "0":
            raise InputError(f"need no unfinished training, got {work}: pass --resume to go on, or remove it")
        work.mkdir(exist_ok=True)
        note.write_text(json.dumps(request, indent=1) + "\n", encoding="utf-8")
        return None
    if not note.is_file():
        raise InputError(f"need an unfinished training to resume, got none in {work}: leave --resume out")
    try:
        known = json.loads(note.read_text(encoding="utf-8"))
    except ValueError:
        known = {}
    other = [key for key in request if not isinstance(known, dict) or known.get(key) != request[key]]
    if other:
        raise InputError(
            f"need the training that was begun in {work}, got another {', '.join(other)}: repeat its command, or "
            "remove the folder"
        )
    return last_checkpoint(work)


def last_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint in a training's folder; incomplete ones are removed.

    The Trainer writes ``trainer_state.json`` last: without it, or with half of it, the run was killed while writing.
    """
    found = {int(path.name.rpartition("-")[2]): path for path in folder.iterdir() if _is_checkpoint(path)}
    for _, path in sorted(found.items(), reverse=True):
        if _complete(path):
            _check_numbers(path)
            return path
        shutil.rmtree(path)
    return None


def _is_checkpoint(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and re.fullmatch(r"checkpoint-\d{1,9}", path.name) is not None


def _complete(path: Path) -> bool:
    try:
        return isinstance(json.loads((path / "trainer_state.json").read_text(encoding="utf-8")), dict)
    except (OSError, ValueError):
        return False


def _check_numbers(checkpoint: Path) -> None:
    """Everything that the Trainer will read with torch.load, read as numbers only, before it does."""
    from transformers.trainer_pt_utils import safe_globals

    if any(checkpoint.glob("*.bin")) and not any(checkpoint.glob("*.safetensors")):
        raise _refused(next(checkpoint.glob("*.bin")), "it is a pickle")
    for path in sorted([*checkpoint.glob("*.pt"), *checkpoint.glob("*.pth")]):
        with _refusing(path), safe_globals():  # type: ignore[no-untyped-call]
            torch.load(path, map_location="cpu", weights_only=True)


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise _refused(path, first_line(error)) from None


def _refused(path: Path, reason: str) -> InputError:
    return InputError(
        f"need a checkpoint of tensors and numbers, got {path} ({reason}): remove {path.parent} to go on from the one "
        "before, or its folder to start anew"
    )
