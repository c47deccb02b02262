"""What importances and the sensitivity metric are worth: all-MiniLM-L6-v2, its token table cut to low rank.

    python benchmarks/importance.py --data GLUE --adapters DIR [--record benchmarks/importance.json]

``GLUE`` holds cola, mrpc, sst2 and stsb with train.tsv and dev.tsv, ``DIR`` a PEFT adapter for each. Drops are in
points against the dense model: zero-shot sts on the dev set of STS-B (Spearman), and the mean over the four adapters.
The table alone is replaced, by its low-rank approximation; nothing is trained. Both models run with bfloat16 products
where the processor has them, which moves a score by about 0.05.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import ellp
from ellp.arrays import Caller
from ellp.budget import rank_for
from ellp.importance.counts import texts_in
from ellp.opening import open_any
from ellp.predict import guesses, prepare
from ellp.recipe import Source
from ellp.tasks.glue import TASKS
from ellp.tasks.load import load_task
from ellp.tasks.task import mean
from ellp.texts import tokenizer_of
from ellp.weighing import Weighing, weigh

REMOVED = "0.28,0.60,0.75,0.90"
SENTENCES = 4000  # of each task
ADAPTERS = ("cola", "mrpc", "sst2", "stsb")
PLAIN = {"SVD": 2.0, "p = 1": 1.0}


def approximations(
    table: Tensor, p: float, weights: Weighing | None, rates: list[float]
) -> Iterator[tuple[float, Tensor]]:
    """The table at every rate; the ellipsoid is found once."""
    importance, metric = (None, None) if weights is None else (weights.importance, weights.metric)
    if p == 2.0:
        found = ellp.svd(table, min(table.shape) - 1, importance, metric)
        axes = found.axes.double()
    else:
        axes = ellp.lewis_ellipsoid(table, p, importance, metric).axes.double()
    factor = Caller(table).metric(metric)
    factor = torch.eye(table.shape[1], dtype=torch.float64) if factor is None else factor
    for removed in rates:
        kept = axes[:, : rank_for(tuple(table.shape), 1 - removed)]
        yield removed, (table.double() @ factor @ kept @ kept.T @ torch.linalg.inv(factor)).to(table.dtype)


def variants(
    model: Any, tokenizer: Any, text: Path, only: str | None
) -> Iterator[tuple[str, float, Weighing | None, float]]:
    """Name, p, weights and the seconds they took."""
    for name, p in PLAIN.items():
        if only is None or name in only.split(","):
            yield name, p, None, 0.0
    asked: dict[str, dict[str, Any]] = {
        "prior": {"importance": "prior", "sensitive": False},
        "words": {"importance": "words", "sensitive": False},
        "words + metric": {"importance": "words", "sensitive": True},
        "sensitivity + metric": {"importance": "sensitivity", "sensitive": True},
        "text and words + metric": {"text": text, "sensitive": True},
        "text: sensitivity + metric": {"importance": "sensitivity", "text": text, "sensitive": True},
    }
    for name, settings in asked.items():
        if only is not None and name not in only.split(","):
            continue
        start = time.perf_counter()
        found = weigh(model, tokenizer, **settings)
        yield name, 1.0, found, time.perf_counter() - start


def scores(models: dict[str, Any], examples: dict[str, Any], table: Tensor | None) -> dict[str, float]:
    """The score of every task with this token table."""
    found = {}
    torch.set_float32_matmul_precision("medium")
    for name, bundle in models.items():
        if table is not None:
            bundle.model.get_input_embeddings().weight.data.copy_(table)
        prepared = prepare(bundle, TASKS[name], examples[name], 64)
        found[name] = mean(TASKS[name].scores(examples[name], guesses(bundle.model, prepared)))
    torch.set_float32_matmul_precision("highest")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--adapters", type=Path, required=True)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--limit", type=int, help="use so many examples of each task")
    parser.add_argument("--rates", default=REMOVED, help="shares of the parameters to remove, a comma between")
    parser.add_argument("--only", help="variants, a comma between")
    options = parser.parse_args()
    models = {"sts": open_any(Source("demo"))}
    models |= {name: open_any(Source(str(options.adapters / name), "demo")) for name in ADAPTERS}
    examples = {name: load_task(TASKS[name], options.data, options.limit) for name in models}
    dense = open_any(Source("demo")).model
    record = json.loads(options.record.read_text()) if options.record and options.record.exists() else {"rows": []}
    if "dense" not in record or record["limit"] != options.limit:
        record = {"dense": scores(models, examples, None), "limit": options.limit, "rows": []}
    with tempfile.TemporaryDirectory() as folder:
        text = training_text(options.data, Path(folder) / "training-sentences.txt")
        run(options, record, models, examples, dense, text)


def training_text(data: Path, path: Path) -> Path:
    """As many training sentences of every task, without their labels."""
    lines: list[str] = []
    for name in ADAPTERS:
        texts = list(texts_in(data / name / "train.tsv"))
        lines += random.Random(0).sample(texts, SENTENCES)
    random.Random(0).shuffle(lines)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def run(
    options: Any, record: dict[str, Any], models: dict[str, Any], examples: dict[str, Any], dense: Any, text: Path
) -> None:
    table = dense.get_input_embeddings().weight.detach()
    for name, p, weights, took in variants(dense, tokenizer_of(models["sts"]), text, options.only):
        facts = {} if weights is None else weights.record
        rates = [float(rate) for rate in options.rates.split(",")]
        record["rows"] = [row for row in record["rows"] if row["name"] != name or row["removed"] not in rates]
        for removed, smaller in approximations(table, p, weights, rates):
            found = scores(models, examples, smaller)
            drops = {task: record["dense"][task] - score for task, score in found.items()}
            row = {"name": name, "removed": removed, "seconds": round(took, 1), "drops": drops, "weights": facts}
            record["rows"].append(row)
            glue = sum(drops[task] for task in ADAPTERS) / len(ADAPTERS)
            print(f"{name:28} {removed:.2f}  sts {drops['sts']:6.2f}  glue {glue:6.2f}", flush=True)
            if options.record:
                options.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
