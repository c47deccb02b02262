r"""Plain rounding of a matrix to a few bits a number: the baseline every other code has to beat at equal bytes.

Each row is cut into groups; a group is stored as integers of b bits and one float16 scale s,

    x ~ s q,   q in {-2^(b-1), ..., 2^(b-1) - 1},   s = -x_max / 2^(b-1)

where x_max is the group's entry of largest magnitude, with its sign. That entry meets the one integer that has no
opposite, so all 2^b integers are in use (the scheme known as Q4_0 in GGML, for any b).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ellp.errors import InputError

GROUP = 32


def round_to_bits(matrix: Tensor, bits: int, group: int = GROUP) -> Tensor:
    """The matrix as it is read back after rounding to ``bits`` a number, in groups with a float16 scale each.

    >>> import torch
    >>> round_to_bits(torch.tensor([[-4.0, 1.0, 2.2, 0.4]]), bits=3)
    tensor([[-4.,  1.,  2.,  0.]])
    """
    _check(matrix.ndim, bits, group)
    rows, columns = matrix.shape
    padded = torch.nn.functional.pad(matrix.float(), (0, -columns % group)).view(rows, -1, group)
    half = 2 ** (bits - 1)
    largest = padded.gather(2, padded.abs().argmax(dim=2, keepdim=True))
    scale = (largest / -half).half().float()
    if not bool(torch.isfinite(scale).all()):
        raise InputError("need scales that fit float16, got an overflow or a NaN: scale the matrix down first")
    codes = (padded / scale.masked_fill(scale == 0, 1.0)).round().clamp(-half, half - 1)
    read: Tensor = (codes * scale).view(rows, -1)[:, :columns].to(matrix.dtype)
    return read


def rounded_bytes(shape: tuple[int, int], bits: int, group: int = GROUP) -> int:
    """Bytes of a matrix rounded to ``bits`` a number, with all of its scales.

    >>> 8 * rounded_bytes((1000, 320), bits=4) / (1000 * 320)  # bits a number
    4.5
    """
    _check(len(shape), bits, group)
    rows, columns = shape
    return math.ceil(rows * columns * bits / 8) + 2 * rows * math.ceil(columns / group)


def _check(sides: int, bits: int, group: int) -> None:
    if sides != 2:
        raise InputError(f"need a matrix, got {sides} dimensions: pass rows and columns")
    if not 2 <= bits <= 8:
        raise InputError(f"need 2 to 8 bits a number, got {bits}: 4 is a good choice")
    if group < 1:
        raise InputError(f"need groups of at least 1 number, got {group}: 32 is a good size")
