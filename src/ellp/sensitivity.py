"""What a model's output reacts to: gradients of random projections of it, with respect to the token embeddings.

For an embedding ``x_t`` of a token in a text and the output ``y`` of the dense model, ``g_t = dy/dx_t^T r`` with random
r has ``E[g g^T] = E[J^T J]``: to first order, an error e of a row costs ``e H e^T``, with ``H = E[g g^T]`` over texts and
tokens. No labels are needed, and no data either, as texts can be made from word frequencies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ellp.errors import InputError
from ellp.importance.fisher import only

Progress = Callable[[str, int, int], None]
POSITIONS = 4  # of a text, at which the answers of a language model are looked at


@dataclass(frozen=True)
class Sensitivity:
    """``metric`` (d x d) is ``E[g g^T]``, ``rows`` (n) the sum of ``|g|^2`` by token, ``seen`` (n) how often each
    occurred, ``count`` the number of gradients; all float64."""

    metric: Tensor
    rows: Tensor
    seen: Tensor
    count: int


def metric_from(metric: Tensor, lam: float = 0.2) -> Tensor:
    """``H / mean(diag H) + lam I``, in units in which its mean diagonal is one: positive definite for lam > 0.

    >>> import torch
    >>> metric_from(torch.tensor([[3.0, 0.0], [0.0, 1.0]]), lam=1.0).diagonal()
    tensor([1.2500, 0.7500], dtype=torch.float64)
    """
    found = metric.double()
    mean = float(found.diagonal().mean())
    if not mean > 0:
        raise InputError("need a metric with a positive trace, got one without: the output does not depend on the rows")
    identity = torch.eye(len(found), dtype=torch.float64, device=found.device)
    return ((found + found.T) / (2 * mean) + lam * identity) / (1 + lam)


def sensitivity(
    model: nn.Module,
    batches: Iterable[Mapping[str, Tensor]],
    *,
    directions: int = 1,
    pooling: str = "mean",
    seed: int = 0,
    progress: Progress | None = None,
) -> Sensitivity:
    """The sensitivity of a transformers model's output to its token embeddings on some texts.

    ``directions`` is the number of random projections a text. A batch is a tokenizer's output; positions that
    its ``attention_mask`` hides are left out, and those of its ``special_tokens_mask`` count for rows only.
    """
    table = model.get_input_embeddings()  # type: ignore[operator]
    count, width = (int(side) for side in table.weight.shape)
    total = torch.zeros(width, width, dtype=torch.float64)
    rows, seen = torch.zeros(count, dtype=torch.float64), torch.zeros(count, dtype=torch.float64)
    used = 0
    generator = torch.Generator().manual_seed(seed)
    batches = list(batches)
    with only(model, None), _watched(model, table) as watch:
        for number, batch in enumerate(batches):
            if progress is not None:
                progress("what the output reacts to", number, len(batches))
            watch.clear()
            plain = {name: part for name, part in batch.items() if name != "special_tokens_mask"}
            with torch.enable_grad():
                output = _output(model(**plain), batch, pooling)
                for turn in range(directions):
                    drawn = _projected(output, generator)
                    leaves = [leaf for _, leaf in watch]
                    slopes = torch.autograd.grad(drawn, leaves, retain_graph=turn + 1 < directions, allow_unused=True)
                    for (ids, _), slope in zip(watch, slopes, strict=True):
                        if slope is None:
                            continue
                        g = slope.reshape(-1, slope.shape[-1]).float()
                        kept = _kept(batch, ids)
                        squares = g.square().sum(1).double()
                        rows.index_add_(0, ids.reshape(-1)[kept], squares[kept])
                        seen.index_add_(0, ids.reshape(-1)[kept], torch.ones_like(squares[kept]))
                        g = g[kept]
                        total += (g.T @ g).double()
                        used += len(g)
    return Sensitivity(total / max(1, used), rows, seen, used)


def _kept(batch: Mapping[str, Tensor], ids: Tensor) -> Tensor:
    mask = batch.get("attention_mask")
    return (
        mask.reshape(-1).bool()
        if mask is not None and mask.shape == ids.shape
        else torch.ones(ids.numel(), dtype=torch.bool)
    )


@contextmanager
def _watched(model: nn.Module, table: Any) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Ids and outputs of every look into the token table; outputs are cut off from it and ask for gradients."""
    found: list[tuple[Tensor, Tensor]] = []

    def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        leaf = output.detach().requires_grad_()
        found.append((inputs[0], leaf))
        return leaf

    layers = {
        module for module in model.modules() if isinstance(module, nn.Embedding) and module.weight is table.weight
    }
    hooks = [module.register_forward_hook(hook) for module in layers]
    try:
        yield found
    finally:
        for one in hooks:
            one.remove()


def _output(found: Any, batch: Mapping[str, Tensor], pooling: str) -> Tensor:
    if "logits" in found:
        return found["logits"].float()
    hidden = found["last_hidden_state"].float()
    mask = batch["attention_mask"][..., None]
    return nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)


def _projected(output: Tensor, generator: torch.Generator) -> Tensor:
    """The sum over texts of a random projection of each one's output."""
    r = torch.randn(output.shape, generator=generator)
    return (output * r).sum()
