"""A model folder in, a compressed model folder out: everything ``ellp compress`` does, in order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ellp.bundle import open_bundle
from ellp.bundle.beside import copy_side_files, has_tokenizer
from ellp.bundle.model import Bundle
from ellp.bundle.weights import weight_bytes
from ellp.card import model_card
from ellp.errors import InputError, first_line
from ellp.folder import check_target, read_json, replacing_folder
from ellp.importance import Vocabulary, parse
from ellp.plans import Layers, Options, Plan, Progress
from ellp.presets import default_name, share_kept
from ellp.quiet import quiet
from ellp.selection import select
from ellp.surgery import compress
from ellp.tasks.data import read_task
from ellp.tasks.task import Task
from ellp.weighing import Weighing, weigh

DEMO_HUB_ID = "sentence-transformers/all-MiniLM-L6-v2"
CALIBRATION_BATCH = 16
CALIBRATION_TOKENS = 256

AUTO_CLASSES = {
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForTokenClassification": "AutoModelForTokenClassification",
    "ForQuestionAnswering": "AutoModelForQuestionAnswering",
    "ForMultipleChoice": "AutoModelForMultipleChoice",
    "ForMaskedLM": "AutoModelForMaskedLM",
    "ForCausalLM": "AutoModelForCausalLM",
    "LMHeadModel": "AutoModelForCausalLM",
    "ForConditionalGeneration": "AutoModelForSeq2SeqLM",
    "MTModel": "AutoModelForSeq2SeqLM",
}


@dataclass(frozen=True)
class Source:
    """The model to compress, and what may be done to read it."""

    name: str
    base: str | None = None
    dtype: str | None = None
    allow_pickle: bool = False
    trust_remote_code: bool = False
    tokenizer_required: bool = True

    def open(self) -> Bundle:
        return open_bundle(
            self.name,
            base=self.base,
            dtype=self.dtype,
            allow_pickle=self.allow_pickle,
            trust_remote_code=self.trust_remote_code,
            tokenizer_required=self.tokenizer_required,
        )


def compress_folder(
    source: Source,
    output: Path | None,
    settings: dict[str, Any],
    *,
    preset: str | None = None,
    calibrate: Path | None = None,
    importance: str | None = None,
    sensitive: bool | None = None,
    text: Path | None = None,
    force: bool = False,
    command: str = "",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Compress a model and write it with its tokenizer, recipe and model card; the record of what was done.

    ``settings`` are those of :class:`ellp.Options`; a ``preset`` sets ``keep`` and, without ``output``, the folder.
    ``importance``, ``sensitive`` and ``text`` are those of :func:`ellp.weighing.weigh`; what is left out is chosen for
    the token table, except in the paper's presets, where all rows and directions weigh alike.
    """
    budgets = [settings.get(name) for name in ("keep", "rank", "bytes", "size")]
    if (preset is None) == all(budget is None for budget in budgets):
        raise InputError(
            "need one of --bytes, --size, --keep, --rank and --preset: --bytes 1/8 codes the token table in an eighth "
            "of float16"
        )
    if output is None and preset is None:
        raise InputError("need a folder for the result, got none: pass -o DIR")
    options = Options(**settings) if preset is None else Options(**{**settings, "keep": 0.5})
    texts = None if calibrate is None else read_texts(calibrate)
    if importance is not None:
        parse(importance)
    if text is not None and not text.exists():
        raise InputError(f"need a text file or a folder of them, got {text}: check the path")
    if output is not None:
        check_target(output, force=force)
    bundle = source.open()
    model: Any = bundle.model
    if preset is not None:
        options = replace(options, keep=share_kept(model.config.model_type, preset))
    target = output or Path(default_name(bundle.name, preset or ""))
    check_target(target, force=force, source=bundle.folder)

    before = parameters(model)
    batches = None if texts is None else list(_batches(bundle, texts))
    usual = preset is None and has_token_table(model, options.layers)
    weights = weighed(bundle, importance, sensitive, text, usual=usual, seed=options.seed, progress=progress)
    plan = compress(
        model,
        options,
        calibrate=batches,
        importance=weights.importance,
        metric=weights.metric,
        progress=progress,
    )
    from ellp.hf import EllpConfig, attach

    attach(model, EllpConfig.of(options, preset, weights.record), plan)
    with replacing_folder(target, force=force, source=bundle.folder) as draft:
        with quiet():
            model.save_pretrained(draft)
        copy_side_files(bundle, draft)
        record = _record(bundle, target, plan, before, preset, calibrate, command)
        record["weighing"] = weights.record
        record["bytes_after"] = weight_bytes(draft)
        record["sentence_transformers"] = (draft / "modules.json").is_file()
        (draft / "README.md").write_text(model_card(record), encoding="utf-8")
    return record


