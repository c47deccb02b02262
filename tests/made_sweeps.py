"""Records of sweeps that never ran: made numbers, in the format of real ones, for the tests of the report only."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

TASKS = {"cola": 31.5, "mrpc": 86.7, "stsb": 86.5, "sst2": 89.1}
KEEPS = (0.85, 0.72, 0.59, 0.4, 0.25, 0.1)
SERIES = (
    ("svd", 2.0, "uniform"),
    ("lp", 1.0, "uniform"),
    ("fwsvd", 2.0, "fisher"),
    ("lp", 1.0, "counts"),
    ("lp", 2.0, "counts"),
)
ROWS, COLUMNS = 30522, 384
LAYER = "embeddings.word_embeddings"
NASTY = "<script>alert('x')</script>"
BITS = {"int8": 0.53, "int4": 0.28, "int3": 0.22, "int2": 0.16}


def facts(**changes: Any) -> dict[str, Any]:
    """``run.json``: one model a task, as with adapters."""
    found = {
        "format": 1,
        "command": "ellp sweep made --task cola,mrpc,stsb,sst2 -o RUN",
        "versions": {"ellp": "0.1.0", "torch": "2.13.0", "transformers": "5.23.0", "python": "3.11.2"},
        "machine": {"cpu": "a made processor", "cores": 2, "memory_gb": 16.0, "device": "cpu"},
        "seed": 0,
        "limit": None,
        "tasks": list(TASKS),
        "models": [model(task, score) for task, score in TASKS.items()],
        "comparisons": [],
        "verdict": None,
    }
    return found | changes


def model(task: str, score: float) -> dict[str, Any]:
    ranks = [1 + round(383 * step / 99) for step in range(100)]
    names = (NASTY, "[CLS]", "##ing", "\u202eevil", "' onload='x", "&amp;", "|", "日本")
    outliers = [
        {"row": 101 + row, "token": token, "length": 2.9 - 0.1 * row, "times_median": 2.1 - 0.08 * row}
        for row, token in enumerate(names)
    ]
    spectrum = {"ranks": ranks, "1": [40 * rank**-0.6 for rank in ranks], "2": [60 * rank**-0.55 for rank in ranks]}
    layer = {
        "name": LAYER,
        "rows": ROWS,
        "columns": COLUMNS,
        "parameters": ROWS * COLUMNS,
        "bytes_fp16": 2 * ROWS * COLUMNS,
        "spectrum": spectrum,
        "outliers": outliers,
    }
    return {
        "key": task,
        "family": "",
        "source": f"models/made-{task}",
        "name": f"made-{task}",
        "architecture": "MadeBert",
        "parameters": 22_713_216,
        "bytes_fp16": 45_426_432,
        "layers": [layer],
        "dense": {task: {"score": score, "scores": {"accuracy": score}, "examples": 1043, "seconds": 4.2}},
    }


def cell(task: str, method: str, p: float | None, importance: str | None, keep: float | None, **changes: Any) -> dict:
    """One line of ``cells.jsonl`` with a drop that grows as a method of its kind would let it."""
    noise = random.Random(f"{task} {method} {p} {importance} {keep}")
    bits = method in BITS
    rank = None if bits else int(keep * ROWS * COLUMNS / (ROWS + COLUMNS))
    size = round(BITS[method] * 2 * ROWS * COLUMNS) if bits else 2 * rank * (ROWS + COLUMNS)
    scale = {"uniform": 6.0, "fisher": 1.6, "counts": 1.0 if p == 1 else 1.3}.get(importance, 3.0)
    drop = 0.05 / BITS[method] ** 1.9 if bits else scale * (max(0.0, 1 - keep) / keep) ** 0.75
    drop += noise.gauss(0, 0.2)
    dense = TASKS.get(task, 80.0)
    half = 0.6 + 0.05 * drop
    line = {
        "id": f"{task}/{task}/embeddings/{method}-p{p}-{importance}-keep{keep}",
        "model": task,
        "layers": "embeddings",
        "layer": LAYER,
        "bytes_asked": None,
        "method": method,
        "p": p,
        "importance": importance,
        "keep": keep,
        "rate": None if bits else 1 - keep,
        "rank": rank,
        "parameters": None if bits else rank * (ROWS + COLUMNS),
        "bytes": size,
        "bytes_share": size / (2 * ROWS * COLUMNS),
        "task": task,
        "score": dense - drop,
        "scores": {"accuracy": dense - drop},
        "drop": drop,
        "drop_low": drop - half,
        "drop_high": drop + half,
        "changed": round(abs(10 * drop)),
        "seconds": {"factor": 1.3, "evaluate": 4.0},
        "certificate": None if bits else {"distortion": 19.7, "error": 1.5e5 * (1 - keep), "steps": 2},
        "relative_error": {"l1": 0.1, "l2": 0.1} if bits else {"l1": 0.9 * (1 - keep), "l2": 0.8 * (1 - keep)},
    }
    return line | changes


def failure(task: str, method: str = "lp", keep: float = 0.1, error: str = "out of memory") -> dict[str, Any]:
    line = cell(task, method, 1.0, "broken", keep)
    identity = ("id", "model", "layers", "layer", "bytes_asked", "method", "p", "importance", "keep", "task")
    return {name: line[name] for name in identity} | {"error": error}


def cells(keeps: tuple[float, ...] = KEEPS) -> list[dict[str, Any]]:
    found = []
    for task in TASKS:
        found += [cell(task, *series, keep) for series in SERIES for keep in keeps]
        found += [cell(task, bits, None, None, None) for bits in BITS]
    return found


def write(folder: Path, run: dict[str, Any] | None = None, lines: list[dict[str, Any]] | None = None) -> Path:
    """A record in a new folder; a made sweep of four tasks unless told otherwise."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(facts() if run is None else run), encoding="utf-8")
    text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in (cells() if lines is None else lines))
    (folder / "cells.jsonl").write_text(text, encoding="utf-8")
    return folder


def comparisons() -> list[dict[str, Any]]:
    """Of the mean over the tasks: p = 1 against the SVD, better at the smallest size only."""
    row = {"method": "lp", "p": 1.0, "importance": "uniform", "model": "", "task": "mean", "tasks": len(TASKS)}
    gains = dict.fromkeys(KEEPS, (0.2, -0.3, 0.7)) | {0.1: (1.25, 0.5, 2.0)}
    return [
        row | {"keep": keep, "gain": gain, "gain_low": low, "gain_high": high}
        for keep, (gain, low, high) in gains.items()
    ]


def many(count: int = 6000) -> list[dict[str, Any]]:
    """Several thousand cells: five series at ever finer rates."""
    steps = math.ceil(count / (len(TASKS) * len(SERIES)))
    return cells(keeps=tuple(round(0.95 - 0.9 * step / steps, 5) for step in range(steps)))
