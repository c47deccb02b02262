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
    values = unpack_bits(codes, bits, columns) - 2 ** (bits - 1)
    step = read_halves(scales).repeat_interleave(group, dim=1)[:, :columns]
    found: Tensor = values * step
    return found


def read_halves(bits: Tensor) -> Tensor:
    """Numbers whose float16 bits are in int16 (float32), in arithmetic that exporters know: no view as another type.

    >>> read_halves(torch.tensor([-1.5, 0.1, 6e-8]).half().view(torch.int16))
    tensor([-1.5000e+00,  9.9976e-02,  5.9605e-08])
    """
    whole = bits.int()
    magnitude = torch.where(whole < 0, whole + 2**15, whole).float()
    exponent = torch.floor(magnitude / 1024)
    unit = torch.tensor([2.0 ** (max(power, 1) - 25) for power in range(32)], device=bits.device)
    found = (magnitude - 1024 * (exponent - exponent.clamp(max=1))) * unit[exponent.long()]
    return torch.where(whole < 0, -found, found)


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
    """The integers in rows of bytes (float32, rows x columns): by a table of all bytes where these hold whole numbers,
    else from windows of two bytes. In arithmetic that exporters know, and that is faster than shifts."""
    rows = packed.shape[0]
    if bits == 8:
        return packed.float()
    if 8 % bits == 0:
        every = torch.arange(256, device=packed.device, dtype=torch.float32)[:, None]
        table = _low_bits(every, torch.arange(0, 8, bits, device=packed.device), bits)
        return table.index_select(0, packed.reshape(-1).int()).view(rows, packed.shape[1] * 8 // bits)[:, :columns]
    place = torch.arange(columns, device=packed.device) * bits
    wide = torch.nn.functional.pad(packed.float(), (0, 1))
    byte = torch.div(place, 8, rounding_mode="floor")
    return _low_bits(wide.index_select(1, byte) + 256 * wide.index_select(1, byte + 1), place - 8 * byte, bits)


def _low_bits(numbers: Tensor, shift: Tensor, bits: int) -> Tensor:
    """``numbers >> shift & 2^bits - 1`` of whole numbers in float32, exactly."""
    shifted = torch.floor(numbers * torch.tensor([2.0**-places for places in range(8)], device=shift.device)[shift])
    found: Tensor = shifted - 2**bits * torch.floor(shifted * 2**-bits)
    return found


def _check(sides: int, bits: int, group: int) -> None:
    if sides != 2:
        raise InputError(f"need a matrix, got {sides} dimensions: pass rows and columns")
    if not 2 <= bits <= 8:
        raise InputError(f"need 2 to 8 bits a number, got {bits}: 4 is a good choice")
    if group < 1:
        raise InputError(f"need groups of at least 1 number, got {group}: 32 is a good size")
