"""Time, memory and quality of the certified p = 1 factorization beside what it replaces, in one run.

    python benchmarks/core.py [--device cuda] [--tables minilm,30522x768,...] [--record benchmarks/core.json]

Every figure is a ratio of medians of interleaved repetitions on the same machine, so that a slow minute hits all
methods alike. Quality stands beside time: the proved distortion over the ideal, and the l_1 error over the SVD's.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tables import heavy_tailed, minilm
from torch import Tensor

import ellp
from ellp.budget import rank_for

TABLES = ("minilm", "30522x384", "30522x768", "50265x768", "262144x640")
KEEP = 0.25  # of the parameters


def table(name: str, device: str) -> Tensor:
    if name == "minilm":
        return minilm().to(device)
    count, width = map(int, name.split("x"))
    return heavy_tailed(count, width, device=device)


def randomized_svd(matrix: Tensor, rank: int) -> None:
    from sklearn.utils.extmath import randomized_svd

    randomized_svd(matrix.numpy(), n_components=rank, random_state=0)


def methods(matrix: Tensor, rank: int) -> dict[str, Callable[[], Any]]:
    """What is timed, by name."""
    timed: dict[str, Callable[[], Any]] = {
        "svd": lambda: torch.linalg.svd(matrix, full_matrices=False),
        "gram_eigh": lambda: torch.linalg.eigh((matrix.T @ matrix).double()),
        "ellp_5": lambda: ellp.factorize(matrix, rank, tol=0.05),
        "ellp_1": lambda: ellp.factorize(matrix, rank, tol=0.01),
    }
    if not matrix.is_cuda:
        timed["randomized_svd"] = lambda: randomized_svd(matrix, rank)
    return timed


def seconds(call: Callable[[], Any], cuda: bool) -> float:
    if cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    if cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(name: str, device: str, repeats: int) -> dict[str, Any]:
    matrix = table(name, device)
    rank = rank_for(tuple(matrix.shape), KEEP)
    timed, cuda = methods(matrix, rank), device == "cuda"
    times: dict[str, list[float]] = {key: [] for key in timed}
    ellp.factorize(matrix[:2000], 8)  # first use pays for library start-up
    for _ in range(repeats):
        for key, call in timed.items():
            times[key].append(seconds(call, cuda))
    median = {key: statistics.median(values) for key, values in times.items()}
    plain = ellp.svd(matrix, rank)
    record: dict[str, Any] = {"table": name, "shape": list(matrix.shape), "rank": rank, "seconds": median}
    for label, tol in (("5", 0.05), ("1", 0.01)):
        found = ellp.factorize(matrix, rank, tol=tol)
        ours, theirs = (ellp.relative_error(matrix, part, p=1.0).entries for part in (found, plain))
        record[f"at_{label}"] = {
            "steps": found.certificate.steps,
            "distortion_over_ideal": found.certificate.distortion / matrix.shape[1] ** 0.5,
            "l1_error_over_svd": ours / theirs,
            **{f"time_over_{key}": median[f"ellp_{label}"] / median[key] for key in timed if "ellp" not in key},
        }
    return record


def peak_over_matrix(name: str, repeats: int = 1) -> float:
    """Peak resident memory of a factorization, beyond what a process with torch and the table needs, in tables.

    The table itself is counted: 1.5 means that the work needed half a table more.
    """
    code = [sys.executable, __file__, "--memory", name]
    answer = subprocess.run(code, check=True, capture_output=True, text=True).stdout
    return float(answer)


def print_memory(name: str) -> None:
    warm = torch.randn(20000, 64)
    ellp.factorize(warm, 8)
    matrix = table(name, "cpu")
    matrix = _reloaded(matrix)  # making or mapping a table leaves other traces in memory than holding it
    del warm
    _reset_peak()
    before = _resident()
    found = ellp.factorize(matrix, rank_for(tuple(matrix.shape), KEEP))
    size = matrix.numel() * matrix.element_size()
    assert found.rank
    print((_peak() - before + size) / size)


def _reloaded(matrix: Tensor) -> Tensor:
    import ctypes

    kept = matrix.clone()
    del matrix
    ctypes.CDLL(None).malloc_trim(0)
    return kept


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _status(key: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) * 1024


def _resident() -> int:
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def loewner_beside_lewis() -> list[dict[str, Any]]:
    """The slow reference and the fast path on the same small matrices."""
    records = []
    for width in (8, 16, 32):
        matrix = heavy_tailed(2000, width).double()
        slow = seconds(lambda matrix=matrix: ellp.loewner_ellipsoid(matrix), False)
        fast = seconds(lambda matrix=matrix: ellp.lewis_ellipsoid(matrix), False)
        reference, lewis = ellp.loewner_ellipsoid(matrix), ellp.lewis_ellipsoid(matrix)
        records.append(
            {
                "width": width,
                "loewner_over_lewis_time": slow / fast,
                "cuts": reference.steps,
                "loewner_distortion": reference.distortion,
                "lewis_distortion": lewis.distortion,
                "ideal": width**0.5,
            }
        )
    return records


def markdown(record: dict[str, Any]) -> str:
    """The record as the tables shown in the docs."""
    lines = [
        "| table | tol | passes | proved / ideal | l_1 error / SVD | time / SVD | / eigh(AᵀA) | / randomized SVD |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in record["tables"]:
        for label in ("5", "1"):
            at = row[f"at_{label}"]
            other = at.get("time_over_randomized_svd")
            lines.append(
                f"| {row['table']} | {label} % | {at['steps']} | {at['distortion_over_ideal']:.4f} "
                f"| {at['l1_error_over_svd']:.4f} | **{at['time_over_svd']:.2f}** | {at['time_over_gram_eigh']:.1f} "
                f"| {'-' if other is None else format(other, '.2f')} |"
            )
    if record.get("peak_over_matrix"):
        lines += ["", "| table | peak memory / table (table included) |", "|---|---|"]
        lines += [f"| {name} | {value:.2f} |" for name, value in record["peak_over_matrix"].items()]
    if record.get("loewner"):
        lines += [
            "",
            "| d | Loewner time / Lewis | cuts | Loewner distortion | Lewis | ideal |",
            "|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {row['width']} | {row['loewner_over_lewis_time']:.0f} | {row['cuts']} "
            f"| {row['loewner_distortion']:.2f} | {row['lewis_distortion']:.3f} | {row['ideal']:.3f} |"
            for row in record["loewner"]
        ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        print_memory(options.memory)
        return
    record: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if options.device == "cuda" else platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "tables": [],
    }
    for name in options.tables.split(","):
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        record["tables"].append(measure(name, options.device, options.repeats))
    if options.device == "cpu":
        record["peak_over_matrix"] = {name: peak_over_matrix(name) for name in options.tables.split(",")}
        record["loewner"] = loewner_beside_lewis()
    if options.record:
        options.record.write_text(json.dumps(record, indent=1) + "\n")
    print(markdown(record))


if __name__ == "__main__":
    main()
