"""The files that hold a model's weights, each checked to be whole before it is read."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open

from ellp.bundle.patterns import PICKLES, WEIGHTS, matches
from ellp.errors import InputError, first_line
from ellp.folder import read_json


def weight_bytes(folder: Path) -> int:
    """Bytes of the weights that ``save_pretrained`` wrote into a folder."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def weight_files(folder: Path, allow_pickle: bool) -> list[Path]:
    """The files that transformers will read, each checked to be whole."""
    for stem in ("model.safetensors", "pytorch_model.bin"):
        single, index = folder / stem, folder / f"{stem}.index.json"
        if not (single.is_file() or index.is_file()):
            continue
        if stem.endswith(".bin") and not allow_pickle:
            raise refused_pickle(single if single.is_file() else index)
        if single.is_file():
            places: dict[str, list[str]] = {stem: []}
        else:
            places = _shards(index)
        for name, tensors in places.items():
            check_file(folder / name, tensors)
        return [folder / name for name in places]
    others = sorted(path.name for path in folder.iterdir() if matches(path.name, (*WEIGHTS, *PICKLES)))
    raise InputError(
        f"need weights in {folder}, got no model.safetensors{' but ' + others[0] if others else ''}: "
        "save the model with save_pretrained"
    )


def _shards(index: Path) -> dict[str, list[str]]:
    table = read_json(index).get("weight_map")
    if not isinstance(table, dict) or not table or any(Path(str(name)).name != name for name in table.values()):
        raise InputError(f"need a table of tensors and files in {index}, got something else: restore it")
    shards: dict[str, list[str]] = {}
    for tensor, name in table.items():
        shards.setdefault(name, []).append(tensor)
    return shards


def check_file(path: Path, tensors: list[str]) -> None:
    if not path.is_file():
        raise InputError(f"need the file {path}, got no such file: copy or download it again")
    if path.suffix != ".safetensors":
        return
    try:
        with safe_open(path, "pt") as content:
            absent = sorted(set(tensors) - set(content.keys()))
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"need a complete safetensors file, got {path} ({first_line(error)}): copy or download it again"
        ) from None
    if absent:
        raise InputError(f"need {absent[0]} in {path}, where the index puts it, got no such tensor: restore the files")


def refused_pickle(path: Path) -> InputError:
    return InputError(
        f"need weights as safetensors, got the pickle {path}: convert it, or pass --allow-pickle if you trust it"
    )


def has_safetensors(folder: Path) -> bool:
    return any((folder / f"model.safetensors{end}").is_file() for end in ("", ".index.json"))


def adapter_weights(adapter: Path, allow_pickle: bool) -> Path:
    safe, pickled = adapter / "adapter_model.safetensors", adapter / "adapter_model.bin"
    if not safe.is_file() and pickled.is_file():
        if not allow_pickle:
            raise refused_pickle(pickled)
        return pickled
    check_file(safe, [])
    return safe
