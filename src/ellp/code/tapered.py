r"""Rows of fewer and fewer numbers: a low-rank factor whose rows are as long as they deserve.

    a_i  ~  m + sum_{j < length_i}  y_ij  b_j,      y_i = (a_i - m) S V,   b_j the rows of V^T S^-1.

With one length for all rows this is the usual factorization of rank k; with lengths 0 or d it is exact rows beside a
mean. In between, row i keeps the coordinates that are worth it: its length is where ``c_i sum_{j >= length} y_ij^2 + mu
length`` is least, with the mu at which all fit. An important row is exact, a rare one keeps a handful of numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ellp.code.basis import basis
from ellp.code.prefixes import levels_up_to, map_bytes, map_rows
from ellp.code.search import Candidate, Coded, choose_within, measured
from ellp.errors import InputError


def taper_table(
    matrix: Tensor,
    numbers: int,
    importance: Tensor | None = None,
    metric: Tensor | None = None,
    p: float = 1.0,
    seed: int = 0,
) -> Coded:
    """Rows of a table (n x d) as prefixes of coordinates, in at most so many numbers, the row map counted.

    >>> import torch
    >>> table = torch.randn(2000, 32, generator=torch.manual_seed(0))
    >>> tapered = taper_table(table, numbers=16000)  # a quarter
    >>> tapered.kind, tapered.error < 0.8
    ('tapered', True)
    """
    found = basis(matrix, importance, metric, p, seed)
    count, width = found.shape
    levels = levels_up_to(width).to(matrix.device)
    itemsize = max(2, matrix.element_size())
    map_numbers = -(-map_bytes(count, len(levels)) // itemsize)
    sizes = torch.cat([block.square().sum(dim=1) for _, block in found.blocks()])
    errors = torch.cat([_tails(block) for _, block in found.blocks()])
    own = found.weight * sizes
    axes, choice = width, None
    for _ in range(3):  # once more with the room that axes nobody uses leave
        room = numbers - map_numbers - width - axes * width
        if room < 1:
            if axes == 1:
                raise InputError(f"need more numbers for {count} rows, got {numbers:,}: keep a larger share")
            axes = max(1, (numbers - map_numbers - width) // (2 * width))
            continue
        choice = choose_within(errors, own, levels[levels <= axes], room)
        used = int(levels[choice].max())
        if used == axes:
            break
        axes = max(1, used)
    if choice is None:
        raise InputError(f"need more numbers for {count} rows, got {numbers:,}: keep a larger share")
    lengths = levels[choice].long()
    steps = torch.arange(width, device=matrix.device)
    stream = torch.cat([block[steps < lengths[span, None]] for span, block in found.blocks()])
    row_map = map_rows(choice, levels[: int(choice.max()) + 1])
    tensors = {
        "weight": found.mean.new_empty(count, 0),
        "mean": found.mean[None].clone(),
        "numbers": stream,
        "lengths": row_map.lengths,
        "levels": row_map.levels,
        "starts": row_map.starts,
        "proj.weight": found.back[: max(1, int(lengths.max()))].contiguous(),
    }
    tensors = {
        name: tensor.to(matrix.dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()
    }
    used_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    error = measured(found, "tapered", tensors, 8)
    chosen = Candidate("tapered", error, used_bytes, axes=int(lengths.max()))
    return Coded("tapered", tensors, 8, used_bytes, error, chosen, (chosen,))


def _tails(coordinates: Tensor) -> Tensor:
    """Every row's squared error after its first 0, 1, ..., d coordinates, over that after none (float16)."""
    tails = coordinates.square().flip(1).cumsum(1).flip(1)
    tails = (tails / tails[:, :1].clamp(min=1e-30)).half()
    padded: Tensor = torch.nn.functional.pad(tails, (0, 1))
    return padded
