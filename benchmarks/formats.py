"""What reading rows costs in each format, beside raw ``.npy``: scans of a table that is not in the page cache.

python benchmarks/formats.py [--rows 300000] [--record benchmarks/formats.json]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from models import machine

from ellp.scale.sources import Source, open_source

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from tables_on_disk import WRITERS

COLUMNS = 128
PART = 32 * 2**20  # bytes of float32 in a span, as the passes take them
CHUNKED = ("hdf5_chunked", "zarr2", "zarr3")
CHUNK = (8192, COLUMNS)  # 4 MB, whole rows
SLOW = ("text",)  # written, and read, a line at a time: an eighth of the rows
FORMATS = {
    "npy": "`.npy`",
    "fortran": "`.npy`, by columns",
    "tensors": "`.safetensors`",
    "hdf5": "HDF5, contiguous",
    "hdf5_chunked": "HDF5, chunks with gzip",
    "parquet_fixed": "parquet, lists",
    "parquet_columns": "parquet, a column per dimension",
    "zarr3": "zarr v3, zstd, sharded",
    "zarr2": "zarr v2, zstd",
    "binary": "word2vec, binary",
    "text": "word2vec, text",
}


def forget(folder: Path) -> None:
    """Drop a folder's files from the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


def scan(source: Source, threads: int) -> tuple[float, float]:
    """Seconds on the clock and of the processor to read all rows once, a span at a time."""
    step = PART // (4 * source.shape[1])
    spans = [(first, min(first + step, source.shape[0])) for first in range(0, source.shape[0], step)]
    started, worked = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(threads) as pool:
        for rows in pool.map(lambda span: source.read(*span), spans):
            del rows
    return time.perf_counter() - started, time.process_time() - worked


def measure(format: str, rows: int, repeats: int) -> dict[str, Any]:
    count = rows // 8 if format in SLOW else rows
    table = np.random.default_rng(0).standard_normal((count, COLUMNS), dtype=np.float32)
    with tempfile.TemporaryDirectory(dir=".") as place:
        folder = Path(place)
        name = WRITERS[format](folder, table, *([CHUNK] if format in CHUNKED else []))
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        started = time.perf_counter()
        source = open_source(name)
        opening = time.perf_counter() - started
        seconds: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
        for _ in range(repeats):
            for threads, found in seconds.items():
                forget(folder)
                found.append(scan(source, threads))
    gigabytes = table.nbytes / 1e9
    least = {threads: [min(each) for each in zip(*found, strict=True)] for threads, found in seconds.items()}
    return {
        "format": format,
        "bytes_per_number": size / table.size,
        "seconds_to_open": opening,
        "seconds_per_gigabyte": least[1][0] / gigabytes,
        "seconds_per_gigabyte_2_threads": least[2][0] / gigabytes,
        "processor_seconds_per_gigabyte": least[1][1] / gigabytes,
    }


def show(results: list[dict[str, Any]]) -> str:
    """The table for docs/scale.md."""
    raw = results[0]["processor_seconds_per_gigabyte"]
    lines = [
        "| format | bytes a number | seconds a gigabyte of float32 | of `.npy`'s |",
        "|---|---:|---:|---:|",
    ]
    for one in results:
        took, name = one["processor_seconds_per_gigabyte"], FORMATS[one["format"]]
        lines.append(f"| {name} | {one['bytes_per_number']:.1f} | {took:.1f} | {took / raw:.1f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--record", type=Path, default=Path(__file__).parent / "formats.json")
    options = parser.parse_args()
    results = [measure(format, options.rows, options.repeats) for format in FORMATS]
    print(show(results))
    record = {"machine": machine(), "rows": options.rows, "columns": COLUMNS, "part": PART, "results": results}
    options.record.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
