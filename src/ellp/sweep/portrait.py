"""What the record says about a model besides its scores: its layers, their axes, their longest rows by token."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from ellp.bundle.model import Bundle
from ellp.plans import LayerPlan
from ellp.record import parameters
from ellp.rows import read_rows
from ellp.rowstats import row_lengths
from ellp.sweep.problem import Problem
from ellp.texts import tokenizer_of

POINTS = 200  # of a spectrum: more than a figure can show


def portrait(bundle: Bundle, layers: Iterable[LayerPlan]) -> dict[str, Any]:
    """The sizes of a model and of its layers, and each layer's longest rows."""
    model: Any = bundle.model
    count = parameters(model)
    return {
        "name": bundle.name,
        "architecture": type(model).__name__,
        "parameters": count,
        "bytes_fp16": 2 * count,
        "layers": [_layer(bundle, layer) for layer in layers],
    }


def _layer(bundle: Bundle, layer: LayerPlan) -> dict[str, Any]:
    model: Any = bundle.model
    weight: Tensor = model.get_submodule(layer.name).weight.detach()
    words = None
    if model.get_input_embeddings() is model.get_submodule(layer.name):
        tokenizer = tokenizer_of(bundle)
        words = tokenizer.convert_ids_to_tokens(range(min(len(tokenizer), layer.rows)))
    rows = read_rows(weight, None, None).precise()
    return {
        "name": layer.name,
        "rows": layer.rows,
        "columns": layer.columns,
        "parameters": layer.before,
        "bytes_fp16": 2 * layer.before,
        "outliers": [
            {"row": row.index, "token": row.token, "length": row.length, "times_median": row.ratio}
            for row in row_lengths(rows.lengths(), rows.scale, words).longest
        ],
    }


def spectra(problem: Callable[[float], Problem], norms: Iterable[float]) -> dict[str, Any]:
    """Axis values of the ellipsoids of several norms at up to 200 ranks, the first and the last among them."""
    found: dict[str, Any] = {}
    for p in norms:
        try:
            sigma = problem(p).ellipsoid.sigma
        except Exception:  # the cells that need it tell why
            continue
        step = max(1, -(-len(sigma) // POINTS))
        ranks = sorted({*range(1, len(sigma) + 1, step), len(sigma)})[-POINTS:]
        found["ranks"] = ranks
        found[f"{p:g}"] = [float(sigma[rank - 1]) for rank in ranks]
    return found
