"""How many threads, and how far ahead they read, fits a limit of memory."""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch

from ellp.errors import InputError
from ellp.scale.parts import part_rows
from ellp.scale.threads import Threads

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
SLACK = 64 * 2**20  # libraries' own buffers, thread stacks, pieces that the allocator keeps


def parse_memory(text: str | int | None) -> int:
    """Bytes in ``1GB``, ``512MiB`` or a number; a quarter of what there is if None."""
    if text is None:
        return machine_memory() // 4
    found = re.fullmatch(r"\s*([\d.]+)\s*([kmgt]?i?)b?\s*", str(text).lower())
    try:
        return int(float(found[1]) * UNITS[found[2]])  # type: ignore[index]
    except (TypeError, ValueError, KeyError):
        raise InputError(f"need an amount of memory, got {text!r}: write 1GB or 800MB") from None


def machine_memory() -> int:
    """Memory that this process may use: the machine's, or less where a control group says so."""
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        raise InputError("need to be told how much memory to use on this system: pass memory, as in 2GB") from None
    return min([whole, *_group_limits()])


def _group_limits() -> list[int]:
    """Limits of this process's control groups and those around them (version 1 and 2)."""
    limits = []
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        _, kinds, place = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        root = Path("/sys/fs/cgroup/memory" if kinds else "/sys/fs/cgroup")
        own = Path(place.lstrip("/"))
        for group in (own, *own.parents):
            name = "memory.limit_in_bytes" if kinds else "memory.max"
            try:
                limits.append(int((root / group / name).read_text()))
            except (OSError, ValueError):
                continue
    return limits


def resident() -> int:
    """Bytes this process holds now."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 300 * 10**6


def needed(shape: tuple[int, int], dtype: torch.dtype, sample: int, kept: int, threads: Threads) -> int:
    """Bytes that factoring a table takes beyond what the process holds: an upper estimate, tested by measurement.

    ``sample`` counts the sampled rows, ``kept`` the bytes of results that stay in memory.
    """
    n, d = shape
    square = 8 * d * d
    rows = min(part_rows(d, dtype), n)
    everyone = threads.computing + threads.reading
    parts = everyone * (rows * d * dtype.itemsize + 40 * rows)
    blocks = threads.computing * (6 * 2**21 + 3 * square)
    levels = 3 + everyone
    candidates = min(2 * sample, rows) * everyone + 2 * sample * 4
    steps = max((10 + levels) * square, candidates * (d * dtype.itemsize + 64) + sample * d * 8)
    return parts + blocks + steps + kept + SLACK


def threads_for(
    shape: tuple[int, int], dtype: torch.dtype, sample: int, kept: int, memory: int, held: int | None = None
) -> Threads:
    """As many threads as there are cores, each with a part read ahead, or fewer where memory is short."""
    held = resident() if held is None else held
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    choices = [Threads(count, ahead) for count in range(cores, 0, -1) for ahead in (count, 1, 0)]
    for threads in choices:
        if held + needed(shape, dtype, sample, kept, threads) <= memory:
            return threads
    least = held + needed(shape, dtype, sample, kept, choices[-1])
    raise InputError(
        f"need at least {megabytes(least)} of memory for {shape[1]} columns, got {megabytes(memory)}: raise --memory"
    )


def megabytes(count: int) -> str:
    """Bytes as the option takes them, rounded up."""
    return f"{-(-count // 10**6)}MB"
