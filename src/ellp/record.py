"""The record of a compression: everything that the summary, ``--json`` and the model card tell of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ellp.bundle.model import Bundle
from ellp.card import CARRIED, LICENSE
from ellp.folder import read_json
from ellp.plans import Plan

DEMO_HUB_ID = "sentence-transformers/all-MiniLM-L6-v2"
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


def record_of(
    bundle: Bundle, target: Path, plan: Plan, before: int, preset: str | None, calibrate: Path | None, command: str
) -> dict[str, Any]:
    import safetensors
    import torch
    import transformers

    import ellp

    model: Any = bundle.model
    architecture = type(model).__name__
    return {
        "source": bundle.source,
        "name": target.name,
        "output": str(target),
        "base_model": _base_model(bundle),
        **_facts_of_the_original(bundle),
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


def bytes_in_memory(model: Any) -> int:
    """Bytes of a model's tensors, those shared by several layers once."""
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def parameters(model: Any) -> int:
    """Parameters of a model, those shared by several layers once."""
    return sum(parameter.numel() for parameter in model.parameters())


def _base_model(bundle: Bundle) -> str | None:
    """The hub's name of the model that was compressed, or of the one that its adapter was trained on."""
    if bundle.source == "demo":
        return DEMO_HUB_ID
    if not Path(bundle.source).expanduser().exists():
        return bundle.source  # fetched from there
    if bundle.adapter is None:
        return None
    recorded = str(read_json(bundle.adapter / "adapter_config.json").get("base_model_name_or_path") or "")
    return recorded if recorded and not Path(recorded).exists() else None


def _facts_of_the_original(bundle: Bundle) -> dict[str, Any]:
    """What the model card beside the original says that stays true: its license, languages and use."""
    facts = {key: value for place in (bundle.folder, bundle.adapter) for key, value in _front_matter(place).items()}
    words = {key: facts[key] for key in CARRIED if _is_text(facts.get(key))}
    if not LICENSE.fullmatch(str(words.get("license", "none"))):  # the hub knows no such license
        del words["license"]
    return words


def _front_matter(folder: Path | None) -> dict[str, Any]:
    """That of the model card in a folder; nothing if there is none that can be read."""
    from huggingface_hub.repocard import metadata_load

    if folder is None or not (folder / "README.md").is_file():
        return {}
    try:
        return dict(metadata_load(folder / "README.md") or {})
    except Exception:  # whatever the library meets in YAML that is none
        return {}


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(one, str) for one in value))
