"""Small models with a real tokenizer, and small tasks that they can learn: is the text about a good or a bad thing?"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tiny_models import VOCABULARY

from ellp.quiet import quiet

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
GOOD = ["good", "fine", "great", "lovely"]
BAD = ["bad", "poor", "awful", "dull"]
WORDS = [*GOOD, *BAD, *(f"word{number}" for number in range(VOCABULARY - len(SPECIAL) - 8))]


def write_tokenizer(folder: Path, words: Sequence[str] = (*SPECIAL, *WORDS), **options: Any) -> Any:
    """A BERT tokenizer of whole words, all of them in the models' vocabulary."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    tokenizer = transformers.BertTokenizerFast(vocab_file=str(folder / "vocab.txt"), model_max_length=40, **options)
    if len(tokenizer) < len(words):  # transformers 5 takes the words themselves
        tokenizer = transformers.BertTokenizerFast(
            vocab={word: index for index, word in enumerate(words)}, model_max_length=40, **options
        )
    tokenizer.save_pretrained(folder)
    return tokenizer


def bert(head: str = "BertForSequenceClassification", **facts: Any) -> Any:
    """A tiny BERT with random weights."""
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = transformers.BertConfig(**sizes, intermediate_size=64, max_position_embeddings=40, **facts)
    return getattr(transformers, head)(config).eval()


def save(model: Any, folder: Path) -> Path:
    with quiet():
        model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def sentences(count: int, seed: int = 0) -> list[tuple[str, int]]:
    """Texts of 3 to 12 words, one of which tells the label."""
    generator = random.Random(seed)
    made = []
    for index in range(count):
        words = generator.choices(WORDS[8:], k=generator.randint(2, 11))
        words.insert(generator.randint(0, len(words)), generator.choice(GOOD if index % 2 else BAD))
        made.append((" ".join(words), index % 2))
    return made


def write_tsv(path: Path, rows: Sequence[Sequence[Any]], columns: Sequence[str] = ("sentence1", "label")) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["\t".join(columns), *("\t".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_tasks(folder: Path, count: int = 60) -> Path:
    """``sst2`` and ``stsb`` with a dev and a train file each."""
    for split, seed in (("dev", 1), ("train", 2)):
        rows = sentences(count, seed)
        write_tsv(folder / "sst2" / f"{split}.tsv", rows)
        pairs = [
            (text, other, 5.0 * (label == wanted))
            for (text, label), (other, wanted) in zip(rows, rows[1:] + rows[:1], strict=True)
        ]
        pairs = [(one, two, value + (len(one) % 7) / 10) for one, two, value in pairs]
        write_tsv(folder / "stsb" / f"{split}.tsv", pairs, ("sentence1", "sentence2", "label"))
    return folder
