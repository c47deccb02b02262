"""What of a model may change in a fine-tuning: its factors, everything, or an adapter on its dense layers."""

from __future__ import annotations

import importlib.util
from typing import Any, Literal

from torch import nn

from ellp.coded import CodedEmbedding
from ellp.errors import InputError
from ellp.layers import FactorizedConv1D, FactorizedEmbedding, FactorizedLinear
from ellp.quiet import quiet

Train = Literal["factors", "all", "lora"]

LORA_RANK = 16
COMPRESSED = (FactorizedEmbedding, FactorizedLinear, FactorizedConv1D, CodedEmbedding)


def choose(model: Any, train: Train) -> Any:
    """Let only what is to be trained change: the factors (of a code its mean, scales and axes' scales), everything, or
    an adapter on the dense layers.

    >>> import ellp
    >>> model = nn.Sequential(nn.Embedding(1000, 64), nn.Linear(64, 64))
    >>> done = ellp.compress(model, keep=0.25)
    >>> [name for name, tensor in choose(model, "factors").named_parameters() if tensor.requires_grad]
    ['0.weight', '0.proj.weight']
    """
    if train == "lora":
        return _adapted(model)
    model.requires_grad_(train == "all")
    if train == "factors":
        for layer in _factored(model):
            layer.requires_grad_(True)
    return model


def check_choice(model: nn.Module, train: Train) -> None:
    """There is something of this kind to train."""
    if train == "factors":
        _factored(model)
    if train == "lora":
        _lora_targets(model)


def _factored(model: nn.Module) -> list[nn.Module]:
    found: list[nn.Module] = [layer for layer in model.modules() if isinstance(layer, COMPRESSED)]
    if not found:
        raise InputError("need a compressed model to train its factors, got a dense one: ellp compress it first")
    return found


def _adapted(model: Any) -> Any:
    """The model with a LoRA on every dense linear layer of its body, and its head trained whole.

    An adapter on a factorized layer could not be merged into the stored form, so these layers stay as they are.
    """
    import peft

    targets, head = _lora_targets(model)
    settings = peft.LoraConfig(
        r=LORA_RANK, lora_alpha=2 * LORA_RANK, target_modules=targets, modules_to_save=head or None
    )
    with quiet():
        return peft.get_peft_model(model, settings)


def _lora_targets(model: Any) -> tuple[list[str], list[str]]:
    """The names of the dense linear layers of a model's body, and of the parts of its head."""
    if importlib.util.find_spec("peft") is None:
        raise InputError("need peft to train an adapter, got none: pip install 'ellp[hf]'")
    body = model.base_model
    head = [name for name, part in model.named_children() if part is not body and any(True for _ in part.parameters())]
    targets = [
        name
        for name, layer in model.named_modules()
        if _is_dense(layer) and not any(name == part or name.startswith(f"{part}.") for part in head)
    ]
    if not targets:
        raise InputError("need dense linear layers for a LoRA, got only factorized ones: use --train factors or all")
    return targets, head


def _is_dense(layer: nn.Module) -> bool:
    transposed = type(layer).__name__ == "Conv1D"
    return (isinstance(layer, nn.Linear) or transposed) and not isinstance(layer, COMPRESSED)
