"""The bytes of a file, on a disk or behind a URL that fsspec knows, read by position."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ellp.errors import EllpError, InputError, first_line
from ellp.scale.sources.extras import extra


def is_url(path: str) -> bool:
    """Whether a place is a URL, as s3://bucket/table.npy."""
    return "://" in path


def absolute(path: str) -> str:
    """The same place, wherever it is read from."""
    return path if is_url(path) else os.path.abspath(path)


def base_name(path: str) -> str:
    """The last part of a path or URL."""
    return path.rstrip("/").rpartition("/")[2] if is_url(path) else Path(path).name


def is_file(path: str) -> bool:
    if not is_url(path):
        return os.path.isfile(path)
    with _reaching(path):
        system, inner = _system(path)
        return bool(system.isfile(inner))


def is_folder(path: str) -> bool:
    if not is_url(path):
        return os.path.isdir(path)
    with _reaching(path):
        system, inner = _system(path)
        return bool(system.isdir(inner))


def found(pattern: str) -> list[str]:
    """The files that a pattern with * or ? matches."""
    if not is_url(pattern):
        return [path for path in glob.glob(pattern) if os.path.isfile(path)]
    with _reaching(pattern):
        system, inner = _system(pattern)
        return [str(system.unstrip_protocol(path)) for path in system.glob(inner)]


def size(path: str) -> int:
    """Bytes in a file."""
    if not is_url(path):
        return os.stat(path).st_size
    with _reaching(path):
        system, inner = _system(path)
        return int(system.size(inner))


def stamp(path: str) -> dict[str, Any]:
    """What tells a file's content from another: its place, size and time."""
    if not is_url(path):
        facts = os.stat(path)
        return {"path": os.path.realpath(path), "size": facts.st_size, "mtime_ns": facts.st_mtime_ns}
    with _reaching(path):
        system, inner = _system(path)
        system.invalidate_cache()
        return {"path": path, "size": int(system.size(inner)), "key": str(system.ukey(inner))}


def stamp_folder(path: str) -> dict[str, Any]:
    """The same of a folder with all that is in it: how many files, of how many bytes, and the newest time."""
    if not is_url(path):
        files = [os.stat(os.path.join(folder, name)) for folder, _, names in os.walk(path) for name in names]
        sizes, times = [facts.st_size for facts in files], [facts.st_mtime_ns for facts in files]
        newest: Any = max(times, default=0)
        return {"path": os.path.realpath(path), "files": len(files), "size": sum(sizes), "mtime_ns": newest}
    with _reaching(path):
        system, inner = _system(path)
        system.invalidate_cache()
        told = system.find(inner, detail=True)
        times = [facts.get("mtime") or facts.get("LastModified") or facts.get("updated") for facts in told.values()]
        newest = max((str(time) for time in times), default="")
        return {"path": path, "files": len(told), "size": sum(facts["size"] for facts in told.values()), "time": newest}


def fill(path: str, offset: int, target: np.ndarray[Any, Any], name: str) -> None:
    """Read exactly ``target`` from a place in a file; one that ends before is an error, never a hang."""
    view = target.data
    done = _fill_from_url(path, offset, view) if is_url(path) else _fill_from_disk(path, offset, view)
    if done < len(view):
        raise InputError(
            f"need {len(view)} bytes from byte {offset} of {name}, got {done}: the file became shorter while it was "
            "read; restore it and start again"
        )


def piece(path: str, offset: int, count: int) -> bytes:
    """Up to ``count`` bytes from a place in a file; fewer at its end."""
    room = np.empty(max(0, min(count, size(path) - offset)), np.uint8)
    if room.size:
        fill(path, offset, room, base_name(path))
    return room.tobytes()


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """A file as a stream of bytes that can be searched."""
    stream = stream_of(path)
    try:
        yield stream
    finally:
        stream.close()


def stream_of(path: str) -> BinaryIO:
    """An open file, to be closed by its holder."""
    if not is_url(path):
        return open(path, "rb")
    with _reaching(path):
        system, inner = _system(path)
        stream: BinaryIO = system.open(inner, "rb")
        return stream


def _fill_from_disk(path: str, offset: int, view: memoryview) -> int:
    done = 0
    with open(path, "rb", buffering=0) as file:
        file.seek(offset)
        while done < len(view) and (got := file.readinto(view[done:])):
            done += got
    return done


def _fill_from_url(path: str, offset: int, view: memoryview) -> int:
    if not view:
        return 0
    with _reaching(path):
        system, inner = _system(path)
        content = system.cat_file(inner, start=offset, end=offset + len(view))
        view[: len(content)] = content
        return len(content)


def _system(url: str) -> tuple[Any, str]:
    """The file system that a URL names, and the path in it."""
    fsspec = extra("fsspec", url)
    try:
        system, inner = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise InputError(
            f"need a package that reads {url}, got none ({first_line(error)}): s3:// needs s3fs, gs:// needs gcsfs"
        ) from None
    return system, inner


@contextmanager
def _reaching(url: str) -> Iterator[None]:
    """What goes wrong on the way to a URL, as one clear error."""
    try:
        yield
    except (EllpError, MemoryError):
        raise
    except Exception as error:
        raise InputError(
            f"need {url}, which could not be read ({type(error).__name__}: {first_line(error)}): check the address, "
            "the network and your rights to it"
        ) from None
