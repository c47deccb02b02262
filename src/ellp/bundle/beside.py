"""The files beside a model's weights: its tokenizer, its pooling, and whatever else it came with."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from ellp.bundle.model import Bundle
from ellp.bundle.patterns import OTHER_FORMATS, PICKLES, REWRITTEN, TEMPLATES, TOKENIZER, VOCABULARIES, WEIGHTS, matches
from ellp.errors import InputError
from ellp.folder import looks_like_a_model, read_json


def copy_side_files(bundle: Bundle, target: Path) -> list[str]:
    """Copy the tokenizer, the pooling and whatever else lies beside the weights; the names of what was copied."""
    found = side_files(bundle.folder, bundle.adapter)
    for name, origin in found.items():
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(origin, place)
    return sorted(found)


def has_tokenizer(bundle: Bundle) -> bool:
    """Whether a tokenizer lies beside the model: without its files, transformers makes up an empty one."""
    found = side_files(bundle.folder, bundle.adapter)
    return any(matches(Path(name).name, VOCABULARIES) for name in found)


def check_side_files(folder: Path, adapter: Path | None, tokenizer_required: bool) -> None:
    """A tokenizer lies beside the model, and what it has of JSON is whole, unless a model may be without one."""
    found = side_files(folder, adapter)
    if not tokenizer_required:
        return
    if not any(matches(Path(name).name, VOCABULARIES) for name in found):
        raise InputError(
            f"need a tokenizer beside the model, got none in {folder}: copy its tokenizer files there, "
            "or pass --no-tokenizer if the model has none"
        )
    for name, path in found.items():
        if name.endswith(".json") and matches(name, TOKENIZER):
            read_json(path)


def side_files(folder: Path | None, adapter: Path | None) -> dict[str, Path]:
    found = _beside(folder) if folder else {}
    if adapter:
        own = _beside(adapter)
        found.update({name: path for name, path in own.items() if matches(name, (*TOKENIZER, *TEMPLATES))})
    return found


def _beside(folder: Path) -> dict[str, Path]:
    """Relative names and contents' places of everything that is neither weights nor rewritten by save_pretrained."""
    root, found = folder.resolve(), {}
    modules = _module_folders(root)
    for place, folders, names in os.walk(root):
        inner = [Path(place) / name for name in folders if not matches(name, (*OTHER_FORMATS, ".*"))]
        folders[:] = sorted(path.name for path in inner if path in modules or not looks_like_a_model(path))
        for name in names:
            path = Path(place) / name
            key = path.relative_to(root).as_posix()
            real = path.resolve()
            inside = real.is_relative_to(root) or real.parent == root.parent.parent / "blobs"
            unwanted = matches(name, (*WEIGHTS, *PICKLES, ".*")) or key in REWRITTEN
            if name == "model.safetensors" and path.parent in modules:
                unwanted = False
            if not unwanted and inside and real.is_file() and not _is_pickle(real):
                found[key] = real
    return found


def _module_folders(root: Path) -> list[Path]:
    """The folders of a sentence-transformers model whose small weights are not the transformer's own."""
    try:
        listed = json.loads((root / "modules.json").read_text(encoding="utf-8"))
        folders = [root / str(part["path"]) for part in listed if part["path"]]
    except (OSError, ValueError, TypeError, KeyError):
        return []
    for place in folders:
        if (place / "pytorch_model.bin").is_file() and not (place / "model.safetensors").is_file():
            raise InputError(
                f"need weights as safetensors, got the pickle {place / 'pytorch_model.bin'}: open the model with "
                "sentence-transformers and save it again"
            )
    return folders


def _is_pickle(path: Path) -> bool:
    with path.open("rb") as content:
        start = content.read(2)
    return len(start) == 2 and start[0] == 0x80 and 2 <= start[1] <= 5
