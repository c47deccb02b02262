"""What a compression costs on a task: both scores, the drop with an interval, what changed, size and time."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ellp.bundle import Bundle, quiet, weight_bytes
from ellp.errors import InputError
from ellp.recipe import Source, tokenizer_of
from ellp.tasks.data import Examples, find_file, read_examples
from ellp.tasks.glue import TASKS, Task

RESAMPLES = 1000
LONGEST = 256  # tokens of an example; GLUE's sentences are shorter

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Outcome:
    """A model's answers to a task's examples, in their order."""

    guesses: Any
    seconds: float


def evaluate(
    source: Source,
    tasks: list[str],
    data: Path,
    *,
    against: Source | None = None,
    limit: int | None = None,
    batch: int = 32,
    seed: int = 0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Scores of a model, and of the one it is compared ``against``, on tasks whose examples lie in ``data``."""
    if limit is not None and limit < 1:
        raise InputError(f"need a limit of at least 1 example, got {limit}: leave it out for all")
    if batch < 1:
        raise InputError(f"need a batch of at least 1, got {batch}: 32 is a good size")
    loaded = [(name, task, _read(task, name, data, limit)) for name in tasks for task in [_task(name)]]
    sides = {"model": open_any(source), **({} if against is None else {"against": open_any(against)})}
    record: dict[str, Any] = {
        side: {
            "source": bundle.source,
            "bytes_on_disk": bundle.bytes_on_disk,
            "bytes_in_memory": _bytes_in_memory(bundle.model),
        }
        for side, bundle in sides.items()
    }
    record["tasks"] = []
    for name, task, examples in loaded:
        outcomes = {}
        for side, bundle in sides.items():
            told = None if progress is None else _told(progress, f"{name}: {bundle.name}")
            outcomes[side] = answer(bundle, task, examples, batch, told)
        record["tasks"].append(_compared(name, task, examples, outcomes, seed))
    return record


def _told(progress: Progress, text: str) -> Callable[[int, int], None]:
    return lambda done, total: progress(text, done, total)


def _task(name: str) -> Task:
    if name not in TASKS:
        raise InputError(f"need a task out of {', '.join(TASKS)}, got {name!r}: use the name of the nearest kind")
    return TASKS[name]


def _read(task: Task, name: str, data: Path, limit: int | None) -> Examples:
    folder = "stsb" if name == "sts" else name
    return read_examples(find_file(data, folder), pair=task.pair, classes=task.classes, limit=limit)


def open_any(source: Source) -> Bundle:
    """A dense model, an adapter merged into its base, or a folder that ``ellp compress`` wrote."""
    folder = Path(source.name)
    config = folder / "config.json"
    try:
        facts = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
    except (OSError, ValueError):
        facts = {}  # opening it below says what is wrong
    recipe = facts.get("quantization_config") if isinstance(facts, dict) else None
    if not isinstance(recipe, dict) or recipe.get("quant_method") != "ellp":
        return replace(source, tokenizer_required=True).open()
    import transformers

    import ellp.hf  # noqa: F401  registers the quantizer

    kind = getattr(transformers, (facts.get("architectures") or ["AutoModel"])[0], transformers.AutoModel)
    with quiet():
        try:
            model = kind.from_pretrained(folder, local_files_only=True).eval()
        except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(f"need a whole compressed model, got {folder} ({reason}): compress it again") from None
    return Bundle(model, folder, source.name, folder.resolve().name, weight_bytes(folder))


