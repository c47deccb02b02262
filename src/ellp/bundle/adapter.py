"""A PEFT adapter, added into the weights of the model it was trained on."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from ellp.bundle.config import read_config
from ellp.bundle.load import load
from ellp.bundle.model import Wanted
from ellp.errors import EllpError, InputError, first_line

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


def merged(adapter: Path, facts: Mapping[str, Any], file: Path, folder: Path, wanted: Wanted) -> Any:
    """The base with the adapter added into its weights."""
    if importlib.util.find_spec("peft") is None:
        raise InputError("need peft to open an adapter, got none: pip install peft")
    peft = importlib.import_module("peft")  # by name: types are checked without it, too
    shapes = _adapter_shapes(file)
    kind, config = read_config(folder, wanted)
    kind = _class_for_task(facts, kind)
    labels = [shape[0] for name, shape in shapes.items() if HEADS.search(name) and len(shape) == 2]
    if labels and facts.get("task_type") in ("SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS") and config.num_labels != labels[0]:
        config.num_labels = labels[0]
    base = load(kind, folder, config, wanted, frozenset(name.removeprefix("base_model.model.") for name in shapes))
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
