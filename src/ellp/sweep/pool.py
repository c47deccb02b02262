"""Processes that work through a schedule, and what becomes of the work when one of them dies."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from ellp.errors import InputError, first_line
from ellp.sweep.bench import Bench, Job, failed
from ellp.sweep.grid import Cell
from ellp.sweep.schedule import Schedule, Unit

ATTEMPTS = 2  # a unit whose process dies is tried once more: the first may have died of another's memory
ENDING = 10.0  # seconds an idle process may take to end

Message = tuple[str, Any]
"""("model", facts), ("cell", record), ("broken", error: the model cannot be opened) or ("done", None)."""


def work(bench: Bench, unit: Unit, norms: tuple[float, ...]) -> Iterator[Message]:
    """What one unit gives, piece by piece."""
    if unit.variant is not None:
        for cell in bench.measure(unit.entry, unit.variant, unit.tasks):
            yield "cell", cell
        return
    try:
        yield "model", bench.describe(unit.entry, norms)
    except Exception as error:
        yield "broken", failed_reason(error)


def failed_reason(error: Exception) -> str:
    return first_line(error) if isinstance(error, InputError) else f"{type(error).__name__}: {first_line(error)}"


def here(job: Job, schedule: Schedule, norms: tuple[float, ...]) -> Iterator[tuple[Unit, Message]]:
    """The whole schedule in this process."""
    import torch

    threads = torch.get_num_threads()
    bench = Bench(job)
    last: str | None = None
    try:
        while (unit := schedule.take(last, ())) is not None:
            last = unit.entry.key
            for message in work(bench, unit, norms):
                yield unit, message
    finally:
        torch.set_num_threads(threads)


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    unit: Unit | None = None
    left: tuple[str, ...] = ()
    last: str | None = None


def spread(job: Job, schedule: Schedule, norms: tuple[float, ...], jobs: int) -> Iterator[tuple[Unit, Message]]:
    """The whole schedule over ``jobs`` processes; messages come in the order they are ready."""
    context = multiprocessing.get_context("spawn")
    workers = [_started(context, job, norms) for _ in range(jobs)]
    try:
        while True:
            _assign(schedule, workers)
            waiting = {worker.pipe: worker for worker in workers if worker.unit is not None}
            if not waiting:
                return
            for pipe in wait(list(waiting)):
                worker = waiting[pipe]  # type: ignore[index]
                assert worker.unit is not None
                try:
                    kind, content = worker.pipe.recv()
                except (EOFError, OSError):
                    yield from _died(job, schedule, worker)
                    workers[workers.index(worker)] = _started(context, job, norms)
                    continue
                if kind == "done":
                    worker.unit = None
                    continue
                if kind == "cell":
                    worker.left = tuple(task for task in worker.left if task != content["task"])
                yield worker.unit, (kind, content)
    finally:
        for worker in workers:
            worker.pipe.close()  # an idle one ends by itself, and cleans up
        for worker in workers:
            worker.process.join(ENDING if worker.unit is None else 0)
            worker.process.kill()
            worker.process.join()


def _assign(schedule: Schedule, workers: list[_Worker]) -> None:
    for worker in workers:
        if worker.unit is None:
            busy = [other.unit.entry.key for other in workers if other.unit is not None]
            worker.unit = schedule.take(worker.last, busy)
            if worker.unit is not None:
                worker.last, worker.left = worker.unit.entry.key, worker.unit.tasks
                with contextlib.suppress(OSError):  # it died while idle: reading from it says so
                    worker.pipe.send(worker.unit)


def _died(job: Job, schedule: Schedule, worker: _Worker) -> Iterator[tuple[Unit, Message]]:
    """Try again what a dead process had not finished; at the second death, say so in the record."""
    unit = worker.unit
    assert unit is not None
    worker.process.join()
    if unit.attempts + 1 < ATTEMPTS:
        schedule.again(unit, worker.left)
        return
    code = worker.process.exitcode
    how = f"of signal {-code} ({signal.Signals(-code).name})" if code and code < 0 else f"with exit code {code}"
    error = f"the process that measured it died {how}, twice: is there enough memory? try fewer --jobs"
    if unit.variant is None:
        yield unit, ("broken", error)
        return
    for task in worker.left:
        yield unit, ("cell", failed(Cell(unit.entry.key, job.layers, unit.variant, task), error))


def _started(context: Any, job: Job, norms: tuple[float, ...]) -> _Worker:
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(job, norms, theirs), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def serve(job: Job, norms: tuple[float, ...], pipe: Connection) -> None:
    """A worker process: units in, messages out, until the pipe or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is told, and ends us
    threading.Thread(target=_end_with_parent, daemon=True).start()
    bench = Bench(job)
    with contextlib.suppress(EOFError, OSError):
        while True:
            unit = pipe.recv()
            for message in work(bench, unit, norms):
                pipe.send(message)
            pipe.send(("done", None))


def _end_with_parent() -> None:
    """Never outlive a parent that was killed: the next run must have the machine to itself."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
