"""A model folder: found, checked and loaded."""

from __future__ import annotations

import importlib.util

from ellp.bundle.adapter import merged
from ellp.bundle.beside import check_side_files
from ellp.bundle.config import read_config
from ellp.bundle.find import find, find_base
from ellp.bundle.load import load, refuse_broken_numbers
from ellp.bundle.model import DTYPES, Bundle, Wanted
from ellp.bundle.weights import adapter_weights, weight_files
from ellp.errors import InputError
from ellp.folder import read_json
from ellp.quiet import quiet


def open_bundle(
    source: str,
    *,
    base: str | None = None,
    dtype: str | None = None,
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
    tokenizer_required: bool = True,
    compressed: bool = False,
) -> Bundle:
    """The model that ``source`` names: ``demo``, a local folder, a PEFT adapter (merged into its base) or a hub id.

    Everything is checked: the files are whole, every tensor the model needs is there in its shape, and every number is
    finite. Pickled weights and code from the folder are used only when asked for. A model that is already
    ``compressed`` is opened only when that is allowed.
    """
    if dtype not in DTYPES:
        raise InputError(f"need a dtype out of float32, float16 and bfloat16, got {dtype!r}: leave it out to keep it")
    if importlib.util.find_spec("transformers") is None:
        raise InputError("need transformers to open a model, got none: pip install 'ellp[hf]'")
    wanted = Wanted(dtype, allow_pickle, trust_remote_code, compressed)
    with quiet():
        folder, name = find(source, wanted)
        adapter = folder if (folder / "adapter_config.json").is_file() else None
        if adapter is None:
            if base is not None:
                raise InputError(f"need an adapter to go with --base, got the whole model {source}: leave --base out")
            kind, config = read_config(folder, wanted)
            files = weight_files(folder, allow_pickle)
            check_side_files(folder, None, tokenizer_required)
            model = load(kind, folder, config, wanted)
        else:
            facts = read_json(adapter / "adapter_config.json")
            folder, base_name = find_base(facts, base, wanted)
            name = f"{base_name}-{name}"
            files = [adapter_weights(adapter, allow_pickle), *weight_files(folder, allow_pickle)]
            check_side_files(folder, adapter, tokenizer_required)
            model = merged(adapter, facts, files[0], folder, wanted)
    refuse_broken_numbers(model, dtype)
    return Bundle(model, folder, source, name, sum(file.stat().st_size for file in files), adapter)


def model_type_of(source: str, base: str | None = None) -> str:
    """What ``config.json`` calls the kind of a model, or of the model that an adapter was trained on.

    >>> model_type_of("demo")
    'bert'
    """
    wanted = Wanted(None, False, False, True)
    with quiet():
        folder, _ = find(source, wanted)
        if (folder / "adapter_config.json").is_file():
            folder, _ = find_base(read_json(folder / "adapter_config.json"), base, wanted)
    return str(read_json(folder / "config.json").get("model_type"))
