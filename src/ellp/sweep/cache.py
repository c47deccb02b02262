"""Results that can be worked out again, kept on disk so that no process of a sweep, and no later run, has to."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

Made = tuple[dict[str, Tensor], Mapping[str, Any]]


class Cache:
    """Tensors and facts by name in a folder; without a folder, only in memory."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.memory: dict[str, tuple[dict[str, Tensor], dict[str, Any]]] = {}

    def recall(self, name: str, make: Callable[[], Made]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What is kept under a name, made now if nothing is."""
        found = self.find(name)
        if found is None:
            self.keep(name, *make())
            found = self.find(name)
        assert found is not None
        return found

    def find(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """What is kept under a name, if it can be read."""
        if self.folder is None:
            return self.memory.get(name)
        path = self.folder / f"{name}.safetensors"
        if not path.is_file():
            return None
        try:
            with safe_open(path, "pt") as content:
                facts = json.loads(content.metadata()["facts"])
                return {key: content.get_tensor(key).clone() for key in content.keys()}, facts  # noqa: SIM118
        except (SafetensorError, OSError, ValueError, KeyError):
            return None  # a file cut short by a crash is made again

    def keep(self, name: str, tensors: dict[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Keep tensors and facts under a name; readers see all of it or nothing."""
        if self.folder is None:
            self.memory[name] = tensors, dict(facts)
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = self.folder / f".{name}.{os.getpid()}.part"
        save_file(tensors, draft, metadata={"facts": json.dumps(dict(facts))})
        os.replace(draft, self.folder / f"{name}.safetensors")


def file_name(text: str) -> str:
    """A text as part of a file's name, different for different texts.

    >>> file_name("mrpc/lp p=1")
    'mrpc_lp_p_1-45422fc516'
    """
    return f"{re.sub(r'[^A-Za-z0-9.-]+', '_', text)[:80]}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"
