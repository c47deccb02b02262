"""Rows read back from a code: only those asked for, from the stored tensors alone.

Two ways for the same numbers. The *ragged* one touches exactly the places of the asked rows. The *padded* one gives
every row the longest length there is and can be traced: its shapes depend on nothing but the number of rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ellp.code.axes import read_axes
from ellp.code.prefixes import Prefixes, check_map, ragged
from ellp.code.rounding import GROUP, read_rounded
from ellp.errors import InputError

Tensors = Mapping[str, Tensor]

ROW_MAP = ("lengths", "levels", "starts")
SHAPES = {
    "staged": (
        "weight",
        "mean",
        "code",
        "lengths",
        "levels",
        "starts",
        "axes",
        "book",
        "books",
        "scale",
        "proj.weight",
        "proj.scale",
    ),
    "rounded": ("weight", "mean", "code", "scales"),
    "tapered": ("weight", "mean", "numbers", *ROW_MAP, "proj.weight"),
}
"""The tensors of each kind of code. ``weight`` (n x 0) only marks the table's place and how many rows it has."""


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
    start, length = _map(stored).spans(rows)
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
    start, length = _map(stored).spans(rows)
    row, step, place = ragged(start, length)
    values = _values(stored, step, stored["code"].index_select(0, place))
    axes = stored["proj.weight"].shape[0]
    targets = stored["axes"].long().index_select(0, step).add_((row * axes)[:, None])
    flat = values.new_zeros(rows.shape[0] * axes).scatter_add(0, targets.view(-1), values.view(-1))
    return flat.view(-1, axes)


def _padded(stored: Tensors, rows: Tensor) -> Tensor:
    """Coordinates of rows, all stages of all rows, those beyond a row's length times zero."""
    start, length = _map(stored).spans(rows)
    stages, axes = stored["scale"].shape[0], stored["proj.weight"].shape[0]
    step = torch.arange(stages, device=rows.device)
    inside = step < length[:, None]
    place = torch.where(inside, start[:, None] + step, 0)
    byte = stored["code"].index_select(0, place.view(-1)).view(place.shape)
    entry = stored["book"].long() * 256 + byte.long()
    books = stored["books"].reshape(-1, stored["books"].shape[2]).to(stored["scale"].dtype)
    values = books.index_select(0, entry.view(-1)).view(*entry.shape, -1) * (inside * stored["scale"])[:, :, None]
    where = torch.nn.functional.one_hot(stored["axes"].long().reshape(-1), axes).to(values.dtype)
    return values.flatten(1) @ where


def _values(stored: Tensors, step: Tensor, byte: Tensor) -> Tensor:
    """What each byte adds to its axes."""
    scale = stored["scale"]
    entries = stored["books"].to(scale.dtype).view(-1, stored["books"].shape[2])
    entry = (stored["book"].long() * 256).index_select(0, step).add_(byte)
    return entries.index_select(0, entry) * scale.index_select(0, step)[:, None]


def _map(stored: Tensors) -> Prefixes:
    return Prefixes(stored["lengths"], stored["levels"], stored["starts"])


def check_code(kind: str, stored: Tensors, bits: int, shape: tuple[int, int]) -> None:
    """That tensors from a file are a code of a table of this shape, and that reading it stays within them."""
    count, columns = shape
    absent = [name for name in SHAPES.get(kind, ()) if name not in stored]
    if kind not in SHAPES or absent:
        raise InputError(
            f"need the tensors of a {kind} code, got none for {', '.join(absent) or kind}: restore the file"
        )
    if not 2 <= bits <= 8:
        raise InputError(f"need 2 to 8 bits, got {bits}: the code is damaged")
    real = [stored[name] for name in SHAPES[kind] if stored[name].is_floating_point()]
    if not all(bool(torch.isfinite(tensor).all()) for tensor in real):
        raise InputError("need finite numbers in a code, got NaN or infinity: the code is damaged, write it again")
    packed = -(-columns * bits // 8)
    _check_shape(stored, "weight", (count, 0))
    _check_shape(stored, "mean", (1, columns))
    if kind == "tapered":
        axes = stored["proj.weight"].shape[0]
        _check_shape(stored, "proj.weight", (axes, columns))
        check_map(_map(stored), count, stored["numbers"].numel(), axes)
        return
    if kind == "rounded":
        _check_shape(stored, "code", (count, packed))
        _check_shape(stored, "scales", (count, -(-columns // GROUP)))
        return
    stages, axes, width = stored["scale"].shape[0], stored["proj.weight"].shape[0], stored["axes"].shape[-1]
    wanted = {"axes": (stages, width), "book": (stages,), "proj.weight": (axes, packed)}
    wanted |= {"proj.scale": (axes,), "books": (stored["books"].shape[0], 256, width), "scale": (stages,)}
    for name, sides in wanted.items():
        _check_shape(stored, name, sides)
    if stages and not (int(stored["axes"].min()) >= 0 and int(stored["axes"].max()) < axes):
        raise InputError(f"need stages on {axes} axes, got one outside: the code is damaged")
    if stages and int(stored["book"].max()) >= stored["books"].shape[0]:
        raise InputError("need a codebook for every stage, got a stage without: the code is damaged")
    check_map(_map(stored), count, stored["code"].numel(), stages)


def _check_shape(stored: Tensors, name: str, wanted: tuple[int, ...]) -> None:
    if tuple(stored[name].shape) != wanted:
        raise InputError(f"need {name} of shape {wanted}, got {tuple(stored[name].shape)}: the code is damaged")
