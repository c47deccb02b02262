"""Parts visited by the workers of a Dask cluster: on this machine, or on as many as there are.

A task is a group of parts, the lowest node in the tree of sums, so that little travels: a worker reads its parts one
ahead of the other, as a single process does, and sends one sum. Left factors are written by the workers, each row in
its place. Tasks may be lost, repeated or run twice; sums are merged in the order of the rows whenever they arrive.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from ellp.errors import InputError
from ellp.rows import Merge, Sums
from ellp.scale import parts as tree
from ellp.scale.budget import parse_memory
from ellp.scale.ondisk import Task
from ellp.scale.parts import Part
from ellp.scale.threads import Threads, one_thread

RETRIES = 10  # workers that may die over one task, and times that a lost pass is taken up again
PATIENCE = 20  # seconds to wait for a scheduler
ABSENCE = 300  # seconds to wait for a worker when all have died: somebody may be starting new ones
WAVES = 4  # tasks a worker should get at least, so that a slow one holds up little


@dataclass(frozen=True)
class Cluster:
    """The workers of a connected client."""

    client: Any

    @property
    def dashboard(self) -> str | None:
        """Where to watch them."""
        link: str | None = self.client.dashboard_link
        return link

    def visit(self, task: Task, parts: Sequence[Part], done: int, merge: Merge) -> Iterator[tuple[Sums, int, int]]:
        from distributed import KilledWorker

        failures = 0
        while done < len(parts):
            try:
                for sums, count, level in self._submitted(task, parts, done, merge):
                    done += count
                    yield sums, count, level
            except (CancelledError, KilledWorker, asyncio.TimeoutError) as error:  # noqa: PERF203 (the last copy of something went with a worker)
                failures += 1
                if failures > RETRIES:
                    raise InputError(
                        f"need workers that live, got {type(error).__name__} {failures} times: look at their logs, "
                        "they may be short of memory"
                    ) from error

    def _submitted(self, task: Task, parts: Sequence[Part], done: int, merge: Merge) -> Iterator[tuple[Sums, int, int]]:
        try:
            self.client.wait_for_workers(1, timeout=ABSENCE)
        except asyncio.TimeoutError as error:
            raise InputError(f"need workers, got none for {ABSENCE} seconds: start some with dask worker") from error
        shared = self.client.scatter(task, broadcast=True, hash=False, timeout=ABSENCE)
        workers = max(1, len(self.client.scheduler_info(n_workers=-1)["workers"]))
        groups = list(_groups(parts, done, single=len(parts) - done < WAVES * workers * tree.FAN))
        futures = self.client.map(visit, groups, task=shared, merge=merge, pure=False, retries=RETRIES)
        try:
            for place, (future, group) in enumerate(zip(futures, groups, strict=True)):
                sums = future.result()
                futures[place] = None  # the sum is here: the worker may forget it
                future.release()
                yield sums, len(group), int(len(group) > 1)
        finally:
            self.client.cancel([future for future in futures if future is not None])


def _groups(parts: Sequence[Part], done: int, single: bool) -> Iterator[list[Part]]:
    """The parts from ``done`` on in whole groups of the tree of sums, or one by one."""
    while done < len(parts):
        size = 1 if single or done % tree.FAN else tree.FAN
        yield list(parts[done : done + size])
        done += size


def visit(group: list[Part], task: Task, merge: Merge) -> Sums:
    """What a worker does: the merged sums of a group of parts."""
    found: Sums | None = None
    try:
        with one_thread():
            for sums, _, _ in _hands(task.stored.source.shape[1], task.stored.source.dtype).visit(
                task, group, 0, merge
            ):
                found = sums if found is None else merge(found, sums)
    except FileNotFoundError as error:
        raise InputError(
            f"need {error.filename} on every worker, got none on {socket.gethostname()}: put the table and the output "
            "on a disk that all of them share"
        ) from None
    assert found is not None
    return found


@cache
def _hands(columns: int, dtype: torch.dtype) -> Threads:
    """One thread that computes and one that reads ahead, whose buffers a worker keeps from task to task."""
    return Threads(1, 1)


@contextmanager
def connected(where: str, memory: str | int | None = None) -> Iterator[Cluster]:
    """A cluster by the address of its scheduler, or ``local[:N]``: N workers on this machine for as long as it lasts.

    ``memory`` is what each local worker may use.
    """
    with ExitStack() as held:
        try:
            client = _local(where, memory, held) if where.partition(":")[0] == "local" else _remote(where, held)
        except ImportError:
            raise InputError("need Dask for a cluster, got none: pip install 'ellp[dask]'") from None
        except (OSError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"need the address of a running scheduler, or local:N, got {where!r} ({type(error).__name__}): start "
                "one with dask scheduler"
            ) from error
        yield Cluster(client)


def _remote(where: str, held: ExitStack) -> Any:
    import distributed

    return held.enter_context(distributed.Client(where, timeout=PATIENCE))


def _local(where: str, memory: str | int | None, held: ExitStack) -> Any:
    import dask
    import distributed

    count = where.partition(":")[2]
    limits = {"distributed.scheduler.allowed-failures": RETRIES, "distributed.comm.timeouts.connect": "60s"}
    held.enter_context(dask.config.set(limits))
    cluster = distributed.LocalCluster(
        n_workers=int(count) if count else None,
        threads_per_worker=1,
        memory_limit=parse_memory(memory),
        dashboard_address=":0",
        silence_logs=50,
    )
    return held.enter_context(distributed.Client(held.enter_context(cluster)))
