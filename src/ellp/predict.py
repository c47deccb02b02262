"""A model's answers to a task's examples: texts become padded batches once, for as many models as are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ellp.bundle.model import Bundle
from ellp.errors import InputError
from ellp.quiet import quiet
from ellp.sentences import Pooling, pooling_of
from ellp.tasks.data import Examples
from ellp.tasks.task import Task
from ellp.texts import tokenizer_of
from ellp.tokens import chunks, losses

LONGEST = 512  # tokens of a text; what is beyond is cut off

Batch = dict[str, Tensor]
Told = Callable[[int, int], None]


@dataclass(frozen=True)
class Prepared:
    """A task's examples as padded batches of similar length, the longest first.

    Any model with the same tokenizer can answer them. ``order`` tells which text each row of the batches is;
    ``rows`` is what a model makes of a batch, ``finish`` turns all rows, in the texts' order, into guesses.
    """

    task: Task
    examples: Examples
    batches: tuple[Batch, ...]
    order: Any
    rows: Callable[[Any, Batch], Tensor]
    finish: Callable[[Any], Any]

    def middle(self) -> Batch:
        """A batch of middling length, to take times with."""
        return self.batches[len(self.batches) // 2]


def prepare(bundle: Bundle, task: Task, examples: Examples, batch: int = 32, seed: int = 0) -> Prepared:
    """Tokenize a task's examples once and pack them; the model is checked to be one that can answer them."""
    if batch < 1:
        raise InputError(f"need a batch of at least 1, got {batch}: 32 is a good size")
    model: Any = bundle.model
    check_head(model, task)
    tokenizer = checked_tokenizer(bundle)
    longest = longest_text(model, tokenizer)
    if task.kind == "similarity":
        return _similarity(bundle, tokenizer, task, examples, batch, longest)
    if task.kind == "language":
        examples, rows = chunks(model, tokenizer, examples, longest, seed)
        size = max(1, min(batch, 2**26 // (longest * int(model.config.vocab_size))))  # the logits stay below 256 MB
        return Prepared(task, examples, *packed(tokenizer, rows, size), losses, lambda found: found)
    rows = encoded(tokenizer, examples.texts, longest)
    if task.kind == "regress":
        return Prepared(task, examples, *packed(tokenizer, rows, batch), _logits, lambda found: found[:, 0])
    columns = class_columns(model.config, task)
    return Prepared(
        task, examples, *packed(tokenizer, rows, batch), _logits, lambda found: found[:, columns].argmax(axis=1)
    )


@torch.inference_mode()
def guesses(model: Any, prepared: Prepared, progress: Told | None = None) -> Any:
    """The model's answers in the examples' order: classes, real numbers, or the summed losses of stretches of text."""
    device = next(model.parameters()).device
    model.eval()
    found, done = [], 0
    for batch in prepared.batches:
        found.append(prepared.rows(model, {name: part.to(device) for name, part in batch.items()}).float().cpu())
        done += len(found[-1])
        if progress is not None:
            progress(done, len(prepared.order))
    rows = torch.cat(found).numpy()
    ordered = np.empty_like(rows)
    ordered[prepared.order] = rows
    return prepared.finish(ordered)


def _logits(model: Any, batch: Batch) -> Tensor:
    logits: Tensor = model(**batch).logits
    return logits


def _similarity(bundle: Bundle, tokenizer: Any, task: Task, examples: Examples, batch: int, longest: int) -> Prepared:
    """Every different sentence is read once; the answer to a pair is the cosine of its two vectors."""
    pooling = pooling_of(bundle.folder)
    places: dict[str, int] = {}
    pairs = np.array([[places.setdefault(text, len(places)) for text in texts] for texts in examples.texts])
    rows = encoded(tokenizer, [(pooling.prompt + text,) for text in places], min(longest, pooling.longest or longest))
    return Prepared(
        task,
        examples,
        *packed(tokenizer, rows, batch),
        lambda model, batch: sentence_vectors(model, batch, pooling),
        lambda vectors: (vectors[pairs[:, 0]] * vectors[pairs[:, 1]]).sum(axis=1),
    )


def sentence_vectors(model: Any, batch: Batch, pooling: Pooling) -> Tensor:
    """One vector of length one per text."""
    return torch.nn.functional.normalize(pooling(model(**batch).last_hidden_state, batch["attention_mask"]), dim=1)


# Tokens ---------------------------------------------------------------------------------------------------------------


def encoded(tokenizer: Any, texts: Sequence[tuple[str, ...]], longest: int) -> list[dict[str, list[int]]]:
    """What the tokenizer makes of each text or pair, without padding."""
    columns = [list(column) for column in zip(*texts, strict=True)]
    with quiet():
        found = tokenizer(*columns, truncation=True, max_length=longest, return_attention_mask=True)
    return [{name: values[index] for name, values in found.items()} for index in range(len(texts))]


def packed(tokenizer: Any, rows: Sequence[dict[str, list[int]]], batch: int) -> tuple[tuple[Batch, ...], Any]:
    """Padded batches of rows of similar length, longest first, and which row each is."""
    order = np.array(sorted(range(len(rows)), key=lambda index: -len(rows[index]["input_ids"])))
    parts = [order[first : first + batch] for first in range(0, len(order), batch)]
    return tuple(padded(tokenizer, [rows[index] for index in part]) for part in parts), order


def padded(tokenizer: Any, rows: Sequence[dict[str, list[int]]]) -> Batch:
    """Rows of one batch, made equally long at the end or, for tokenizers that do so, at the start."""
    fill = {"input_ids": tokenizer.pad_token_id or 0, "token_type_ids": tokenizer.pad_token_type_id, "labels": -100}
    length = max(len(row["input_ids"]) for row in rows)
    batch = {}
    for name in rows[0]:
        whole = np.full((len(rows), length), fill.get(name, 0))
        for line, row in zip(whole, rows, strict=True):
            values = row[name]
            line[length - len(values) if tokenizer.padding_side == "left" else 0 :][: len(values)] = values
        batch[name] = torch.from_numpy(whole)
    return batch


def longest_text(model: Any, tokenizer: Any) -> int:
    """How many tokens the model can place: some count positions from behind the padding token's number."""
    limits = [LONGEST, tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", None)]
    for name, table in model.named_modules():
        if name.endswith("position_embeddings") and getattr(table, "padding_idx", None) is not None:
            limits.append(table.num_embeddings - table.padding_idx - 1)
    return int(min(limit for limit in limits if isinstance(limit, int) and limit > 0))


# Checks ---------------------------------------------------------------------------------------------------------------


def check_head(model: Any, task: Task) -> None:
    """The model answers in the way the task asks."""
    name = type(model).__name__
    classifier = name.endswith("ForSequenceClassification")
    if task.kind == "similarity":
        if classifier or not hasattr(model, "get_input_embeddings") or name.endswith(("LMHeadModel", "LM")):
            raise InputError(f"need a sentence encoder for {task.name}, got {name}: pass the model without a head")
        return
    if task.kind == "language":
        if not name.endswith(("ForMaskedLM", "ForCausalLM", "LMHeadModel")):
            raise InputError(f"need a masked or causal language model for {task.name}, got {name}: pass one")
        return
    if not classifier:
        raise InputError(f"need a sequence classifier for {task.name}, got {name}: pass the model fine-tuned for it")
    wanted, got = len(task.classes) or 1, int(model.config.num_labels)
    if wanted != got:
        kind = "a regression head (1 output)" if wanted == 1 else f"a head with {wanted} classes"
        found = "a regression head (1 output)" if got == 1 else f"one with {got} outputs"
        raise InputError(f"need {kind} for {task.name}, got {found}: pass the model fine-tuned for this task")


def class_columns(config: Any, task: Task) -> list[int]:
    """Which output stands for each class: by name where the model names the same classes, else in GLUE's order."""
    named = {_plain(str(name)): int(index) for index, name in (config.id2label or {}).items()}
    wanted = [_plain(name) for name in task.classes]
    return [named[name] for name in wanted] if set(named) == set(wanted) else list(range(len(wanted)))


def _plain(name: str) -> str:
    return name.lower().replace("_", " ").replace("-", " ").strip()


def checked_tokenizer(bundle: Bundle) -> Any:
    """The tokenizer beside the model, checked to belong to it, with a token to pad with."""
    model: Any = bundle.model
    tokenizer = tokenizer_of(bundle)
    rows = int(model.get_input_embeddings().weight.shape[0])
    remedy = "put the model's own tokenizer beside it"
    if len(tokenizer) > rows:
        raise InputError(
            f"need a tokenizer that belongs to the model ({rows} tokens), got one of {len(tokenizer)}: {remedy}"
        )
    if tokenizer.pad_token is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token
    if getattr(model.config, "pad_token_id", None) is None:
        model.config.pad_token_id = tokenizer.pad_token_id  # decoders find a text's last token by it
    for kind in ("pad", "cls", "sep", "mask"):
        own, other = getattr(model.config, f"{kind}_token_id", None), getattr(tokenizer, f"{kind}_token_id", None)
        if isinstance(own, int) and other is not None and own != other:
            raise InputError(
                f"need a tokenizer that belongs to the model (its {kind} token is number {own}), got one where it is "
                f"{other}: {remedy}"
            )
    return tokenizer
