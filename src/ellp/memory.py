"""Memory that was freed, given back to the system before a large piece is taken anew."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

LARGE = 2**20  # bytes from which on a piece is worth tidying up for


def tidy(needed: int) -> None:
    """Before ``needed`` bytes are taken: glibc keeps freed pieces for their like, and a larger one adds to them.

    Nothing happens for small pieces, and where the C library is another one.
    """
    trim = _trim()
    if needed >= LARGE and trim is not None:
        trim(0)


@cache
def _trim() -> Any:
    """glibc's ``malloc_trim``, or None."""
    try:
        return ctypes.CDLL(None).malloc_trim if sys.platform == "linux" else None
    except (OSError, AttributeError):
        return None
