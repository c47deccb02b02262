"""The tensors of each kind of code, and the check that tensors from a file are one: whole, and safe to read."""

from __future__ import annotations

import hashlib

import torch

from ellp.code.prefixes import check_map
from ellp.code.reading import Tensors, row_map
from ellp.code.rounding import GROUP
from ellp.errors import InputError

_COMMON = {"weight": ("real", 2), "mean": ("real", 2)}
_ROW_MAP = {"lengths": ("uint8", 1), "levels": ("int16", 1), "starts": ("int64", 1)}
LAYOUTS: dict[str, dict[str, tuple[str, int]]] = {
    "staged": _COMMON
    | _ROW_MAP
    | {"code": ("uint8", 1), "axes": ("int16", 2), "book": ("uint8", 1), "books": ("int8", 3), "scale": ("real", 1)}
    | {"proj.weight": ("uint8", 2), "proj.scale": ("real", 1)},
    "rounded": _COMMON | {"code": ("uint8", 2), "scales": ("int16", 2)},
    "tapered": _COMMON | _ROW_MAP | {"numbers": ("real", 1), "proj.weight": ("real", 2)},
}
"""Type and number of sides of every tensor; *real* is the model's dtype. ``weight`` (n x 0) only marks the table's
place and how many rows it has."""


def check_code(kind: str, stored: Tensors, bits: int, shape: tuple[int, int]) -> None:
    """That tensors from a file are a code of a table of this shape, and that reading it stays within them."""
    _check_types(kind, stored)
    if not 2 <= bits <= 8:
        raise InputError(f"need 2 to 8 bits, got {bits}: the code is damaged")
    count, columns = shape
    packed = -(-columns * bits // 8)
    _check_shape(stored, "weight", (count, 0))
    _check_shape(stored, "mean", (1, columns))
    if kind == "rounded":
        _check_shape(stored, "code", (count, packed))
        _check_shape(stored, "scales", (count, -(-columns // GROUP)))
        _check_finite("scales", stored["scales"].view(torch.float16))
        return
    axes = stored["proj.weight"].shape[0]
    if kind == "tapered":
        _check_shape(stored, "proj.weight", (axes, columns))
        check_map(row_map(stored), count, stored["numbers"].numel(), axes)
        return
    _check_shape(stored, "proj.weight", (axes, packed))
    _check_stages(stored, axes)
    check_map(row_map(stored), count, stored["code"].numel(), stored["scale"].shape[0])


def _check_types(kind: str, stored: Tensors) -> None:
    layout = LAYOUTS.get(kind, {})
    absent = [name for name in layout if name not in stored]
    if not layout or absent:
        got = f"none for {', '.join(absent)}" if layout else "a kind that is not known"
        raise InputError(f"need the tensors of a {kind} code, got {got}: restore the file, or upgrade ellp")
    for name, (wanted, sides) in layout.items():
        tensor = stored[name]
        found = "real" if tensor.is_floating_point() else str(tensor.dtype).removeprefix("torch.")
        if (found, tensor.ndim) != (wanted, sides):
            raise InputError(
                f"need {name} as {wanted} of {sides} sides, got {found} of {tensor.ndim}: the code is damaged"
            )
        if wanted == "real":
            _check_finite(name, tensor)


def _check_stages(stored: Tensors, axes: int) -> None:
    stages, width = stored["axes"].shape
    for name, sides in (("book", stages), ("scale", stages), ("proj.scale", axes)):
        _check_shape(stored, name, (sides,))
    _check_shape(stored, "books", (stored["books"].shape[0], 256, width))
    if stages and not (width and int(stored["axes"].min()) >= 0 and int(stored["axes"].max()) < axes):
        raise InputError(f"need stages on {axes} axes, got one outside: the code is damaged")
    if stages and int(stored["book"].max()) >= stored["books"].shape[0]:
        raise InputError("need a codebook for every stage, got a stage without: the code is damaged")


def _check_shape(stored: Tensors, name: str, wanted: tuple[int, ...]) -> None:
    if tuple(stored[name].shape) != wanted:
        raise InputError(f"need {name} of shape {wanted}, got {tuple(stored[name].shape)}: the code is damaged")


def _check_finite(name: str, tensor: torch.Tensor) -> None:
    if not bool(torch.isfinite(tensor).all()):
        raise InputError(f"need finite numbers, got NaN or infinity in {name}: the code is damaged, write it again")


def digest(stored: Tensors) -> str:
    """A mark of a code's integers, which nothing changes: neither a cast nor training.

    >>> digest({"code": torch.zeros(2, dtype=torch.uint8), "scale": torch.ones(1)})[:8]
    '...'
    """
    found = hashlib.blake2b(digest_size=8)
    for name in sorted(stored):
        if not stored[name].is_floating_point():
            whole = stored[name].detach().cpu().contiguous()
            found.update(f"{name} {tuple(whole.shape)} ".encode())
            found.update(whole.view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()
