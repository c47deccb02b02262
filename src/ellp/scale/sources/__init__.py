"""Where rows lie on disk, and how a span of them is read."""

from ellp.scale.sources.opening import open_source
from ellp.scale.sources.source import Source

__all__ = ["Source", "open_source"]
