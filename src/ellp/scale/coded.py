"""A table on disk as a code: how to spend the bytes is found on a sample of rows, then one pass writes the codes."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ellp.arrays import Array
from ellp.code.axes import store_axes
from ellp.code.basis import BLOCK
from ellp.code.prefixes import map_bytes
from ellp.code.rows import RowCoder, Sample, learn_rows, repriced
from ellp.code.search import FLOAT, Candidate, Learned, code_table
from ellp.errors import InputError
from ellp.folder import put
from ellp.options import How
from ellp.rows import Rows, Sums
from ellp.scale.budget import parse_memory, threads_for
from ellp.scale.cluster import connected
from ellp.scale.coded_file import Streams, write_code
from ellp.scale.factor import Place, check_inputs
from ellp.scale.journal import Journal, fingerprint, run_folder
from ellp.scale.ondisk import OnDisk, Stored, Task
from ellp.scale.output import check_target
from ellp.scale.parts import parts_of
from ellp.scale.passes import Nobody, Passes, Watch
from ellp.scale.scan import Pruned, Scan, scanned
from ellp.scale.sources import Source, open_source
from ellp.scale.sources.vector import open_importance
from ellp.scale.threads import Workers, one_thread
from ellp.store import write_tensors

SAMPLED = 32768  # rows that the code is found on
CLOSER = 0.999  # of the room aimed at, once a pass has told what the price really takes


@dataclass(frozen=True)
class CodeJob:
    """What is asked for; ``size`` counts every byte of the code."""

    size: int
    p: float = 1.0
    importance: Array | str | Path | None = None
    metric: Array | None = None
    coder: How = "auto"
    seed: int = 0


def code_file(table: str | Path, job: CodeJob, place: Place, watch: Watch | None = None) -> dict[str, Any]:
    """Code the table at a path in at most ``job.size`` bytes, into ``place.output``; the record of what was done."""
    source = open_source(str(table))
    if place.output is None or place.output.suffix != ".safetensors":
        raise InputError(f"need an output that ends in .safetensors, got {place.output}: name one")
    check_target(place.output, torch.float32, place.force)
    check_inputs(place.output, source, job.importance, place)
    if place.dask and source.shape[0] <= SAMPLED:
        raise InputError(f"need more than {SAMPLED:,} rows for a cluster, got {source.shape[0]:,}: leave --dask out")
    cluster = connected(place.dask, place.memory) if place.dask else nullcontext()
    with run_folder(place.output.absolute()) as folder, cluster as workers, one_thread():
        making = _Making(str(table), source, job, place, folder, workers, watch or Nobody())
        path, record = making.whole() if source.shape[0] <= SAMPLED else making.streamed()
        put(path, place.output)
    return record | {"bytes_written": place.output.stat().st_size}


@dataclass(frozen=True)
class _Making:
    table: str
    source: Source
    job: CodeJob
    place: Place
    folder: Path
    cluster: Workers | None
    watch: Watch

    def whole(self) -> tuple[Path, dict[str, Any]]:
        """A table no larger than the sample, coded in memory."""
        count, given = self.source.shape[0], self.job.importance
        weight = None if given is None else open_importance(given, count).read(0, count).view(-1)
        metric = None if self.job.metric is None else torch.as_tensor(self.job.metric)
        table, job = self.source.read(0, count), self.job
        found = code_table(table, job.size, weight, metric, job.p, job.coder, job.seed)
        record = self._record(found.kind, found.bits, found.chosen, found.bytes, found.error, 1)
        path = self.folder / "code.safetensors"
        write_tensors(path, found.tensors, record)
        return path, record

    def streamed(self) -> tuple[Path, dict[str, Any]]:
        """A table of which a sample is coded in memory, and then every row by the sample's code."""
        if self.job.coder == "rounding":
            raise InputError("need a coder that takes rows from a disk, got rounding: pass auto, or leave --coder out")
        (count, columns), dtype = self.source.shape, self.source.dtype
        weights = None if self.job.importance is None else open_importance(self.job.importance, count)
        stored = Stored(self.source, weights)
        held = SAMPLED * columns * 24  # the sample, and what the search makes of it
        memory = parse_memory(self.place.memory)
        workers = self.cluster or threads_for(self.source.shape, dtype, SAMPLED, held, memory)
        parts = parts_of(self.source.shape, dtype)
        passes = Passes(parts, workers, Journal(self.folder), stored.stamp(), self.watch)
        scan, sample = _scan(stored, passes, self.job.seed)
        learned, coder = self._learn(sample.half(0))
        small = _small(learned, coder)
        room = self.job.size - self._fixed(small)
        coder = repriced(coder, sample.half(1), count, room)
        streams, sums = self._pass(replace(stored, unit=scan.unit), passes, coder)
        aim = float(room)
        while int(sums[0]) > room:
            aim *= CLOSER * room / int(sums[0])
            coder = repriced(coder, sample.half(1), count, int(aim))
            streams, sums = self._pass(replace(stored, unit=scan.unit), passes, coder)
        total = int(sums[0])
        bits, used = learned.chosen.axis_bits or 8, self._fixed(small) + total
        record = self._record("staged", bits, learned.chosen, used, _share(sums), len(passes.names))
        record["rows_per_second"] = passes.speed
        path = self.folder / "code.safetensors"
        write_code(path, streams, parts, small, total, record)
        return path, record

    def _learn(self, sample: Sample) -> tuple[Learned, RowCoder]:
        job = self.job
        metric = None if job.metric is None else torch.as_tensor(job.metric)
        return learn_rows(sample, self.source.shape[0], job.size, metric, job.p, job.coder, job.seed)

    def _fixed(self, small: dict[str, Tensor]) -> int:
        """Bytes of everything but the rows' codes."""
        counted = (part for name, part in small.items() if name != "levels")
        sizes = (part.numel() * (FLOAT if part.is_floating_point() else part.itemsize) for part in counted)
        return sum(sizes) + map_bytes(self.source.shape[0], len(small["levels"]))

    def _pass(self, stored: Stored, passes: Passes, coder: RowCoder) -> tuple[Streams, Sums]:
        """The pass that codes every row."""
        count, most = self.source.shape[0], coder.stages.count
        path = self.folder / f"draft-{fingerprint(coder, stored.stamp())}"
        with open(path, "ab") as file:
            file.truncate(count * (1 + most))
        streams = Streams(str(path), count, most)
        passes.journal = replace(passes.journal, draft=path)
        return streams, passes.run(OnDisk(stored=stored, passes=passes).task(coded, coder, streams), name="writing")

    def _record(self, kind: str, bits: int, chosen: Candidate, used: int, error: float, reads: int) -> dict[str, Any]:
        (rows, columns), wide = self.source.shape, 2
        return {
            "source": self.table,
            "output": str(self.place.output),
            "shape": [rows, columns],
            "kind": kind,
            "bits": bits,
            "bytes": used,
            "bytes_asked": self.job.size,
            "bytes_in_float16": wide * rows * columns,
            "error": error,
            "chosen": asdict(chosen),
            "reads": reads,
            "rows_per_second": None,
        }


