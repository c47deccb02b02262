"""A folder or file written whole or not at all."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from ellp.errors import InputError, first_line


@contextmanager
def replacing_folder(target: Path, *, force: bool, source: Path | None = None) -> Iterator[Path]:
    """A draft beside ``target`` that takes its place in one step once it is complete, and vanishes otherwise.

    Killed at any moment, ``target`` holds all of the old content or all of the new. What a killed run leaves beside it
    is removed by the next one. ``source``, the model that is read, is never replaced.
    """
    with _unless_it_fails(target):
        _sweep(Path(os.path.realpath(target)))
        real = check_target(target, force=force, source=source)
        with _draft_of(real) as draft:
            yield draft
            _sync(draft)
            put(draft, check_target(target, force=force, source=source))


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A draft of a file, as :func:`replacing_folder` has one of a folder."""
    with _unless_it_fails(path):
        _sweep(path)
        with _draft_of(path) as folder:
            yield folder / path.name
            _sync(folder)
            os.replace(folder / path.name, path)


def check_target(target: Path, *, force: bool, source: Path | None = None) -> Path:
    """Before any work: the folder may be written, and nothing but an older model would be lost. Its real path."""
    real = Path(os.path.realpath(target))
    for place, what in (("~", "home folder"), (".", "current folder"), (source, "model that is read")):
        if place is not None and Path(os.path.realpath(os.path.expanduser(place))).is_relative_to(real):
            raise InputError(
                f"need a folder of its own for the output, got {target}, which holds the {what}: add a name"
            )
    if not real.parent.is_dir():
        raise InputError(f"need an existing folder for the output, got {real.parent}: create it first")
    if real.exists() and not real.is_dir():
        raise InputError(f"need a folder to write, got the file {target}: choose another name")
    if not os.access(real.parent, os.W_OK | os.X_OK):
        raise InputError(f"need permission to write into {real.parent}, got none: choose another place")
    if real.is_dir() and any(real.iterdir()):
        if not force:
            raise InputError(f"need an output that does not exist yet, got {target}: pass --force to replace it")
        if not looks_like_a_model(real):
            raise InputError(
                f"need a model folder to replace, got {target}, which is not just that: remove it yourself"
            )
    return real


def looks_like_a_model(folder: Path) -> bool:
    """Whether a folder has a model's config.json and is no repository."""
    try:
        facts = read_json(folder / "config.json")
    except InputError:
        return False
    return bool(facts.get("model_type") or facts.get("architectures")) and not (folder / ".git").exists()


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"need a readable {path.name}, got {first_line(error)} in {path}: restore it") from None
    if not isinstance(facts, dict):
        raise InputError(f"need an object in {path}, got a {type(facts).__name__}: restore it")
    return facts


# ---- drafts ----

_drafts: set[Path] = set()


@contextmanager
def _unless_it_fails(target: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"need room and permission to write {target}, got {first_line(error)}: nothing was changed"
        ) from error


@contextmanager
def _draft_of(target: Path) -> Iterator[Path]:
    """A new folder beside ``target``, gone afterwards."""
    draft = target.parent / f".{target.name}.{os.getpid()}.part"
    draft.mkdir()
    _drafts.add(draft)
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        _drafts.discard(draft)


def put(draft: Path, real: Path) -> None:
    """Move a complete draft to its place in one step; an old folder there goes, an old file is replaced."""
    if draft.is_file():
        os.replace(draft, real)
    elif not real.exists() or not any(real.iterdir()):
        if real.exists() and os.name == "nt":
            real.rmdir()
        os.rename(draft, real)
    elif not _exchange(draft, real):
        aside = draft.with_suffix(".old")
        os.rename(real, aside)
        try:
            os.rename(draft, real)
        except BaseException:
            os.rename(aside, real)
            raise
        shutil.rmtree(aside, ignore_errors=True)
    if os.name == "posix":
        _flush(real.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two folders in one step, where the system and the file system can."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
        if sys.platform == "darwin":
            failed = library.renamex_np(os.fsencode(one), os.fsencode(other), ctypes.c_uint(2))
        else:
            here = ctypes.c_int(-100)
            failed = library.renameat2(here, os.fsencode(one), here, os.fsencode(other), ctypes.c_uint(2))
    except (AttributeError, OSError, TypeError):
        return False
    return not failed


def _sweep(real: Path) -> None:
    """Clear what runs that were killed left beside ``real``; an old folder they had set aside goes back."""
    name = re.compile(re.escape(f".{real.name}.") + r"(\d{1,9})\.(part|old)")
    for path in real.parent.iterdir() if real.parent.is_dir() else ():
        found = name.fullmatch(path.name)
        if not found or path in _drafts or path.is_symlink() or _alive(int(found[1])):
            continue
        if found[2] == "old" and not real.exists():
            path.rename(real)
        else:
            shutil.rmtree(path, ignore_errors=True)


def _alive(process: int) -> bool:
    if process == os.getpid():
        return False
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _sync(folder: Path) -> None:
    """Everything is on the disk, and as readable as the umask allows (some writers make private files)."""
    if os.name != "posix":
        return
    usual = folder.stat().st_mode & 0o666
    for place, _, names in os.walk(folder, topdown=False):
        for path in (Path(place) / name for name in names):
            path.chmod(path.stat().st_mode | usual)
            _flush(path)
        _flush(Path(place))


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
