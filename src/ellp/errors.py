"""What can go wrong, each with its remedy in the message."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ellp.ellipsoid.certificate import Ellipsoid


class EllpError(Exception):
    """Every error this package raises on purpose."""


class InputError(EllpError, ValueError):
    """The caller's data or options cannot be used; the message says what to change."""


class NotConverged(EllpError, RuntimeError):
    """The requested distortion was not proved within the allowed steps.

    The best ellipsoid found, with its honest certificate, is kept in ``ellipsoid``.
    """

    def __init__(self, message: str, ellipsoid: Ellipsoid) -> None:
        super().__init__(message)
        self.ellipsoid = ellipsoid


def first_line(error: Exception) -> str:
    """What another library's error says, in one line; two where the first only introduces the second."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " ".join(lines[: 1 + lines[0].endswith(":")])[:200]
