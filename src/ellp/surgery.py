"""Plan which layers of a model become factors, and of what rank; then do it, in place, on any ``nn.Module``."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ellp.activations import Batch, Calibration
from ellp.arrays import Array, Caller
from ellp.budget import Curve, break_even, spread
from ellp.errors import InputError
from ellp.factor.project import power_sum
from ellp.factoring import Certificate, Factors, factorize
from ellp.layers import Projection, kind_of, obstacle, replace_weight
from ellp.options import Method, Refine
from ellp.rows import largest_entry, read_rows
from ellp.weights import Given, Weights

SMALLEST = 32  # a layer with a narrower side is a head of a few classes, where every direction is an answer

Layers = str | Sequence[str]
Progress = Callable[[str, int, int], None]
"""Called with what is at work, how many layers are done, and how many there are, in each round over the layers."""


@dataclass(frozen=True)
class LayerPlan:
    """One weight matrix and what becomes of it. ``tied`` maps the other layers that share it to their kinds."""

    name: str
    kind: str
    rows: int
    columns: int
    rank: int | None = None
    tied: tuple[tuple[str, str], ...] = ()
    skipped: str | None = None
    certificate: Certificate | None = None
    calibrated: bool = False
    weighted: bool = False

    @property
    def before(self) -> int:
        return self.rows * self.columns

    @property
    def after(self) -> int:
        return self.before if self.rank is None else self.rank * (self.rows + self.columns)


@dataclass(frozen=True)
class Plan:
    """What will happen, or has happened, to each selected layer; ``str(plan)`` is a table."""

    layers: tuple[LayerPlan, ...]
    options: Options

    @property
    def chosen(self) -> tuple[LayerPlan, ...]:
        """The layers that become factors."""
        return tuple(layer for layer in self.layers if layer.rank is not None)

    @property
    def before(self) -> int:
        return sum(layer.before for layer in self.layers)

    @property
    def after(self) -> int:
        return sum(layer.after for layer in self.layers)

    def __str__(self) -> str:
        width = max([len(layer.name) for layer in self.layers], default=5)
        lines = [f"{'layer':{width}}  {'shape':>13}  {'rank':>5}  {'parameters':>21}  distortion"]
        for layer in self.layers:
            shape = f"{layer.rows} x {layer.columns}"
            if layer.rank is None:
                lines.append(f"{layer.name:{width}}  {shape:>13}  dense  {layer.before:>21,}  {layer.skipped}")
                continue
            size = f"{layer.before:,} -> {layer.after:,}"
            proof = "" if layer.certificate is None else f"{layer.certificate.distortion:.4g}"
            proof += " (of its outputs)" if layer.calibrated else " (weighted)" if layer.weighted else ""
            lines.append(f"{layer.name:{width}}  {shape:>13}  {layer.rank:>5}  {size:>21}  {proof}")
        share = self.after / self.before if self.before else 1.0
        return "\n".join([*lines, f"{self.before:,} -> {self.after:,} parameters ({share:.1%})"])


@dataclass(frozen=True)
class Options:
    """How to choose layers and ranks, and how to factor. ``keep`` is the share of the chosen layers' parameters."""

    keep: float | None = None
    rank: int | None = None
    layers: Layers = "embeddings"
    p: float = 1.0
    method: Method = "lewis"
    tol: float = 0.05
    refine: Refine | None = None
    uniform: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.keep is None) == (self.rank is None):
            raise InputError(
                f"need exactly one of keep and rank, got {self.keep} and {self.rank}: keep=0.25 keeps a quarter"
            )
        if self.keep is not None and not 0 < self.keep <= 1:
            raise InputError(f"need a share to keep above 0 and at most 1, got {self.keep}: 0.25 keeps a quarter")
        if self.rank is not None and self.rank < 1:
            raise InputError(f"need a rank of at least 1, got {self.rank}: pass a positive whole number")


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
    **settings: Any,
) -> Plan:
    """Replace the planned layers of ``model`` by factors, in place; the plan with the certificates reached.

    ``importance`` and ``metric`` are those of :func:`plan`.

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
        done.append(_replace(model, layer, drafted.options, calibration, weights) if layer.rank else layer)
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
        with _naming(layer):
            largest_entry(model.get_submodule(layer.name).weight.detach())  # type: ignore[operator]


@contextmanager
def _naming(layer: LayerPlan) -> Iterator[None]:
    """Complaints about a matrix say which one it is."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{layer.name}: {error}") from None


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
    by_name = {layer.name: layer for layer in ranked}
    return Plan(tuple(by_name.get(layer.name, layer) for layer in found), options)


def _ranked(layer: LayerPlan, options: Options) -> LayerPlan:
    """One layer at the rank, or the share of its parameters, that was asked for."""
    shape = (layer.rows, layer.columns)
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
    found, _ = _solve(model, layer, 1, options, calibration, weights)
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


def select(model: nn.Module, layers: Layers) -> list[LayerPlan]:
    """Every weight matrix that ``layers`` names, once, with the layers tied to it and what stands in the way."""
    return [_described(model, group) for group in chosen_groups(model, layers)]


