"""Token tables as codes: what they cost in accuracy, how long coding and reading take, and the k-means behind them.

    python benchmarks/bytes.py [--parts accuracy,coding,reading,loading,kmeans] [--record benchmarks/bytes.json]

*accuracy* is read from the committed records of sweeps (``records/``), which docs/benchmarks.md says how to make again;
the other parts are measured now. A record keeps the parts that are not measured again, and those that are not asked for
are shown from it.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from models import machine
from tables import minilm
from torch import Tensor

import ellp
from ellp.bundle import open_bundle
from ellp.code.basis import basis
from ellp.code.checking import digest
from ellp.code.prefixes import levels_up_to, map_rows
from ellp.code.staged import cluster, nearest
from ellp.coded import install_code, layout_of
from ellp.plans import CodeFacts, LayerPlan, Plan
from ellp.record import bytes_in_memory

HERE = Path(__file__).parent
ADAPTERS = ("cola", "mrpc", "sst2", "stsb")
SHARES = {0.125: "1/8", 0.0625: "1/16", 0.03125: "1/32"}
BYTES = {  # drops aimed at: STS-B zero-shot without data, with text; the four adapters' mean without data, with text
    0.125: (0.1, 0.05, 0.4, 0.1),
    0.0625: (0.3, 0.2, 1.2, 0.4),
    0.03125: (1.5, 1.0, 4.0, 1.5),
}
PARAMETERS = {0.72: 0.2, 0.25: 1.2, 0.1: 4.0}  # share kept: mean drop of the adapters aimed at, with text
CODED = ((30522, 384, 30.0), (30522, 768, 90.0), (262144, 640, 600.0))  # and seconds aimed at
PEAK = """
import sys
from pathlib import Path
def peak(): return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024
"""


# Accuracy -------------------------------------------------------------------------------------------------------------


def drops(record: str) -> dict[tuple[Any, ...], dict[str, dict[str, Any]]]:
    """Cells of a sweep by method, importance and budget, then by model."""
    found: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for line in (HERE / "records" / record / "cells.jsonl").read_text().splitlines():
        cell = json.loads(line)
        if "error" not in cell:
            key = (cell["method"], cell["importance"], cell["bytes_asked"] or cell["keep"])
            found.setdefault(key, {})[cell["model"]] = cell
    return found


def accuracy() -> list[dict[str, Any]]:
    """The drops aimed at beside those measured; the adapters' mean with its standard error from their intervals."""
    adapters, sentences = drops("minilm-sweep"), drops("sts-sweep")
    rows = []
    for share, (sts, sts_text, mean, mean_text) in BYTES.items():
        for importance, aims in (("auto", (sts, mean)), ("task-text", (sts_text, mean_text))):
            key = ("coded", importance, share)
            rows.append(
                {"method": "coded", "share": share, "importance": importance} | _row(adapters, sentences, key, aims)
            )
    for keep, aim in PARAMETERS.items():
        key = ("tapered", "task-text", keep)
        rows.append(
            {"method": "tapered", "keep": keep, "importance": "task-text"} | _row(adapters, sentences, key, (None, aim))
        )
    return rows


def _row(adapters: Any, sentences: Any, key: tuple[Any, ...], aims: tuple[float | None, float]) -> dict[str, Any]:
    """What the records have of a setting; None where something of it is not measured."""
    sts, own = sentences.get(key, {}).get("sts"), adapters.get(key, {})
    cells = [own[name] for name in ADAPTERS if name in own]
    found: dict[str, Any] = {"sts_aim": aims[0], "mean_aim": aims[1], "sts": sts and sts["drop"]}
    found |= {"sts_low": sts and sts["drop_low"], "sts_high": sts and sts["drop_high"], "mean": None}
    found["drops"] = {name: own[name]["drop"] if name in own else None for name in ADAPTERS}
    if len(cells) == len(ADAPTERS):
        found["mean"] = sum(cell["drop"] for cell in cells) / len(cells)
        errors = [((cell["drop_high"] - cell["drop_low"]) / 3.92) ** 2 for cell in cells]
        found["mean_error"] = sum(errors) ** 0.5 / len(cells)
    return found


