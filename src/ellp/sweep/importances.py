"""How much each row of a layer matters, by the name that the sweep's axis gives it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ellp.errors import InputError
from ellp.importance import fisher_rows
from ellp.plans import LayerPlan
from ellp.predict import class_columns, prepare
from ellp.sweep.cache import file_name
from ellp.sweep.methods import FISHER, TASK_TEXT, UNIFORM
from ellp.table_weights import weighed
from ellp.tasks.data import Examples
from ellp.tasks.glue import task_named
from ellp.tasks.load import load_task

if TYPE_CHECKING:
    from ellp.sweep.bench import Bench, Opened

LABELLED = 1024  # training examples of each task for Fisher importances
TOGETHER = 8  # examples in a batch: squares of gradients of small batches are closer to those of single examples


def row_weights(
    bench: Bench, opened: Opened, layer: LayerPlan, name: str | None, sensitive: bool = False
) -> tuple[Tensor | None, Tensor | None]:
    """The importances of a layer's rows, and a metric on directions if asked for; None where all weigh the same."""
    if name in (None, UNIFORM):
        return None, None

    def make() -> tuple[dict[str, Tensor], dict[str, str]]:
        if name == FISHER:
            found = {"rows": _fisher(bench, opened, layer)}
        else:
            found = _of_tokens(bench, opened, layer, str(name), sensitive)
        return found, {"importance": str(name)}

    place = file_name(f"{opened.entry.key}/{layer.name}/{name}{'/metric' if sensitive else ''}")
    found = bench.cache.recall(f"importance-{place}", make)[0]
    device = opened.weight(layer).device
    metric = found.get("metric")
    return found["rows"].to(device), None if metric is None else metric.to(device)


def _of_tokens(bench: Bench, opened: Opened, layer: LayerPlan, name: str, sensitive: bool) -> dict[str, Tensor]:
    model: Any = opened.model
    if model.get_input_embeddings() is not model.get_submodule(layer.name):
        raise InputError(f"need the token table for the importance {name}, got {layer.name}: use uniform or fisher")
    with tempfile.TemporaryDirectory() as folder:
        text = _task_text(bench, opened, Path(folder) / "texts.txt") if name == TASK_TEXT else None
        asked = "auto" if name == TASK_TEXT else name
        found = weighed(opened.bundle, asked, sensitive, text, usual=False, seed=bench.job.seed)
    rows = torch.ones(layer.rows, dtype=torch.float64) if found.importance is None else found.importance.cpu()
    return {"rows": rows} | ({} if found.metric is None else {"metric": found.metric.cpu()})


def _task_text(bench: Bench, opened: Opened, place: Path) -> Path:
    """The training texts of the entry's tasks, one a line."""
    lines = []
    for name in opened.entry.tasks:
        whole = load_task(task_named(name, opened.model.config), bench.job.data, None, split="train")
        lines += [" ".join(text.split()) for texts in whole.texts for text in texts]
    place.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return place


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
