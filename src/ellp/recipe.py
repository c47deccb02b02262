"""A model folder in, a compressed model folder out: everything ``ellp compress`` does, in order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ellp.bundle import Bundle, copy_side_files, open_bundle, quiet, weight_bytes
from ellp.card import model_card
from ellp.errors import InputError
from ellp.folder import check_target, replacing_folder
from ellp.presets import default_name, share_kept
from ellp.surgery import Options, Plan, Progress, compress

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
    force: bool = False,
    command: str = "",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Compress a model and write it with its tokenizer, recipe and model card; the record of what was done.

    ``settings`` are those of :class:`ellp.Options`; a ``preset`` sets ``keep`` and, without ``output``, the folder.
    """
    if (preset is None) == (settings.get("keep") is None and settings.get("rank") is None):
        raise InputError("need one of --keep, --rank and --preset: --keep 0.25 keeps a quarter of the chosen layers")
    if output is None and preset is None:
        raise InputError("need a folder for the result, got none: pass -o DIR")
    options = Options(**settings) if preset is None else Options(**{**settings, "keep": 0.5})
    texts = None if calibrate is None else read_texts(calibrate)
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
    plan = compress(model, options, calibrate=batches, progress=progress)
    from ellp.hf import EllpConfig, attach

    attach(model, EllpConfig.of(options, preset), plan)
    with replacing_folder(target, force=force, source=bundle.folder) as draft:
        with quiet():
            model.save_pretrained(draft)
        copy_side_files(bundle, draft)
        record = _record(bundle, target, plan, before, preset, calibrate, command)
        record["bytes_after"] = weight_bytes(draft)
        record["sentence_transformers"] = (draft / "modules.json").is_file()
        (draft / "README.md").write_text(model_card(record), encoding="utf-8")
    return record


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
                "tied": [name for name, _ in layer.tied],
                "parameters_before": layer.before,
                "parameters_after": layer.after,
                "distortion": layer.certificate.distortion if layer.certificate else None,
                "error": layer.certificate.error if layer.certificate else None,
                "calibrated": layer.calibrated,
                "skipped": layer.skipped,
            }
            for layer in plan.layers
        ],
        "parameters_before": before,
        "parameters_after": parameters(model),
        "bytes_before": bundle.bytes_on_disk,
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
