"""The part ``sweep`` of ``evaluate.py``: a whole sweep, and what its cells take when they are measured one by one.

Both are commands as a user runs them. One by one means ``ellp compress`` and then
``ellp evaluate SMALL --against DENSE`` for every cell; that is timed on one cell a task (the sweep has 24), and only
``evaluate`` counts in the headline, as a sweep does not write compressed models. These have one thread, as the
processes of the sweep: two that wait for each other on a busy machine would only seem to work more.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TASKS = ("cola", "mrpc", "sst2", "stsb")
KEEP = "0.85,0.72,0.59,0.4,0.25,0.1"
METHODS = "svd,fwsvd,lp"  # lp with two importances: four methods
IMPORTANCES = (
    "uniform,words^0.5"  # all rows alike as in the paper, and the importance ``ellp compress`` takes by itself here
)
SAMPLE = 0.59  # what the cells measured one by one keep
ELLP = [sys.executable, "-c", "from ellp.cli import main; main()"]

Row = dict[str, Any]


def ran(*words: str, **settings: str) -> dict[str, float]:
    """Wall time of a command in an environment with ``settings``, and the processor time of it and its processes."""
    print("sweep:", *words[:2], "...", file=sys.stderr, flush=True)
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([*ELLP, *words], check=True, capture_output=True, env=os.environ | settings)
    spent, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": spent, "processor": used}


def sweep_rows(data: Path, adapters: Path, kept: Path | None = None) -> list[Row]:
    """The sweep, then one cell a task by hand; the sweep's record is ``kept`` if asked for."""
    with tempfile.TemporaryDirectory() as folder:
        run = str(kept or f"{folder}/run")
        axes = ["--method", METHODS, "--importance", IMPORTANCES, "--keep", KEEP, "--task", ",".join(TASKS)]
        whole = ran("sweep", str(adapters), *axes, "--data", str(data), "--base", "demo", "-o", run)
        cells = [json.loads(line) for line in Path(run, "cells.jsonl").read_text().splitlines()]
        failed = [cell["id"] for cell in cells if "error" in cell]
        if failed:
            raise RuntimeError(f"cells failed: {failed}")
        rows: list[Row] = [{"what": "sweep", "cells": len(cells), "cores": os.cpu_count()} | whole]
        for task in TASKS:
            small, adapter = f"{folder}/{task}", str(adapters / task)
            plain = ["--keep", str(SAMPLE), "--importance", "uniform", "--no-sensitivity"]
            made = ran("compress", adapter, "--base", "demo", *plain, "-o", small, OMP_NUM_THREADS="1")
            common = ["--task", task, "--data", str(data), "--base", "demo"]
            spent = ran("evaluate", small, "--against", adapter, *common, OMP_NUM_THREADS="1")
            count = sum(cell["task"] == task for cell in cells)
            rows.append({"what": task, "cells": count, "compress": made} | spent)
    return rows


def ratios(rows: list[Row]) -> dict[str, float]:
    """How much longer the sweep's cells take one by one: by both clocks, with ``compress`` and without."""
    whole, *single = rows
    found = {}
    for clock in ("seconds", "processor"):
        alone = sum(row["cells"] * row[clock] for row in single)
        made = sum(row["cells"] * row["compress"][clock] for row in single)
        found[clock] = alone / whole[clock]
        found[f"{clock} with compress"] = (alone + made) / whole[clock]
    return found


def sweep_table(rows: list[Row]) -> str:
    whole, *single = rows
    found = ratios(rows)
    lines = [
        "| what | cells | wall time | processor time |",
        "|---|---|---|---|",
        f"| one sweep | {whole['cells']} | {whole['seconds'] / 60:.1f} min | {whole['processor'] / 60:.1f} min |",
    ]
    alone = [sum(row["cells"] * row[clock] for row in single) / 60 for clock in ("seconds", "processor")]
    cells = sum(row["cells"] for row in single)
    lines.append(f"| `ellp evaluate` once a cell | {cells} | {alone[0]:.1f} min | {alone[1]:.1f} min |")
    lines.append(f"| ratio | | {found['seconds']:.1f} | {found['processor']:.1f} |")
    both = [found[f"{clock} with compress"] for clock in ("seconds", "processor")]
    lines.append(f"| ratio, with `ellp compress` for each cell | | {both[0]:.1f} | {both[1]:.1f} |")
    return "\n".join(lines)