def accuracy_table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| table | weights from | STS, aim | drop (95 %) | adapters, aim | drop ± s.e. | CoLA | MRPC | SST-2 | STS-B |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        coded = row["method"] == "coded"
        table = f"{SHARES[row['share']]} of float16" if coded else f"{row['keep']:.0%} of the parameters, tapered"
        each = " | ".join(_signed(drop) for drop in row["drops"].values())
        sts = _signed(row["sts"])
        if row["sts"] is not None:
            sts += f" ({row['sts_low']:+.2f} to {row['sts_high']:+.2f})"
        mean = _signed(row["mean"]) + (f" ± {row['mean_error']:.2f}" if row["mean"] is not None else "")
        aim = "-" if row["sts_aim"] is None else f"{row['sts_aim']:g}"
        lines.append(
            f"| {table} | {'no data' if row['importance'] == 'auto' else 'task text'} | {aim} | {sts} "
            f"| {row['mean_aim']:g} | {mean} | {each} |"
        )
    return "\n".join(lines)


def _signed(number: float | None) -> str:
    return "-" if number is None else f"{number:+.2f}"


# Coding ---------------------------------------------------------------------------------------------------------------


def coding() -> list[dict[str, Any]]:
    """Seconds from a table to its code at an eighth of float16, and memory beyond the table, in tables."""
    rows = []
    for count, width, aim in CODED:
        print(f"coding {count} x {width} ...", file=sys.stderr, flush=True)
        program = f"""{PEAK}
sys.path.insert(0, {str(HERE)!r})
import time, json, torch
from tables import heavy_tailed, minilm
from ellp.code.search import code_table
table = minilm() if {width} == 384 else heavy_tailed({count}, {width})
importance = 1 / (torch.arange(len(table)) + 20.0).sqrt()
code_table(table[:3000].clone(), 3000 * {width} // 4)  # warm
before = peak()
start, spent = time.perf_counter(), time.process_time()
coded = code_table(table, table.numel() // 4, importance)
took, spent = time.perf_counter() - start, time.process_time() - spent
facts = {{"seconds": took, "processor": spent, "beyond": (peak() - before) / (4 * table.numel())}}
print(json.dumps(facts | {{"error": coded.error, "coder": coded.chosen.coder}}))
"""
        told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
        rows.append({"rows": count, "columns": width, "aim": aim} | json.loads(told.splitlines()[-1]))
    return rows


def coding_table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| table | seconds | of a processor | aim | peak memory, with the table, in tables | coder | error |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['rows']} x {row['columns']} | {row['seconds']:.1f} | {row['processor']:.1f} | {row['aim']:g} "
        f"| {1 + row['beyond']:.2f} | {row['coder']} | {row['error']:.2%} |"
        for row in rows
    ]
    return "\n".join(lines)


# Reading --------------------------------------------------------------------------------------------------------------


def coded_models(model: Any) -> dict[str, Any]:
    """The model with its table coded, word frequencies as importances."""
    from ellp.importance import token_importance
    from ellp.texts import tokenizer_of

    importance = token_importance("words^0.5", tokenizer_of(open_bundle("demo")), 30522)
    made = {}
    for share, name in SHARES.items():
        made[name] = copy.deepcopy(model)
        ellp.compress(made[name], bytes=share, importance=importance, coder="codebook")
    return made


def processor(call: Callable[[], Any], repeats: int) -> float:
    """Milliseconds of a processor that a call takes: the least of five means, as others may be at work."""
    call()
    means = []
    for _ in range(5):
        start = time.process_time()
        for _ in range(repeats):
            call()
        means.append((time.process_time() - start) / repeats)
    return 1e3 * min(means)


