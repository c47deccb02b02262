"""What a model's ``config.json`` says: the class to load, and its configuration."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ellp.bundle.model import Wanted
from ellp.errors import EllpError, InputError, first_line
from ellp.folder import read_json


def read_config(folder: Path, wanted: Wanted) -> tuple[Any, Any]:
    """The class to load and its configuration."""
    import transformers

    if not (folder / "config.json").is_file():
        inner = sorted(path.parent.name for path in folder.glob("*Transformer/config.json"))
        raise InputError(
            f"need a model folder with config.json, got {folder}: "
            + (f"pass {folder / inner[0]}" if inner else "pass the folder that save_pretrained wrote")
        )
    facts = read_json(folder / "config.json")
    _refuse_quantized(folder, facts, wanted.compressed)
    try:
        kind = _class_for(folder, facts, wanted)
        told = "model_type" in facts or "auto_map" in facts  # else some versions guess it from the folder's name
        reader = transformers.AutoConfig if told else kind.config_class
        config = reader.from_pretrained(folder, local_files_only=True, trust_remote_code=wanted.trust_remote_code)
        return kind, config
    except EllpError:
        raise
    except Exception as error:
        if facts.get("auto_map") and not wanted.trust_remote_code:
            raise _needs_code(folder) from error
        raise InputError(
            f"need a config.json that transformers {transformers.__version__} understands, got model_type "
            f"{facts.get('model_type')!r} in {folder} ({first_line(error)}): restore the file or update transformers"
        ) from error


def _class_for(folder: Path, facts: Mapping[str, Any], wanted: Wanted) -> Any:
    import transformers

    named = facts.get("architectures")
    first = named[0] if isinstance(named, list) and named else None
    remote = facts.get("auto_map")
    if isinstance(remote, dict) and wanted.trust_remote_code:
        kinds = [key for key, place in remote.items() if first and str(place).endswith(f".{first}")]
        kinds += [key for key in remote if key.startswith("AutoModel")]
        if kinds and hasattr(transformers, kinds[0]):
            return getattr(transformers, kinds[0])
    native = getattr(transformers, first, None) if isinstance(first, str) else None
    if isinstance(native, type) and issubclass(native, transformers.PreTrainedModel):
        return native
    if first and remote and not wanted.trust_remote_code:
        raise _needs_code(folder)
    return transformers.AutoModel


def _needs_code(folder: Path) -> InputError:
    return InputError(
        f"need a model that transformers itself can run, got {folder}, which brings its own Python code: "
        "read that code, then pass --trust-remote-code"
    )


def _refuse_quantized(folder: Path, facts: Mapping[str, Any], compressed: bool) -> None:
    for part in (facts, *(value for value in facts.values() if isinstance(value, dict))):
        if not part.get("quantization_config"):
            continue
        found = part["quantization_config"]
        method = found.get("quant_method") if isinstance(found, dict) else found
        if method == "ellp" and compressed:
            importlib.import_module("ellp.hf")  # registers the quantizer that reads it
            continue
        told = "already compressed by ellp" if method == "ellp" else f"already quantized ({method})"
        raise InputError(f"need a model in full precision, got {folder}, {told}: start from the original model")
