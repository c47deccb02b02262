"""Tables on disk: against memory, against the machine's limits, and on two workers; and what a cluster would take.

    python benchmarks/scale.py [--rows 1500000] [--columns 128] [--folder DIR] [--record benchmarks/scale.json]

Times are medians of interleaved repetitions in one run. ``busy`` beside a time is what the processors worked, in all
processes together, which says more than the clock where others use the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psutil
import torch

import ellp
from ellp.ellipsoid.certificate import CPU_GRAM_TILE, CPU_WHITEN_TILE, whitened
from ellp.rows import Sums, added
from ellp.scale.cluster import connected, visit
from ellp.scale.journal import Journal
from ellp.scale.ondisk import OnDisk, Stored, Task
from ellp.scale.parts import FAN, Part, Tree, parts_of
from ellp.scale.passes import Passes
from ellp.scale.sources import open_source
from ellp.scale.threads import Threads, Workers, one_thread

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from make_table import make_table

RANK_SHARE = 4  # the rank is the columns over this
CLUSTER = {"rows": 10**9, "columns": 128, "workers": 64}


def measured(call: Callable[[], Any]) -> tuple[float, float]:
    """Seconds by the clock, and seconds that this process and its children worked."""
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    before, begun = sum(map(_worked, family)), time.perf_counter()
    call()
    return time.perf_counter() - begun, sum(map(_worked, family)) - before


def _worked(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def interleaved(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, dict[str, float]]:
    """Median seconds and busy seconds of every call."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            found[name].append(measured(call))
    return {
        name: {"seconds": statistics.median(t for t, _ in times), "busy": statistics.median(b for _, b in times)}
        for name, times in found.items()
    }


def one_pass(path: Path, workers: Workers) -> Sums:
    """A certified pass: whiten, weigh, sum."""
    source = open_source(str(path))
    stored = Stored(source)
    passes = Passes(parts_of(source.shape, source.dtype), workers, Journal(), stored.stamp())
    table = OnDisk(stored=stored, passes=passes)
    with one_thread():
        return table.total(whitened, torch.eye(source.shape[1]), (1.0,))


def pool_pass(path: Path, pool: ProcessPoolExecutor) -> Sums:
    """The same by a plain pool of processes, and nothing around it."""
    source = open_source(str(path))
    task = Task(Stored(source), {}, whitened, (torch.eye(source.shape[1]), (1.0,)))
    parts, tree = parts_of(source.shape, source.dtype), Tree()
    groups = [parts[first : first + FAN] for first in range(0, len(parts), FAN)]
    groups = groups if len(groups) >= 8 else [[part] for part in parts]
    for group, sums in zip(groups, pool.map(_visit, [(group, task) for group in groups]), strict=True):
        tree.add(sums, added, len(group), int(len(group) > 1))
    return tree.total(added)


def _visit(work: tuple[list[Part], Task]) -> Sums:
    return visit(work[0], work[1], added)


def sgemm(threads: int) -> tuple[float, float]:
    """Flops a second, and a busy second, of large float32 products, one BLAS thread in each of so many threads."""
    size, count = 2048, 6
    a, b = torch.randn(2, size, size)

    def work(_: int) -> None:
        out = torch.empty(size, size)
        for _ in range(count):
            torch.mm(a, b, out=out)

    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        list(pool.map(work, range(threads)))
        seconds, busy = measured(lambda: list(pool.map(work, range(threads))))
    flops = threads * count * 2 * size**3
    return flops / seconds, flops / busy


def disk(path: Path) -> float:
    """Bytes a second of reading the file as it is now, in memory's cache or not, into one buffer."""
    buffer = np.empty(32 * 2**20, np.uint8)
    begun, done = time.perf_counter(), 0
    with open(path, "rb", buffering=0) as file:
        while got := file.readinto(buffer.data):
            done += got
    return done / (time.perf_counter() - begun)


def pass_flops(columns: int) -> int:
    """Of a certified pass, per row: the computed tiles of the triangular product and of the upper Gram matrix."""
    spans = range(0, columns, CPU_WHITEN_TILE)
    white = sum(min(at + CPU_WHITEN_TILE, columns) * min(CPU_WHITEN_TILE, columns - at) for at in spans)
    spans = range(0, columns, CPU_GRAM_TILE)
    return 2 * (white + sum(min(CPU_GRAM_TILE, columns - at) * (columns - at) for at in spans))