@torch.inference_mode()
def reading() -> list[dict[str, Any]]:
    """What looking rows up in a code adds to the whole dense model's forward pass, on one thread; for tokens drawn by
    frequency, as in running text, and evenly, where hardly any comes twice."""
    dense = open_bundle("demo").model.eval()
    tables = {name: model.get_input_embeddings() for name, model in coded_models(dense).items()}
    counts = 1 / (torch.arange(1000, 30000) + 1.0 - 999)
    generator, rows, most = torch.Generator().manual_seed(0), [], torch.get_num_threads()
    torch.set_num_threads(1)
    for texts, tokens, repeats in ((1, 16, 20), (32, 128, 1)):
        for drawn, chances in (("by frequency", counts), ("evenly", torch.ones_like(counts))):
            ids = 1000 + torch.multinomial(chances, texts * tokens, replacement=True, generator=generator)
            ids = ids.view(texts, tokens)
            print(f"reading: {texts} x {tokens}, {drawn} ...", file=sys.stderr, flush=True)
            whole = processor(lambda ids=ids: dense(input_ids=ids), repeats)
            plain = processor(lambda ids=ids: dense.get_input_embeddings()(ids), 5 * repeats)
            coded = {name: processor(lambda t=table, ids=ids: t(ids), 5 * repeats) for name, table in tables.items()}
            facts = {"texts": texts, "tokens": tokens, "drawn": drawn, "different": int(ids.unique().numel())}
            rows.append(facts | {"model": whole, "lookup": plain, "coded": coded})
    torch.set_num_threads(most)
    return rows


def reading_table(rows: list[dict[str, Any]]) -> str:
    names = list(SHARES.values())
    lines = [
        f"| texts x tokens | tokens drawn | different | dense model, ms | added by {' | '.join(names)} |",
        "|---|---|---|---|" + "---|" * len(names),
    ]
    for row in rows:
        each = " | ".join(f"{(row['coded'][name] - row['lookup']) / row['model']:+.1%}" for name in names)
        lines.append(
            f"| {row['texts']} x {row['tokens']} | {row['drawn']} | {row['different']} | {row['model']:.1f} | {each} |"
        )
    return "\n".join(lines)