def coded(rows: Rows, coder: RowCoder, streams: Streams) -> Sums:
    """The kernel: codes are kept; their bytes, the weighted squared error, and the moments of the rows."""
    steps, levels = torch.arange(coder.stages.count), coder.levels
    choices, pieces = [], []
    errors, moment = torch.zeros(2, dtype=torch.float64), torch.zeros(rows.columns, dtype=torch.float64)
    for block, weight in zip(torch.split(rows.matrix, BLOCK), torch.split(rows.weight, BLOCK), strict=True):
        codes, choice, both = coder.code(block, weight.float())
        pieces.append(codes[steps < levels[choice][:, None]])
        choices.append(choice.to(torch.uint8))
        errors += both.square().sum(dim=2) @ weight
        moment += weight @ both[1]
    stream = torch.cat(pieces)
    streams.keep(rows.first, torch.cat(choices), stream)
    return torch.tensor(len(stream)), errors, rows.weight.sum(), moment


def _small(learned: Learned, coder: RowCoder) -> dict[str, Tensor]:
    """The tensors of a code but for those of the rows."""
    packed, scale = store_axes(learned.axes, learned.chosen.axis_bits or 8)
    stages = coder.stages
    parts = {"mean": coder.mean[None], "axes": stages.axes, "book": stages.book, "books": stages.books}
    return parts | {"scale": stages.scale, "proj.weight": packed, "proj.scale": scale, "levels": coder.levels}


def _share(sums: Sums) -> float:
    """The error over that of the mean of all rows, which only now is known exactly."""
    _, (error, size), weight, moment = sums
    return float(error / (size - moment.square().sum() / weight))


def _scan(stored: Stored, passes: Passes, seed: int) -> tuple[Scan, Sample]:
    """The first pass: sums of the importances, and rows drawn by importance and by size."""
    count, dtype = stored.source.shape[0], stored.source.dtype
    view = {"work": torch.float64 if dtype == torch.float64 else torch.float32}
    sums = passes.run(Task(stored, view, scanned, (SAMPLED, 2.0, seed, 0)), Pruned(SAMPLED), "scan")
    scan = Scan.of(sums, count, stored.importance is not None)
    return scan, Sample(*scan.drawn(SAMPLED))
