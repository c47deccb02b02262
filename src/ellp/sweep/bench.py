"""One process's place of work in a sweep: the model it has open, the matrices in it, and what it measures on them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ellp.bundle.model import Bundle
from ellp.comparison import compare
from ellp.errors import InputError, first_line
from ellp.plans import LayerPlan
from ellp.predict import Prepared, guesses, prepare
from ellp.recipe import Source
from ellp.selection import select
from ellp.sweep.cache import Cache, file_name
from ellp.sweep.grid import Cell, Entry, Variant
from ellp.sweep.importances import row_weights
from ellp.sweep.methods import METHODS, UNIFORM, Approximation
from ellp.sweep.portrait import portrait, spectra
from ellp.sweep.problem import Problem, fingerprint
from ellp.sweep.swap import sizes, swapped
from ellp.tasks.glue import task_named
from ellp.tasks.load import load_task
from ellp.tasks.task import mean


@dataclass(frozen=True)
class Job:
    """What every process of a sweep has to know; the same for all of them, and for all runs into one folder."""

    layers: str
    data: Path | None
    cache: Path | None = None
    base: str | None = None
    limit: int | None = None
    batch: int = 32
    seed: int = 0
    threads: int = 1
    device: str = "cpu"
    allow_pickle: bool = False
    trust_remote_code: bool = False


@dataclass
class Opened:
    """A model ready to be measured: its open layers, and its tasks' examples as batches."""

    entry: Entry
    bundle: Bundle
    layers: list[LayerPlan]
    mark: str
    prepared: dict[str, Prepared] = field(default_factory=dict)

    @property
    def model(self) -> Any:
        return self.bundle.model

    def weight(self, layer: LayerPlan) -> nn.Parameter:
        found: nn.Parameter = self.model.get_submodule(layer.name).weight
        return found


