"""Loading a model with every tensor from its files, in the shape that its configuration says."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from ellp.bundle.model import DTYPES, Wanted
from ellp.bundle.room import check_room
from ellp.bundle.weights import has_safetensors
from ellp.errors import EllpError, InputError, first_line


def load(kind: Any, folder: Path, config: Any, wanted: Wanted, given: frozenset[str] = frozenset()) -> Any:
    """The model, with every tensor from its files, but for those ``given`` later."""
    import transformers

    check_room(folder, config, wanted, merged=bool(given))
    try:
        model, told = kind.from_pretrained(
            folder,
            config=config,
            dtype=DTYPES[wanted.dtype],
            use_safetensors=not (wanted.allow_pickle and not has_safetensors(folder)),
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
    absent = _unfilled(model, set(told["missing_keys"]) - given)
    if absent:
        raise InputError(
            f"need every tensor of a {type(model).__name__}, got none for {', '.join(absent[:3])}"
            f"{', ...' * (len(absent) > 3)} in {folder}, so they would be random: {remedy}"
        )
    uncounted = _uncounted(model, told["unexpected_keys"])
    if uncounted:
        raise InputError(
            f"need a config.json that counts every layer, got one without {uncounted} in {folder}, which would be "
            f"lost: {remedy}"
        )
    return model.eval()


def _uncounted(model: torch.nn.Module, unexpected: Iterable[str]) -> str | None:
    """The first layer in the files that the model's own numbered layers do not reach."""
    stacks = {name: len(stack) for name, stack in model.named_modules() if isinstance(stack, torch.nn.ModuleList)}
    base = f"{getattr(model, 'base_model_prefix', '')}."
    for key in sorted(unexpected):
        for found in re.finditer(r"\.(\d+)\.", key):
            stack = key[: found.start()]
            known = next(
                (stacks[name] for name in (stack, stack.removeprefix(base), base + stack) if name in stacks), None
            )
            if known is not None and int(found[1]) >= known:
                return key[: found.end() - 1]
    return None


def _unfilled(model: torch.nn.Module, missing: set[str]) -> list[str]:
    """The parameters among ``missing`` that share no storage with one that was read."""
    everything = dict(model.named_parameters(remove_duplicate=False))
    filled = {id(tensor) for name, tensor in everything.items() if name not in missing}
    return sorted(name for name in missing if name in everything and id(everything[name]) not in filled)


def refuse_broken_numbers(model: torch.nn.Module, dtype: str | None) -> None:
    for name, tensor in model.named_parameters():
        if tensor.numel() and tensor.is_floating_point():
            low, high = torch.aminmax(tensor.detach())
            if not (torch.isfinite(low) and torch.isfinite(high)):
                remedy = "try --dtype bfloat16" if dtype == "float16" else "restore the weights"
                raise InputError(f"need finite weights, got NaN or infinity in {name}: {remedy}")