def against_memory(path: Path, rank: int, repeats: int) -> dict[str, Any]:
    """The whole factorization, streamed and in memory, with the same passes: two threads each, and one each."""
    table = torch.from_numpy(np.load(path))
    output = path.with_name("streamed.safetensors")

    def in_memory(threads: int) -> None:
        torch.set_num_threads(threads)
        ellp.factorize(table, rank)
        torch.set_num_threads(2)

    def by_one_thread() -> None:
        with mock.patch("ellp.scale.stream.threads_for", return_value=Threads(1, 1)):
            ellp.factorize(path, rank)

    def streamed() -> None:
        output.unlink(missing_ok=True)
        ellp.factorize(path, rank, output=output)

    times = interleaved(
        {
            "in_memory": lambda: in_memory(2),
            "in_memory_one_thread": lambda: in_memory(1),
            "on_disk_one_thread": by_one_thread,
            "on_disk": lambda: ellp.factorize(path, rank),
            "on_disk_to_disk": streamed,
        },
        repeats,
    )

    def over(name: str, base: str, key: str) -> float:
        return times[name][key] / times[base][key]

    return {
        "times": times,
        "on_disk_over_memory": over("on_disk", "in_memory", "seconds"),
        "on_disk_to_disk_over_memory": over("on_disk_to_disk", "in_memory", "seconds"),
        "one_thread_over_memory": over("on_disk_one_thread", "in_memory_one_thread", "seconds"),
        "one_thread_busy_over_memory": over("on_disk_one_thread", "in_memory_one_thread", "busy"),
    }


def passes_side_by_side(path: Path, half: Path, repeats: int) -> dict[str, Any]:
    """One pass by threads, by Dask and by a plain pool; and on half of the rows, for scaling."""
    with (
        connected("local:2", "2GB") as two,
        connected("local:1", "2GB") as one,
        ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool,
    ):
        calls: dict[str, Callable[[], Any]] = {
            "one_thread": lambda: one_pass(path, Threads(1, 1)),
            "two_threads": lambda: one_pass(path, Threads(2, 2)),
            "dask_1": lambda: one_pass(path, one),
            "dask_2": lambda: one_pass(path, two),
            "pool_2": lambda: pool_pass(path, pool),
            "half_dask_1": lambda: one_pass(half, one),
            "half_one_thread": lambda: one_pass(half, Threads(1, 1)),
        }
        first = {name: call() for name, call in calls.items()}  # start-up, and the same bits from all
        same = [first[name][0] for name in ("one_thread", "two_threads", "dask_1", "dask_2", "pool_2")]
        assert all(torch.equal(same[0], other) for other in same), "not the same bits"
        times = interleaved(calls, repeats)
    seconds = {name: found["seconds"] for name, found in times.items()}
    return {
        "times": times,
        "dask_2_faster_than_one_thread": seconds["one_thread"] / seconds["dask_2"],
        "dask_2_faster_than_two_threads": seconds["two_threads"] / seconds["dask_2"],
        "dask_2_over_pool_2": seconds["dask_2"] / seconds["pool_2"],
        "dask_2_busy_over_pool_2": times["dask_2"]["busy"] / times["pool_2"]["busy"],
        "strong_scaling_dask": seconds["dask_1"] / (2 * seconds["dask_2"]),
        "strong_scaling_threads": seconds["one_thread"] / (2 * seconds["two_threads"]),
        "weak_scaling_dask": seconds["half_dask_1"] / seconds["dask_2"],
        "weak_scaling_threads": seconds["half_one_thread"] / seconds["two_threads"],
    }


