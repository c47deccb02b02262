"""What measuring and recovering a model's task score takes: evaluation, its interval, fine-tuning, in one run.

    python benchmarks/evaluate.py [--parts P,...] --data GLUE --adapters FOLDER [--record FILE]
    python benchmarks/evaluate.py --parts '' --record FILE

``--data`` is a folder with GLUE's tasks (``mrpc/dev.tsv``, ...), ``--adapters`` one with a PEFT adapter of
all-MiniLM-L6-v2 for each of them. A record keeps the parts that are not measured again, each with the machine it was
measured on; without parts, its tables are printed and nothing is measured. Evaluation is compared with
``transformers.pipeline`` on the same texts in the same run, in turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from core import seconds
from models import machine
from sweeps import sweep_rows, sweep_table

from ellp.bundle import open_bundle
from ellp.bundle.model import Bundle
from ellp.comparison import RESAMPLES, paired_drops
from ellp.finetune import Training, finetune
from ellp.predict import guesses, prepare
from ellp.quiet import quiet
from ellp.recipe import Source, compress_folder
from ellp.tasks.data import read_task
from ellp.tasks.glue import TASKS
from ellp.tasks.task import Task, mean
from ellp.texts import tokenizer_of

TURNS = 3
TEXTS = 256  # of each task, at most
KEEP = 0.25

Row = dict[str, Any]


class Place:
    """Where the data and the adapters are, and which tasks to measure."""

    def __init__(self, data: Path, adapters: Path, tasks: list[str], limit: int | None) -> None:
        self.data, self.adapters, self.tasks, self.limit = data, adapters, tasks, limit

    def source(self, task: str) -> Source:
        return Source(str(self.adapters / task), "demo")

    def open(self, task: str) -> Bundle:
        found = self.source(task)
        return open_bundle(found.name, base=found.base)


# Against transformers.pipeline ----------------------------------------------------------------------------------------


def pipeline_rows(place: Place) -> Iterator[Row]:
    """The first of a task's dev examples, from texts to answers, tokenizing included; batches of 32 on both sides.

    Wall time, and the processor's own, which other work on the machine does not touch.

    ``sorted`` gives the pipeline its texts longest first, which it does not do by itself.
    """
    return (pipeline_row(place, name) for name in place.tasks)


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
    cpu: dict[str, list[float]] = {label: [] for label in calls}
    answers: dict[str, Any] = {}
    for turn in range(TURNS):
        names = list(calls)
        for label in names[turn % 3 :] + names[: turn % 3]:
            print(f"pipeline: {name}, {label} ...", file=sys.stderr, flush=True)
            start = time.process_time()
            times[label].append(seconds(lambda label=label: answers.update({label: calls[label]()}), False))
            cpu[label].append(time.process_time() - start)
    base, other, ordered = (statistics.median(times[label]) for label in calls)
    own, others, sorted_ones = (statistics.median(cpu[label]) for label in calls)
    said = np.array([_answer(task, found) for found in answers["pipeline"]])
    agree = float(np.mean(np.abs(said - answers["ours"]) < 1e-3))
    return {
        "task": name,
        "examples": len(examples),
        "seconds": base,
        "pipeline": other / base,
        "pipeline_sorted": ordered / base,
        "cpu_seconds": own,
        "pipeline_cpu": others / own,
        "pipeline_sorted_cpu": sorted_ones / own,
        "same_answers": agree,
    }


def _answer(task: Task, found: Row) -> float:
    return float(found["score"]) if task.kind == "regress" else float(found["label"].rpartition("_")[2])


# The interval ---------------------------------------------------------------------------------------------------------


def resample_rows(place: Place) -> Iterator[Row]:
    """The 95 % interval of a drop: a thousand resamples at once, and one metric call each, as scikit-learn has them."""
    generator = np.random.default_rng(0)
    for name in place.tasks:
        task, examples = TASKS[name], read_task(TASKS[name], place.data)
        labels = examples.labels
        if task.kind == "regress":
            sides = [labels + generator.standard_normal(len(labels)) for _ in range(2)]
        else:
            sides = [np.where(generator.random(len(labels)) < 0.8, labels, 1 - labels) for _ in range(2)]
        many = min(work(lambda: paired_drops(task, examples, *sides)) for _ in range(3))  # noqa: B023
        _drawn(task, labels, sides, generator)  # imports scikit-learn or scipy
        some = 20
        one = work(lambda: [_drawn(task, labels, sides, generator) for _ in range(some)])  # noqa: B023
        cost = {"seconds": many, "one_by_one": one * RESAMPLES / some / many}
        yield {"task": name, "examples": len(labels)} | cost


def work(call: Callable[[], Any]) -> float:
    """Seconds of the processor's own time."""
    start = time.process_time()
    call()
    return time.process_time() - start


def _drawn(task: Task, labels: Any, sides: list[Any], generator: Any) -> float:
    from ellp.tasks.metrics import METRICS

    drawn = generator.integers(len(labels), size=len(labels))
    scores = [mean({name: METRICS[name](labels[drawn], side[drawn]) for name in task.metrics}) for side in sides]
    return scores[0] - scores[1]


