"""What a pass over a table's rows needs to know of the place where they lie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from ellp.errors import EllpError, InputError, first_line


class Source(Protocol):
    """A table's rows on disk: cheap to pickle (paths and facts, no open files), safe to read from several threads."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows as read: float16, bfloat16, float32 or float64."""

    @property
    def name(self) -> str:
        """For messages and records."""

    def read(self, first: int, last: int, into: Tensor | None = None) -> Tensor:
        """Rows first to last - 1, (last - first) x d, in memory.

        ``into`` has the source's dtype and at least as many rows; it may be filled and returned in part, or ignored.
        A file that ends too early is an :class:`ellp.InputError`.
        """

    def stamp(self) -> dict[str, Any]:
        """What tells this content from another, as JSON can hold it: paths, sizes, times, facts of the header."""


def check_span(source: Source, first: int, last: int) -> None:
    """That rows first to last - 1 are in the table."""
    if not 0 <= first <= last <= source.shape[0]:
        raise InputError(
            f"need rows out of the {source.shape[0]} of {source.name}, got {first} to {last}: ask for fewer"
        )


@contextmanager
def decoding(kind: str, name: str) -> Iterator[None]:
    """What a format's own library says of a damaged file, as one clear error."""
    try:
        yield
    except (EllpError, MemoryError):
        raise
    except Exception as error:
        raise InputError(
            f"need a complete {kind}, got {name} ({type(error).__name__}: {first_line(error)}): write or copy it again"
        ) from None


def few(names: Sequence[str]) -> str:
    """The first names of many, for a message."""
    return ", ".join(sorted(names)[:6]) + (", ..." if len(names) > 6 else "") if names else "nothing"
