"""What measuring and recovering a model's task score takes: evaluation, its interval, fine-tuning, in one run.

    python benchmarks/evaluate.py [--parts pipeline,resamples,finetune,sweep] --data GLUE --adapters FOLDER [--record FILE]

``--data`` is a folder with GLUE's tasks (``mrpc/dev.tsv``, ...), ``--adapters`` one with a PEFT adapter of
all-MiniLM-L6-v2 for each of them. A record keeps the parts that are not measured again, each with the machine it was
measured on. Evaluation is compared with ``transformers.pipeline`` on the same texts in the same run, in turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from core import seconds
from models import machine
from sweeps import sweep_rows, sweep_table

from ellp.bundle import Bundle, open_bundle, quiet
from ellp.comparison import RESAMPLES, paired_drops
from ellp.finetune import Training, finetune
from ellp.predict import guesses, prepare
from ellp.recipe import Source, compress_folder, tokenizer_of
from ellp.tasks.data import read_task
from ellp.tasks.glue import TASKS
from ellp.tasks.task import Task, mean

TURNS = 3
TEXTS = 256  # of each task, at most
KEEP = 0.25
TRAINING = Training(epochs=2, limit=2000)

Row = dict[str, Any]


class Place:
    """Where the data and the adapters are."""

    def __init__(self, data: Path, adapters: Path) -> None:
        self.data, self.adapters = data, adapters

    def source(self, task: str) -> Source:
        return Source(str(self.adapters / task), "demo")

    def open(self, task: str) -> Bundle:
        found = self.source(task)
        return open_bundle(found.name, base=found.base)


# Against transformers.pipeline ----------------------------------------------------------------------------------------


def pipeline_rows(place: Place) -> list[Row]:
    """The first of a task's dev examples, from texts to answers, tokenizing included; batches of 32 on both sides.

    ``sorted`` gives the pipeline its texts longest first, which it does not do by itself.
    """
    return [pipeline_row(place, name) for name in ("mrpc", "stsb", "cola", "sst2")]


def pipeline_row(place: Place, name: str) -> Row:
    task, bundle = TASKS[name], place.open(name)
    examples = read_task(task, place.data, TEXTS)
    with quiet():
        pipe = transformers.pipeline(
            "text-classification", model=bundle.model, tokenizer=tokenizer_of(bundle), device="cpu"
        )
    texts = [{"text": text[0], **({"text_pair": text[1]} if len(text) > 1 else {})} for text in examples.texts]
    by_length = sorted(texts, key=lambda text: -sum(map(len, text.values())))
    function = "none" if task.kind == "regress" else None
    calls: dict[str, Callable[[], Any]] = {
        "ours": lambda: guesses(bundle.model, prepare(bundle, task, examples)),
        "pipeline": lambda: pipe(texts, batch_size=32, truncation=True, function_to_apply=function),
        "sorted": lambda: pipe(by_length, batch_size=32, truncation=True, function_to_apply=function),
    }
    times: dict[str, list[float]] = {label: [] for label in calls}
    answers: dict[str, Any] = {}
    for turn in range(TURNS):
        names = list(calls)
        for label in names[turn % 3 :] + names[: turn % 3]:
            print(f"pipeline: {name}, {label} ...", file=sys.stderr, flush=True)
            times[label].append(seconds(lambda label=label: answers.update({label: calls[label]()}), False))
    base, other, ordered = (statistics.median(times[label]) for label in ("ours", "pipeline", "sorted"))
    said = np.array([_answer(task, found) for found in answers["pipeline"]])
    agree = float(np.mean(np.abs(said - answers["ours"]) < 1e-3))
    return {
        "task": name,
        "examples": len(examples),
        "seconds": base,
        "pipeline": other / base,
        "pipeline_sorted": ordered / base,
        "same_answers": agree,
    }


def _answer(task: Task, found: Row) -> float:
    return float(found["score"]) if task.kind == "regress" else float(found["label"].rpartition("_")[2])


# The interval ---------------------------------------------------------------------------------------------------------


def resample_rows(place: Place) -> list[Row]:
    """The 95 % interval of a drop: a thousand resamples at once, and one metric call each, as scikit-learn has them."""
    generator = np.random.default_rng(0)
    rows = []
    for name in ("sst2", "mrpc", "cola", "stsb"):
        task, examples = TASKS[name], read_task(TASKS[name], place.data)
        labels = examples.labels
        if task.kind == "regress":
            sides = [labels + generator.standard_normal(len(labels)) for _ in range(2)]
        else:
            sides = [np.where(generator.random(len(labels)) < 0.8, labels, 1 - labels) for _ in range(2)]
        many = min(seconds(lambda: paired_drops(task, examples, *sides), False) for _ in range(3))  # noqa: B023
        _drawn(task, labels, sides, generator)  # imports scikit-learn or scipy
        some = 20
        one = seconds(lambda: [_drawn(task, labels, sides, generator) for _ in range(some)], False)  # noqa: B023
        rows.append(
            {"task": name, "examples": len(labels), "seconds": many, "one_by_one": one * RESAMPLES / some / many}
        )
    return rows


def _drawn(task: Task, labels: Any, sides: list[Any], generator: Any) -> float:
    from ellp.tasks.metrics import METRICS

    drawn = generator.integers(len(labels), size=len(labels))
    scores = [mean({name: METRICS[name](labels[drawn], side[drawn]) for name in task.metrics}) for side in sides]
    return scores[0] - scores[1]


# Recovery -------------------------------------------------------------------------------------------------------------


def finetune_rows(place: Place) -> list[Row]:
    """The embedding compressed to a quarter, its two factors fine-tuned, the dense model as teacher."""
    rows = []
    for name in ("mrpc", "stsb"):
        with tempfile.TemporaryDirectory() as folder:
            small = Path(folder) / "small"
            print(f"finetune: {name} ...", file=sys.stderr, flush=True)
            compress_folder(place.source(name), small, {"keep": KEEP})
            record = finetune(
                Source(str(small)),
                name,
                place.data,
                Path(folder) / "tuned",
                TRAINING,
                teacher=place.source(name),
                cpu=True,
                progress=lambda text, done, total: print(f"  {text}: {done}/{total}", end="\r", file=sys.stderr),
            )
        rows.append(
            {key: value for key, value in record.items() if key not in ("source", "teacher", "output", "command")}
        )
    return rows


# Output ---------------------------------------------------------------------------------------------------------------


def markdown(record: dict[str, Any]) -> str:
    """The record as the tables shown in the docs."""
    shown = {"pipeline": pipeline_table, "resamples": resample_table, "finetune": finetune_table, "sweep": sweep_table}
    return "\n\n".join(shown[name](part["rows"]) for name, part in record.items() if name in shown)


def pipeline_table(rows: list[Row]) -> str:
    lines = [
        "| task | examples | `ellp`, s | `pipeline` | `pipeline`, sorted by length | same answers |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['task']} | {row['examples']} | {row['seconds']:.1f} | {row['pipeline']:.2f} "
        f"| {row['pipeline_sorted']:.2f} | {row['same_answers']:.1%} |"
        for row in rows
    ]
    return "\n".join(lines)


def resample_table(rows: list[Row]) -> str:
    lines = ["| task | examples | 1000 resamples, ms | one by one |", "|---|---|---|---|"]
    lines += [
        f"| {row['task']} | {row['examples']} | {row['seconds'] * 1e3:.1f} | {row['one_by_one']:.0f} times |"
        for row in rows
    ]
    return "\n".join(lines)


def finetune_table(rows: list[Row]) -> str:
    lines = [
        "| task | dense | compressed | fine-tuned | drop before | after | came back | examples x epochs | minutes |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        dense, before, after = (mean(row[key]) for key in ("teacher_scores", "before", "after"))
        lines.append(
            f"| {row['task']} | {dense:.2f} | {before:.2f} | {after:.2f} | {row['drop_before']:.2f} "
            f"| {row['drop_after']:.2f} | {row['recovered']:.0%} | {row['train_examples']} x {len(row['epochs_run'])} "
            f"| {row['seconds'] / 60:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default="pipeline,resamples,finetune,sweep")
    parser.add_argument("--data", type=Path, required=True, help="a folder with GLUE's tasks")
    parser.add_argument("--adapters", type=Path, required=True, help="a folder with an adapter for each task")
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    place = Place(options.data, options.adapters)
    parts: dict[str, Callable[[Place], list[Row]]] = {
        "pipeline": pipeline_rows,
        "resamples": resample_rows,
        "finetune": finetune_rows,
        "sweep": lambda place: sweep_rows(place.data, place.adapters),
    }
    record = json.loads(options.record.read_text()) if options.record and options.record.exists() else {}
    for name in options.parts.split(","):
        record[name] = machine() | {"rows": parts[name](place)}
        if options.record:
            options.record.write_text(json.dumps(record, indent=1) + "\n")
    print(markdown(record))


if __name__ == "__main__":
    main()
