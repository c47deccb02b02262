"""Layers stored as a code. Like the factorized ones they are subclasses of the layer they replace, with its forward.

``weight`` is empty (n x 0): a program that does not know these layers fails on its shape, and one that asks how many
rows there are, or of what type, is told. The code lies beside it, mostly in integer tensors, which keep their type when
a model is cast. A batch decodes the rows it asks for, each once; the dense table never exists.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ellp.code.checking import LAYOUTS, check_code, digest
from ellp.code.reading import read_rows
from ellp.errors import InputError

BLOCK = 1024  # rows a head decodes at a time


class CodedAxes(nn.Module):
    """Holds the axes of a code. Not an ``nn.Linear``: adapters pass it by."""


class _Coded:
    """What coded tables have in common; ``settings`` are kept in the model's config."""

    settings: dict[str, int]
    mark: str | None = None

    def stored(self) -> dict[str, Tensor]:
        """The tensors of the code, by the names of its layout."""
        own: dict[str, Tensor] = {**self._parameters, **self._buffers}  # type: ignore[attr-defined]
        axes = self._modules.get("proj")  # type: ignore[attr-defined]
        if axes is not None:
            own |= {f"proj.{name}": tensor for name, tensor in (*axes._parameters.items(), *axes._buffers.items())}
        return own

    def rows(self, ids: Tensor) -> Tensor:
        """The decoded rows of some ids (int64, one dimension)."""
        traced = torch.compiler.is_compiling() or torch.compiler.is_exporting()
        found = read_rows(self.kind, self.stored(), self.settings["bits"], self.embedding_dim, ids, traced)  # type: ignore[attr-defined]
        if self.settings.get("zero_padding"):
            found = found * (ids != self.padding_idx)[:, None]  # type: ignore[attr-defined]
        return found

    def check(self) -> None:
        """Complain about a code that was damaged on its way; reading one could go wrong silently."""
        stored = self.stored()
        check_code(self.kind, stored, self.settings["bits"], (self.num_embeddings, self.embedding_dim))  # type: ignore[attr-defined]
        if self.mark not in (None, found := digest(stored)):
            raise InputError(f"need a code with the mark {self.mark}, got {found}: the code is damaged, write it again")


def look_up(table: CodedEmbedding, input: Tensor) -> Tensor:
    """The rows of some ids of any shape, each decoded once."""
    ids = input.reshape(-1).long()
    if not ids.numel() or torch.compiler.is_compiling() or torch.compiler.is_exporting():
        found = table.rows(ids)
    else:
        different, place = torch.unique(ids, return_inverse=True)
        first, last = int(different[0]), int(different[-1])
        if not 0 <= first <= last < table.num_embeddings:
            raise IndexError(f"need token ids from 0 to {table.num_embeddings - 1}, got {first} to {last}")
        found = table.rows(different).index_select(0, place)
    return found.view(*input.shape, table.embedding_dim)


class CodedEmbedding(_Coded, nn.Embedding):
    """Looks rows up in a code."""

    kind: str

    def forward(self, input: Tensor) -> Tensor:
        return look_up(self, input)

    def extra_repr(self) -> str:
        size = sum(tensor.numel() * tensor.element_size() for tensor in self.stored().values())
        return f"{self.num_embeddings}, {self.embedding_dim}, {self.kind} in {size:,} bytes"


class CodedTwin(nn.Embedding):
    """A table that shares its weight with a coded one, and reads the same code."""

    table: CodedEmbedding

    def forward(self, input: Tensor) -> Tensor:
        return look_up(self.table, input)


class CodedHead(nn.Linear):
    """An output head that reads the token table's code, a block of rows at a time."""

    table: CodedEmbedding

    def forward(self, input: Tensor) -> Tensor:
        count = self.table.num_embeddings
        blocks = torch.split(torch.arange(count, device=input.device), BLOCK)
        logits = torch.cat([input @ self.table.rows(ids).to(input.dtype).T for ids in blocks], dim=-1)
        bias: Tensor | None = self.bias
        return logits if bias is None else logits + bias


