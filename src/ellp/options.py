"""What a caller may choose. Nothing heavy is imported here, so the command line can list them at once."""

from __future__ import annotations

from typing import Literal

from ellp.errors import InputError

Method = Literal["lewis", "loewner", "sketch", "svd"]
Refine = Literal["entries", "rows"]
How = Literal["auto", "codebook", "scalar", "int8", "rounding"]


def check_p(p: float) -> None:
    if not p >= 0:
        raise InputError(f"need p of 0 or more, got {p}: 1 is robust, 2 is the SVD")


def check_seed(seed: int) -> None:
    if not -(2**63) <= seed < 2**63:
        raise InputError(f"need a seed of at most 63 bits, got {seed}: pass a smaller one")
