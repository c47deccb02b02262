"""Which weight matrices of a model there are, what they share, and which of them were meant."""

from __future__ import annotations

import fnmatch

from torch import nn

from ellp.errors import InputError
from ellp.layers import kind_of, obstacle
from ellp.plans import LayerPlan, Layers

SMALLEST = 32  # a layer with a narrower side is a head of a few classes, where every direction is an answer


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
