"""Importance from labels: how strongly the loss reacts to each row of a layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ellp.errors import InputError

Progress = Callable[[str, int, int], None]


def fisher_rows(
    model: nn.Module, layer_name: str, batches: Iterable[Mapping[str, Any]], progress: Progress | None = None
) -> Tensor:
    """``sum_b |dL_b / dw_i|^2`` for every row i of a layer's weight: FWSVD's weights, over batches with labels.

    >>> import torch
    >>> class Model(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.table = torch.nn.Embedding(4, 2)
    ...     def forward(self, ids, labels):
    ...         return {"loss": (self.table(ids).sum(-1) * labels).sum()}
    >>> fisher_rows(Model(), "table", [{"ids": torch.tensor([1, 3]), "labels": torch.tensor([1.0, 2.0])}])
    tensor([0., 2., 0., 8.], dtype=torch.float64)
    """
    layer = model.get_submodule(layer_name)
    weight: nn.Parameter = layer.weight  # type: ignore[assignment]
    total = torch.zeros(weight.shape[0], dtype=torch.float64)
    count = 0
    with only(model, weight):
        for count, batch in enumerate(batches, 1):
            (slope,) = torch.autograd.grad(_loss(model, batch), weight)
            total += slope.float().square().sum(1).double().cpu()
            if progress is not None:
                progress("gradients of the loss", count, 0)
    if not count or float(total.sum()) == 0:
        told = "no gradient: the loss does not depend on it" if count else "no batch: pass labelled texts"
        raise InputError(f"need gradients with respect to {layer_name}, got {told}")
    return total


def _loss(model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    found = model(**batch)
    loss = found.get("loss") if isinstance(found, Mapping) else getattr(found, "loss", None)
    if not isinstance(loss, Tensor):
        raise InputError(
            f"need a loss from the model, got none from {type(model).__name__}: pass batches with labels, and a model "
            "with a head for them"
        )
    return loss


class only:
    """Within, a model is in evaluation mode and only the given parameter asks for gradients; as before afterwards."""

    def __init__(self, model: nn.Module, weight: nn.Parameter | None) -> None:
        self.model, self.weight = model, weight

    def __enter__(self) -> None:
        self.asked = {parameter: parameter.requires_grad for parameter in self.model.parameters()}
        self.training = [module for module in self.model.modules() if module.training]
        self.model.eval()
        for parameter in self.asked:
            parameter.requires_grad_(parameter is self.weight)

    def __exit__(self, *failure: object) -> None:
        for parameter, asked in self.asked.items():
            parameter.requires_grad_(asked)
        for module in self.training:
            module.training = True
