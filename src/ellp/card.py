"""The README.md of a compressed model, from the record of its compression: a pure function."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ellp.errors import InputError
from ellp.markdown import cell, code, fenced, table, text, visible, yaml_text
from ellp.show import size

Record = Mapping[str, Any]

NEEDED = (
    *("source", "name", "architecture", "auto_class", "sentence_transformers"),
    *("keep", "p", "method", "layers", "dtype", "command", "versions"),
    *("parameters_before", "parameters_after", "bytes_before", "bytes_after"),
)
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
CARRIED = ("license", "license_name", "license_link", "language", "pipeline_tag")  # from the original's front matter
LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]*")
ELLIPSOIDS = {
    "lewis": "the Lewis ellipsoid, with its distortion proved",
    "loewner": "the ellipsoid method, with its distortion proved",
    "sketch": "a randomized sketch, with its distortion proved afterwards",
    "svd": "the singular value decomposition",
}
CITATION = """\
@article{tukan2020compressed,
  title   = {Compressed Deep Networks: Goodbye SVD, Hello Robust Low-Rank Approximation},
  author  = {Tukan, Murad and Maalouf, Alaa and Weksler, Matan and Feldman, Dan},
  journal = {arXiv preprint arXiv:2009.05647},
  year    = {2020}
}"""


def model_card(record: Record) -> str:
    """The model card of a compressed model, in Markdown with YAML front matter for the Hugging Face hub.

    ``record`` tells what was done: see ``NEEDED`` for the keys it must have. It may have ``base_model``, ``preset``,
    ``calibrated``, what is ``CARRIED`` over from the original's card, and ``measurements`` (a list of mappings, each a
    line of a table); without the last the card says that no task accuracy was measured. Every value is escaped,
    whatever it contains.
    """
    missing = [key for key in NEEDED if key not in record]
    if missing:
        raise InputError(f"need the record of a compression, got one without {', '.join(missing)}: add what is missing")
    if not str(record["auto_class"]).isidentifier():
        raise InputError(f"need the name of an auto class, got {record['auto_class']!r}: pass 'AutoModel' or its like")
    parts = (
        _front_matter(record),
        f"# {text(record['name'])}",
        _what(record),
        _sizes(record),
        _layers(record),
        _accuracy(record),
        _loading(record),
        _without(),
        _limits(),
        _recipe(record),
        f"## Citation\n\nThe method builds on this paper:\n\n{fenced(CITATION, 'bibtex')}",
    )
    return "\n\n".join(parts) + "\n"


# The parts ------------------------------------------------------------------------------------------------------------


def _front_matter(record: Record) -> str:
    tags = ["ellp", "low-rank"] + ["sentence-transformers"] * bool(record["sentence_transformers"])
    lines = ["library_name: transformers", "tags:", *(f"- {tag}" for tag in tags)]
    base = record.get("base_model")
    if base is not None and HUB_NAME.fullmatch(str(base)):  # the hub refuses a card whose base model is a path
        lines.append(f"base_model: {yaml_text(base)}")
    licence = record.get("license")
    if licence is not None and not LICENSE.fullmatch(str(licence)):
        raise InputError(f"need a license by the hub's identifier, got {licence!r}: pass one like 'apache-2.0'")
    for key in CARRIED:
        given = record.get(key)
        if isinstance(given, list):
            lines += [f"{key}:", *(f"- {yaml_text(one)}" for one in given)]
        elif given is not None:
            lines.append(f"{key}: {yaml_text(given)}")
    return "\n".join(["---", *lines, "---"])


def _what(record: Record) -> str:
    base = record.get("base_model")
    origin = code(record["source"]) + (f" ({code(base)})" if base not in (None, record["source"]) else "")
    factored = [layer for layer in record["layers"] if layer.get("rank") is not None]
    coded = [layer for layer in record["layers"] if layer.get("coded")]
    p, method = _p(record["p"]), str(record["method"])
    how = ELLIPSOIDS.get(method, code(method))
    what = (
        f"A smaller version of {origin}, a {code(record['architecture'])}, made with "
        f"[ellp](https://pypi.org/project/ellp/): {_count(len(factored), 'weight matrix', 'weight matrices')} of "
        f"{len(record['layers'])} considered "
        f"{'was' if len(factored) == 1 else 'were'} replaced by two thin ones each (n x d by n x k and k x d). The k "
        f"directions kept are the main axes of an ellipsoid that rounds the l_p norm of the matrix's rows, p = {p:g}; "
        f"it comes from {how}."
    )
    lines = [what] if factored else []
    if coded:
        stored = f"{_count(len(coded), 'token table is', 'token tables are')} stored as codes"
        lines.append(
            f"{'' if lines else f'A smaller version of {origin}, made with [ellp](https://pypi.org/project/ellp/). '}"
            f"{stored}: rows are sums of codebook entries on an ellipsoid's axes, rows that matter more are longer, "
            "and a batch decodes only its own rows."
        )
    if record["keep"] is not None:
        lines.append(f"The share of a matrix's parameters to keep was set to {float(record['keep']):.4g}.")
    if record.get("preset") is not None:
        lines.append(f"Preset: {code(record['preset'])}.")
    lines += _weighing(record.get("weighing") or {})
    calibrated = record.get("calibrated")
    lines.append("No calibration data was used." if calibrated is None else f"Calibrated with: {text(calibrated)}.")
    return "\n\n".join(lines)


def _weighing(facts: Record) -> list[str]:
    """What the rows and directions of the token table weighed."""
    if not facts.get("asked") and not facts.get("reason"):
        return []
    reason = f" ({text(facts['reason'])})" if facts.get("reason") else ""
    lines = [f"Importance of the token table's rows: {code(facts['importance'])}{reason}."]
    found, missing = facts.get("sensitivity"), facts.get("sensitivity_missing")
    if found:
        lines.append(
            "Directions of a row's error count by how much the dense model's output reacts to them: "
            f"{found['gradients']:,} gradients of random projections of it, on texts {text(found['texts'])}."
        )
    elif missing:
        lines.append(f"What the output reacts to was not measured: {text(missing)}.")
    return lines


def _sizes(record: Record) -> str:
    rows = [
        (
            "parameters",
            *(f"{record[f'parameters_{when}']:,}" for when in ("before", "after")),
            _left(record, "parameters"),
        ),
        ("bytes on disk", *(size(record[f"bytes_{when}"]) for when in ("before", "after")), _left(record, "bytes")),
    ]
    note = f"Weights are stored as {code(record['dtype'])}."
    return f"## Size\n\n{table(('', 'before', 'after', 'left'), rows, right=3)}\n\n{note}"


def _left(record: Record, what: str) -> str:
    before, after = record[f"{what}_before"], record[f"{what}_after"]
    return f"{after / before:.1%}" if before else "-"


def _layers(record: Record) -> str:
    layers = record["layers"]
    against = any(layer.get("svd_error") is not None for layer in layers)
    heads = ["layer", "kind", "shape", "rank", "parameters", "proved distortion", "error"]
    rows = [_layer(layer, against) for layer in layers]
    p = _p(record["p"])
    note = (
        f"Error: {_cost(p)}, weighted by the importances if the recipe sets any, measured on the factors. Proved "
        "distortion: how far the ellipsoid is from the unit ball it rounds, at most; its ideal is d^|1 - p/2| for d "
        "columns (or rows, where these are fewer). Neither is a task's accuracy."
    )
    notes = [note]
    if any(layer.get("coded") for layer in layers):
        notes.append(
            "The error of a code is its weighted squared error in the metric, over that of one mean row for all; its "
            "parameters are its bytes, two for each as in float16."
        )
    if against:
        heads.append("against the SVD")
        notes.append("Against the SVD: this error over that of the SVD at the same rank; below 0 % is better.")
    reasons = [f"- {code(layer['name'])}: {text(layer['skipped'])}" for layer in layers if layer.get("skipped")]
    kept = ["Kept as they were:\n\n" + "\n".join(reasons)] if reasons else []
    return "\n\n".join(["## Layers", table(heads, rows, right=len(heads) - 3), *notes, *kept])


def _cost(p: float) -> str:
    named = {0.0: "the number of entries that differ", 1.0: "the sum of all entries' absolute differences"}
    if math.isinf(p):
        return "the largest absolute difference of an entry"
    return named.get(p, f"the sum of all entries' absolute differences to the power {p:g}")


def _layer(layer: Record, against: bool) -> list[str]:
    tied = "".join(f", {cell(name)}" for name in layer.get("tied") or ())
    before, after, coded = layer["parameters_before"], layer["parameters_after"], layer.get("coded")
    cells = [
        cell(layer["name"]) + (f" (shared with {tied[2:]})" if tied else ""),
        cell(layer["kind"]),
        f"{layer['rows']} x {layer['columns']}",
        _how(layer),
        f"{before:,} → {after:,}",
        _number(layer.get("distortion")),
        f"{coded['error']:.2%}" if coded else _number(layer.get("error")),
    ]
    return cells + [_against(layer.get("error"), layer.get("svd_error"))] * against


def _how(layer: Record) -> str:
    """The rank of a layer, the bytes of its code, or that it is dense."""
    coded = layer.get("coded")
    if coded:
        return f"coded in {coded['bytes']:,} bytes ({coded['chosen']['coder']})"
    return "dense" if layer.get("rank") is None else str(layer["rank"])


def _against(error: Any, baseline: Any) -> str:
    if error is None or baseline is None:
        return "-"
    if float(baseline) == 0:
        return "both exact" if float(error) == 0 else "the SVD is exact"
    return f"{float(error) / float(baseline) - 1:+.2%}"


def _accuracy(record: Record) -> str:
    measured: Sequence[Record] = record.get("measurements") or ()
    if not measured:
        return (
            "## Accuracy\n\n**No task accuracy was measured for this model.** The errors above are errors of weights. "
            "Measure the model on your own task before you use it."
        )
    heads = list(dict.fromkeys(key for line in measured for key in line))
    rows = [[_value(line.get(head)) for head in heads] for line in measured]
    numbers = [all(isinstance(line.get(head), (int, float, type(None))) for line in measured) for head in heads]
    shown = table([text(head) for head in heads], rows, aligned=["---:" if number else "---" for number in numbers])
    return f"## Accuracy\n\nWhat was measured, and nothing else:\n\n{shown}"


def _loading(record: Record) -> str:
    name, auto = visible(record["name"]), record["auto_class"]
    install = "pip install ellp transformers"
    python = (
        "import ellp  # lets transformers read factorized layers: needed before loading\n"
        f"from transformers import {', '.join(sorted({auto, 'AutoTokenizer'}))}\n\n"
        f"name = {_quoted(name)}  # or the folder that holds this file\n"
        "tokenizer = AutoTokenizer.from_pretrained(name)\n"
        f"model = {auto}.from_pretrained(name)"
    )
    parts = ["## Use", fenced(install, "console"), fenced(python, "python")]
    if record["sentence_transformers"]:
        sentences = (
            "import ellp  # needed before loading\n"
            "from sentence_transformers import SentenceTransformer\n\n"
            f"model = SentenceTransformer({_quoted(name)})\n"
            'vectors = model.encode(["A sentence.", "Another one."])'
        )
        install = "Or with sentence-transformers (`pip install ellp sentence-transformers`):"
        parts += [install, fenced(sentences, "python")]
    return "\n\n".join(parts)


def _without() -> str:
    return (
        "## Without the package\n\n"
        "Without `import ellp` loading stops with an error about the shapes of the factorized layers: their tall "
        "factor is stored under the layer's usual name, with k columns in place of d. **Do not pass "
        "`ignore_mismatched_sizes=True` to get past it:** the layers would be filled with random numbers, and the "
        "model would run and answer nonsense."
    )


def _limits() -> str:
    return (
        "## Limits\n\n"
        "PEFT adapters train on factorized layers, but `merge_and_unload()` raises an error for an adapter on one: the "
        "sum of a factorized matrix and an update is not of the stored form. Keep such an adapter unmerged, or put it "
        "on dense layers only."
    )


def _recipe(record: Record) -> str:
    versions = [f"- {code(package)} {text(version)}" for package, version in record["versions"].items()]
    return "\n\n".join(["## Recipe", fenced(str(record["command"]), "console"), "Versions:", "\n".join(versions)])


# Numbers --------------------------------------------------------------------------------------------------------------


def _p(value: Any) -> float:
    return float(value)  # JSON holds an infinite p as a string


def _number(value: Any) -> str:
    return "-" if value is None else f"{float(value):.4g}"


def _value(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else text(value)


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _quoted(shown: str) -> str:
    """A Python string literal, in double quotes."""
    return '"' + shown.replace("\\", "\\\\").replace('"', '\\"') + '"'
