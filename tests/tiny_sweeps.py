"""Tiny classifiers with their tokenizers and labelled texts, so that a sweep takes a second."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

from ellp.quiet import quiet

WORDS = [f"{start}{end}" for start in ("ba", "do", "ki", "lu", "me", "po", "ra", "su") for end in "bcdfghjklmnprstvwz"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ELLP = [sys.executable, "-c", "from ellp.cli import main; main()"]


def write_models(folder: Path, tasks: tuple[str, ...] = ("mrpc", "stsb")) -> Path:
    """A model folder a task, with weights large enough that texts get different answers."""
    for number, task in enumerate(tasks):
        write_model(folder / task, 1 if task == "stsb" else 2, number)
    return folder


def write_model(folder: Path, labels: int, seed: int = 0) -> Path:
    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=len(SPECIAL) + len(WORDS),
        hidden_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=96,
        max_position_embeddings=40,
        num_labels=labels,
    )
    model = transformers.BertForSequenceClassification(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=0.3)
    folder.mkdir(parents=True)
    with quiet():
        model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *WORDS]) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    return folder


def write_data(folder: Path, tasks: tuple[str, ...] = ("mrpc", "stsb"), count: int = 24) -> Path:
    """Texts of random words, the same ones every time."""
    draw = random.Random(0)
    for task in tasks:
        (folder / task).mkdir(parents=True)
        pair = task in ("mrpc", "stsb")
        for split in ("train", "dev"):
            lines = ["\t".join(["sentence1", *["sentence2"] * pair, "label"])]
            for _ in range(count):
                texts = [" ".join(draw.choices(WORDS, k=draw.randint(3, 9))) for _ in range(1 + pair)]
                label = f"{draw.uniform(0, 5):.2f}" if task == "stsb" else str(draw.randint(0, 1))
                lines.append("\t".join([*texts, label]))
            (folder / task / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def without_times(cells: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Cells in the order of their ids, without what differs from run to run."""
    return [{name: value for name, value in cells[key].items() if name != "seconds"} for key in sorted(cells)]


def start(*arguments: str) -> subprocess.Popen[bytes]:
    """The command in a process of its own, on one thread like the tests: sums depend on how many there are."""
    alone = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*ELLP, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=alone)
