"""What ``run.json`` has to look like, so that a damaged one is refused with its place rather than met half-way."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ellp.errors import InputError

TEXT, NUMBER, COUNT = "a text", "a number", "a count"
EACH = "*"  # of an object with any keys

LAYER = {
    "name": TEXT,
    "rows": COUNT,
    "columns": COUNT,
    "spectrum": {EACH: [NUMBER]},
    "outliers": [{"row": COUNT, "token": TEXT, "length": NUMBER, "times_median": NUMBER}],
}
MODEL = {
    **dict.fromkeys(("key", "family", "source", "name", "architecture"), TEXT),
    "parameters": COUNT,
    "bytes_fp16": COUNT,
    "layers": [LAYER],
    "dense": {EACH: {"score": NUMBER, "scores": {EACH: NUMBER}, "examples": COUNT}},
}
GAIN = {
    **dict.fromkeys(("method", "importance", "model", "task"), TEXT),
    **dict.fromkeys(("p", "keep", "gain", "gain_low", "gain_high"), NUMBER),
}
RUN: Mapping[str, Any] = {
    "command": TEXT,
    "versions": {},
    "machine": {},
    "limit": COUNT,
    "tasks": [TEXT],
    "sessions": [{"seconds": NUMBER}],
    "models": [MODEL],
    "comparisons": [GAIN],
    "verdict": {"text": TEXT},
}


def check(value: Any, shape: Any = RUN, place: str = "run.json") -> None:
    """Refuse what does not fit; what is missing or null fits, and so do numbers as strings (``"inf"``).

    >>> check({"models": [{"key": "m", "layers": [{"rows": "many"}]}]})
    Traceback (most recent call last):
    ...
    ellp.errors.InputError: need a count at run.json.models[0].layers[0].rows, got 'many': restore the file
    """
    if value is None:
        return
    if isinstance(shape, str):
        if not _fits(value, shape):
            raise InputError(f"need {shape} at {place}, got {str(value)[:40]!r}: restore the file")
        return
    if isinstance(shape, list):
        _check_list(value, shape[0], place)
        return
    if not isinstance(value, dict):
        raise InputError(f"need an object at {place}, got {str(value)[:40]!r}: restore the file")
    for key, part in value.items():
        inner = shape.get(key, shape.get(EACH))
        if inner is not None:
            check(part, inner, f"{place}.{key}")


def _check_list(value: Any, shape: Any, place: str) -> None:
    if not isinstance(value, list):
        raise InputError(f"need a list at {place}, got {str(value)[:40]!r}: restore the file")
    for number, part in enumerate(value):
        if part is None:
            raise InputError(f"need a value at {place}[{number}], got null: restore the file")
        check(part, shape, f"{place}[{number}]")


def _fits(value: Any, kind: str) -> bool:
    if kind == TEXT:
        return isinstance(value, str)
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return False
    try:
        number = float(value)
    except ValueError:
        return False
    return kind == NUMBER or (not isinstance(value, str) and math.isfinite(number) and number >= 0)
