"""A compressed model and a task in, a recovered model out: everything ``ellp finetune`` does, in order."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from ellp.bundle.beside import copy_side_files
from ellp.bundle.model import Bundle
from ellp.bundle.weights import weight_bytes
from ellp.checkpoints import begin
from ellp.coded import CodedEmbedding
from ellp.errors import InputError
from ellp.folder import check_target, replacing_folder
from ellp.layers import FactorizedConv1D, FactorizedEmbedding, FactorizedLinear
from ellp.opening import open_any
from ellp.predict import Prepared, checked_tokenizer, class_columns, encoded, guesses, longest_text, prepare
from ellp.quiet import quiet
from ellp.recipe import Source
from ellp.recovery import add_gains, with_section
from ellp.tasks.data import Examples
from ellp.tasks.glue import task_named
from ellp.tasks.load import load_task
from ellp.tasks.task import Task

Train = Literal["factors", "all", "lora"]
Progress = Callable[[str, int, int], None]

RATES = {"factors": 1e-3, "all": 5e-5, "lora": 1e-3}
LORA_RANK = 16
REPORT = "finetune.json"


@dataclass(frozen=True)
class Training:
    """How to train. ``rate`` None is the default of what is trained; ``limit`` keeps the first training examples."""

    train: Train = "factors"
    epochs: int = 3
    rate: float | None = None
    batch: int = 32
    seed: int = 0
    patience: int = 2
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.train not in RATES:
            raise InputError(
                f"need factors, all or lora to train, got {self.train!r}: factors are the compressed layers"
            )
        for name in ("epochs", "batch", "patience"):
            if getattr(self, name) < 1:
                raise InputError(f"need at least 1 for {name}, got {getattr(self, name)}: leave it out for the default")
        if self.rate is not None and not 0 < self.rate < 1:
            raise InputError(f"need a learning rate between 0 and 1, got {self.rate}: leave it out for the default")

    @property
    def learning_rate(self) -> float:
        return RATES[self.train] if self.rate is None else self.rate


def finetune(
    source: Source,
    name: str,
    data: Path | None,
    output: Path,
    training: Training | None = None,
    *,
    teacher: Source | None = None,
    cpu: bool = False,
    resume: bool = False,
    force: bool = False,
    command: str = "",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Train a compressed model on a task and write it to ``output``; the record of what came back.

    Checkpoints lie in ``OUTPUT.training`` beside the result until it is complete; ``resume`` goes on from there.
    """
    training = training or Training()
    _check_libraries()
    check_target(output, force=force)
    bundle = open_any(source)
    check_target(output, force=force, source=bundle.folder)
    model: Any = bundle.model
    task = task_named(name, model.config)
    if task.kind not in ("classify", "regress"):
        raise InputError(f"need a task with labels for a classifier, got {name}: train on one of GLUE's or on file")
    dev, train = load_task(task, data), load_task(task, data, training.limit, "train")
    prepared = prepare(bundle, task, dev)
    dense = None if teacher is None else _teacher(teacher, bundle, task)
    request = _request(bundle, dense, task, train, dev, training)
    work = output.with_name(f"{output.name}.training")
    checkpoint = begin(work, request, resume)

    record = _facts(bundle, dense, name, train, dev, training, command)
    told = _Stages(progress)
    record["before"] = _scores(model, prepared, told("before"))
    if dense is not None:
        record["teacher_scores"] = _scores(dense.model, prepared, told("the teacher"))
    start = time.perf_counter()
    learned, log = _trained(bundle, dense, task, train, prepared, training, work, checkpoint, cpu, progress)
    record["seconds"] = time.perf_counter() - start
    record |= log
    record["after"] = _scores(learned, prepared, told("after"))
    add_gains(task, record)
    _write(learned, bundle, output, force, record, work)
    return record


# The parts ------------------------------------------------------------------------------------------------------------


def _check_libraries() -> None:
    for name in ("transformers", "accelerate"):
        if importlib.util.find_spec(name) is None:
            raise InputError(f"need {name} to train, got none: pip install 'ellp[finetune]'")


def _teacher(source: Source, bundle: Bundle, task: Task) -> Bundle:
    dense = open_any(source)
    one, other = checked_tokenizer(bundle), checked_tokenizer(dense)
    if one.get_vocab() != other.get_vocab():
        raise InputError(
            f"need a teacher with the model's own tokenizer, got {dense.source} with another: pass the model that was "
            "compressed"
        )
    prepare(dense, task, Examples([("a", "b") if task.pair else ("a",)], [0.0]))  # its head must fit the task
    return dense


def _scores(model: Any, prepared: Prepared, progress: Any) -> dict[str, float]:
    return prepared.task.scores(prepared.examples, guesses(model, prepared, progress))


class _Stages:
    def __init__(self, progress: Progress | None) -> None:
        self.progress = progress

    def __call__(self, text: str) -> Callable[[int, int], None] | None:
        progress = self.progress
        return None if progress is None else lambda done, total: progress(f"score: {text}", done, total)


def _trained(
    bundle: Bundle,
    dense: Bundle | None,
    task: Task,
    train: Examples,
    dev: Prepared,
    training: Training,
    work: Path,
    checkpoint: Path | None,
    cpu: bool,
    progress: Progress | None,
) -> tuple[Any, dict[str, Any]]:
    """The model with its best epoch's weights, and the course of the training."""
    from ellp.training import Lesson, Recovery, arguments_for

    model = choose(bundle.model, training)
    tokenizer = checked_tokenizer(bundle)
    lesson = Lesson(task, tokenizer, _rows(bundle, tokenizer, task, train), dev, dense.model if dense else None)
    arguments = arguments_for(
        work,
        len(lesson.rows),
        epochs=training.epochs,
        rate=training.learning_rate,
        batch=training.batch,
        seed=training.seed,
        cpu=cpu,
    )
    with quiet():
        trainer = Recovery(model, lesson, arguments, training.patience, progress)
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    history = [entry for entry in trainer.state.log_history if "eval_score" in entry]
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    log = {
        "trained_parameters": trained,
        "steps": trainer.state.global_step,
        "epochs_run": [{"epoch": entry["epoch"], "score": entry["eval_score"]} for entry in history],
        "best_score": trainer.state.best_metric,
        "device": str(trainer.args.device),
        "processes": trainer.args.world_size,
        "resumed": checkpoint is not None,
    }
    learned = model.merge_and_unload() if training.train == "lora" else model
    return learned.to("cpu").eval(), log


