"""The nine GLUE tasks with their official metrics, and the tasks that come without one of its data sets.

Of several metrics GLUE takes the unweighted mean as the task's score (Wang et al., GLUE, 2018, section 3).
"""

from __future__ import annotations

from typing import Any

from ellp.errors import InputError
from ellp.tasks.task import Task

_SENTENCES = ("sentence1", "sentence2")

GLUE = {
    task.name: task
    for task in (
        Task("cola", "classify", ("matthews",), ("unacceptable", "acceptable"), ("sentence",), pair=False),
        Task("sst2", "classify", ("accuracy",), ("negative", "positive"), ("sentence",), pair=False),
        Task("mrpc", "classify", ("accuracy", "f1"), ("not_equivalent", "equivalent"), _SENTENCES, pair=True),
        Task("stsb", "regress", ("pearson", "spearman"), (), _SENTENCES, pair=True),
        Task(
            "qqp", "classify", ("accuracy", "f1"), ("not_duplicate", "duplicate"), ("question1", "question2"), pair=True
        ),
        Task(
            "mnli",
            "classify",
            ("accuracy",),
            ("entailment", "neutral", "contradiction"),
            ("premise", "hypothesis"),
            pair=True,
            parts=("matched", "mismatched"),
        ),
        Task("qnli", "classify", ("accuracy",), ("entailment", "not_entailment"), ("question", "sentence"), pair=True),
        Task("rte", "classify", ("accuracy",), ("entailment", "not_entailment"), _SENTENCES, pair=True),
        Task("wnli", "classify", ("accuracy",), ("not_entailment", "entailment"), _SENTENCES, pair=True),
    )
}
OTHERS = {
    task.name: task
    for task in (
        Task("sts", "similarity", ("spearman",), (), _SENTENCES, pair=True),
        Task("perplexity", "language", ("perplexity",)),
    )
}
TASKS = GLUE | OTHERS
OWN = "file"


def check_names(names: list[str]) -> None:
    """Every name is that of a task, and none comes twice."""
    known = [*TASKS, OWN]
    for name in names:
        if name not in known:
            raise InputError(f"need a task out of {', '.join(known)}, got {name!r}: for your own labels use {OWN}")
    if not names or len(set(names)) < len(names):
        raise InputError(f"need each task once, got {', '.join(names) or 'none'}: name the tasks, with commas between")


def task_named(name: str, config: Any = None) -> Task:
    """A task by its name; ``file``, the user's own labels, takes its classes from the model's configuration.

    >>> task_named("mrpc").metrics
    ('accuracy', 'f1')
    """
    check_names([name])
    return TASKS[name] if name in TASKS else _own_task(config)


def _own_task(config: Any) -> Task:
    names = getattr(config, "id2label", None)
    if config is None or not names:
        raise InputError("need a model with labels for the task file, got none: pass a classifier")
    if getattr(config, "problem_type", None) == "multi_label_classification":
        raise InputError("need a model with one label an example, got one for several: score it by your own means")
    if len(names) == 1:
        return Task(OWN, "regress", ("pearson", "spearman"))
    return Task(OWN, "classify", ("accuracy", "macro_f1"), tuple(str(names[index]) for index in range(len(names))))
