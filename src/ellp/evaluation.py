"""What a compression costs on a task: both scores, the drop with an interval, what changed, size and time."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ellp.bundle.model import Bundle
from ellp.comparison import check_seed, compare
from ellp.errors import InputError
from ellp.opening import open_any
from ellp.predict import Batch, Prepared, guesses, prepare
from ellp.recipe import Source
from ellp.show import size
from ellp.tasks.glue import check_names, task_named
from ellp.tasks.load import load_task
from ellp.tasks.task import mean

SPAN = 1.0  # seconds of repetitions for a latency, about

Progress = Callable[[str, int, int], None]


def evaluate(
    source: Source,
    tasks: list[str],
    data: Path | None = None,
    *,
    against: Source | None = None,
    limit: int | None = None,
    batch: int = 32,
    device: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Scores of a model, and of the one it is compared ``against``, on examples in ``data`` or from the hub."""
    check_names(tasks)
    check_options(data, limit, batch, seed)
    place = check_device(device)
    sides = {"model": open_any(source), **({} if against is None else {"against": open_any(against)})}
    for bundle in sides.values():
        bundle.model.to(place)
    record: dict[str, Any] = {side: _facts(bundle) for side, bundle in sides.items()}
    record |= {"device": str(place), "threads": torch.get_num_threads(), "batch": batch, "tasks": []}
    for name in tasks:
        record["tasks"].append(_measured(name, sides, data, limit, batch, seed, progress))
    return record


def check_options(data: Path | None, limit: int | None, batch: int, seed: int) -> None:
    """What can be known to be wrong before a model is opened."""
    if data is not None and not data.exists():
        raise InputError(f"need a file or folder with labelled texts, got {data}: check --data")
    if limit is not None and limit < 1:
        raise InputError(f"need a limit of at least 1 example, got {limit}: leave it out for all")
    if batch < 1:
        raise InputError(f"need a batch of at least 1, got {batch}: 32 is a good size")
    check_seed(seed)


def check_device(name: str | None) -> torch.device:
    """The device that was asked for, or the best there is."""
    try:
        place = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(1, device=place)
    except (RuntimeError, AssertionError):
        raise InputError(f"need a device that torch can use here, got {name!r}: leave it out or pass cpu") from None
    return place


def _facts(bundle: Bundle) -> dict[str, Any]:
    return {
        "source": bundle.source,
        "name": bundle.name,
        "architecture": type(bundle.model).__name__,
        "bytes_on_disk": bundle.bytes_on_disk,
        "bytes_in_memory": bytes_in_memory(bundle.model),
    }


def _measured(
    name: str,
    sides: dict[str, Bundle],
    data: Path | None,
    limit: int | None,
    batch: int,
    seed: int,
    progress: Progress | None,
) -> dict[str, Any]:
    """One task: its examples are read and tokenized once for both sides, if both have the same tokenizer."""
    model: Any = sides["model"].model
    task = task_named(name, model.config)
    examples = load_task(task, data, limit)
    asked = {side: prepare(bundle, task, examples, batch, seed) for side, bundle in sides.items()}
    found, seconds = {}, {}
    for side, bundle in sides.items():
        told = None if progress is None else _told(progress, f"{name}: {bundle.name}")
        start = time.perf_counter()
        found[side] = guesses(bundle.model, asked[side], told)
        seconds[side] = time.perf_counter() - start
    prepared = asked["model"]
    timed = latency({side: (bundle.model, asked[side]) for side, bundle in sides.items()})
    row: dict[str, Any] = {"task": name, "examples": len(prepared.examples), "seconds": seconds["model"]} | timed
    if "against" not in found:
        scores = task.scores(prepared.examples, found["model"])
        return row | {"scores": scores, "score": mean(scores)}
    if task.kind == "language":
        _check_same(asked)
    row["against_seconds"] = seconds["against"]
    return row | compare(prepared, found["against"], found["model"], seed)


def _check_same(asked: dict[str, Prepared]) -> None:
    """Perplexities are of the same tokens, or they say nothing about each other."""
    one, other = (torch.cat([batch["labels"].flatten() for batch in side.batches]) for side in asked.values())
    if not torch.equal(one, other):
        raise InputError(
            "need two models with the same tokenizer to compare perplexities, got different ones: compare a compressed "
            "model with the model it was made from"
        )


def _told(progress: Progress, text: str) -> Callable[[int, int], None]:
    return lambda done, total: progress(text, done, total)


@torch.inference_mode()
def latency(sides: dict[str, tuple[Any, Prepared]]) -> dict[str, Any]:
    """Median seconds for one batch of middling length, the models in turn, after a warm-up."""
    calls = {side: _timed(model, prepared.rows, prepared.middle()) for side, (model, prepared) in sides.items()}
    slowest = max(call() for call in calls.values())
    repeats = int(min(50, max(5, SPAN / len(calls) / slowest)))
    times: dict[str, list[float]] = {side: [] for side in calls}
    for turn in range(repeats):
        for side in list(calls) if turn % 2 else reversed(calls):
            times[side].append(calls[side]())
    found: dict[str, Any] = {
        "latency" if side == "model" else f"{side}_latency": statistics.median(some) for side, some in times.items()
    }
    shape = next(iter(sides.values()))[1].middle()["input_ids"].shape
    return found | {"latency_shape": list(shape)}


def _timed(model: Any, run: Callable[[Any, Batch], Any], batch: Batch) -> Callable[[], float]:
    device = next(model.parameters()).device
    here = {name: part.to(device) for name, part in batch.items()}

    def call() -> float:
        start = time.perf_counter()
        run(model, here).sum().item()  # waits for a GPU, too
        return time.perf_counter() - start

    return call


def bytes_in_memory(model: torch.nn.Module) -> int:
    """Of the parameters and buffers, shared ones once."""
    tensors = {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def summary(record: dict[str, Any]) -> str:
    """The measured scores in a few lines for a person."""
    lines = [line for row in record["tasks"] for line in _told_of(row)]
    drops = [row["drop"] for row in record["tasks"] if "drop" in row and "perplexity" not in row["scores"]]
    if len(drops) > 1 and all(map(math.isfinite, drops)):
        lines.append(f"mean drop {sum(drops) / len(drops):+.2f} points over {len(drops)} tasks")
    for side in ("model", "against"):
        if side in record:
            facts = record[side]
            held = f"{size(facts['bytes_on_disk'])} on disk, {size(facts['bytes_in_memory'])} in memory"
            lines.append(f"{facts['source']}: {held}")
    return "\n".join(lines)


def _told_of(row: dict[str, Any]) -> list[str]:
    scores = ", ".join(f"{name} {value:.2f}" for name, value in row["scores"].items())
    lines = [f"{row['task']:6} {row['score']:6.2f}  ({scores}; {row['examples']} examples, {row['seconds']:.1f} s)"]
    texts, tokens = row["latency_shape"]
    batch = f"a batch of {texts} x {tokens} tokens takes {row['latency'] * 1e3:.1f} ms"
    if "drop" not in row:
        return [*lines, f"       {batch}"]
    unit = "" if "perplexity" in row["scores"] else " points"
    line = f"       drop {row['drop']:+.2f}{unit} from {row['against_score']:.2f}"
    line += f", 95 % between {row['drop_low']:+.2f} and {row['drop_high']:+.2f}"
    changed = row["changed"]["count"]
    line += "" if changed is None else f"; {changed} answers changed"
    return [*lines, line, f"       {batch}, dense {row['against_latency'] * 1e3:.1f} ms"]