def made_code(count: int, width: int) -> dict[str, Tensor]:
    """A code of random bytes, 160 a row in the mean: what loading does is the same as with a real one."""
    draw = torch.Generator().manual_seed(0)
    choice = torch.randint(256, (count,), generator=draw)
    row_map = map_rows(choice, levels_up_to(320))
    places, stages = row_map.total, 320
    return {
        "weight": torch.empty(count, 0),
        "mean": torch.zeros(1, width),
        "code": torch.randint(256, (places,), generator=draw, dtype=torch.uint8),
        "lengths": row_map.lengths,
        "levels": row_map.levels,
        "starts": row_map.starts,
        "axes": torch.stack([torch.randperm(width, generator=draw)[:8] for _ in range(stages)]).to(torch.int16),
        "book": torch.zeros(stages, dtype=torch.uint8),
        "books": torch.randint(-127, 128, (1, 256, 8), generator=draw).to(torch.int8),
        "scale": torch.full((stages,), 1e-3),
        "proj.weight": torch.randint(256, (width, width // 2), generator=draw, dtype=torch.uint8),
        "proj.scale": torch.full((width,), 1e-2),
    }


def loading() -> list[dict[str, Any]]:
    """Memory that reloading a coded table of 262144 x 640 adds at its peak, beside the bytes of the code."""
    import transformers

    count, width = 262144, 640
    config = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    with tempfile.TemporaryDirectory() as folder:
        transformers.BertModel(transformers.BertConfig(vocab_size=50, hidden_size=32, **config)).save_pretrained(
            f"{folder}/small"
        )
        model = transformers.BertModel(transformers.BertConfig(vocab_size=count, hidden_size=width, **config))
        tensors = made_code(count, width)
        facts = CodeFacts("staged", {"bits": 4}, layout_of(tensors), digest(tensors))
        name = "embeddings.word_embeddings"
        install_code(model.get_submodule(name), {}, "staged", tensors, facts.settings)
        planned = LayerPlan(name, "embedding", count, width, size=1, coded=facts)
        options = ellp.Options(bytes=0.125)
        ellp.hf.attach(model, ellp.EllpConfig.of(options), Plan((planned,), options))
        model.save_pretrained(f"{folder}/big")
        held = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        rest = bytes_in_memory(model) - held
        program = f"""{PEAK}
import torch, ellp, transformers
torch.set_num_threads(1)
transformers.AutoModel.from_pretrained({folder + "/small"!r})
Path("/proc/self/clear_refs").write_text("5")
before = peak()
model = transformers.AutoModel.from_pretrained({folder + "/big"!r})
print(peak() - before)
"""
        told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    return [
        {"rows": count, "columns": width, "code": held, "rest": rest, "peak": int(told), "dense": 4 * count * width}
    ]


def loading_table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| table | dense | its code | peak of loading, other layers taken off | over the code |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        peak = row["peak"] - row["rest"]
        lines.append(
            f"| {row['rows']} x {row['columns']} | {row['dense'] / 1e6:.0f} MB | {row['code'] / 1e6:.1f} MB "
            f"| {peak / 1e6:.1f} MB | {peak / row['code']:.2f} |"
        )
    return "\n".join(lines)


# k-means --------------------------------------------------------------------------------------------------------------


def kmeans() -> list[dict[str, Any]]:
    """Weighted k-means of 16,384 vectors of eight leading axes: ours, scikit-learn's and faiss's, ten steps each."""
    table = minilm()
    found = basis(table, 1 / (torch.arange(len(table)) + 20.0).sqrt())
    chosen, weight = found.sample(16384, 0)
    points = found.coordinates(chosen)[:, :8].contiguous()
    makers: dict[str, Callable[[], Tensor]] = {
        "ours (torch)": lambda: cluster(points, weight, torch.Generator().manual_seed(0))
    }
    sklearn = importlib.import_module("sklearn.cluster")
    whole = points.numpy(), weight.numpy()

    def lloyd() -> Tensor:
        made = sklearn.KMeans(256, init="random", n_init=1, max_iter=10, random_state=0).fit(
            whole[0], sample_weight=whole[1]
        )
        return torch.from_numpy(made.cluster_centers_).float()

    makers["scikit-learn"] = lloyd
    try:
        faiss = importlib.import_module("faiss")
    except ImportError:
        print("faiss is not installed: pip install faiss-cpu to compare", file=sys.stderr)
    else:

        def facebook() -> Tensor:
            made = faiss.Kmeans(8, 256, niter=10, seed=1)
            made.train(whole[0], weights=whole[1])
            return torch.from_numpy(made.centroids)

        makers["faiss"] = facebook
    rows = []
    for name, make in makers.items():
        times, centres = [], None
        for _ in range(5):
            start = time.perf_counter()
            centres = make()
            times.append(time.perf_counter() - start)
        lost = (points - centres[nearest(points, centres)]).square().sum(1)
        rows.append(
            {
                "name": name,
                "seconds": sorted(times)[2],
                "error": float((weight * lost).sum() / (weight * points.square().sum(1)).sum()),
            }
        )
    return rows


def kmeans_table(rows: list[dict[str, Any]]) -> str:
    lines = ["| k-means | seconds | weighted error left |", "|---|---|---|"]
    return "\n".join(lines + [f"| {row['name']} | {row['seconds']:.2f} | {row['error']:.4f} |" for row in rows])


PARTS: dict[str, tuple[Callable[[], list[dict[str, Any]]], Callable[[list[dict[str, Any]]], str]]] = {
    "accuracy": (accuracy, accuracy_table),
    "coding": (coding, coding_table),
    "reading": (reading, reading_table),
    "loading": (loading, loading_table),
    "kmeans": (kmeans, kmeans_table),
}


def show(record: dict[str, Any], names: Iterable[str]) -> str:
    return "\n\n".join(PARTS[name][1](record[name]["rows"]) for name in names if name in record)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    record = json.loads(options.record.read_text()) if options.record and options.record.exists() else {}
    for name in options.parts.split(","):
        record[name] = machine() | {"rows": PARTS[name][0]()}
        if options.record:
            options.record.write_text(json.dumps(record, indent=1) + "\n")
    print(show(record, options.parts.split(",")))


if __name__ == "__main__":
    main()
