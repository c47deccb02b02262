"""How a sentence encoder makes one vector of its tokens' vectors: read from a sentence-transformers folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ellp.errors import InputError
from ellp.folder import read_json

MODES = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
KNOWN = ("Transformer", "Pooling", "Normalize")


@dataclass(frozen=True)
class Pooling:
    """Token vectors (texts x tokens x d) and their mask to one vector a text; mean if the folder does not say."""

    mode: str = "mean"
    longest: int | None = None
    prompt: str = ""

    def __call__(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """
        >>> import torch
        >>> Pooling("cls")(torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), torch.tensor([[1, 1]]))
        tensor([[1., 2.]])
        """
        weights = mask[:, :, None].to(hidden.dtype)
        if self.mode == "cls":
            return hidden[range(len(hidden)), mask.argmax(1)]
        if self.mode == "max":
            return hidden.masked_fill(weights == 0, float("-inf")).amax(1)
        if self.mode == "lasttoken":
            return hidden[range(len(hidden)), mask.shape[1] - 1 - mask.flip(1).argmax(1)]
        return (hidden * weights).sum(1) / weights.sum(1)  # the mean's length does not matter to a cosine


def pooling_of(folder: Path | None) -> Pooling:
    """The pooling that a sentence-transformers folder asks for."""
    if folder is None or not (folder / "modules.json").is_file():
        return Pooling()
    modules = _modules(folder)
    for module in modules:
        kind = str(module.get("type", "")).rpartition(".")[2]
        if kind not in KNOWN:
            raise InputError(
                f"need a sentence encoder of a transformer and a pooling, got a {kind} in {folder}: evaluate it with "
                "sentence-transformers"
            )
    place = next((str(module["path"]) for module in modules if str(module["type"]).endswith("Pooling")), None)
    facts = {} if place is None else read_json(folder / place / "config.json")
    prompt = _prompt(folder)
    if prompt and facts.get("include_prompt") is False:
        raise InputError(
            f"need a prompt that counts as text, got one left out of {folder}'s pooling: evaluate it with "
            "sentence-transformers"
        )
    return Pooling("mean" if place is None else _mode(facts, folder), _longest(folder), prompt)


def _modules(folder: Path) -> list[dict[str, Any]]:
    try:
        found = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        return [{"type": part["type"], "path": part["path"]} for part in found]
    except (OSError, ValueError, TypeError, KeyError):
        raise InputError(
            f"need a list of modules in {folder / 'modules.json'}, got something else: restore it"
        ) from None


def _mode(facts: dict[str, Any], folder: Path) -> str:
    """The one way of pooling; older folders have a switch for each, newer ones its name."""
    named = facts.get("pooling_mode")
    chosen = [mode for key, mode in MODES.items() if facts.get(key)] if named is None else [named]
    chosen = [mode for one in chosen for mode in (one if isinstance(one, (list, tuple)) else [one])]
    known = ("mean", "cls", "max", "lasttoken", "mean_sqrt_len_tokens")
    if len(chosen) != 1 or chosen[0] not in known:
        raise InputError(
            f"need one way of pooling out of {', '.join(known)}, got {chosen} in {folder}: evaluate it with "
            "sentence-transformers"
        )
    return str(chosen[0])


def _longest(folder: Path) -> int | None:
    path = folder / "sentence_bert_config.json"
    longest = read_json(path).get("max_seq_length") if path.is_file() else None
    return longest if isinstance(longest, int) and longest > 0 else None


def _prompt(folder: Path) -> str:
    """What the folder puts before every text, if anything."""
    path = folder / "config_sentence_transformers.json"
    facts = read_json(path) if path.is_file() else {}
    prompts, name = facts.get("prompts"), facts.get("default_prompt_name")
    return str(prompts[name]) if isinstance(prompts, dict) and name in prompts else ""