def against_limits(path: Path, repeats: int) -> dict[str, Any]:
    """A certified pass beside the time that its products take at the measured sgemm rate, or its bytes to be read."""
    rows, columns = open_source(str(path)).shape
    found = []
    for _ in range(repeats):
        (peak, busy_peak), speed = sgemm(2), disk(path)
        seconds, busy = measured(lambda: one_pass(path, Threads(2, 2)))
        limits = {"sgemm": rows * pass_flops(columns) / peak, "disk": rows * columns * 4 / speed}
        facts = {
            "share": max(limits.values()) / seconds,
            "busy_share": rows * pass_flops(columns) / busy_peak / busy,
            "sgemm_gflops": peak / 1e9,
            "read_gb_s": speed / 1e9,
        }
        found.append({**facts, **limits})
    chosen = sorted(found, key=lambda each: each["share"])[len(found) // 2]
    return {**chosen, "binds": "sgemm" if chosen["sgemm"] > chosen["disk"] else "disk"}


def peak_memory(path: Path, rank: int, memory: str) -> dict[str, Any]:
    """The most a process held while it factored a table under an enforced limit."""
    code = (
        "import resource, sys, ellp\n"
        "from ellp.scale.budget import parse_memory\n"
        "limit = parse_memory(sys.argv[2])\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))\n"
        "from ellp.scale.factor import Job, Place, factorize_file\n"
        "from pathlib import Path\n"
        "factorize_file(sys.argv[1], Job(int(sys.argv[3])), Place(Path(sys.argv[4]), sys.argv[2], True))\n"
        "print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])\n"
    )
    output = path.with_name("limited.safetensors")
    begun = time.perf_counter()
    command = [sys.executable, "-c", code, str(path), memory, str(rank), str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    output.unlink()
    return {
        "table_bytes": path.stat().st_size,
        "limit": memory,
        "peak_bytes": int(done.stdout) * 1024,
        "seconds": time.perf_counter() - begun,
    }


def model(path: Path, passes: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    """What 10^9 x 128 would take on 64 workers, from what one worker takes here.

    A worker's time is rows x seconds per row, fitted on one Dask worker over a table and its half, so that what does
    not grow with the rows drops out; the scan and the last pass are what is left of the whole factorization's time.
    Each task sends one d x d sum, which the client adds. Left out: a shared disk that is slower than all workers
    together (what they would read a second is told), and workers that wait for the last tasks of a pass.
    """
    rows, columns = open_source(str(path)).shape
    times = {name: found["busy"] for name, found in passes["times"].items()}
    per_row = (times["dask_1"] - times["half_dask_1"]) / (rows / 2)
    fixed = max(0.0, 2 * times["half_dask_1"] - times["dask_1"])
    rest = whole["times"]["on_disk_one_thread"]["busy"] - 2 * times["one_thread"]
    other = rest / rows  # the scan and the last pass
    n, workers = CLUSTER["rows"], CLUSTER["workers"]
    tasks = -(-n // (FAN * parts_of((10**7, columns), torch.float32)[0].last))
    return {
        **CLUSTER,
        "seconds_per_row_and_pass": per_row,
        "seconds_per_pass": fixed,
        "seconds_per_row_scan_and_writing": other,
        "bytes_read": 4 * n * columns * 4,
        "flops": n * (2 * pass_flops(columns) + 2 * 2 * columns * (columns // RANK_SHARE)),
        "bytes_written": n * (columns // RANK_SHARE) * 4,
        "reduce_bytes_a_pass": tasks * 8 * columns**2,
        "read_gb_s_needed": workers * columns * 4 / per_row / 1e9,
        "hours": (n / workers * (2 * per_row + other) + 4 * fixed) / 3600,
    }


def markdown(record: dict[str, Any]) -> str:
    """The record as the table shown in the docs."""
    memory, limits, passes, cluster = (record[name] for name in ("memory", "limits", "passes", "model"))
    rows = [
        ("on disk / in memory, whole factorization", memory["on_disk_over_memory"], "1.3 at most"),
        ("the same, factors written to disk", memory["on_disk_to_disk_over_memory"], ""),
        ("the same, one thread each", memory["one_thread_over_memory"], ""),
        ("one thread each, processors' time", memory["one_thread_busy_over_memory"], ""),
        (f"share of the limit ({limits['binds']} binds), one pass", limits["share"], "0.7 at least"),
        ("the same, processors' time against sgemm's", limits["busy_share"], ""),
        ("two Dask workers, times faster than one thread", passes["dask_2_faster_than_one_thread"], "1.4 at least"),
        ("two Dask workers, times faster than two threads", passes["dask_2_faster_than_two_threads"], ""),
        ("two Dask workers / plain pool of two processes", passes["dask_2_over_pool_2"], "1.25 at most"),
        ("the same, processors' time", passes["dask_2_busy_over_pool_2"], ""),
        ("strong scaling to two: Dask", passes["strong_scaling_dask"], ""),
        ("strong scaling to two: threads", passes["strong_scaling_threads"], ""),
        ("weak scaling to two: Dask", passes["weak_scaling_dask"], ""),
        ("weak scaling to two: threads", passes["weak_scaling_threads"], ""),
    ]
    lines = [
        "| what | measured | goal |",
        "|---|---|---|",
        *(f"| {name} | {value:.2f} | {goal} |" for name, value, goal in rows),
    ]
    for peak in record["peak"]:
        size, held = peak["table_bytes"] / 1e9, peak["peak_bytes"] / 1e6
        lines.append(f"| resident memory for a table of {size:.2f} GB under {peak['limit']} | {held:.0f} MB | |")
    lines.append(
        f"\n10^9 x 128 on 64 workers: {cluster['bytes_read'] / 1e12:.2f} TB read, {cluster['flops'] / 1e15:.2f} Pflop, "
        f"{cluster['reduce_bytes_a_pass'] / 1e6:.0f} MB reduced a pass, {cluster['hours']:.2f} hours"
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_500_000)
    parser.add_argument("--columns", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--large", type=int, default=0, help="rows of a table for the memory limit alone")
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    rank = options.columns // RANK_SHARE
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        path, half = Path(place) / "table.npy", Path(place) / "half.npy"
        make_table(path, options.rows, options.columns)
        make_table(half, options.rows // 2, options.columns)
        record: dict[str, Any] = {
            "shape": [options.rows, options.columns],
            "rank": rank,
            "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "load_before": os.getloadavg()[0]},
            "torch": torch.__version__,
        }
        record["memory"] = against_memory(path, rank, options.repeats)
        record["limits"] = against_limits(path, options.repeats)
        record["passes"] = passes_side_by_side(path, half, options.repeats)
        record["model"] = model(path, record["passes"], record["memory"])
        record["peak"] = [peak_memory(path, rank, "1GB")]
        if options.large:
            half.unlink()
            make_table(path, options.large, options.columns)
            record["peak"].append(peak_memory(path, rank, "1GB"))
        record["machine"]["load_after"] = os.getloadavg()[0]
    if options.record:
        options.record.write_text(json.dumps(record, indent=1) + "\n")
    print(markdown(record))


if __name__ == "__main__":
    main()
