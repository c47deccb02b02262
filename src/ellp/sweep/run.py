"""A whole sweep: what is left to measure, the processes that measure it, and the record they leave."""

from __future__ import annotations

import hashlib
import os
import platform
import time
from collections.abc import Callable, Mapping
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any

import torch

from ellp.errors import InputError
from ellp.evaluation import check_options
from ellp.sweep.bench import Job, failed
from ellp.sweep.cache import Cache
from ellp.sweep.comparisons import BASELINE, SETTING, comparisons
from ellp.sweep.grid import Cell, Grid
from ellp.sweep.methods import UNIFORM
from ellp.sweep.pool import here, spread
from ellp.sweep.record import Run, open_run
from ellp.sweep.schedule import Schedule
from ellp.sweep.verdict import verdict
from ellp.tasks.data import find_files
from ellp.tasks.glue import TASKS
from ellp.tasks.task import Task

PACKAGES = ("ellp", "torch", "transformers", "tokenizers", "peft", "numpy", "scipy", "scikit-learn", "safetensors")

Progress = Callable[[str, int, int], None]
"""Called with what was finished last, how many cells are finished, and how many there are to be in this run."""


def sweep(
    grid: Grid,
    folder: Path,
    data: Path | None = None,
    *,
    base: str | None = None,
    limit: int | None = None,
    batch: int = 32,
    seed: int = 0,
    jobs: int = 1,
    device: str = "cpu",
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
    again: bool = False,
    command: str = "",
    progress: Progress | None = None,
) -> Run:
    """Measure every cell of a grid that is not in the record in ``folder`` yet; the record.

    ``jobs`` processes share the work. Killed at any moment and called again, it goes on where it stopped; the cells do
    not depend on how often that happens. Cells that failed are only tried ``again`` when that is asked for.
    """
    check_options(data, limit, batch, seed)
    if jobs < 1:
        raise InputError(f"need at least 1 process, got {jobs}: leave --jobs out for one a core")
    settings: dict[str, Any] = {
        "command": command,
        "versions": versions(),
        "machine": machine(device),
        "seed": seed,
        "limit": limit,
        "layers": grid.layers,
        "threads": max(1, torch.get_num_threads() // jobs),
        "data": data_marks(grid.tasks, data),
        "tasks": [],
        "sessions": [],
    }
    with open_run(folder, settings) as run:
        job = Job(
            grid.layers,
            data,
            run.cache,
            base,
            limit,
            batch,
            seed,
            run.facts["threads"],
            device,
            allow_pickle,
            trust_remote_code,
        )
        start = time.perf_counter()
        wanted = grid.cells()
        left = [cell for cell in wanted if cell.id not in run.cells or (again and "error" in run.cells[cell.id])]
        run.facts["tasks"] = list(dict.fromkeys([*run.facts["tasks"], *grid.tasks]))
        _measure(run, job, grid, left, jobs, len(wanted), progress)
        seconds = time.perf_counter() - start
        if left:
            session = {"command": command, "cells": len(left), "seconds": round(seconds, 1), "jobs": jobs}
            run.facts["sessions"].append(session)
        _conclude(run)
    return run


def _measure(
    run: Run, job: Job, grid: Grid, left: list[Cell], jobs: int, total: int, progress: Progress | None
) -> None:
    """Do the work and write down each result as it comes."""
    schedule = Schedule(grid.models, left, _known(run, grid))
    cells = {(cell.model, cell.variant): [] for cell in left}  # type: dict[Any, list[Cell]]
    for cell in left:
        cells[cell.model, cell.variant].append(cell)
    done = total - len(left)
    if progress is not None:
        progress("opening models", done, total)

    def finish(record: Mapping[str, Any]) -> None:
        nonlocal done
        run.append(record)
        done += 1
        if progress is not None:
            progress(str(record["id"]), done, total)

    norms = spectrum_norms(grid)
    jobs = min(jobs, len(cells))
    for unit, (kind, content) in here(job, schedule, norms) if jobs <= 1 else spread(job, schedule, norms, jobs):
        key = unit.entry.key
        if kind == "model":
            _note(run, content)
            schedule.described(key)
        elif kind == "cell":
            finish(content)
        elif kind == "broken":
            for dropped in schedule.drop(key):
                assert dropped.variant is not None
                for cell in cells[key, dropped.variant]:
                    finish(failed(cell, content))


def _known(run: Run, grid: Grid) -> list[str]:
    """Models that are in the record with all of their tasks, as they are now."""
    found = []
    for entry in grid.models:
        model = run.model(entry.key)
        if model is not None and model["source"] != entry.source:
            raise InputError(
                f"need the {entry.key} that {run.folder} was begun with ({model['source']}), got {entry.source}: "
                "use the same, or another folder"
            )
        if model is not None and set(entry.tasks) <= set(model["dense"]):
            found.append(entry.key)
    return found


def _note(run: Run, model: dict[str, Any]) -> None:
    """Put a model into the record, in place of what was known about it."""
    before = run.model(model["key"])
    if before is not None:
        model = model | {"dense": before["dense"] | model["dense"]}
        run.facts["models"].remove(before)
    run.facts["models"] = sorted([*run.facts["models"], model], key=lambda model: str(model["key"]))
    run.save()


def _conclude(run: Run) -> None:
    """Compare methods at equal rank, and say what the whole record shows."""
    known = {_pair(row): row for row in run.facts.get("comparisons", ())}
    for row in comparisons(run.cells, Cache(run.cache), run.facts["seed"]):
        before = known.get(_pair(row))
        if before is None or row.get("tasks", 1) >= before.get("tasks", 1):  # answers may be gone from the cache
            known[_pair(row)] = row
    run.facts["comparisons"] = [known[pair] for pair in sorted(known, key=str)]
    said = verdict(run.facts)
    run.facts["verdict"] = None if said is None else said.record()
    run.save()


def _pair(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What is compared with what, and where."""
    return *(row[name] for name in ("model", "task", *SETTING)), row.get("against", BASELINE)


def spectrum_norms(grid: Grid) -> tuple[float, ...]:
    """The norms of the grid at which rows may weigh the same."""
    chosen = {variant.p for variant in grid.variants() if variant.importance == UNIFORM and variant.p is not None}
    return tuple(sorted(chosen))


def processes(device: str) -> int:
    """How many processes suit a device: one on a GPU, one a core that this process may use elsewhere."""
    if device.startswith("cuda"):
        return 1
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


def data_marks(tasks: tuple[str, ...], data: Path | None) -> dict[str, str]:
    """A short mark of each task's examples, so that a record never mixes two versions of them."""
    if data is None:
        return dict.fromkeys(tasks, "hub")
    marks = {}
    for name in tasks:
        task = TASKS.get(name) or Task(name, "classify", ())
        files = [data] if task.kind == "language" else find_files(task, data).values()
        content = hashlib.sha256()
        for file in files:
            content.update(file.read_bytes())
        marks[name] = content.hexdigest()[:16]
    return marks


def versions() -> dict[str, str]:
    """The packages a result may depend on."""
    here = {str(found.metadata["Name"]).lower() for found in distributions()}
    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES if name in here}


def machine(device: str) -> dict[str, Any]:
    """Where the times in a record come from."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    except (OSError, ValueError, AttributeError):
        memory = float("nan")
    if device.startswith("cuda") and torch.cuda.is_available():
        device = torch.cuda.get_device_name()
    return {"cpu": name, "cores": os.cpu_count() or 1, "memory_gb": round(memory, 1), "device": device}
