"""Texts as a model takes them: batches made with the tokenizer that lies beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from ellp.bundle.model import Bundle
from ellp.errors import InputError, first_line
from ellp.quiet import quiet
from ellp.tasks.data import read_task
from ellp.tasks.task import Task

TEXTS_IN_A_BATCH = 16
LONGEST = 256  # tokens of a text


def tokenizer_of(bundle: Bundle) -> Any:
    """The tokenizer that goes with a model: an adapter's own, or its base's."""
    from transformers import AutoTokenizer

    own = bundle.adapter is not None and (bundle.adapter / "tokenizer_config.json").is_file()
    folder = bundle.adapter if own else bundle.folder
    with quiet():
        try:
            return AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # whatever the library meets in damaged files
            raise InputError(
                f"need a tokenizer that transformers can load, got {folder}: {first_line(error)}; restore its files"
            ) from error


def token_names(bundle: Bundle) -> list[str] | None:
    """What each row of the token table stands for; None if the model has no tokenizer that can be read."""
    try:
        tokenizer = tokenizer_of(bundle)
    except InputError:
        return None
    return [str(token) for token in tokenizer.convert_ids_to_tokens(range(len(tokenizer)))]


def read_texts(path: Path) -> list[str]:
    """The non-empty lines of a text file."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"need a UTF-8 text file, got {path} ({error}): one text a line") from None
    lines = [line for line in lines if line]
    if not lines:
        raise InputError(f"need texts to calibrate with, got none in {path}: one text a line")
    return lines


def batches_of(bundle: Bundle, texts: list[str]) -> Iterator[dict[str, Tensor]]:
    tokenizer = tokenizer_of(bundle)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model: Any = bundle.model
    for first in range(0, len(texts), TEXTS_IN_A_BATCH):
        batch = tokenizer(
            texts[first : first + TEXTS_IN_A_BATCH],
            padding=True,
            truncation=True,
            max_length=min(LONGEST, tokenizer.model_max_length),
            return_tensors="pt",
        )
        if model.config.is_encoder_decoder:
            batch["decoder_input_ids"] = batch["input_ids"]
        yield dict(batch)


def labelled_batches(bundle: Bundle, path: Path) -> list[dict[str, Tensor]]:
    """Batches with labels for the model's own head, from a file as ``ellp evaluate`` reads it."""
    import torch

    model: Any = bundle.model
    labels = int(getattr(model.config, "num_labels", 0))
    if not type(model).__name__.endswith("ForSequenceClassification"):
        raise InputError(f"need a sequence classifier for fisher, got {type(model).__name__}: use words or text")
    classes = () if labels == 1 else tuple(str(model.config.id2label[index]) for index in range(labels))
    task = Task("file", "classify" if classes else "regress", (), classes)
    examples = read_task(task, path, split="train")
    tokenizer, batches = tokenizer_of(bundle), []
    for first in range(0, len(examples), TEXTS_IN_A_BATCH):
        columns = zip(*examples.texts[first : first + TEXTS_IN_A_BATCH], strict=True)
        longest = min(LONGEST, tokenizer.model_max_length)
        batch = dict(
            tokenizer(*map(list, columns), padding=True, truncation=True, max_length=longest, return_tensors="pt")
        )
        kind = torch.float32 if labels == 1 else torch.long
        batch["labels"] = torch.tensor(examples.labels[first : first + TEXTS_IN_A_BATCH]).to(kind)
        batches.append(batch)
    return batches
