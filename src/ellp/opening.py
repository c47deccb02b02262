"""A model to measure or to train: dense, an adapter merged into its base, or compressed already."""

from __future__ import annotations

from ellp.bundle import open_bundle
from ellp.bundle.model import Bundle
from ellp.recipe import Source


def open_any(source: Source) -> Bundle:
    """The model that a source names, whether ``ellp compress`` wrote it or not, with its tokenizer."""
    return open_bundle(
        source.name,
        base=source.base,
        dtype=source.dtype,
        allow_pickle=source.allow_pickle,
        trust_remote_code=source.trust_remote_code,
        compressed=True,
    )