def install_code(
    table: Any,
    tied: Mapping[str, nn.Module],
    kind: str,
    tensors: Mapping[str, Tensor],
    settings: dict[str, int],
    mark: str | None = None,
) -> None:
    """Turn a dense table, in place, into a coded one, and the heads that share it into readers of its code. ``mark`` is
    the :func:`~ellp.code.checking.digest` that the code must have once it is loaded."""
    trained = table.weight.requires_grad
    table.__class__ = coded_class(type(table), CodedEmbedding)
    del table._parameters["weight"]
    if any(name.startswith("proj.") for name in tensors):
        table.proj = CodedAxes()
    for name, tensor in tensors.items():
        holder, last = (table.proj, name.removeprefix("proj.")) if name.startswith("proj.") else (table, name)
        if tensor.is_floating_point():
            holder.register_parameter(last, nn.Parameter(tensor, requires_grad=trained))
        else:
            holder.register_buffer(last, tensor)
    table.kind, table.settings, table.mark = kind, settings, mark
    for layer in tied.values():
        plain = CodedTwin if isinstance(layer, nn.Embedding) else CodedHead
        layer.__class__ = coded_class(type(layer), plain)
        layer.weight = table.weight
        layer.__dict__["table"] = table  # past nn.Module's own registration: the code is saved once


def coded_class(dense: type[nn.Module], plain: type[nn.Module]) -> type[nn.Module]:
    """The class of a coded layer that is still an instance of its dense class; the same one every time."""
    if dense in (nn.Embedding, nn.Linear):
        return plain
    known = _made.get((dense, plain))
    if known is None:
        known = _made[dense, plain] = type(
            f"Coded{dense.__name__}",
            (dense, plain),  # scaled embeddings call up to ours
            {"__reduce_ex__": lambda self, protocol: (_blank, (dense, plain), self.__dict__), "__doc__": plain.__doc__},
        )
    return known


_made: dict[tuple[type[nn.Module], type[nn.Module]], type[nn.Module]] = {}


def _blank(dense: type[nn.Module], plain: type[nn.Module]) -> Any:
    """An empty instance of a coded class, for unpickling and copying."""
    made = coded_class(dense, plain)
    return made.__new__(made)


def empty_code(kind: str, layout: Any, like: Tensor) -> dict[str, Tensor]:
    """Tensors of the right shapes and types, to be filled when a checkpoint is loaded; real numbers in the model's
    dtype. ``layout`` maps names to a type and sides, as :func:`layout_of` writes them."""
    known = LAYOUTS.get(kind)
    if known is None or not isinstance(layout, Mapping) or set(layout) != set(known):
        got = ", ".join(map(str, layout)) if isinstance(layout, Mapping) else type(layout).__name__
        raise InputError(f"need the layout of a code, got {kind!r} with {got or 'nothing'}: restore config.json")
    made = {}
    for name, (wanted, count) in known.items():
        dtype, *sides = layout[name] if isinstance(layout[name], list) and layout[name] else [None]
        whole = all(isinstance(side, int) and 0 <= side < 2**40 for side in sides) and math.prod(sides) < 2**40
        if dtype != wanted or len(sides) != count or not whole:
            raise InputError(f"need {name} as {wanted} with {count} sides, got {layout[name]!r}: restore config.json")
        made[name] = torch.empty(
            *sides, dtype=like.dtype if dtype == "real" else getattr(torch, dtype), device=like.device
        )
    return made


def layout_of(tensors: Mapping[str, Tensor]) -> dict[str, list[Any]]:
    """Types and sides of a code's tensors, for ``config.json``."""
    return {
        name: ["real" if tensor.is_floating_point() else str(tensor.dtype).removeprefix("torch."), *tensor.shape]
        for name, tensor in tensors.items()
    }
