"""From a budget to the rank, or the bytes, of every chosen layer."""

from __future__ import annotations

import math
from dataclasses import replace

from torch import Tensor, nn

from ellp.activations import Calibration
from ellp.arrays import Array, Caller
from ellp.budget import Curve, break_even, spread
from ellp.errors import InputError
from ellp.factor.project import power_sum
from ellp.plans import LayerPlan, Options, Plan, Progress
from ellp.rows import read_rows
from ellp.selection import select
from ellp.solving import solve
from ellp.weights import Weights


def draft(
    model: nn.Module,
    options: Options,
    calibration: Calibration | None = None,
    weights: Weights | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Layers and ranks, without certificates."""
    found = select(model, options.layers)
    open_ones = [layer for layer in found if layer.skipped is None]
    if not open_ones:
        reasons = "; ".join(f"{layer.name}: {layer.skipped}" for layer in found[:3]) or "it has none of that kind"
        raise InputError(f"need a layer to factor, got none for layers={options.layers!r} ({reasons})")
    sized = _sized([layer for layer in open_ones if layer.kind == "embedding"], options)
    open_ones = [layer for layer in open_ones if layer.name not in sized]
    if options.keep is None or options.uniform or len(open_ones) == 1:
        ranked = [_ranked(layer, options) for layer in open_ones]
    else:
        curves = []
        for number, layer in enumerate(open_ones):
            if progress is not None:
                progress(f"spectrum of {layer.name}", number, len(open_ones))
            curves.append(_curve(model, layer, options, calibration, weights or Weights()))
        ranks = spread(curves, options.keep)
        ranked = [
            replace(layer, rank=rank, skipped=None if rank else "its axes are worth more than their size")
            for layer, rank in zip(open_ones, ranks, strict=True)
        ]
    by_name = sized | {layer.name: layer for layer in ranked}
    return Plan(tuple(by_name.get(layer.name, layer) for layer in found), options)


def _sized(tables: list[LayerPlan], options: Options) -> dict[str, LayerPlan]:
    """Token tables with the bytes each may take; two bytes a number if it is to be tapered."""
    if options.bytes is not None or options.tapered:
        share = options.bytes or options.keep or 0.0
        sizes = [int(2 * share * table.before) for table in tables]
    elif options.size is not None:
        sizes = [options.size * table.before // sum(one.before for one in tables) for table in tables]
    else:
        return {}
    return {table.name: replace(table, size=size) for table, size in zip(tables, sizes, strict=True)}


def _ranked(layer: LayerPlan, options: Options) -> LayerPlan:
    """One layer at the rank, or the share of its parameters, that was asked for."""
    shape = (layer.rows, layer.columns)
    if options.rank is None and options.keep is None:
        return replace(layer, skipped="only token tables are coded: pass keep as well to factor it")
    if options.rank is not None:
        rank = options.rank
    elif options.keep == 1.0:
        return replace(layer, skipped="everything is kept")
    else:
        rank = int((options.keep or 0.0) * layer.before / sum(shape) * (1 + 1e-12))
    if rank < 1:
        return replace(layer, skipped=f"rank 1 would keep {sum(shape) / layer.before:.2g} of it")
    if rank > break_even(shape):
        return replace(layer, skipped=f"rank {rank} would grow it (break-even {break_even(shape)})")
    return replace(layer, rank=rank)


def _curve(
    model: nn.Module, layer: LayerPlan, options: Options, calibration: Calibration | None, weights: Weights
) -> Curve:
    """The square of the error that the certificate allows at each rank: errors of different layers add in squares.

    The certified l_p error at rank k is proportional to ``T_k^(1/2)``, ``T_k = sum_{i>k} sigma_i^2``; at rank 0 it is
    the layer itself, whose size is taken as entries times their squared l_p mean. Importances count by their ratios and
    a metric by its mean diagonal, so that what is weighed and what is not can be compared.
    """
    found, _ = solve(model, layer, 1, options, calibration, weights)
    tails = found.sigma.double().square().flip(0).cumsum(0).flip(0)
    matrix: Tensor = model.get_submodule(layer.name).weight.detach()  # type: ignore[operator]
    size = _squared_size(matrix, options.p, weights.importance.get(layer.name), weights.metric.get(layer.name))
    losses = [*tails.tolist(), 0.0]
    return Curve((layer.rows, layer.columns), tuple(size * loss / losses[0] if losses[0] else 0.0 for loss in losses))


def _squared_size(matrix: Tensor, p: float, importance: Array | None = None, metric: Array | None = None) -> float:
    """``N (sum c_i |(A S)_ij|^p / N)^(2/p)`` over all N entries, a block of rows at a time, where importances have mean
    one and the metric ``S S^T`` mean diagonal one; p = 2 where p has no mean."""
    p = p if 0 < p < math.inf else 2.0
    caller = Caller(matrix)
    factor = caller.metric(metric)
    rows, count = read_rows(matrix, caller.importance(importance), factor), matrix.numel()
    total = sum(float((power_sum(block, p).double() * rows.weight[span]).sum()) for span, block in rows.transformed())
    mean: float = (total / count) ** (2 / p)
    diagonal = 1.0 if factor is None else float(factor.square().sum()) / len(factor)
    return count * mean * rows.scale**2 / diagonal