# Recovery -------------------------------------------------------------------------------------------------------------


def finetune_rows(place: Place) -> Iterator[Row]:
    """The embedding compressed to a quarter, its two factors fine-tuned as ``ellp finetune`` does it unless told
    otherwise: with the dense model as teacher, and on the labels alone."""
    for name in [task for task in place.tasks if task in ("mrpc", "stsb")]:
        with tempfile.TemporaryDirectory() as folder:
            small = Path(folder) / "small"
            compress_folder(place.source(name), small, {"keep": KEEP})
            for teacher in (place.source(name), None):
                yield finetune_row(place, name, small, teacher)


def finetune_row(place: Place, name: str, small: Path, teacher: Source | None) -> Row:
    print(f"finetune: {name}, {'with' if teacher else 'without'} a teacher ...", file=sys.stderr, flush=True)
    told = lambda text, done, total: print(f"  {text}: {done}/{total}", end="\r", file=sys.stderr)  # noqa: E731
    training = Training(limit=place.limit)
    record = finetune(
        Source(str(small)),
        name,
        place.data,
        small.with_name(f"tuned-{teacher is not None}"),
        training,
        teacher=teacher,
        cpu=True,
        progress=told,
    )
    places = ("source", "teacher", "output", "command")
    return {"teacher": teacher is not None} | {key: value for key, value in record.items() if key not in places}


# Output ---------------------------------------------------------------------------------------------------------------


def markdown(record: dict[str, Any]) -> str:
    """The record as the tables shown in the docs."""
    shown = {"pipeline": pipeline_table, "resamples": resample_table, "finetune": finetune_table, "sweep": sweep_table}
    return "\n\n".join(shown[name](part["rows"]) for name, part in record.items() if name in shown)


def pipeline_table(rows: list[Row]) -> str:
    lines = [
        "| task | examples | `ellp`, CPU s | `pipeline` | sorted | by the clock: `pipeline` | sorted | same answers |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['task']} | {row['examples']} | {row['cpu_seconds']:.1f} | {row['pipeline_cpu']:.2f} "
        f"| {row['pipeline_sorted_cpu']:.2f} | {row['pipeline']:.2f} | {row['pipeline_sorted']:.2f} "
        f"| {row['same_answers']:.1%} |"
        for row in rows
    ]
    return "\n".join(lines)


def resample_table(rows: list[Row]) -> str:
    lines = ["| task | examples | 1000 resamples, CPU ms | one by one |", "|---|---|---|---|"]
    lines += [
        f"| {row['task']} | {row['examples']} | {row['seconds'] * 1e3:.1f} | {row['one_by_one']:.0f} times |"
        for row in rows
    ]
    return "\n".join(lines)


def finetune_table(rows: list[Row]) -> str:
    heads = "task | teacher | dense | compressed | tuned | drop before | after | came back | examples | minutes | CPU"
    lines = [f"| {heads} |", "|---" * 11 + "|"]
    dense = {row["task"]: mean(row["teacher_scores"]) for row in rows if row["teacher"]}
    for row in rows:
        before, after = mean(row["before"]), mean(row["after"])
        lost = dense[row["task"]] - before
        lines.append(
            f"| {row['task']} | {'yes' if row['teacher'] else 'no'} | {dense[row['task']]:.2f} | {before:.2f} "
            f"| {after:.2f} | {lost:.2f} | {dense[row['task']] - after:.2f} "
            f"| {row['gain'] / lost:.0%} ({row['gain_low'] / lost:.0%} to {row['gain_high'] / lost:.0%}) "
            f"| {row['train_examples']} x {len(row['epochs_run'])} "
            f"| {row['seconds'] / 60:.1f} | {row['processor_seconds'] / 60:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default="pipeline,resamples,finetune,sweep")
    parser.add_argument("--data", type=Path, default=Path(), help="a folder with GLUE's tasks")
    parser.add_argument("--adapters", type=Path, default=Path(), help="a folder with an adapter for each task")
    parser.add_argument("--tasks", default="mrpc,stsb,cola,sst2", help="a record keeps the rows of the others")
    parser.add_argument("--limit", type=int, help="training examples; all if left out")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--run", type=Path, help="where the sweep's own record is to be kept")
    options = parser.parse_args()
    place = Place(options.data, options.adapters, options.tasks.split(","), options.limit)
    parts: dict[str, Callable[[Place], Iterator[Row]]] = {
        "pipeline": pipeline_rows,
        "resamples": resample_rows,
        "finetune": finetune_rows,
        "sweep": lambda place: iter(sweep_rows(place.data, place.adapters, options.run)),
    }
    record = json.loads(options.record.read_text()) if options.record and options.record.exists() else {}
    for name in filter(None, options.parts.split(",")):
        known = [row for row in record.get(name, {}).get("rows", []) if row.get("task") not in (None, *place.tasks)]
        record[name] = machine() | {"rows": known}
        for row in parts[name](place):
            known.append(row)
            if options.record:
                options.record.write_text(json.dumps(record, indent=1) + "\n")
    print(markdown(record))


if __name__ == "__main__":
    main()
