"""Replace layers of a model by factors or codes, as planned, in place, on any ``nn.Module``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ellp.activations import Batch, Calibration
from ellp.code.checking import digest
from ellp.code.search import Coded, code_table
from ellp.code.tapered import taper_table
from ellp.coded import install_code, layout_of
from ellp.errors import InputError
from ellp.factor.factors import Factors
from ellp.layers import Projection, replace_weight
from ellp.plans import CodeFacts, LayerPlan, Options, Plan, Progress
from ellp.ranks import draft
from ellp.rows import largest_entry
from ellp.selection import select
from ellp.shelf import shelve
from ellp.solving import naming, solve, through_outputs
from ellp.weights import Given, Weights


def plan(
    model: nn.Module,
    options: Options | None = None,
    *,
    calibrate: Iterable[Batch] | None = None,
    importance: Given = None,
    metric: Given = None,
    **settings: Any,
) -> Plan:
    """What :func:`compress` would do to ``model``: per layer the shape, rank, parameters and certificate, or the reason
    why it stays dense. The model is not changed.

    ``importance`` weighs the rows of the token table and ``metric`` the directions of their errors, as in
    :func:`ellp.factorize`; for other embeddings, both may be mappings from the layers' names.

    >>> import torch, ellp
    >>> model = torch.nn.Sequential(torch.nn.Embedding(1000, 64), torch.nn.Linear(64, 64))
    >>> print(ellp.plan(model, keep=0.25).layers[0].rank)
    15
    """
    options = options or Options(**settings)
    calibration = None if calibrate is None else Calibration(model, calibrate)
    weights = Weights.of(model, importance, metric)
    drafted = draft(model, options, calibration, weights)
    done = [
        _certified(model, layer, options, calibration, weights) if layer.rank else layer for layer in drafted.layers
    ]
    return replace(drafted, layers=tuple(done))


def compress(
    model: nn.Module,
    plan: Plan | Options | None = None,
    *,
    calibrate: Iterable[Batch] | None = None,
    importance: Given = None,
    metric: Given = None,
    progress: Progress | None = None,
    shelf: Path | None = None,
    **settings: Any,
) -> Plan:
    """Replace the planned layers of ``model`` by factors, in place; the plan with the certificates reached.

    ``importance`` and ``metric`` are those of :func:`plan`. ``shelf`` is for models too large for memory: a folder on
    whose disk new factors are kept, in files that vanish with them.

    >>> import torch, ellp
    >>> model = torch.nn.Sequential(torch.nn.Embedding(1000, 64), torch.nn.Linear(64, 64))
    >>> done = ellp.compress(model, keep=0.25)
    >>> model[0].weight.shape, model[0].proj.weight.shape, model(torch.tensor([[1, 2]])).shape
    (torch.Size([1000, 15]), torch.Size([15, 64]), torch.Size([1, 2, 64]))
    """
    if plan is not None and settings:
        raise InputError(f"need a plan or options, got a plan and {', '.join(settings)}: put them into the plan")
    calibration = None if calibrate is None else Calibration(model, calibrate)
    weights = Weights.of(model, importance, metric)
    drafted = (
        plan if isinstance(plan, Plan) else draft(model, plan or Options(**settings), calibration, weights, progress)
    )
    _check_fits(model, drafted)
    done: list[LayerPlan] = []
    for number, layer in enumerate(drafted.layers):
        if progress is not None:
            progress(layer.name, number, len(drafted.layers))
        done.append(_replace(model, layer, drafted.options, calibration, weights) if layer.compressed else layer)
        if shelf is not None and layer.compressed:
            shelve(model.get_submodule(layer.name), shelf)
    if progress is not None:
        progress("", len(done), len(done))
    return replace(drafted, layers=tuple(done))


def _check_fits(model: nn.Module, plan: Plan) -> None:
    """A plan is carried out whole or not at all: no model is left half done by one for another model, or by a NaN."""
    here = {layer.name: layer for layer in select(model, [layer.name for layer in plan.chosen])} if plan.chosen else {}
    for layer in plan.chosen:
        found = here.get(layer.name)
        if found is None or (found.rows, found.columns) != (layer.rows, layer.columns):
            raise InputError(
                f"need a plan made for this model, got one whose {layer.name} ({layer.rows} x {layer.columns}) is not "
                "in it: call plan(model, ...) again"
            )
        with naming(layer):
            largest_entry(model.get_submodule(layer.name).weight.detach())  # type: ignore[operator]


def _certified(
    model: nn.Module, layer: LayerPlan, options: Options, calibration: Calibration | None, weights: Weights
) -> LayerPlan:
    assert layer.rank is not None
    found, mean = solve(model, layer, layer.rank, options, calibration, weights)
    return _proved(layer, found, mean, weights)


def _proved(layer: LayerPlan, found: Factors, mean: Tensor | None, weights: Weights) -> LayerPlan:
    return replace(layer, certificate=found.certificate, calibrated=mean is not None, weighted=layer.name in weights)


def _replace(
    model: nn.Module, layer: LayerPlan, options: Options, calibration: Calibration | None, weights: Weights
) -> LayerPlan:
    if layer.rank is None:
        return _code(model, layer, options, weights)
    dense = model.get_submodule(layer.name)
    weight: nn.Parameter = dense.weight  # type: ignore[assignment]
    found, mean = solve(model, layer, layer.rank, options, calibration, weights)
    left, right = (found.left, found.right) if mean is None else through_outputs(dense, layer.kind, found.right, mean)
    padding = getattr(dense, "padding_idx", None)
    if padding is not None and not bool(weight[padding].any()):
        left[padding] = 0.0  # a table whose padding row is zero keeps it exactly zero
    install(
        model,
        layer,
        nn.Parameter(left.contiguous(), requires_grad=weight.requires_grad),
        Projection(right.contiguous(), weight.requires_grad),
    )
    return _proved(layer, found, mean, weights)


def _code(model: nn.Module, layer: LayerPlan, options: Options, weights: Weights) -> LayerPlan:
    """Put a code of at most the planned bytes in place of a token table."""
    assert layer.size is not None
    table: Any = model.get_submodule(layer.name)
    matrix: Tensor = table.weight.detach()
    rows, directions = weights.importance.get(layer.name), weights.metric.get(layer.name)
    with naming(layer):
        if options.tapered:
            found = taper_table(matrix, layer.size // 2, rows, directions, options.p, options.seed)
        else:
            found = code_table(matrix, layer.size, rows, directions, options.p, options.coder, options.seed)
    facts = _facts(found, table)
    install_code(table, _tied_modules(model, layer), facts.kind, _in_dtype(found.tensors, matrix.dtype), facts.settings)
    return replace(layer, coded=facts, weighted=layer.name in weights)


def _facts(found: Coded, table: Any) -> CodeFacts:
    padding = table.padding_idx
    zero = padding is not None and not bool(table.weight[padding].any())
    settings = {"bits": found.bits, **({"zero_padding": 1} if zero else {})}
    layout, mark = layout_of(found.tensors), digest(found.tensors)
    return CodeFacts(found.kind, settings, layout, mark, found.bytes, found.error, found.record())


def _in_dtype(tensors: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


def _tied_modules(model: nn.Module, layer: LayerPlan) -> dict[str, nn.Module]:
    return {name: model.get_submodule(name) for name, _ in layer.tied}


def install_empty_code(model: nn.Module, layer: LayerPlan, tensors: dict[str, Tensor], facts: CodeFacts) -> None:
    """Make room for a code that is about to be loaded."""
    table: Any = model.get_submodule(layer.name)
    install_code(table, _tied_modules(model, layer), facts.kind, tensors, facts.settings, facts.mark)


def install(model: nn.Module, layer: LayerPlan, left: nn.Parameter, proj: Projection) -> None:
    """Put the same two factors into a layer and into all that are tied to it."""
    for name, kind in ((layer.name, layer.kind), *layer.tied):
        replace_weight(model.get_submodule(name), kind, left, proj, owner=name == layer.name)
