"""A factorization in passes: one scan, as few certified passes as it takes, and one that projects and measures."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ellp.arrays import metric_factor
from ellp.ellipsoid.certificate import Ellipsoid, Sweep, sweeps, symmetric, whitened
from ellp.ellipsoid.lewis import (
    Certified,
    Frame,
    careful_frame,
    first_frame,
    gram_frame,
    lewis,
    principal_axes,
    sample_size,
)
from ellp.ellipsoid.sketch import BUCKETS_PER_AXIS, check_power, frame_of_sketch
from ellp.errors import InputError
from ellp.factor.factors import Certificate
from ellp.factor.project import Held, bounds, in_units, projected, right_factor
from ellp.factor.svd import gram_ellipsoid
from ellp.rows import Kernel, Rows, Sums, Table, power_of_two
from ellp.scale.budget import parse_memory, threads_for
from ellp.scale.journal import Journal
from ellp.scale.ondisk import OnDisk, Stored, Task
from ellp.scale.output import InFile, Output
from ellp.scale.parts import parts_of
from ellp.scale.passes import Passes
from ellp.scale.scan import Pruned, Scan, candidates, scanned
from ellp.scale.sources import Source
from ellp.scale.sources.vector import open_importance
from ellp.scale.threads import Workers, one_thread

if TYPE_CHECKING:
    from ellp.scale.factor import Job, Place, Solved, _Told


def stream(
    source: Source,
    job: Job,
    output: Output | None,
    folder: Path | None,
    place: Place,
    cluster: Workers | None,
    watch: _Told,
) -> Solved:
    """Factors of a table that is never in memory as a whole."""
    from ellp.scale.factor import Solved

    (n, d), dtype = source.shape, source.dtype
    weights = None if job.importance is None else open_importance(job.importance, n)
    size = sample_size(d) if n > 2 * sample_size(d) and job.method == "lewis" else 0
    kept = 0 if folder else n * min(job.rank, d) * dtype.itemsize
    workers = cluster or threads_for(source.shape, dtype, size, kept, parse_memory(place.memory))
    if folder is None and cluster is not None:
        raise InputError("need an output for the workers of a cluster to write to, got none: pass output")
    stored = Stored(source, weights)
    passes = Passes(parts_of(source.shape, dtype), workers, Journal(folder), stored.stamp(), watch)
    with one_thread():
        table, sketch = _scan(stored, passes, job, size)
        shape = _shape(table, sketch, job, watch)
        written = _write(shape, job, passes, output, folder)
    wide = torch.float32 if dtype.itemsize == 2 else dtype
    return Solved(
        left=written.left,
        right=written.right,
        sigma=written.ellipsoid.sigma.to(wide),
        axes=written.ellipsoid.axes.to(wide),
        certificate=written.certificate,
        svd_error=written.svd_error,
        reads=len(passes.names),
        rows_per_second=passes.speed,
    )


def _scan(stored: Stored, passes: Passes, job: Job, size: int) -> tuple[OnDisk, Tensor | None]:
    """The table with what the scan found out about it, and the sketch if that is the method."""
    (n, d), dtype = stored.source.shape, stored.source.dtype
    buckets = 0
    if job.method == "sketch":
        check_power(job.p)
        buckets = min(n, BUCKETS_PER_AXIS * max(d, 16))
    metric = None if job.metric is None else metric_factor(job.metric, d)
    view: dict[str, Any] = {"metric": metric, "work": torch.float64 if dtype == torch.float64 else torch.float32}
    kept = candidates(size)
    sums = passes.run(Task(stored, view, scanned, (kept, job.p, job.seed, buckets)), Pruned(kept), "scan")
    found = Scan.of(sums, n, stored.importance is not None)
    view |= {"scale": power_of_two(found.largest), "unit": found.unit}
    start = found.sample(size, view) if size else None
    table = OnDisk(stored=replace(stored, unit=found.unit), passes=passes, start=start, **view)
    return table, found.sketch if buckets else None


@dataclass(frozen=True)
class _Shape:
    """The ellipsoid of a table; its frame where the writing pass is to prove it; and the axes of the SVD."""

    table: OnDisk
    ellipsoid: Ellipsoid
    unproved: Frame | None
    plain: Tensor | None


def _shape(table: OnDisk, sketch: Tensor | None, job: Job, watch: _Told) -> _Shape:
    if job.method == "svd":
        ellipsoid = gram_ellipsoid(table, job.p)
        return _Shape(table, ellipsoid, None, ellipsoid.axes)
    start = first_frame(table, job.p, job.seed) if sketch is None else frame_of_sketch(table, job.p, sketch)
    if job.max_steps == 0:
        return _Shape(_disk(start.rows), Certified(start, math.inf, math.inf, 0).ellipsoid(job.p), start, None)
    seen, plain = None, None
    if job.compare and job.p != 2 and start.rows.width:
        seen, other = sweeps(start.rows, start.inverse, (job.p, 2.0))
        plain = _plain_axes(table, start, other)
    ellipsoid = lewis(
        table,
        job.p,
        job.tol,
        max_steps=job.max_steps if sketch is None else 1,
        strict=job.strict and sketch is None,
        start=start,
        seen=seen,
        progress=lambda step, value: watch.step("ellipsoid", step, value),
    )
    found = ellipsoid if sketch is None else replace(ellipsoid, steps=ellipsoid.steps + 1)
    return _Shape(table, found, None, found.axes if job.p == 2 else plain)


def _disk(table: Table) -> OnDisk:
    assert isinstance(table, OnDisk)  # a frame of a table on disk has no other rows
    return table


def _plain_axes(table: OnDisk, start: Frame, seen: Sweep) -> Tensor:
    """The axes of the SVD, by the Gram matrix of whitened rows; by passes of their own where that is not accurate."""
    if seen.sound:
        return principal_axes(start.moved(torch.linalg.cholesky(seen.gram, upper=True), 1.0))[1]
    return principal_axes(gram_frame(table, 2.0) or careful_frame(table, 2.0))[1]


@dataclass(frozen=True)
class _Written:
    left: Tensor | InFile
    right: Tensor
    ellipsoid: Ellipsoid
    certificate: Certificate
    svd_error: float | None


def _write(shape: _Shape, job: Job, passes: Passes, output: Output | None, folder: Path | None) -> _Written:
    """The pass that writes the left factor, measures its error, and proves what is not proved yet."""
    table, p, (n, d) = shape.table, job.p, (shape.table.count, shape.table.columns)
    rank = min(job.rank, d)
    exact = rank == d
    basis = shape.ellipsoid.axes[:, :rank].double()
    right = torch.eye(d, dtype=table.dtype) if exact else right_factor(table, basis, table.dtype)
    keeper: Held | InFile
    if output is not None and folder is not None:
        keeper = output.draft(folder, basis, right, p, passes.stamp)
        passes.journal = replace(passes.journal, draft=Path(keeper.path))
    else:
        keeper = Held(torch.empty(n, rank, dtype=table.dtype))
    jobs: list[tuple[Kernel, tuple[Any, ...]]] = [_projection(table, basis, right, p, keeper)]
    if exact:
        jobs = [(copied, (keeper,))]
    if shape.unproved is not None:
        jobs.append((whitened, (table.map_back(shape.unproved.inverse).to(table.work), (p,))))
    compared = job.compare and shape.plain is not None and shape.plain is not shape.ellipsoid.axes and not exact
    if compared and shape.plain is not None:
        axes = shape.plain[:, :rank].double()
        jobs.append(_projection(table, axes, right_factor(table, axes, table.dtype), p, Lost()))
    sums = passes.run(table.task(several, tuple(jobs)), name="writing")
    if bool(sums[1]):
        raise InputError(f"need factors that fit {table.dtype}, got an overflow: pass the table in a wider dtype")
    ellipsoid = shape.ellipsoid if shape.unproved is None else _proved(shape.unproved, sums[2], sums[3], p)
    error = in_units(table, float(sums[0]), p)
    svd_error = error if job.compare and (exact or shape.plain is not None) else None
    svd_error = in_units(table, float(sums[-2]), p) if compared else svd_error
    left = keeper.left if isinstance(keeper, Held) else keeper
    return _Written(left, right, ellipsoid, _certificate(ellipsoid, basis, error, exact), svd_error)


def _projection(table: Table, basis: Tensor, right: Tensor, p: float, keeper: Any) -> tuple[Kernel, tuple[Any, ...]]:
    onto = basis if table.metric is None else table.metric @ basis
    return projected, (onto.to(table.work), right, p, keeper)


def _proved(frame: Frame, upper: Tensor, logs: Tensor, p: float) -> Ellipsoid:
    """The ellipsoid that a pass whitened with, certified by what the pass found."""
    gram = symmetric(upper)
    seen = Sweep(gram, p, frame.rows.work, float(logs / gram.trace()) if p == 0 else 0.0)
    alpha, beta = seen.here()
    return Certified(frame, alpha, beta, 1).ellipsoid(p)


def _certificate(ellipsoid: Ellipsoid, basis: Tensor, error: float, exact: bool) -> Certificate:
    proved = bounds(ellipsoid, basis)
    lower, upper, floor = (0.0, 0.0, 0.0) if exact else (proved.lower, proved.upper, proved.floor)
    return Certificate(ellipsoid.p, ellipsoid.alpha, ellipsoid.beta, lower, upper, floor, error, ellipsoid.steps)


def several(rows: Rows, jobs: tuple[tuple[Kernel, tuple[Any, ...]], ...]) -> Sums:
    """The kernel that runs several on the same rows, one after the other."""
    return tuple(part for kernel, state in jobs for part in kernel(rows, *state))


def copied(rows: Rows, keeper: Any) -> Sums:
    """The kernel for full rank: rows are kept as they are, without an error."""
    keeper.keep(rows.first, rows.matrix)
    return torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)


@dataclass(frozen=True)
class Lost:
    """A left factor that is only measured."""

    def keep(self, first: int, left: Tensor) -> None: ...
