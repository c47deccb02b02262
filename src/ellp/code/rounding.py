r"""Plain rounding of a matrix to a few bits a number: the baseline every other code has to beat at equal bytes.

Each row is cut into groups; a group is stored as integers of b bits and one float16 scale s,

    x ~ s q,   q in {-2^(b-1), ..., 2^(b-1) - 1},   s = -x_max / 2^(b-1)

where x_max is the group's entry of largest magnitude, with its sign. That entry meets the one integer that has no
opposite, so all 2^b integers are in use (the scheme known as Q4_0 in GGML, for any b).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ellp.errors import InputError

GROUP = 32


@dataclass(frozen=True)
class Rounded:
    """Packed ``codes`` (uint8, n x ceil(d bits / 8)) and ``scales`` (the bits of float16 in int16, n x groups)."""

    codes: Tensor
    scales: Tensor
    bits: int
    columns: int

    @property
    def bytes(self) -> int:
        return self.codes.numel() + 2 * self.scales.numel()


def round_matrix(matrix: Tensor, bits: int, group: int = GROUP) -> Rounded:
    """A matrix rounded to ``bits`` a number, in groups with a float16 scale each."""
    _check(matrix.ndim, bits, group)
    rows, columns = matrix.shape
    padded = torch.nn.functional.pad(matrix.float(), (0, -columns % group)).view(rows, -1, group)
    half = 2 ** (bits - 1)
    largest = padded.gather(2, padded.abs().argmax(dim=2, keepdim=True))
    scale = (largest / -half).half()
    if not bool(torch.isfinite(scale).all()):
        raise InputError("need scales that fit float16, got an overflow or a NaN: scale the matrix down first")
    step = scale.float()
    codes = (padded / step.masked_fill(step == 0, 1.0)).round().clamp(-half, half - 1) + half
    flat = codes.view(rows, -1)[:, :columns].to(torch.uint8)
    return Rounded(pack_bits(flat, bits), scale[:, :, 0].view(torch.int16), bits, columns)


def read_rounded(codes: Tensor, scales: Tensor, bits: int, columns: int, group: int = GROUP) -> Tensor:
    """The rows as they are read back (float32)."""
    values: Tensor = unpack_bits(codes, bits, columns).float() - 2 ** (bits - 1)
    step: Tensor = scales.view(torch.float16).float().repeat_interleave(group, dim=1)[:, :columns]
    return values * step


def round_to_bits(matrix: Tensor, bits: int, group: int = GROUP) -> Tensor:
    """The matrix as it is read back after rounding to ``bits`` a number, in groups with a float16 scale each.

    >>> import torch
    >>> round_to_bits(torch.tensor([[-4.0, 1.0, 2.2, 0.4]]), bits=3)
    tensor([[-4.,  1.,  2.,  0.]])
    """
    found = round_matrix(matrix, bits, group)
    read: Tensor = read_rounded(found.codes, found.scales, bits, found.columns, group).to(matrix.dtype)
    return read


def rounded_bytes(shape: tuple[int, int], bits: int, group: int = GROUP) -> int:
    """Bytes of a matrix rounded to ``bits`` a number, with all of its scales.

    >>> 8 * rounded_bytes((1000, 320), bits=4) / (1000 * 320)  # bits a number
    4.5
    """
    _check(len(shape), bits, group)
    rows, columns = shape
    return rows * (math.ceil(columns * bits / 8) + 2 * math.ceil(columns / group))


def pack_bits(codes: Tensor, bits: int) -> Tensor:
    """Rows of integers below ``2^bits`` (uint8) as rows of bytes, the first number in the lowest bits."""
    if bits == 8:
        return codes
    rows, columns = codes.shape
    each = codes[:, :, None] >> torch.arange(bits, device=codes.device, dtype=torch.uint8) & 1
    flat = torch.nn.functional.pad(each.reshape(rows, -1), (0, -columns * bits % 8)).view(rows, -1, 8)
    return (flat << torch.arange(8, device=codes.device, dtype=torch.uint8)).sum(dim=2).to(torch.uint8)


def unpack_bits(packed: Tensor, bits: int, columns: int) -> Tensor:
    """The integers in rows of bytes (uint8 or int32, rows x columns)."""
    if bits == 8:
        return packed
    if 8 % bits == 0:
        parts = [packed >> shift & 2**bits - 1 for shift in range(0, 8, bits)]
        return torch.stack(parts, dim=2).view(packed.shape[0], -1)[:, :columns]
    place = torch.arange(columns, device=packed.device) * bits
    wide = torch.nn.functional.pad(packed.int(), (0, 1))
    window = wide[:, place // 8] | wide[:, place // 8 + 1] << 8
    found: Tensor = window >> place % 8 & 2**bits - 1
    return found


def _check(sides: int, bits: int, group: int) -> None:
    if sides != 2:
        raise InputError(f"need a matrix, got {sides} dimensions: pass rows and columns")
    if not 2 <= bits <= 8:
        raise InputError(f"need 2 to 8 bits a number, got {bits}: 4 is a good choice")
    if group < 1:
        raise InputError(f"need groups of at least 1 number, got {group}: 32 is a good size")
