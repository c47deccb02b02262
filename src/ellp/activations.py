"""What a model's linear layers really compute on some texts: rows that can be factored like a table's rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ellp.errors import InputError
from ellp.layers import kind_of

Batch = Mapping[str, Any] | Tensor
"""Keyword arguments of the model's forward (a tokenizer's output), or its single tensor argument."""

ROWS_PER_OUTPUT = 8  # sampled outputs per dimension, as for the sample that starts a large table
HELD_BYTES = 512 * 2**20  # outputs held at a time; further layers are visited by further forward passes


class Calibration:
    """Outputs of linear layers on the calibration batches, captured a few layers at a time.

    Layers are asked for in the model's order while earlier ones are already replaced, so each layer is fitted to the
    inputs it will really get.
    """

    def __init__(self, model: nn.Module, batches: Iterable[Batch], seed: int = 0) -> None:
        self.model = model
        self.batches = list(batches)
        if not self.batches:
            raise InputError("need at least one calibration batch, got none: pass a few hundred texts")
        self.generator = torch.Generator().manual_seed(seed)
        self.held: dict[str, Tensor] = {}

    def outputs(self, name: str) -> tuple[Tensor, Tensor] | None:
        """Sampled outputs of a layer without its bias, less their mean if a bias can carry it; and that mean.

        None if the texts exercise the layer too rarely (a pooler sees one row a text) to tell anything.
        """
        if name not in self.held:
            self._capture(self._from(name))
        rows = self.held.get(name)
        if rows is None or rows.shape[0] < 2 * rows.shape[1]:
            return None
        has_bias = isinstance(getattr(self.model.get_submodule(name), "bias", None), Tensor)
        mean = rows.mean(dim=0) if has_bias else torch.zeros_like(rows[0])
        return rows - mean, mean

    def _from(self, first: str) -> list[str]:
        """The layers to capture together: from ``first`` on, as many as fit into memory."""
        names = [name for name, layer in self.model.named_modules() if kind_of(layer) in ("linear", "conv1d")]
        chosen: list[str] = []
        room = HELD_BYTES
        for name in names[names.index(first) :]:
            width = self._width(name)
            room -= ROWS_PER_OUTPUT * width * width * 4
            if chosen and room < 0:
                break
            chosen.append(name)
        return chosen

    def _width(self, name: str) -> int:
        layer = self.model.get_submodule(name)
        weight: Tensor = layer.weight  # type: ignore[assignment]
        return int(weight.shape[0] if kind_of(layer) == "linear" else weight.shape[1])

    @torch.no_grad()
    def _capture(self, names: list[str]) -> None:
        parts: dict[str, list[Tensor]] = {name: [] for name in names}
        mask: Tensor | None = None

        def watch(name: str) -> Any:
            share = -(-ROWS_PER_OUTPUT * self._width(name) // len(self.batches))

            def hook(layer: Any, inputs: tuple[Tensor, ...]) -> None:
                given = inputs[0]
                rows = given[mask] if mask is not None and mask.shape == given.shape[:-1] else given.flatten(0, -2)
                drawn = torch.randperm(rows.shape[0], generator=self.generator)[:share].to(rows.device)
                weight = layer.weight.T if kind_of(layer) == "linear" else layer.weight
                parts[name].append((rows[drawn] @ weight).float())

            return hook

        was_training = self.model.training
        hooks = [self.model.get_submodule(name).register_forward_pre_hook(watch(name)) for name in names]
        try:
            self.model.eval()
            for batch in self.batches:
                found = batch.get("attention_mask") if isinstance(batch, Mapping) else None
                mask = found.bool() if isinstance(found, Tensor) and found.ndim == 2 else None
                self.model(**batch) if isinstance(batch, Mapping) else self.model(batch)
        finally:
            for hook in hooks:
                hook.remove()
            self.model.train(was_training)
        self.held = {name: torch.cat(rows) for name, rows in parts.items() if rows}
