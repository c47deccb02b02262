"""A text as stretches of tokens, some of them to be predicted, and what a language model loses on each stretch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ellp.errors import InputError
from ellp.quiet import quiet
from ellp.tasks.data import Examples

MASKED_SHARE = 0.15  # of a stretch's tokens, as in BERT's training
IGNORED = -100

Row = dict[str, list[int]]


def chunks(model: Any, tokenizer: Any, examples: Examples, longest: int, seed: int) -> tuple[Examples, list[Row]]:
    """Stretches of a text that follow one another, each as (text,) with its count of predicted tokens as label.

    A masked model predicts 15 % of a stretch's tokens, drawn with ``seed`` and all replaced by the mask token; a causal
    one predicts every token from those before it in the stretch.
    """
    masked = type(model).__name__.endswith("ForMaskedLM")
    if masked and tokenizer.mask_token_id is None:
        raise InputError("need a tokenizer with a mask token for a masked model, got none: put its own beside it")
    with quiet():
        ids = [tokenizer("\n".join(text), add_special_tokens=False)["input_ids"] for text in examples.texts]
        start, end = _frame(tokenizer) if masked else (_opening(tokenizer), [])
    room = longest - len(start) - len(end)
    generator = np.random.default_rng(seed)
    parts = [text[first : first + room] for text in ids for first in range(0, len(text), room)]
    rows = (
        [_masked(tokenizer, [*start, *part, *end], len(start), len(part), generator) for part in parts]
        if masked
        else [_causal([*start, *part]) for part in parts]
    )
    kept = [(part, row) for part, row in zip(parts, rows, strict=True) if _predicted(row)]
    if not kept:
        raise InputError("need a text of at least two tokens, got less: pass a longer text")
    texts: list[tuple[str, ...]] = [(tokenizer.decode(part),) for part, _ in kept]
    counts = np.array([float(_predicted(row)) for _, row in kept])
    return Examples(texts, counts), [row for _, row in kept]


def losses(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """The summed negative log-likelihood of each stretch's predicted tokens; ``labels`` stand where they are said."""
    labels = batch["labels"]
    logits = model(**{name: part for name, part in batch.items() if name != "labels"}).logits
    asked = labels != IGNORED
    found = torch.zeros(labels.shape, dtype=torch.float32, device=labels.device)
    found[asked] = F.cross_entropy(logits[asked].float(), labels[asked], reduction="none")
    return found.sum(1)


def _predicted(row: Row) -> int:
    return sum(label != IGNORED for label in row["labels"])


def _frame(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The special tokens that the tokenizer puts before and after a text."""
    inner = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    place = next(at for at in range(len(whole)) if whole[at : at + len(inner)] == inner)
    return whole[:place], whole[place + len(inner) :]


def _opening(tokenizer: Any) -> list[int]:
    return [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]


def _masked(tokenizer: Any, whole: list[int], start: int, length: int, generator: Any) -> Row:
    labels = [IGNORED] * len(whole)
    for place in start + generator.permutation(length)[: max(1, round(MASKED_SHARE * length))]:
        labels[place], whole[place] = whole[place], tokenizer.mask_token_id
    return {"input_ids": whole, "attention_mask": [1] * len(whole), "labels": labels}


def _causal(whole: list[int]) -> Row:
    return {"input_ids": whole, "attention_mask": [1] * len(whole), "labels": [*whole[1:], IGNORED]}
