"""Training on transformers' own Trainer: the loss on labels, and on what a dense teacher says."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor
from transformers.trainer_callback import PrinterCallback

from ellp.predict import Prepared, guesses, padded
from ellp.tasks.task import Task

TEMPERATURE = 2.0  # of the two models' class probabilities (Hinton, Vinyals and Dean 2015)
LABELS = 0.5  # the labels' share of the loss beside a teacher
WARM_UP = 0.1  # of the steps
TARGET = "target"

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Lesson:
    """What is trained on: tokenized rows with their targets, the dev examples, and perhaps a teacher."""

    task: Task
    tokenizer: Any
    rows: list[dict[str, Any]]
    dev: Prepared
    teacher: Any = None


class Recovery(transformers.Trainer):
    """A Trainer that compares the model with labels and teacher, and judges every epoch by the task's own score."""

    def __init__(self, model: Any, lesson: Lesson, arguments: Any, patience: int, progress: Progress | None) -> None:
        super().__init__(
            model=model,
            args=arguments,
            train_dataset=lesson.rows,
            eval_dataset=lesson.rows[:1],  # never read: evaluate() has the dev examples
            data_collator=lambda rows: _collated(lesson.tokenizer, rows),
            callbacks=[transformers.EarlyStoppingCallback(patience), *([_Told(progress)] if progress else [])],
        )
        self.remove_callback(PrinterCallback)
        self.lesson = lesson
        self.model_accepts_loss_kwargs = False
        if lesson.teacher is not None:
            lesson.teacher.to(self.args.device).eval().requires_grad_(False)

    def compute_loss(
        self, model: Any, inputs: dict[str, Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        target = inputs.pop(TARGET)
        found = model(**inputs, output_hidden_states=self.lesson.teacher is not None)
        loss = label_loss(self.lesson.task, found.logits, target)
        if self.lesson.teacher is not None:
            with torch.no_grad():
                told = self.lesson.teacher(**inputs, output_hidden_states=True)
            loss = LABELS * loss + (1 - LABELS) * teacher_loss(self.lesson.task, found.logits, told.logits)
            loss = loss + hidden_loss(found.hidden_states[-1], told.hidden_states[-1], inputs["attention_mask"])
        return (loss, found) if return_outputs else loss

    def evaluate(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> dict[str, float]:
        """The dev score. Every process scores all of it, so that all agree on the best epoch."""
        answers = guesses(self.accelerator.unwrap_model(self.model), self.lesson.dev)
        score = self.lesson.task.score(self.lesson.dev.examples, answers)
        metrics = {f"{metric_key_prefix}_score": score, "epoch": self.state.epoch or 0.0}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _get_train_sampler(self, *args: Any) -> Any:
        return ByLength([len(row["input_ids"]) for row in self.lesson.rows], self.args.train_batch_size, self.args.seed)


def arguments_for(
    folder: Path, rows: int, *, epochs: int, rate: float, batch: int, seed: int, cpu: bool, worse: bool = False
) -> Any:
    """The Trainer's settings: AdamW, a tenth of the steps to warm up, then down to zero; a checkpoint every epoch."""
    steps = math.ceil(rows / batch) * epochs
    return transformers.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=epochs,
        learning_rate=rate,
        per_device_train_batch_size=batch,
        warmup_steps=math.ceil(WARM_UP * steps),
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="score",
        greater_is_better=not worse,
        logging_strategy="epoch",
        seed=seed,
        use_cpu=cpu,
        remove_unused_columns=False,
        report_to=[],
        disable_tqdm=True,
    )


class ByLength(torch.utils.data.Sampler[int]):
    """All rows in a new random order every epoch, with rows of similar length beside each other: little is padding.

    The order follows from the seed and the epoch, so a resumed training sees the same one.
    """

    POOL = 50  # batches that are sorted together

    def __init__(self, lengths: list[int], batch: int, seed: int) -> None:
        self.lengths, self.batch, self.seed, self.epoch = lengths, batch, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + 1000 * self.epoch)
        drawn = torch.randperm(len(self.lengths), generator=generator).tolist()
        size = self.POOL * self.batch
        pools = [
            sorted(drawn[first : first + size], key=lambda row: -self.lengths[row])
            for first in range(0, len(drawn), size)
        ]
        batches = [pool[first : first + self.batch] for pool in pools for first in range(0, len(pool), self.batch)]
        whole = [rows for rows in batches if len(rows) == self.batch]
        rest = [rows for rows in batches if len(rows) < self.batch]  # of the last pool: it stays last
        for index in torch.randperm(len(whole), generator=generator).tolist():
            yield from whole[index]
        for rows in rest:
            yield from rows


# Losses ---------------------------------------------------------------------------------------------------------------


def label_loss(task: Task, logits: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy of the classes, or the mean squared difference from the number."""
    if task.kind == "regress":
        return F.mse_loss(logits[:, 0].float(), target)
    return F.cross_entropy(logits.float(), target)


def teacher_loss(task: Task, logits: Tensor, told: Tensor) -> Tensor:
    """How far the answers are from the teacher's: ``T^2 KL(teacher / T, model / T)`` of the classes, or squares.

    >>> from ellp.tasks.glue import TASKS
    >>> answers = torch.tensor([[0.5, 2.0]])
    >>> float(teacher_loss(TASKS["mrpc"], answers, answers))
    0.0
    """
    if task.kind == "regress":
        return F.mse_loss(logits[:, 0].float(), told[:, 0].float())
    own, other = (F.log_softmax(side.float() / TEMPERATURE, dim=-1) for side in (logits, told))
    return TEMPERATURE**2 * F.kl_div(own, other, reduction="batchmean", log_target=True)


def hidden_loss(hidden: Tensor, told: Tensor, mask: Tensor) -> Tensor:
    """The mean squared difference of the last hidden states, relative to the teacher's; zero if widths differ."""
    if hidden.shape != told.shape:
        return hidden.new_zeros(())
    here = mask[:, :, None].to(hidden.dtype)
    return (here * (hidden - told).square()).sum() / (here * told.square()).sum()


def _collated(tokenizer: Any, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    tokens = [{name: values for name, values in row.items() if name != TARGET} for row in rows]
    return padded(tokenizer, tokens) | {TARGET: torch.tensor([row[TARGET] for row in rows])}


class _Told(transformers.TrainerCallback):
    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        scores = [entry["eval_score"] for entry in state.log_history if "eval_score" in entry]
        known = f", dev {scores[-1]:.2f}" if scores else ""
        self.progress(
            f"epoch {math.ceil(state.epoch)} of {args.num_train_epochs:g}{known}", state.global_step, state.max_steps
        )
