"""Factor a table on disk: what is asked for, where the result goes, and which way it is found."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ellp.arrays import Array
from ellp.errors import InputError
from ellp.factor.factors import Certificate, Factors
from ellp.factor.solve import Progress
from ellp.factoring import factorize, in_range
from ellp.options import Method, Refine
from ellp.scale.budget import megabytes, parse_memory, resident
from ellp.scale.cluster import connected
from ellp.scale.journal import run_folder
from ellp.scale.output import InFile, Output, check_target
from ellp.scale.passes import Nobody, Watch
from ellp.scale.sources import Source, open_source
from ellp.scale.sources.vector import open_importance
from ellp.store import factor_record


@dataclass(frozen=True)
class Job:
    """What is asked for; ``compare`` measures the SVD of the same rank too, in the same passes."""

    rank: int
    p: float = 1.0
    importance: Array | str | Path | None = None
    metric: Array | None = None
    method: Method = "lewis"
    tol: float = 0.05
    refine: Refine | None = None
    seed: int = 0
    max_steps: int = 200
    strict: bool = True
    compare: bool = False


@dataclass(frozen=True)
class Place:
    """Where results go, and what may be used on the way."""

    output: Path | None = None
    memory: str | int | None = None
    force: bool = False
    inputs: tuple[str, ...] = ()
    """Files beside the table that must not be written over."""
    dask: str | None = None
    """The address of a scheduler, or ``local[:N]``; threads of this process if None."""


@dataclass(frozen=True)
class Solved:
    """Factors before they are delivered; ``left`` lies in memory or in a draft of the output."""

    left: Array | InFile
    right: Array
    sigma: Array
    axes: Array
    certificate: Certificate
    svd_error: float | None
    reads: int
    rows_per_second: float | None


@dataclass(frozen=True)
class Found:
    """What was found, and the facts of the run as JSON can hold them."""

    solved: Solved
    output: Output | None
    record: dict[str, Any]

    @property
    def factors(self) -> Factors:
        """The factors; a left one on disk is mapped into memory, not read."""
        left = self.solved.left if self.output is None else self.output.left()
        solved = self.solved
        return Factors(left, solved.right, solved.sigma, solved.axes, len(solved.right), solved.certificate)


def factorize_file(
    table: str | Path, job: Job, place: Place, watch: Watch | None = None, progress: Progress | None = None
) -> Found:
    """Factor the table at a path; :func:`ellp.factorize` says what the options mean."""
    from ellp.scale.stream import stream

    source = open_source(str(table))
    if min(source.shape) < 1:
        raise InputError(f"need a matrix with rows and columns, got shape {source.shape}: pass data to factor")
    watch = _Told(watch or Nobody(), progress)
    output = None
    if place.output is not None:
        check_target(place.output, source.dtype, place.force)
        check_inputs(place.output, source, job.importance, place)
        output = Output(place.output.absolute(), source.shape, min(job.rank, *source.shape), source.dtype)
    with in_range(job.p), run_folder(output.target) if output else nullcontext() as folder:
        if output is not None and folder is not None:
            output.check_room(folder)
        reason = whole(source, job)
        if reason is None:
            with connected(place.dask, place.memory) if place.dask else nullcontext() as cluster:
                if cluster is not None and cluster.dashboard:
                    watch.say(f"dashboard: {cluster.dashboard}")
                solved = stream(source, job, output, folder, place, cluster, watch)
        elif place.dask:
            raise InputError(f"need a factorization in passes for a cluster, got {reason}: leave --dask out")
        else:
            solved = _load(source, job, output, folder, parse_memory(place.memory), watch, reason)
        return _deliver(str(table), source, job, place, output, solved)


def check_inputs(target: Path, source: Source, importance: Array | str | Path | None, place: Place) -> None:
    """The output is none of the files that are read."""
    real = os.path.realpath(target)
    read = [str(importance)] if isinstance(importance, (str, Path)) else []
    if real in {*_texts(source.stamp()), *map(os.path.realpath, [*read, *place.inputs])}:
        raise InputError(f"need an output beside the input, got the input {target} itself: choose another name")


def _texts(facts: Any) -> Iterator[str]:
    """All texts in a stamp; paths are among them."""
    if isinstance(facts, (dict, list, tuple)):
        for part in facts.values() if isinstance(facts, dict) else facts:
            yield from _texts(part)
    elif isinstance(facts, str):
        yield facts


def whole(source: Source, job: Job) -> str | None:
    """What needs the whole table in memory, if anything does."""
    if job.refine is not None:
        return "refining factors"
    if job.method == "loewner":
        return "the ellipsoid method"
    if math.isinf(job.p):
        return "p = inf"
    return "a table wider than tall" if source.shape[0] < source.shape[1] else None


def _load(
    source: Source, job: Job, output: Output | None, folder: Path | None, memory: int, watch: _Told, reason: str
) -> Solved:
    """In memory, what cannot be done in passes."""
    n, d = source.shape
    needed = resident() + 6 * n * d * max(4, source.dtype.itemsize)
    if needed > memory:
        raise InputError(
            f"need {megabytes(needed)} of memory for {reason}, which cannot be done in passes over a file, got "
            f"{megabytes(memory)}: raise --memory, or do without"
        )
    matrix = source.read(0, n)
    weight = None if job.importance is None else open_importance(job.importance, n).read(0, n).view(-1)
    refine = job.refine

    def solve(method: Method, refine: Refine | None) -> Factors:
        return factorize(
            matrix,
            job.rank,
            job.p,
            weight,
            job.metric,
            method,
            job.tol,
            refine,
            job.seed,
            max_steps=job.max_steps,
            strict=job.strict,
            progress=watch.step,
        )

    found = solve(job.method, refine)
    svd_error = solve("svd", None).certificate.error if job.compare else None
    left: Array | InFile = found.left
    if output is not None and folder is not None:
        left = output.draft(folder)
        left.keep(0, found.left)
    return Solved(left, found.right, found.sigma, found.axes, found.certificate, svd_error, 1, None)


def _deliver(table: str, source: Source, job: Job, place: Place, output: Output | None, solved: Solved) -> Found:
    target = None if place.output is None else str(place.output)
    size = source.dtype.itemsize
    record = factor_record(
        table, target, source.shape, size, len(solved.right), solved.certificate, solved.svd_error, job.method
    )
    record["reads"] = solved.reads
    if output is not None and isinstance(solved.left, InFile):
        small = {name: getattr(solved, name).contiguous() for name in ("right", "sigma", "axes")}
        output.publish(solved.left, small, record, place.force)
    record["rows_per_second"] = solved.rows_per_second  # not in the file, which is the same whatever the weather
    return Found(solved, output, record)


@dataclass(frozen=True)
class _Told:
    """A watch that also passes steps on to a caller's progress function."""

    watch: Watch
    progress: Progress | None

    def begin(self, name: str, rows: int, done: int) -> None:
        self.watch.begin(name, rows, done)

    def advance(self, rows: int) -> None:
        self.watch.advance(rows)

    def reached(self, distortion: float) -> None:
        self.watch.reached(distortion)

    def say(self, text: str) -> None:
        self.watch.say(text)

    def step(self, stage: str, step: int, value: float) -> None:
        if stage == "ellipsoid":
            self.reached(value)
        if self.progress is not None:
            self.progress(stage, step, value)
