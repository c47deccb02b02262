"""Packages that only some formats need."""

from __future__ import annotations

import importlib
from typing import Any

from ellp.errors import InputError


def extra(module: str, what: str) -> Any:
    """A package of the extra ``scale``, imported when a table first needs it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise InputError(f"need {package} to read {what}, got none: pip install 'ellp[scale]'") from None