class Bench:
    """Measures variants of models, each model opened once, everything that can be used again kept."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.cache = Cache(job.cache)
        self.opened: Opened | None = None
        self.problems: dict[tuple[str, float | None, str | None, bool], Problem] = {}
        torch.set_num_threads(job.threads)

    def open(self, entry: Entry) -> Opened:
        """The model of an entry; the one before it is let go first."""
        if self.opened is None or self.opened.entry != entry:
            self.opened, self.problems = None, {}
            bundle = self._source(entry).open()
            for tensor in bundle.model.parameters():
                tensor.data = tensor.data.clone()  # sums depend on where a file puts a tensor; copies lie alike
            bundle.model.to(self.job.device)
            found = select(bundle.model, self.job.layers)
            layers = [layer for layer in found if layer.skipped is None]
            if not layers:
                reason = f" ({found[0].name}: {found[0].skipped})" if found else ""
                raise InputError(f"need a layer to approximate, got none for layers={self.job.layers!r}{reason}")
            mark = fingerprint(*(tensor for _, tensor in sorted(bundle.model.named_parameters())))
            self.opened = Opened(entry, bundle, layers, mark)
        return self.opened

    def _source(self, entry: Entry) -> Source:
        adapter = (Path(entry.source) / "adapter_config.json").is_file()
        job = self.job
        return Source(entry.source, job.base if adapter else None, None, job.allow_pickle, job.trust_remote_code)

    def describe(self, entry: Entry, norms: tuple[float, ...]) -> dict[str, Any]:
        """What the record says about a model: its layers, their axes for each norm, and what it scores as it is."""
        opened = self.open(entry)
        dense = {}
        for task in entry.tasks:
            with contextlib.suppress(Exception):  # the cells of this task tell why, those of others can be measured
                _, facts = self.dense(opened, task)
                dense[task] = {name: facts[name] for name in ("score", "scores", "examples", "seconds")}
        facts = portrait(opened.bundle, opened.layers)
        for layer, told in zip(opened.layers, facts["layers"], strict=True):
            told["fingerprint"] = fingerprint(opened.weight(layer))
            told["spectrum"] = spectra(partial(self._even, opened, layer), norms)
        return {"key": entry.key, "family": entry.family, "source": entry.source, **facts, "dense": dense}

    def measure(self, entry: Entry, variant: Variant, tasks: tuple[str, ...]) -> Iterator[dict[str, Any]]:
        """The finished cells of a variant on tasks; one that fails says why."""
        cells = [Cell(entry.key, self.job.layers, variant, task) for task in tasks]
        try:
            opened, start = self.open(entry), time.perf_counter()
            found = {layer.name: self._approximation(opened, layer, variant) for layer in opened.layers}
            facts = sizes({layer.name: opened.weight(layer).detach() for layer in opened.layers}, found)
            spent = time.perf_counter() - start
        except Exception as error:
            yield from (failed(cell, error) for cell in cells)
            return
        for cell in cells:
            yield self._attempt(opened, cell, found, facts, spent)

    def _attempt(self, opened: Opened, cell: Cell, *found: Any) -> dict[str, Any]:
        try:
            return self._measured(opened, cell, *found)
        except Exception as error:
            return failed(cell, error)

    def _measured(
        self, opened: Opened, cell: Cell, found: dict[str, Approximation], facts: dict[str, Any], factor: float
    ) -> dict[str, Any]:
        dense, _ = self.dense(opened, cell.task)
        prepared = self.prepared(opened, cell.task)
        with swapped(opened.model, {name: part.matrix for name, part in found.items()}):
            start = time.perf_counter()
            answers = guesses(opened.model, prepared)
            seconds = {"factor": factor, "evaluate": time.perf_counter() - start}
        result = compare(prepared, dense, answers, self.job.seed)
        self.cache.keep(answers_name(cell.id), {"answers": _tensor(answers)}, {"id": cell.id})
        scores = {name: result[name] for name in ("score", "scores", "drop", "drop_low", "drop_high")}
        return cell.facts() | facts | scores | {"changed": result["changed"]["count"], "seconds": seconds}

    def prepared(self, opened: Opened, name: str) -> Prepared:
        """A task's examples as batches for a model, made once."""
        if name not in opened.prepared:
            task = task_named(name, opened.model.config)
            examples = load_task(task, self.job.data, self.job.limit)
            opened.prepared[name] = prepare(opened.bundle, task, examples, self.job.batch, self.job.seed)
        return opened.prepared[name]

    def dense(self, opened: Opened, name: str) -> tuple[Any, dict[str, Any]]:
        """The unchanged model's answers to a task, and their scores; worked out once for all processes and runs."""

        def make() -> tuple[dict[str, Tensor], dict[str, Any]]:
            prepared, start = self.prepared(opened, name), time.perf_counter()
            answers = guesses(opened.model, prepared)
            spent = time.perf_counter() - start
            scores = prepared.task.scores(prepared.examples, answers)
            facts = {
                "score": mean(scores),
                "scores": scores,
                "examples": len(prepared.examples),
                "seconds": spent,
                "task": asdict(prepared.task),
                "parts": prepared.examples.parts,
                "mark": opened.mark,
            }
            return {"answers": _tensor(answers), "labels": _tensor(prepared.examples.labels)}, facts

        tensors, facts = self.cache.recall(dense_name(opened.entry.key, name), make)
        if facts["mark"] != opened.mark:
            raise InputError(
                f"need the {opened.entry.key} that the record was begun with, got other weights: use another folder"
            )
        return tensors["answers"].numpy(), facts

    def problem(
        self, opened: Opened, layer: LayerPlan, p: float | None, importance: str | None, sensitive: bool = False
    ) -> Problem:
        """A layer's matrix under a norm and importances. Of one norm at a time: the next one lets the last ones go."""
        key = (layer.name, p, importance, sensitive)
        if key not in self.problems:
            weight, metric = row_weights(self, opened, layer, importance, sensitive)
            self.problems = {other: found for other, found in self.problems.items() if other[1:] == key[1:]}
            self.problems[key] = Problem(opened.weight(layer).detach(), p, weight, self.job.seed, self.cache, metric)
        return self.problems[key]

    def _even(self, opened: Opened, layer: LayerPlan, p: float) -> Problem:
        return self.problem(opened, layer, p, UNIFORM)

    def _approximation(self, opened: Opened, layer: LayerPlan, variant: Variant) -> Approximation:
        method = METHODS[variant.method]
        problem = self.problem(opened, layer, variant.p, variant.importance, method.sensitive)
        return method.approximate(problem, keep=variant.keep, share=variant.share)


def failed(cell: Cell, error: Exception | str) -> dict[str, Any]:
    """The record of a cell that could not be measured."""
    if isinstance(error, Exception):
        kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
        error = kind + first_line(error)
    return cell.facts() | {"error": error}


def _tensor(values: Any) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values))


def dense_name(key: str, task: str) -> str:
    """Where a model's own answers to a task are cached."""
    return f"dense-{file_name(f'{key}/{task}')}"


def answers_name(cell: str) -> str:
    """Where the answers behind a cell are cached."""
    return f"answers-{file_name(cell)}"
