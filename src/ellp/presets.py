"""The rates published in the paper, per architecture: the share of the embedding's parameters removed, at p = 1."""

from __future__ import annotations

from typing import Literal

from ellp.errors import InputError

Preset = Literal["re-base", "re-small", "re-tiny"]

REMOVED: dict[str, dict[str, float]] = {
    "roberta": {"re-base": 0.15, "re-small": 0.28, "re-tiny": 0.41},
    "xlnet": {"re-base": 0.15, "re-small": 0.21, "re-tiny": 0.28},
    "bert": {"re-base": 0.15, "re-small": 0.21, "re-tiny": 0.28},
    "distilbert": {"re-base": 0.15},
}


def share_kept(model_type: str, preset: str) -> float:
    """What a preset keeps of the embedding of a model of this type.

    >>> share_kept("roberta", "re-small")
    0.72
    """
    published = REMOVED.get(model_type)
    if published is None:
        raise InputError(f"need {', '.join(REMOVED)} for a preset, got {model_type}: the paper has no rate; use --keep")
    if preset not in published:
        raise InputError(f"need {' or '.join(published)} for {model_type}, got {preset}: the paper has no such rate")
    return round(1 - published[preset], 10)


def default_name(model: str, preset: str) -> str:
    """The name of a preset's output folder.

    >>> default_name("roberta-base", "re-small")
    'RE-roberta-base-small'
    """
    return f"RE-{model}-{preset.removeprefix('re-')}"
