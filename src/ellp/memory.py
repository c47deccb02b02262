"""How much memory there is, and memory that was freed, given back before a large piece is taken anew."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

LARGE = 2**20  # bytes from which on a piece is worth tidying up for


def tidy(needed: int) -> None:
    """Before ``needed`` bytes are taken: glibc keeps freed pieces for their like, and a larger one adds to them.

    Nothing happens for small pieces, and where the C library is another one.
    """
    trim = _trim()
    if needed >= LARGE and trim is not None:
        trim(0)


@cache
def _trim() -> Any:
    """glibc's ``malloc_trim``, or None."""
    try:
        return ctypes.CDLL(None).malloc_trim if sys.platform == "linux" else None
    except (OSError, AttributeError):
        return None


def room() -> int:
    """Bytes that may still be taken without any being pushed out: what is free on the machine, and what the process's
    control groups (a container's or a job's limit) leave."""
    try:
        told = Path("/proc/meminfo").read_text(encoding="ascii")
        free = 1024 * int(re.search(r"MemAvailable:\s*(\d+)", told)[1])  # type: ignore[index]
    except (OSError, TypeError):
        names = getattr(os, "sysconf_names", {})
        known = "SC_PHYS_PAGES" in names
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if known else sys.maxsize
    return min([free, *_left_in_groups(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))])


def _left_in_groups(own: Path, mount: Path) -> Iterator[int]:
    """What the limits of the control groups around this process leave, in either version of them."""
    try:
        lines = [line.split(":", 2) for line in own.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return
    for _, kinds, place in lines:
        if kinds == "":
            root, names = mount, ("memory.max", "memory.current", "inactive_file", "active_file")
        elif "memory" in kinds.split(","):
            root = mount / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file")
        else:
            continue
        inner = Path(place.strip("/"))
        for group in (root / inner, *(root / above for above in inner.parents)):
            yield from _left(group, *names)


def _left(group: Path, limit: str, used: str, *files: str) -> list[int]:
    """What one group's limit leaves; nothing if it is not visible here, or has no limit."""
    try:
        facts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        cached = sum(int(facts[name]) for name in files)  # given up as soon as it is needed elsewhere
        return [max(0, int((group / limit).read_text()) - int((group / used).read_text()) + cached)]
    except (OSError, ValueError, KeyError):
        return []