def answer(
    bundle: Bundle, task: Task, examples: Examples, batch: int, progress: Callable[[int, int], None] | None = None
) -> Outcome:
    """The model's answers: classes, or real numbers. Texts of similar length go together, so little is padding."""
    model: Any = bundle.model
    _check_head(model, task)
    tokenizer = tokenizer_of(bundle)
    _check_vocabulary(model, tokenizer)
    longest = min(LONGEST, tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", LONGEST))
    start = time.perf_counter()
    if task.name == "sts":
        one, other = (
            _in_order(lambda texts: _sentences(model, _tokens(tokenizer, texts, longest)), side, batch, progress)
            for side in ([texts[:1] for texts in examples.texts], [texts[1:] for texts in examples.texts])
        )
        guesses = (one * other).sum(axis=1)
    else:
        logits = _in_order(
            lambda texts: model(**_tokens(tokenizer, texts, longest)).logits, examples.texts, batch, progress
        )
        guesses = logits[:, 0] if task.classes is None else logits.argmax(axis=1)
    return Outcome(guesses, time.perf_counter() - start)


@torch.inference_mode()
def _in_order(
    run: Callable[[list[tuple[str, ...]]], Tensor],
    texts: list[tuple[str, ...]],
    batch: int,
    progress: Callable[[int, int], None] | None,
) -> Any:
    """``run`` over batches of texts of similar length; rows come back in the texts' order."""
    order = sorted(range(len(texts)), key=lambda index: sum(map(len, texts[index])))
    rows: list[Any] = [None] * len(texts)
    for first in range(0, len(order), batch):
        chosen = order[first : first + batch]
        for index, row in zip(chosen, run([texts[index] for index in chosen]).float().numpy(), strict=True):
            rows[index] = row
        if progress is not None:
            progress(first + len(chosen), len(order))
    return np.stack(rows)


def _tokens(tokenizer: Any, texts: list[tuple[str, ...]], longest: int) -> dict[str, Tensor]:
    columns = [list(column) for column in zip(*texts, strict=True)]
    return dict(tokenizer(*columns, padding=True, truncation=True, max_length=longest, return_tensors="pt"))


def _sentences(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """Mean-pooled, normalised sentence vectors."""
    hidden, mask = model(**batch).last_hidden_state, batch["attention_mask"][:, :, None]
    return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)


def _check_head(model: Any, task: Task) -> None:
    if task.name == "sts":
        if type(model).__name__.endswith("ForSequenceClassification"):
            raise InputError("need a sentence encoder for sts, got a classifier: use the task stsb for its own head")
        return
    if not type(model).__name__.endswith("ForSequenceClassification"):
        raise InputError(
            f"need a sequence classifier for {task.name}, got {type(model).__name__}: pass its fine-tuning"
        )
    wanted, got = (1 if task.classes is None else len(task.classes)), int(model.config.num_labels)
    if wanted != got:
        kind = "a regression head" if wanted == 1 else f"{wanted} classes"
        raise InputError(f"need {kind} for {task.name}, got a head with {got} outputs: pass the model of this task")


def _check_vocabulary(model: Any, tokenizer: Any) -> None:
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise InputError(
            f"need a tokenizer that belongs to the model ({rows} tokens), got one of {len(tokenizer)}: "
            "pass the model with its own tokenizer"
        )


def _compared(name: str, task: Task, examples: Examples, outcomes: dict[str, Outcome], seed: int) -> dict[str, Any]:
    labels = np.array(examples.labels)
    model = outcomes["model"]
    result: dict[str, Any] = {
        "task": name,
        "examples": len(examples),
        "scores": task.scores(labels, model.guesses),
        "score": task.score(labels, model.guesses),
        "seconds": model.seconds,
    }
    if "against" not in outcomes:
        return result
    dense = outcomes["against"]
    low, high = _interval(task, labels, dense.guesses, model.guesses, seed)
    return result | {
        "against_scores": task.scores(labels, dense.guesses),
        "against_score": task.score(labels, dense.guesses),
        "against_seconds": dense.seconds,
        "drop": task.score(labels, dense.guesses) - result["score"],
        "drop_low": low,
        "drop_high": high,
        "changed": _changed(task, examples, dense.guesses, model.guesses),
    }


def _interval(task: Task, labels: Any, dense: Any, small: Any, seed: int) -> tuple[float, float]:
    """95 % of the drops seen when the examples are drawn again, the same ones for both models."""
    generator = np.random.default_rng(seed)
    drops = []
    for _ in range(RESAMPLES):
        drawn = generator.integers(len(labels), size=len(labels))
        drops.append(task.score(labels[drawn], dense[drawn]) - task.score(labels[drawn], small[drawn]))
    low, high = np.quantile(drops, (0.025, 0.975))
    return float(low), float(high)


def _changed(task: Task, examples: Examples, dense: Any, small: Any) -> dict[str, Any]:
    """How many answers changed, and the first or largest few by their texts."""
    moved = np.abs(np.asarray(dense, dtype=float) - np.asarray(small, dtype=float))
    order = np.argsort(-moved, kind="stable")
    shown = [int(index) for index in order[:5] if moved[index] > 0]
    count = int((moved > 0).sum()) if task.classes is not None else None
    some = [
        {
            "texts": list(examples.texts[index]),
            "label": examples.labels[index],
            "before": float(dense[index]),
            "after": float(small[index]),
        }
        for index in shown
    ]
    return {"count": count, "mean_change": None if task.classes is not None else float(moved.mean()), "examples": some}


def _bytes_in_memory(model: torch.nn.Module) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


def summary(record: dict[str, Any]) -> str:
    """The measured scores in a few lines for a person."""
    lines = []
    for row in record["tasks"]:
        scores = ", ".join(f"{name} {value:.2f}" for name, value in row["scores"].items())
        line = f"{row['task']:6} {row['score']:6.2f}  ({scores}; {row['examples']} examples, {row['seconds']:.1f} s)"
        if "drop" in row:
            line += f"\n       drop {row['drop']:+.2f} points from {row['against_score']:.2f}"
            line += f", 95 % between {row['drop_low']:+.2f} and {row['drop_high']:+.2f}"
            changed = row["changed"]["count"]
            line += "" if changed is None else f"; {changed} answers changed"
        lines.append(line)
    drops = [row["drop"] for row in record["tasks"] if "drop" in row]
    if len(drops) > 1 and all(map(math.isfinite, drops)):
        lines.append(f"mean drop {sum(drops) / len(drops):+.2f} points over {len(drops)} tasks")
    for side in ("model", "against"):
        if side in record:
            facts = record[side]
            lines.append(f"{facts['source']}: {facts['bytes_on_disk'] / 1e6:.2f} MB on disk")
    return "\n".join(lines)
