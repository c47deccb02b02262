"""What the rows and directions of a model's tables weigh, as :func:`ellp.plan` and :func:`ellp.compress` take it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ellp.arrays import Array
from ellp.errors import InputError
from ellp.layers import kind_of

Given = Array | Mapping[str, Array] | None
"""For the token table, or by the names of layers."""


@dataclass(frozen=True)
class Weights:
    """Row importances and metrics by layer; what is not named weighs alike."""

    importance: Mapping[str, Array] = field(default_factory=dict)
    metric: Mapping[str, Array] = field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module, importance: Given, metric: Given) -> Weights:
        """Weights given for the token table, or by name, under every name of each layer."""
        return cls(_named(model, importance, "importance"), _named(model, metric, "metric"))

    def __contains__(self, name: str) -> bool:
        return name in self.importance or name in self.metric

    def __bool__(self) -> bool:
        return bool(self.importance or self.metric)


def _named(model: nn.Module, given: Given, what: str) -> dict[str, Array]:
    if given is None:
        return {}
    chosen: Mapping[str, Array] = given if isinstance(given, Mapping) else {_token_table(model, what): given}
    modules = dict(model.named_modules(remove_duplicate=False))
    tables = {name: module.weight for name, module in modules.items() if kind_of(module) == "embedding"}
    odd = sorted(set(chosen) - set(tables))
    if odd:
        raise InputError(f"need {what} for an embedding, got {odd[0]}: linear layers are weighed by calibration")
    return {name: value for one, value in chosen.items() for name, weight in tables.items() if weight is tables[one]}


def _token_table(model: Any, what: str) -> str:
    """The table that a bare tensor is meant for: the model's token table, or its only embedding."""
    tables = {name: module for name, module in model.named_modules() if kind_of(module) == "embedding"}
    try:
        table = model.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        table = None
    names: list[str] = [name for name, module in tables.items() if module is table] or list(tables)
    if len(names) != 1:
        raise InputError(f"need the layer that {what} is for, got {len(names)} embeddings: pass {{name: {what}}}")
    return names[0]
