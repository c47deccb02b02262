"""Layers stored as two factors. Each is a subclass of the layer it replaces, with the same forward up to rounding.

The first factor keeps the layer's own key ``weight`` (n x k in place of n x d), the second lives in ``proj.weight``
(k x d). A program that does not know these layers therefore fails on the shape of ``weight`` instead of running with
half of a layer.
"""

from __future__ import annotations

import inspect
from types import MethodType
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from ellp.errors import InputError


class Projection(nn.Module):
    """Holds the second factor. Not an ``nn.Linear``, so that adapters target the layer and not its inside.

    It is always called, its weight never used from outside: tools that keep weights elsewhere until they are needed
    fetch them when a module is called.
    """

    def __init__(self, weight: Tensor, requires_grad: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=requires_grad)

    def forward(self, input: Tensor, transposed: bool = False) -> Tensor:
        return F.linear(input, self.weight) if transposed else input @ self.weight

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, {self.weight.shape[1]}"


class FactorizedEmbedding(nn.Embedding):
    """``weight`` (tokens x k) looked up, then times ``proj.weight`` (k x d)."""

    proj: Projection

    def forward(self, input: Tensor) -> Tensor:
        narrow = F.embedding(input, self.weight, self.padding_idx, None, 2.0, self.scale_grad_by_freq, self.sparse)
        return cast(Tensor, self.proj(narrow))


class FactorizedLinear(nn.Linear):
    """``x -> (x proj.weight^T) weight^T + bias`` with ``weight`` (out x k) and ``proj.weight`` (k x in)."""

    proj: Projection

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(self.proj(input, transposed=True), self.weight, self.bias)


class FactorizedTiedHead(FactorizedLinear):
    """An output head that shares both factors with the token embedding; the dense table never appears."""


class FactorizedConv1D(nn.Module):
    """GPT-2's transposed linear layer: ``weight`` (in x k), then ``proj.weight`` (k x out)."""

    proj: Projection
    weight: nn.Parameter
    bias: nn.Parameter

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.proj(x @ self.weight) + self.bias)


KINDS: dict[str, type[nn.Module]] = {
    "embedding": FactorizedEmbedding,
    "linear": FactorizedLinear,
    "head": FactorizedTiedHead,
    "conv1d": FactorizedConv1D,
}


def kind_of(layer: nn.Module) -> str | None:
    """What a dense layer can be replaced by, or None."""
    if isinstance(layer, (FactorizedEmbedding, FactorizedLinear, FactorizedConv1D)):
        return None
    if isinstance(layer, nn.Embedding):
        return "embedding"
    if isinstance(layer, nn.Linear):
        return "linear"
    weight = getattr(layer, "weight", None)
    transposed = type(layer).__name__ == "Conv1D" and isinstance(weight, Tensor) and weight.ndim == 2
    return "conv1d" if transposed else None


def obstacle(layer: nn.Module) -> str | None:
    """Why a layer of a known kind cannot be replaced, or None."""
    if getattr(layer, "max_norm", None) is not None:
        return "max_norm would renormalise the factor: set layer.max_norm = None first if the table is final"
    if "weight" not in layer._parameters:
        return "its weight is computed from other tensors"
    if isinstance(layer, NonDynamicallyQuantizableLinear):
        return "the attention around it reads its weight without calling it"
    if not _calls_its_parent(layer):
        return f"{type(layer).__name__} computes its output in its own way"
    return None


def _calls_its_parent(layer: nn.Module) -> bool:
    """Whether every forward between the layer's class and the dense class of torch hands on to the next one."""
    if "forward" in layer.__dict__ and "_old_forward" not in layer.__dict__:
        return False  # set on the layer itself, and not by accelerate
    for cls in type(layer).__mro__:
        if cls in (nn.Embedding, nn.Linear) or cls.__name__ == "Conv1D":
            break
        if "forward" not in cls.__dict__:
            continue
        code = getattr(inspect.unwrap(cls.__dict__["forward"]), "__code__", None)
        if code is None or "__class__" not in code.co_freevars or "forward" not in code.co_names:
            return False
    return True


def replace_weight(layer: nn.Module, kind: str, left: nn.Parameter, proj: Projection, owner: bool = True) -> None:
    """Turn a dense layer, in place, into its factorized kind with these two factors.

    A layer that is not the ``owner`` of the projection only refers to it: the projection then has one name in the
    model, and is saved and loaded once. ``weight`` is shared under every name, as the dense table was.
    """
    reason = obstacle(layer)
    if reason is not None:
        raise InputError(f"need a layer that can be factored, got {type(layer).__name__}: {reason}")
    layer.__class__ = factorized_class(type(layer), kind)
    if "_old_forward" in layer.__dict__:  # what accelerate calls between moving tensors
        layer.__dict__["_old_forward"] = MethodType(type(layer).forward, layer)
    layer.weight = left
    if owner:
        layer.proj = proj
    else:
        layer.__dict__["proj"] = proj  # past nn.Module's own registration


def factorized_class(dense: type[nn.Module], kind: str) -> type[nn.Module]:
    """The class of a factorized layer that is still an instance of its dense class; the same one every time."""
    known = _made.get((dense, kind))
    if known is None:
        known = _made[dense, kind] = _make_class(dense, kind)
    return known


_made: dict[tuple[type[nn.Module], str], type[nn.Module]] = {}


def _make_class(dense: type[nn.Module], kind: str) -> type[nn.Module]:
    plain = KINDS[kind]
    if dense in (nn.Embedding, nn.Linear):
        return plain
    bases = (plain, dense) if kind == "conv1d" else (dense, plain)  # scaled embeddings call up to ours, Conv1D cannot
    return type(
        f"Factorized{dense.__name__}",
        bases,
        {"__reduce_ex__": lambda self, protocol: (_blank, (dense, kind), self.__dict__), "__doc__": plain.__doc__},
    )


def _blank(dense: type[nn.Module], kind: str) -> Any:
    """An empty instance of a factorized class, for unpickling and copying."""
    made = factorized_class(dense, kind)
    return made.__new__(made)


def empty_factors(rows: int, columns: int, rank: int, like: nn.Parameter) -> tuple[nn.Parameter, Projection]:
    """Factors of the right shapes, to be filled when a checkpoint is loaded."""
    left = torch.empty(rows, rank, dtype=like.dtype, device=like.device)
    right = torch.empty(rank, columns, dtype=like.dtype, device=like.device)
    return nn.Parameter(left, requires_grad=like.requires_grad), Projection(right, like.requires_grad)