def has_token_table(model: Any, layers: Layers) -> bool:
    """Whether the layers chosen include the token table."""
    try:
        table = model.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        return False
    names = [layer.name for layer in select(model, layers) if layer.skipped is None]
    return any(model.get_submodule(name) is table or model.get_submodule(name).weight is table.weight for name in names)


def weighed(
    bundle: Bundle,
    importance: str | None,
    sensitive: bool | None,
    text: Path | None,
    *,
    usual: bool,
    seed: int = 0,
    progress: Progress | None = None,
) -> Weighing:
    """What the token table's rows and directions weigh. What is not asked for is chosen if ``usual``, and is nothing
    otherwise; what was chosen and cannot be had is left out, and the record says so."""
    asked = importance is not None or sensitive or text is not None
    if not (asked or usual):
        return Weighing(None, None, {"importance": "uniform", "sensitivity": None})
    if not (usual or has_token_table(bundle.model, "embeddings")):
        raise InputError("need a model with a token table to weigh, got one without: leave --importance out")
    usual = usual or text is not None
    importance = importance or ("auto" if usual else "uniform")
    sensitive = sensitive if usual else bool(sensitive)
    tokenizer, missing = _tokenizer_for(bundle)
    if missing is not None:
        if sensitive or text is not None:
            raise InputError(f"need the model's tokenizer to weigh its tokens, got {missing}: restore its files")
        if importance == "auto":
            facts = {"importance": "uniform", "reason": missing, "sensitivity": None, "sensitivity_missing": missing}
            return Weighing(None, None, {"asked": importance, **facts})
        sensitive = False
    return weigh(
        bundle.model,
        tokenizer,
        importance=importance,
        sensitive=sensitive,
        text=text,
        data=lambda place: labelled_batches(bundle, Path(place)),
        pooling=pooling_of(bundle.folder),
        seed=seed,
        progress=progress,
    )


def _tokenizer_for(bundle: Bundle) -> tuple[Any, str | None]:
    """The tokenizer of a model's token table; or None, and why there is none."""
    model: Any = bundle.model
    if not has_tokenizer(bundle):
        return None, "no tokenizer beside the model"
    try:
        tokenizer = tokenizer_of(bundle)
        Vocabulary(tokenizer, model.get_input_embeddings().weight.shape[0])
    except (OSError, ValueError, ImportError) as error:
        return None, f"no tokenizer that fits the table ({first_line(error)})"
    return tokenizer, None


def pooling_of(folder: Path | None) -> str | None:
    """How sentence-transformers uses the hidden states of a model in this folder; None where it does not say."""
    if folder is None or not (folder / "1_Pooling" / "config.json").is_file():
        return None
    facts = read_json(folder / "1_Pooling" / "config.json")
    named = {"mean": "mean", "cls": "first", "lasttoken": "last"}
    flags = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "first", "pooling_mode_lasttoken": "last"}
    chosen = [word for flag, word in flags.items() if facts.get(flag) is True]
    return named.get(str(facts.get("pooling_mode"))) or (chosen[0] if chosen else None)


def labelled_batches(bundle: Bundle, path: Path) -> list[dict[str, Tensor]]:
    """Batches with labels for the model's own head, from a file as ``ellp evaluate`` reads it."""
    import torch

    model: Any = bundle.model
    labels = int(getattr(model.config, "num_labels", 0))
    if not type(model).__name__.endswith("ForSequenceClassification"):
        raise InputError(f"need a sequence classifier for fisher, got {type(model).__name__}: use words or text")
    classes = () if labels == 1 else tuple(str(model.config.id2label[index]) for index in range(labels))
    task = Task("file", "classify" if classes else "regress", (), classes)
    examples = read_task(task, path, split="train")
    tokenizer, batches = tokenizer_of(bundle), []
    for first in range(0, len(examples), CALIBRATION_BATCH):
        columns = zip(*examples.texts[first : first + CALIBRATION_BATCH], strict=True)
        longest = min(CALIBRATION_TOKENS, tokenizer.model_max_length)
        batch = dict(
            tokenizer(*map(list, columns), padding=True, truncation=True, max_length=longest, return_tensors="pt")
        )
        kind = torch.float32 if labels == 1 else torch.long
        batch["labels"] = torch.tensor(examples.labels[first : first + CALIBRATION_BATCH]).to(kind)
        batches.append(batch)
    return batches


