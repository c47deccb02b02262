"""Factors of one layer of a model: of its weight, or of what it computes on the calibration texts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ellp.activations import Calibration
from ellp.errors import InputError
from ellp.factor.factors import Factors
from ellp.factoring import factorize
from ellp.plans import LayerPlan, Options
from ellp.weights import Weights


def solve(
    model: nn.Module,
    layer: LayerPlan,
    rank: int,
    options: Options,
    calibration: Calibration | None,
    weights: Weights,
) -> tuple[Factors, Tensor | None]:
    """Factors of a layer's weight, or of its centred outputs on the calibration texts, then with their mean."""
    matrix, mean = model.get_submodule(layer.name).weight.detach(), None  # type: ignore[operator]
    if calibration is not None and layer.kind in ("linear", "conv1d"):
        matrix, mean = calibration.outputs(layer.name) or (matrix, None)
    rows, directions = weights.importance.get(layer.name), weights.metric.get(layer.name)
    with naming(layer):
        found = factorize(
            matrix, rank, options.p, rows, directions, options.method, options.tol, options.refine, options.seed
        )
    return found, mean


def through_outputs(dense: nn.Module, kind: str, across: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    """Factors that project a layer's outputs onto the rows of ``across`` (k x out), keeping the mean in the bias."""
    weight, bias = dense.weight.detach(), dense.bias  # type: ignore[operator]
    across = across.to(weight.dtype)
    if isinstance(bias, Tensor):
        with torch.no_grad():
            bias += (mean - (mean @ across.T.to(mean)) @ across.to(mean)).to(bias.dtype)
    return (across.T, across @ weight) if kind == "linear" else (weight @ across.T, across)


@contextmanager
def naming(layer: LayerPlan) -> Iterator[None]:
    """Complaints about a matrix say which one it is."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{layer.name}: {error}") from None
