"""From a share of the parameters to a rank."""

from __future__ import annotations

from ellp.errors import InputError


def rank_for(shape: tuple[int, ...], keep: float) -> int:
    """The largest rank whose two factors hold at most ``keep`` of the matrix's numbers.

    >>> rank_for((30522, 384), 0.72)  # the paper's "28 % compression"
    273
    """
    rows, columns = shape
    if not 0 < keep <= 1:
        raise InputError(f"need a share to keep above 0 and at most 1, got {keep}: 0.5 keeps half of the parameters")
    rank = int(keep * rows * columns / (rows + columns) * (1 + 1e-12))
    if rank < 1:
        smallest = (rows + columns) / (rows * columns)
        raise InputError(f"need room for rank 1, got a share of {keep}: keep at least {smallest:.2g}")
    return rank


def break_even(shape: tuple[int, ...]) -> int:
    """The largest rank at which the factors are strictly smaller than the matrix; 0 if there is none.

    >>> break_even((30522, 384))
    379
    """
    rows, columns = shape
    return (rows * columns - 1) // (rows + columns)
