"""Parts visited by the threads of one process: some compute while others read ahead.

Every thread reads into a buffer that is used again and again, and has one BLAS thread: two threads with one each
are faster than one thread with two, and a result never depends on how many there are.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor

from ellp.rows import Merge, Sums
from ellp.scale.ondisk import Task
from ellp.scale.parts import Part, part_rows


class Workers(Protocol):
    """Whoever visits the parts."""

    def visit(self, task: Task, parts: Sequence[Part], done: int, merge: Merge) -> Iterator[tuple[Sums, int, int]]:
        """Sums in the order of the parts, the first ``done`` left out.

        Each comes with how many parts it covers and its level in the tree of sums.
        """


@dataclass(frozen=True)
class Threads:
    """``computing`` threads at work, and ``reading`` more that have their next part ready."""

    computing: int
    reading: int
    rooms: list[Tensor] = field(default_factory=list, repr=False, compare=False)
    """Buffers that no thread is using: memory is taken once, not in every pass."""

    def visit(self, task: Task, parts: Sequence[Part], done: int, merge: Merge) -> Iterator[tuple[Sums, int, int]]:
        slots = threading.Semaphore(self.computing)
        source = task.stored.source
        size = max(part_rows(source.shape[1], source.dtype), *(part.last - part.first for part in parts), 0)

        def visit(part: Part) -> Sums:
            try:
                room = self.rooms.pop()
            except IndexError:
                room = torch.empty(size, source.shape[1], dtype=source.dtype)
            try:
                rows = task.read(part, room)
                with slots:
                    return task.sums(rows)
            finally:
                self.rooms.append(room)

        pending: deque[Future[Sums]] = deque()
        ahead = iter(parts[done:])
        threads = self.computing + self.reading
        pool = ThreadPoolExecutor(threads, "ellp", initializer=torch.set_num_threads, initargs=(1,))
        try:
            pending.extend(pool.submit(visit, part) for part in islice(ahead, threads))
            while pending:
                sums = pending.popleft().result()
                pending.extend(pool.submit(visit, part) for part in islice(ahead, 1))
                yield sums, 1, 0
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def one_thread() -> Iterator[None]:
    """Matrices that every step shares are worked on by one thread too: their last bits depend on how many there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
