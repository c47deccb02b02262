"""Dask workers come and go; the factors stay the same, to the bit."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scale_runs import Count, made_table, run

from ellp import InputError
from ellp.scale import cluster as clusters
from ellp.scale import parts, passes

distributed = pytest.importorskip("distributed")

ROWS, COLUMNS = 60_000, 32


@pytest.fixture(autouse=True)
def parts_of_the_usual_size_for_this_table() -> Iterator[None]:
    """118 parts, in groups of 16: tasks are whole groups once there is more than one worker for them."""
    before = parts.PART, clusters.WAVES, passes.PATIENCE
    parts.PART, clusters.WAVES, passes.PATIENCE = 512 * COLUMNS * 4, 1, 0.0
    yield
    parts.PART, clusters.WAVES, passes.PATIENCE = before


@pytest.fixture(scope="module")
def scheduler() -> Iterator[Any]:
    """Two workers on this machine, each in a process that its nanny starts again when it dies."""
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, memory_limit="1GB", dashboard_address=":0", silence_logs=50
    ) as found:
        yield found


@pytest.fixture
def table(tmp_path: Path) -> Path:
    made_table(tmp_path / "table.npy", ROWS, COLUMNS)
    return tmp_path / "table.npy"


def pids(scheduler: Any) -> list[int]:
    return [worker.pid for worker in list(scheduler.workers.values()) if worker.pid]


class Strike(Count):
    """A watch that does something to the workers when a third of the pass with this name is done."""

    def __init__(self, name: str, deed: Any) -> None:
        super().__init__()
        self.name, self.deed, self.now, self.inside = name, deed, "", 0

    def begin(self, name: str, rows: int, done: int) -> None:
        super().begin(name, rows, done)
        self.now, self.inside = name, 0

    def advance(self, rows: int) -> None:
        super().advance(rows)
        self.inside += rows
        if self.now == self.name and self.inside > ROWS / 3 and self.deed is not None:
            deed, self.deed = self.deed, None
            deed()


def kill_one(scheduler: Any) -> Any:
    return lambda: os.kill(pids(scheduler)[0], signal.SIGKILL)


def kill_all(scheduler: Any) -> Any:
    return lambda: [os.kill(pid, signal.SIGKILL) for pid in pids(scheduler)]


def stop_one_for_a_while(scheduler: Any) -> Any:
    def deed() -> None:
        pid = pids(scheduler)[0]
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(1.5, os.kill, (pid, signal.SIGCONT)).start()

    return deed


def feed_one_until_it_bursts(scheduler: Any) -> Any:
    def eat() -> int:  # defined here, so that it travels by value
        held = [bytearray(2**25) for _ in range(40)]
        time.sleep(2)
        return len(held)

    def deed() -> None:
        before, end = set(pids(scheduler)), time.monotonic() + 30
        with distributed.Client(scheduler) as client:
            meal = client.submit(eat, workers=[next(iter(client.scheduler_info()["workers"]))], pure=False)
            while before <= set(pids(scheduler)):
                assert time.monotonic() < end, (meal.status, meal.exception() if meal.done() else None)
                time.sleep(0.05)
            meal.cancel()

    return deed


def add_one(scheduler: Any) -> Any:
    return lambda: scheduler.scale(3)


DEEDS = {
    "nothing": ("pass 1", lambda scheduler: lambda: None),
    "one dies in the scan": ("scan", kill_one),
    "one dies in a pass": ("pass 1", kill_one),
    "one dies while writing": ("writing", kill_one),
    "all die in a pass": ("pass 1", kill_all),
    "one is slow": ("pass 1", stop_one_for_a_while),
    "one is out of memory": ("pass 1", feed_one_until_it_bursts),
    "one is added": ("scan", add_one),
}


@pytest.mark.parametrize(("name", "deed"), DEEDS.values(), ids=DEEDS.keys())
def test_the_same_file_as_one_process(table: Path, scheduler: Any, name: str, deed: Any) -> None:
    output = table.with_name("out.safetensors")
    run(table, output, compare=True)
    alone = output.read_bytes()
    watch = Strike(name, deed(scheduler))
    run(table, output, watch, compare=True, force=True, dask=scheduler.scheduler_address)
    assert watch.deed is None, "it was done"
    assert output.read_bytes() == alone


def test_a_run_that_was_stopped_goes_on_on_a_cluster(table: Path, scheduler: Any) -> None:
    output, whole = table.with_name("out.safetensors"), Count()
    run(table, output, whole)
    alone = output.read_bytes()
    output.unlink()

    def stop() -> None:
        raise KeyboardInterrupt

    for name in ("scan", "writing"):
        with pytest.raises(KeyboardInterrupt):
            run(table, output, Strike(name, stop))
    rest = Count()
    run(table, output, rest, dask=scheduler.scheduler_address)
    assert rest.rows < ROWS
    assert output.read_bytes() == alone


def test_errors_of_workers_are_told(table: Path, scheduler: Any) -> None:
    import numpy as np

    matrix = np.load(table)
    matrix[54_321, 3] = np.nan
    np.save(table, matrix)
    with pytest.raises(InputError, match="NaN in row 54,321, column 3"):
        run(table, table.with_name("out.safetensors"), dask=scheduler.scheduler_address)


def test_no_scheduler_there(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "PATIENCE", 1)
    with pytest.raises(InputError, match="need the address of a running scheduler"):
        run(table, table.with_name("out.safetensors"), dask="tcp://127.0.0.1:9")


def test_what_a_cluster_cannot_do(table: Path, scheduler: Any) -> None:
    with pytest.raises(InputError, match="leave --dask out"):
        run(table, table.with_name("out.safetensors"), dask=scheduler.scheduler_address, refine="rows")
