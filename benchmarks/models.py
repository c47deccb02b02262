"""What compressing a whole model costs and gives: latency, sentence embeddings, wall time and memory, in one run.

    python benchmarks/models.py [--parts latency,calibration,commands] [--data FILE] [--record benchmarks/models.json]

A record keeps the parts that are not measured again, each with the machine it was measured on. Latencies are ratios of
medians of interleaved repetitions, as in ``core.py``; the model is all-MiniLM-L6-v2. ``--data`` names a file of texts,
one a line; without it, texts are words drawn from the model's own vocabulary by frequency.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from core import seconds
from torch import Tensor, nn

import ellp
from ellp.bundle import open_bundle
from ellp.plans import Plan
from ellp.quiet import quiet
from ellp.selection import select

KEEP = 0.25  # of the embedding's parameters
SHAPES = ((1, 16), (1, 128), (32, 16), (32, 128))  # texts, tokens in each
SPAN = 4.0  # seconds of repetitions per model and shape, about
CALIBRATING = HELD_OUT = 256  # texts
LARGE = (30522, 768)
TELL_PEAK = """
import atexit, sys
from pathlib import Path
status = Path("/proc/self/status")
atexit.register(lambda: sys.stderr.write(status.read_text().split("VmHWM:")[1].split()[0]))
"""
CLI = "from ellp.cli import main; main()"
LIBRARIES = "import ellp, torch, transformers.models.bert.modeling_bert; torch.linalg.eigh(torch.eye(64))"


def share_of_rank(model: nn.Module, layers: str, share: float) -> ellp.Plan:
    """Every chosen layer at this share of its full rank, even where that saves nothing (a square one at a half)."""
    found = [layer for layer in select(model, layers) if layer.skipped is None]
    ranks = [max(1, int(share * min(layer.rows, layer.columns))) for layer in found]
    planned = tuple(replace(layer, rank=rank) for layer, rank in zip(found, ranks, strict=True))
    return Plan(planned, ellp.Options(rank=1, layers=layers))


def compressed(model: nn.Module, **settings: Any) -> nn.Module:
    smaller = copy.deepcopy(model)
    ellp.compress(smaller, **settings)
    return smaller


# Latency --------------------------------------------------------------------------------------------------------------


def ratios(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Seconds of the first call, and of the others over it: medians of interleaved repetitions."""
    for call in calls.values():
        call()
    slowest = max(seconds(call, False) for call in calls.values())
    repeats = int(min(200, max(5, SPAN / slowest)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeats):
        names = list(calls)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            times[name].append(seconds(calls[name], False))
    (dense, base), *others = ((name, statistics.median(values)) for name, values in times.items())
    return {dense: base} | {name: value / base for name, value in others}


@torch.inference_mode()
def latency(model: nn.Module) -> list[dict[str, Any]]:
    """Whole models, and the embedding layer alone, beside the dense ones."""
    variants = {
        "dense": model,
        "embeddings": compressed(model, keep=KEEP),
        "linear": compressed(model, plan=share_of_rank(model, "linear", 0.5)),
        "all": compressed(model, plan=share_of_rank(model, "all", 0.5)),
    }
    generator = torch.Generator().manual_seed(0)
    count, rows = torch.get_num_threads(), []
    for threads in sorted({1, count}):
        torch.set_num_threads(threads)
        for texts, tokens in SHAPES:
            ids = torch.randint(1000, 30000, (texts, tokens), generator=generator)
            print(f"latency: {threads} threads, {texts} x {tokens} ...", file=sys.stderr, flush=True)
            whole = {name: lambda one=one, ids=ids: one(input_ids=ids) for name, one in variants.items()}
            tables = {name: variants[name].get_input_embeddings() for name in ("dense", "embeddings")}
            alone = {name: lambda one=one, ids=ids: one(ids) for name, one in tables.items()}
            facts = {"threads": threads, "texts": texts, "tokens": tokens}
            rows.append(facts | {"model": ratios(whole), "layer": ratios(alone)})
    torch.set_num_threads(count)
    return rows


# Calibration ----------------------------------------------------------------------------------------------------------


def made_texts(tokenizer: Any, count: int) -> list[str]:
    """Words of the vocabulary, in an order by frequency as this one is, drawn with chance 1 / (rank + 20)."""
    words = [
        word
        for word, _ in sorted(tokenizer.get_vocab().items(), key=lambda pair: pair[1])
        if word.isascii() and word.isalpha() and len(word) > 1
    ]
    chance = 1 / (torch.arange(len(words)) + 20.0)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.multinomial(chance, count * 20, replacement=True, generator=generator).view(count, 20)
    lengths = torch.randint(6, 21, (count,), generator=generator)
    return [" ".join(words[index] for index in row[:length]) for row, length in zip(drawn, lengths, strict=True)]


def batches(tokenizer: Any, texts: list[str]) -> list[dict[str, Tensor]]:
    ordered = sorted(texts, key=len)
    parts = [ordered[first : first + 32] for first in range(0, len(ordered), 32)]
    return [dict(tokenizer(part, padding=True, truncation=True, max_length=128, return_tensors="pt")) for part in parts]


@torch.inference_mode()
def embedded(model: nn.Module, texts: list[dict[str, Tensor]]) -> Tensor:
    """Means over the tokens, of length one: what sentence-transformers makes of this model."""
    parts = []
    for batch in texts:
        mask = batch["attention_mask"][..., None]
        parts.append((model(**batch).last_hidden_state * mask).sum(1) / mask.sum(1))
    return nn.functional.normalize(torch.cat(parts), dim=1)


@torch.inference_mode()
def output_errors(dense: nn.Module, smaller: nn.Module, texts: list[dict[str, Tensor]], plan: ellp.Plan) -> list[float]:
    """Per layer, the relative error of its outputs (without bias centring) on the inputs the dense layer gets."""
    lost = {layer.name: torch.zeros(2) for layer in plan.chosen}

    def watch(name: str) -> Any:
        other = smaller.get_submodule(name)

        def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            lost[name] += torch.stack([(other(*inputs) - output).square().sum(), output.square().sum()])

        return hook

    hooks = [dense.get_submodule(name).register_forward_hook(watch(name)) for name in lost]
    for batch in texts:
        dense(**batch)
    for hook in hooks:
        hook.remove()
    return [float((error / size).sqrt()) for error, size in lost.values()]


def calibration(model: nn.Module, folder: Path, data: Path | None) -> dict[str, Any]:
    """Linear layers fitted to their weights and to their outputs, on texts that neither has seen."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    texts = made_texts(tokenizer, CALIBRATING + HELD_OUT) if data is None else data.read_text("utf-8").splitlines()
    order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(0)).tolist()
    texts = [texts[index] for index in order][: CALIBRATING + HELD_OUT]
    seen, held_out = (batches(tokenizer, part) for part in (texts[:CALIBRATING], texts[CALIBRATING:]))
    wanted, rows = embedded(model, held_out), []
    for share in (0.5, 0.25):
        plan = share_of_rank(model, "linear", share)
        for label, given in (("weights", None), ("outputs", seen)):
            print(f"calibration: {label} at {share:g} of the rank ...", file=sys.stderr, flush=True)
            smaller = compressed(model, plan=plan, calibrate=given)
            errors = output_errors(model, smaller, held_out, plan)
            cosine = (embedded(smaller, held_out) * wanted).sum(1)
            facts = {"share_of_rank": share, "fitted_to": label, "output_error": statistics.mean(errors)}
            rows.append(facts | {"cosine": float(cosine.mean()), "cosine_worst_5": float(cosine.quantile(0.05))})
    return {"texts": "made" if data is None else data.stem, "rows": rows}


# The command ----------------------------------------------------------------------------------------------------------


def ran(code: str, *arguments: str) -> dict[str, float]:
    """Wall time of a Python program and the most memory it held."""
    answers: list[str] = []

    def call() -> None:
        command = [sys.executable, "-c", TELL_PEAK + code, *arguments]
        answers.append(subprocess.run(command, check=True, capture_output=True, text=True).stderr)

    return {"seconds": seconds(call, False), "peak": int(answers[0].splitlines()[-1]) * 1024}


def large_folder(folder: Path) -> None:
    """A model of BERT's size and random weights."""
    count, width = LARGE
    config = transformers.BertConfig(vocab_size=count, hidden_size=width)
    with quiet():
        transformers.BertModel(config).save_pretrained(folder)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{number}" for number in range(count - 5))]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")


