"""Registers the transformers plug-in as soon as transformers' own registry exists, without importing transformers."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

REGISTRY = "transformers.quantizers.auto"
PLUGIN = "ellp.hf"


class _Watcher(importlib.abc.MetaPathFinder):
    """Finds nothing itself; lets the registry be found as usual and loads the plug-in behind it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != REGISTRY:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_both(module: ModuleType) -> None:
            load(module)
            importlib.import_module(PLUGIN)

        spec.loader.exec_module = load_both  # type: ignore[method-assign]
        return spec


def register() -> None:
    """Register now if transformers' registry is loaded, otherwise the moment it is."""
    if REGISTRY in sys.modules:
        importlib.import_module(PLUGIN)
    elif not any(isinstance(finder, _Watcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watcher())