def read_texts(path: Path) -> list[str]:
    """The non-empty lines of a text file."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"need a UTF-8 text file, got {path} ({error}): one text a line") from None
    lines = [line for line in lines if line]
    if not lines:
        raise InputError(f"need texts to calibrate with, got none in {path}: one text a line")
    return lines


def tokenizer_of(bundle: Bundle) -> Any:
    """The tokenizer that goes with a model: an adapter's own, or its base's."""
    from transformers import AutoTokenizer

    own = bundle.adapter is not None and (bundle.adapter / "tokenizer_config.json").is_file()
    with quiet():
        return AutoTokenizer.from_pretrained(bundle.adapter if own else bundle.folder, local_files_only=True)


def token_names(bundle: Bundle) -> list[str] | None:
    """What each row of the token table stands for; None if the model has no tokenizer that can be read."""
    try:
        tokenizer = tokenizer_of(bundle)
    except (OSError, ValueError, ImportError):
        return None
    return [str(token) for token in tokenizer.convert_ids_to_tokens(range(len(tokenizer)))]


def _batches(bundle: Bundle, texts: list[str]) -> Iterator[dict[str, Tensor]]:
    tokenizer = tokenizer_of(bundle)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model: Any = bundle.model
    for first in range(0, len(texts), CALIBRATION_BATCH):
        batch = tokenizer(
            texts[first : first + CALIBRATION_BATCH],
            padding=True,
            truncation=True,
            max_length=min(CALIBRATION_TOKENS, tokenizer.model_max_length),
            return_tensors="pt",
        )
        if model.config.is_encoder_decoder:
            batch["decoder_input_ids"] = batch["input_ids"]
        yield dict(batch)


def bytes_in_memory(model: Any) -> int:
    """Bytes of a model's tensors, those shared by several layers once."""
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def parameters(model: Any) -> int:
    """Parameters of a model, those shared by several layers once."""
    return sum(parameter.numel() for parameter in model.parameters())


def _record(
    bundle: Bundle, target: Path, plan: Plan, before: int, preset: str | None, calibrate: Path | None, command: str
) -> dict[str, Any]:
    import safetensors
    import torch
    import transformers

    import ellp

    model: Any = bundle.model
    architecture = type(model).__name__
    base_model = DEMO_HUB_ID if bundle.source == "demo" else getattr(model.config, "_name_or_path", "") or None
    return {
        "source": bundle.source,
        "name": target.name,
        "output": str(target),
        "base_model": base_model if base_model and not Path(base_model).exists() else None,
        "architecture": architecture,
        "auto_class": next((auto for end, auto in AUTO_CLASSES.items() if architecture.endswith(end)), "AutoModel"),
        "keep": plan.options.keep,
        "rank": plan.options.rank,
        "bytes": plan.options.bytes,
        "size": plan.options.size,
        "preset": preset,
        "p": plan.options.p if math.isfinite(plan.options.p) else str(plan.options.p),
        "method": plan.options.method,
        "layers": [
            {
                "name": layer.name,
                "kind": layer.kind,
                "rows": layer.rows,
                "columns": layer.columns,
                "rank": layer.rank,
                "coded": layer.coded.record if layer.coded else None,
                "tied": [name for name, _ in layer.tied],
                "parameters_before": layer.before,
                "parameters_after": layer.after,
                "distortion": layer.certificate.distortion if layer.certificate else None,
                "error": layer.certificate.error if layer.certificate else None,
                "calibrated": layer.calibrated,
                "weighted": layer.weighted,
                "skipped": layer.skipped,
            }
            for layer in plan.layers
        ],
        "parameters_before": before,
        "parameters_after": parameters(model),
        "bytes_before": bundle.bytes_on_disk,
        "memory_after": bytes_in_memory(model),
        "dtype": str(model.dtype).removeprefix("torch."),
        "calibrated": None if calibrate is None else f"linear layers on the texts of {calibrate.name}",
        "command": command,
        "versions": {
            "ellp": ellp.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "safetensors": safetensors.__version__,
        },
    }
