"""Rows read back from a code: only those asked for, from the stored tensors alone.

Two ways for the same numbers. The *ragged* one touches exactly the places of the asked rows. The *padded* one gives
every row the longest length there is and can be traced: its shapes depend on nothing but the number of rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ellp.code.axes import read_axes
from ellp.code.prefixes import Prefixes, ragged
from ellp.code.rounding import GROUP, read_rounded

Tensors = Mapping[str, Tensor]


def read_rows(kind: str, stored: Tensors, bits: int, columns: int, rows: Tensor, traced: bool = False) -> Tensor:
    """The given rows (int64) of a coded table, in the dtype of its real numbers; ``bits`` are those of the axes of a
    staged code, and those of a number of a rounded one."""
    mean = stored["mean"]
    if kind == "tapered":
        return torch.addmm(mean[0], _numbers(stored, rows, traced), stored["proj.weight"])
    if kind == "rounded":
        codes, scales = (stored[name].index_select(0, rows) for name in ("code", "scales"))
        return mean + read_rounded(codes, scales, bits, columns, GROUP).to(mean.dtype)
    found = _padded(stored, rows) if traced else _ragged(stored, rows)
    axes = read_axes(stored["proj.weight"], bits, columns).to(mean.dtype)
    return torch.addmm(mean[0], found * stored["proj.scale"], axes)


def _numbers(stored: Tensors, rows: Tensor, traced: bool) -> Tensor:
    """Coordinates that are stored as numbers: the first so many of every row, zeros behind them."""
    start, length = row_map(stored).spans(rows)
    axes, stream = stored["proj.weight"].shape[0], stored["numbers"]
    if traced:
        step = torch.arange(axes, device=rows.device)
        inside = step < length[:, None]
        place = torch.where(inside, start[:, None] + step, 0)
        return stream.index_select(0, place.view(-1)).view(place.shape) * inside
    row, step, place = ragged(start, length)
    flat = stream.new_zeros(rows.shape[0] * axes)
    return flat.index_add(0, row * axes + step, stream.index_select(0, place)).view(-1, axes)


def _ragged(stored: Tensors, rows: Tensor) -> Tensor:
    """Coordinates of rows, summed place by place."""
    start, length = row_map(stored).spans(rows)
    row, step, place = ragged(start, length)
    values = _values(stored, step, stored["code"].index_select(0, place))
    axes = stored["proj.weight"].shape[0]
    targets = stored["axes"].long().index_select(0, step).add_((row * axes)[:, None])
    flat = values.new_zeros(rows.shape[0] * axes).scatter_add(0, targets.view(-1), values.view(-1))
    return flat.view(-1, axes)


def _padded(stored: Tensors, rows: Tensor) -> Tensor:
    """Coordinates of rows, all stages of all rows, those beyond a row's length times zero."""
    start, length = row_map(stored).spans(rows)
    stages, axes = stored["scale"].shape[0], stored["proj.weight"].shape[0]
    step = torch.arange(stages, device=rows.device)
    inside = step < length[:, None]
    place = torch.where(inside, start[:, None] + step, 0)
    byte = stored["code"].index_select(0, place.view(-1)).view(place.shape)
    entry = stored["book"].long() * 256 + byte.long()
    books = stored["books"].reshape(-1, stored["books"].shape[2]).to(stored["scale"].dtype)
    values = books.index_select(0, entry.view(-1)).view(*entry.shape, books.shape[1])
    values = values * (inside * stored["scale"])[:, :, None]
    where = torch.nn.functional.one_hot(stored["axes"].long().reshape(-1), axes).to(values.dtype)
    return values.flatten(1) @ where


def _values(stored: Tensors, step: Tensor, byte: Tensor) -> Tensor:
    """What each byte adds to its axes."""
    scale = stored["scale"]
    entries = stored["books"].to(scale.dtype).view(-1, stored["books"].shape[2])
    entry = (stored["book"].long() * 256).index_select(0, step).add_(byte)
    return entries.index_select(0, entry) * scale.index_select(0, step)[:, None]


def row_map(stored: Tensors) -> Prefixes:
    """Which places of the stream are a row's own."""
    return Prefixes(stored["lengths"], stored["levels"], stored["starts"])