def choose(model: Any, training: Training) -> Any:
    """Let only what is to be trained change: the factors (of a code its mean, scales and axes' scales), everything, or
    an adapter on the dense layers.

    >>> import ellp
    >>> model = nn.Sequential(nn.Embedding(1000, 64), nn.Linear(64, 64))
    >>> done = ellp.compress(model, keep=0.25)
    >>> [name for name, tensor in choose(model, Training("factors")).named_parameters() if tensor.requires_grad]
    ['0.weight', '0.proj.weight']
    """
    if training.train == "lora":
        return _adapted(model)
    model.requires_grad_(training.train == "all")
    if training.train == "factors":
        factored = [layer for layer in model.modules() if isinstance(layer, _COMPRESSED)]
        if not factored:
            raise InputError("need a compressed model to train its factors, got a dense one: ellp compress it first")
        for layer in factored:
            layer.requires_grad_(True)
    return model


_COMPRESSED = (FactorizedEmbedding, FactorizedLinear, FactorizedConv1D, CodedEmbedding)


def _adapted(model: Any) -> Any:
    """The model with a LoRA on every dense linear layer of its body, and its head trained whole.

    An adapter on a factorized layer could not be merged into the stored form, so these layers stay as they are.
    """
    try:
        import peft
    except ImportError:
        raise InputError("need peft to train an adapter, got none: pip install 'ellp[hf]'") from None
    body = model.base_model
    head = [name for name, part in model.named_children() if part is not body and any(True for _ in part.parameters())]
    targets = [
        name
        for name, layer in model.named_modules()
        if _is_dense(layer) and not any(name == part or name.startswith(f"{part}.") for part in head)
    ]
    if not targets:
        raise InputError("need dense linear layers for a LoRA, got only factorized ones: use --train factors or all")
    settings = peft.LoraConfig(
        r=LORA_RANK, lora_alpha=2 * LORA_RANK, target_modules=targets, modules_to_save=head or None
    )
    with quiet():
        return peft.get_peft_model(model, settings)


def _is_dense(layer: nn.Module) -> bool:
    transposed = type(layer).__name__ == "Conv1D"
    return (isinstance(layer, nn.Linear) or transposed) and not isinstance(layer, _COMPRESSED)


def _rows(bundle: Bundle, tokenizer: Any, task: Task, train: Examples) -> list[dict[str, Any]]:
    """Tokens and target of every training example; a class is told by the number of the model's own output."""
    model: Any = bundle.model
    rows: list[dict[str, Any]] = [dict(row) for row in encoded(tokenizer, train.texts, longest_text(model, tokenizer))]
    columns = class_columns(model.config, task) if task.kind == "classify" else []
    for row, label in zip(rows, train.labels.tolist(), strict=True):
        row["target"] = columns[int(label)] if columns else float(label)
    return rows


def _request(
    bundle: Bundle, dense: Bundle | None, task: Task, train: Examples, dev: Examples, training: Training
) -> dict[str, Any]:
    """What a checkpoint belongs to: another model, other data or other settings must not go on from it."""
    return {
        "model": _digest(bundle),
        "teacher": None if dense is None else _digest(dense),
        "task": task.name,
        "train": hashlib.sha256(repr((train.texts, train.labels.tolist())).encode()).hexdigest(),
        "dev": hashlib.sha256(repr((dev.texts, dev.labels.tolist())).encode()).hexdigest(),
        **asdict(training),
    }


def _digest(bundle: Bundle) -> str:
    found = hashlib.sha256()
    for name, tensor in sorted(bundle.model.state_dict().items()):
        found.update(name.encode())
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


# The report -----------------------------------------------------------------------------------------------------------


def _facts(
    bundle: Bundle, dense: Bundle | None, name: str, train: Examples, dev: Examples, training: Training, command: str
) -> dict[str, Any]:
    import transformers

    import ellp

    return {
        "source": bundle.source,
        "teacher": None if dense is None else dense.source,
        "task": name,
        "train_examples": len(train),
        "dev_examples": len(dev),
        **asdict(training),
        "rate": training.learning_rate,
        "command": command,
        "threads": torch.get_num_threads(),
        "versions": {"ellp": ellp.__version__, "torch": torch.__version__, "transformers": transformers.__version__},
    }


def _write(model: Any, bundle: Bundle, output: Path, force: bool, record: dict[str, Any], work: Path) -> None:
    if int(os.environ.get("RANK", "0")) != 0:  # one of several processes writes
        return
    with replacing_folder(output, force=force, source=bundle.folder) as draft:
        with quiet():
            model.save_pretrained(draft)
        copy_side_files(bundle, draft)
        record["output"] = str(output)
        record["bytes_after"] = weight_bytes(draft)
        (draft / REPORT).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        card = bundle.folder / "README.md" if bundle.folder else None
        old = card.read_text(encoding="utf-8", errors="replace") if card and card.is_file() else ""
        (draft / "README.md").write_text(with_section(old, record), encoding="utf-8")
    shutil.rmtree(work, ignore_errors=True)
