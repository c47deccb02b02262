"""The axes of a code, themselves rounded: integers of 4 or 8 bits with a scale for each axis."""

from __future__ import annotations

import torch
from torch import Tensor

from ellp.code.rounding import pack_bits, unpack_bits

AXIS_BITS = (8, 4)


def store_axes(back: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Axes (one a row) as rows of packed integers (uint8), and a scale each.

    >>> import torch
    >>> packed, scale = store_axes(torch.tensor([[0.5, -0.5, 0.0]]), bits=8)
    >>> read_axes(packed, 8, 3) * scale[:, None]
    tensor([[ 0.5000, -0.5000,  0.0000]])
    """
    half = 2 ** (bits - 1) - 1
    scale = back.abs().amax(dim=1) / half
    codes = (back / scale.masked_fill(scale == 0, 1.0)[:, None]).round().clamp(-half, half) + half
    return pack_bits(codes.to(torch.uint8), bits), scale


def read_axes(packed: Tensor, bits: int, columns: int) -> Tensor:
    """Axes as they are read back, without their scales (float32)."""
    found: Tensor = unpack_bits(packed, bits, columns) - (2 ** (bits - 1) - 1)
    return found


def axes_bytes(count: int, columns: int, bits: int, scale: int = 4) -> int:
    """Bytes of so many axes with their scales."""
    return count * (-(-columns * bits // 8) + scale)