def chosen_groups(model: nn.Module, layers: Layers) -> list[list[str]]:
    """Those of the :func:`tied_groups` in which ``layers`` names a layer."""
    patterns = [layers] if isinstance(layers, str) else list(layers)
    groups = tied_groups(model)
    known = {name for group in groups for name in group}
    wanted: set[str] = set()
    for pattern in patterns:
        named = _named(model, groups, pattern) or set(fnmatch.filter(known, pattern))
        if not named and pattern not in ("embeddings", "linear", "all"):
            some = ", ".join(sorted(known)[:4])
            raise InputError(f"need the name of a layer, got {pattern!r}: this model has {some}, ...")
        wanted |= named
    return [group for group in groups if wanted & set(group)]


def _named(model: nn.Module, groups: list[list[str]], word: str) -> set[str]:
    """The layers that one of the words embeddings, linear and all stands for."""
    kinds = {group[0]: kind_of(model.get_submodule(group[0])) for group in groups}
    tables = {name for name, kind in kinds.items() if kind == "embedding"}
    vocabulary = _vocabulary(model, groups)
    dense = {name for name, kind in kinds.items() if kind in ("linear", "conv1d")}
    tokens = (vocabulary & tables) or tables
    return {"embeddings": tokens, "linear": dense, "all": tokens | dense}.get(word, set())


def _vocabulary(model: nn.Module, groups: list[list[str]]) -> set[str]:
    """The token table of a model that says which one it is."""
    try:
        table = model.get_input_embeddings()  # type: ignore[operator]
    except (AttributeError, NotImplementedError):
        return set()
    return {group[0] for group in groups if any(model.get_submodule(name) is table for name in group)}


def tied_groups(model: nn.Module) -> list[list[str]]:
    """Names of the layers that can be factored, those sharing one weight together, embeddings first."""
    declared = getattr(model, "all_tied_weights_keys", None) or {}
    layers = [(name, layer) for name, layer in model.named_modules(remove_duplicate=False) if kind_of(layer)]
    identity = {f"{name}.weight": id(layer.weight) for name, layer in layers}
    groups: dict[int, list[str]] = {}
    for name, _ in layers:
        key = f"{name}.weight"
        groups.setdefault(identity.get(declared.get(key, key), identity[key]), []).append(name)
    return [
        sorted(names, key=lambda name: kind_of(model.get_submodule(name)) != "embedding") for names in groups.values()
    ]


def _described(model: nn.Module, names: list[str]) -> LayerPlan:
    first = model.get_submodule(names[0])
    kind = kind_of(first) or ""
    rows, columns = (int(side) for side in first.weight.shape)  # type: ignore[union-attr]
    modules = {id(first)}
    tied = []
    for name in names[1:]:
        layer = model.get_submodule(name)
        if id(layer) not in modules:  # the same module under a second name follows by itself
            modules.add(id(layer))
            other = kind_of(layer) or ""
            tied.append((name, "head" if other == "linear" and kind == "embedding" else other))
    skipped = next((reason for name in names if (reason := obstacle(model.get_submodule(name)))), None)
    if skipped is None and min(rows, columns) < SMALLEST:
        skipped = f"a side of fewer than {SMALLEST} leaves nothing to gain"
    return LayerPlan(names[0], kind, rows, columns, tied=tuple(tied), skipped=skipped)


def _solve(
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
    with _naming(layer):
        found = factorize(
            matrix, rank, options.p, rows, directions, options.method, options.tol, options.refine, options.seed
        )
    return found, mean


def _certified(
    model: nn.Module, layer: LayerPlan, options: Options, calibration: Calibration | None, weights: Weights
) -> LayerPlan:
    assert layer.rank is not None
    found, mean = _solve(model, layer, layer.rank, options, calibration, weights)
    return _proved(layer, found, mean, weights)


def _proved(layer: LayerPlan, found: Factors, mean: Tensor | None, weights: Weights) -> LayerPlan:
    return replace(layer, certificate=found.certificate, calibrated=mean is not None, weighted=layer.name in weights)


def _replace(
    model: nn.Module, layer: LayerPlan, options: Options, calibration: Calibration | None, weights: Weights
) -> LayerPlan:
    assert layer.rank is not None
    dense = model.get_submodule(layer.name)
    weight: nn.Parameter = dense.weight  # type: ignore[assignment]
    found, mean = _solve(model, layer, layer.rank, options, calibration, weights)
    left, right = (found.left, found.right) if mean is None else _through_outputs(dense, layer.kind, found.right, mean)
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


def _through_outputs(dense: nn.Module, kind: str, across: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    """Factors that project a layer's outputs onto the rows of ``across`` (k x out), keeping the mean in the bias."""
    weight, bias = dense.weight.detach(), dense.bias  # type: ignore[operator]
    across = across.to(weight.dtype)
    if isinstance(bias, Tensor):
        with torch.no_grad():
            bias += (mean - (mean @ across.T.to(mean)) @ across.to(mean)).to(bias.dtype)
    return (across.T, across @ weight) if kind == "linear" else (weight @ across.T, across)


def install(model: nn.Module, layer: LayerPlan, left: nn.Parameter, proj: Projection) -> None:
    """Put the same two factors into a layer and into all that are tied to it."""
    for name, kind in ((layer.name, layer.kind), *layer.tied):
        replace_weight(model.get_submodule(name), kind, left, proj, owner=name == layer.name)
