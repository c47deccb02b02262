"""How much each row of a layer matters, by the name that the sweep's axis gives it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ellp.errors import InputError
from ellp.importance import fisher_rows
from ellp.predict import class_columns, prepare
from ellp.recipe import weighed
from ellp.surgery import LayerPlan
from ellp.sweep.cache import file_name
from ellp.sweep.methods import FISHER, UNIFORM
from ellp.tasks.data import Examples
from ellp.tasks.glue import task_named
from ellp.tasks.load import load_task

if TYPE_CHECKING:
    from ellp.sweep.bench import Bench, Opened

LABELLED = 1024  # training examples of each task for Fisher importances
TOGETHER = 8  # examples in a batch: squares of gradients of small batches are closer to those of single examples


def row_importance(bench: Bench, opened: Opened, layer: LayerPlan, name: str | None) -> Tensor | None:
    """The importances of a layer's rows; None where all weigh the same."""
    if name in (None, UNIFORM):
        return None

    def make() -> tuple[dict[str, Tensor], dict[str, str]]:
        found = _fisher(bench, opened, layer) if name == FISHER else _of_tokens(bench, opened, layer, str(name))
        return {"rows": found}, {"importance": str(name)}

    place = file_name(f"{opened.entry.key}/{layer.name}/{name}")
    return bench.cache.recall(f"importance-{place}", make)[0]["rows"].to(opened.weight(layer).device)


def _of_tokens(bench: Bench, opened: Opened, layer: LayerPlan, name: str) -> Tensor:
    model: Any = opened.model
    if model.get_input_embeddings() is not model.get_submodule(layer.name):
        raise InputError(f"need the token table for the importance {name}, got {layer.name}: use uniform or fisher")
    found = weighed(opened.bundle, name, False, None, usual=False, seed=bench.job.seed).importance
    return torch.ones(layer.rows, dtype=torch.float64) if found is None else found.cpu()


def _fisher(bench: Bench, opened: Opened, layer: LayerPlan) -> Tensor:
    """Squared gradients of the loss on training examples, summed over the entry's tasks."""
    total = torch.zeros(layer.rows, dtype=torch.float64)
    for name in opened.entry.tasks:
        found = fisher_rows(opened.model, layer.name, _labelled(bench, opened, name))
        total += found / found.sum()
    return total


def _labelled(bench: Bench, opened: Opened, name: str) -> Iterator[dict[str, Tensor]]:
    """Batches of a sample of a task's training examples, with the labels the model's head was trained on."""
    task = task_named(name, opened.model.config)
    if task.kind not in ("classify", "regress"):
        raise InputError(f"need labels for Fisher importances, got the task {name}, which has none: leave fwsvd out")
    whole = load_task(task, bench.job.data, None, split="train")
    generator = torch.Generator().manual_seed(bench.job.seed)
    drawn = torch.randperm(len(whole), generator=generator)[: min(LABELLED, bench.job.limit or LABELLED)].tolist()
    examples = Examples([whole.texts[index] for index in drawn], whole.labels[drawn])
    prepared = prepare(opened.bundle, task, examples, TOGETHER, bench.job.seed)
    columns = torch.tensor(class_columns(opened.model.config, task)) if task.kind == "classify" else None
    labels = torch.from_numpy(examples.labels[prepared.order])
    done = 0
    for batch in prepared.batches:
        some = labels[done : done + len(batch["input_ids"])]
        done += len(some)
        known = some.float() if columns is None else columns[some.long()]
        yield {key: part.to(bench.job.device) for key, part in batch.items()} | {"labels": known.to(bench.job.device)}