def command_cost(source: str) -> dict[str, Any]:
    """``ellp compress`` as a user runs it; memory beyond the libraries' own, and what of it is not the model."""
    parameters = [tensor.numel() * tensor.element_size() for tensor in open_bundle(source).model.parameters()]
    with tempfile.TemporaryDirectory() as place:
        cost = ran(CLI, "compress", source, "--keep", str(KEEP), "-o", f"{place}/out", "--json")
    libraries = ran(LIBRARIES)["peak"]
    beyond = cost["peak"] - libraries - sum(parameters)
    facts = {"libraries": libraries, "model": sum(parameters), "largest": max(parameters)}
    return cost | facts | {"beyond_model_over_largest": beyond / max(parameters)}


def commands() -> list[dict[str, Any]]:
    print("ellp compress ...", file=sys.stderr, flush=True)
    rows = [{"source": "demo"} | command_cost("demo")]
    with tempfile.TemporaryDirectory() as place:
        large_folder(Path(place) / "large")
        rows.append({"source": "x".join(map(str, LARGE))} | command_cost(f"{place}/large"))
    return rows


# Output ---------------------------------------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """Where a part was measured, and how busy it was there."""
    return {
        "device": platform.machine(),
        "threads": torch.get_num_threads(),
        "load_before": round(os.getloadavg()[0], 2),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def markdown(record: dict[str, Any]) -> str:
    """The record as the tables shown in the docs."""
    shown = {"latency": latency_table, "calibration": calibration_table, "commands": command_table}
    return "\n\n".join(shown[name](part["rows"]) for name, part in record.items())


def latency_table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| threads | texts x tokens | dense, ms | embeddings | linear | all | embedding layer alone, ms | factored |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        whole, alone = row["model"], row["layer"]
        lines.append(
            f"| {row['threads']} | {row['texts']} x {row['tokens']} | {whole['dense'] * 1e3:.1f} "
            f"| {whole['embeddings']:.3f} | {whole['linear']:.3f} | {whole['all']:.3f} "
            f"| {alone['dense'] * 1e3:.3f} | {alone['embeddings']:.1f} |"
        )
    return "\n".join(lines)


def calibration_table(parts: list[dict[str, Any]]) -> str:
    lines = [
        "| texts | rank | fitted to | relative error of outputs | cosine, mean | worst 5 % |",
        "|---|---|---|---|---|---|",
    ]
    for part in parts:
        lines += [
            f"| {part['texts']} | {row['share_of_rank']:g} of full | {row['fitted_to']} | {row['output_error']:.3f} "
            f"| {row['cosine']:.4f} | {row['cosine_worst_5']:.4f} |"
            for row in part["rows"]
        ]
    return "\n".join(lines)


def command_table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| `ellp compress` | s | peak, MB | libraries | model | largest layer | the rest, in largest layers |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        sizes = " | ".join(f"{row[key] / 1e6:.0f}" for key in ("peak", "libraries", "model", "largest"))
        lines.append(f"| {row['source']} | {row['seconds']:.1f} | {sizes} | {row['beyond_model_over_largest']:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default="commands,latency,calibration")
    parser.add_argument("--data", type=Path, help="texts, one a line")
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    bundle = open_bundle("demo")
    assert bundle.folder is not None
    folder = bundle.folder
    texts = dict.fromkeys((None, options.data))
    parts: dict[str, Callable[[], list[Any]]] = {
        "commands": commands,
        "latency": lambda: latency(bundle.model),
        "calibration": lambda: [calibration(bundle.model, folder, data) for data in texts],
    }
    record = json.loads(options.record.read_text()) if options.record and options.record.exists() else {}
    for name in options.parts.split(","):
        record[name] = machine() | {"rows": parts[name]()}
        if options.record:
            options.record.write_text(json.dumps(record, indent=1) + "\n")
    print(markdown(record))


if __name__ == "__main__":
    main()
