"""What is asked of a model's layers, and what becomes of each: the options, and a plan that can be read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from ellp.errors import InputError
from ellp.factor.factors import Certificate
from ellp.options import How, Method, Refine, check_p, check_seed

Layers = str | Sequence[str]
Progress = Callable[[str, int, int], None]
"""Called with what is at work, how many layers are done, and how many there are, in each round over the layers."""


@dataclass(frozen=True)
class CodeFacts:
    """How a table was coded: what a reload needs (``kind``, ``settings``, ``layout`` and the ``mark`` of the code's
    integers) and what it cost."""

    kind: str
    settings: dict[str, int]
    layout: dict[str, list[Any]]
    mark: str | None = None
    bytes: int = 0
    error: float = 0.0
    record: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LayerPlan:
    """One weight matrix and what becomes of it. ``tied`` maps the other layers that share it to their kinds.

    It becomes factors of a ``rank``, or a code of at most ``size`` bytes; ``coded`` then tells of the code chosen.
    """

    name: str
    kind: str
    rows: int
    columns: int
    rank: int | None = None
    tied: tuple[tuple[str, str], ...] = ()
    skipped: str | None = None
    certificate: Certificate | None = None
    calibrated: bool = False
    weighted: bool = False
    size: int | None = None
    coded: CodeFacts | None = None

    @property
    def compressed(self) -> bool:
        """Whether the layer is changed at all."""
        return self.rank is not None or self.size is not None

    @property
    def before(self) -> int:
        return self.rows * self.columns

    @property
    def after(self) -> int:
        """Parameters afterwards; those of a code by its bytes, two for each as in float16."""
        if self.size is not None:
            return (self.coded.bytes if self.coded else self.size) // 2
        return self.before if self.rank is None else self.rank * (self.rows + self.columns)


@dataclass(frozen=True)
class Plan:
    """What will happen, or has happened, to each selected layer; ``str(plan)`` is a table."""

    layers: tuple[LayerPlan, ...]
    options: Options

    @property
    def chosen(self) -> tuple[LayerPlan, ...]:
        """The layers that become factors or codes."""
        return tuple(layer for layer in self.layers if layer.compressed)

    @property
    def before(self) -> int:
        return sum(layer.before for layer in self.layers)

    @property
    def after(self) -> int:
        return sum(layer.after for layer in self.layers)

    def __str__(self) -> str:
        width = max([len(layer.name) for layer in self.layers], default=5)
        lines = [f"{'layer':{width}}  {'shape':>13}  {'rank':>5}  {'parameters':>21}  distortion"]
        for layer in self.layers:
            shape = f"{layer.rows} x {layer.columns}"
            if layer.size is not None:
                cost = "" if layer.coded is None else f"error {layer.coded.error:.2%}"
                lines.append(f"{layer.name:{width}}  {shape:>13}  {'coded':>5}  {layer.size:>15,} bytes  {cost}")
                continue
            if layer.rank is None:
                lines.append(f"{layer.name:{width}}  {shape:>13}  dense  {layer.before:>21,}  {layer.skipped}")
                continue
            size = f"{layer.before:,} -> {layer.after:,}"
            proof = "" if layer.certificate is None else f"{layer.certificate.distortion:.4g}"
            proof += " (of its outputs)" if layer.calibrated else " (weighted)" if layer.weighted else ""
            lines.append(f"{layer.name:{width}}  {shape:>13}  {layer.rank:>5}  {size:>21}  {proof}")
        share = self.after / self.before if self.before else 1.0
        return "\n".join([*lines, f"{self.before:,} -> {self.after:,} parameters ({share:.1%})"])


@dataclass(frozen=True)
class Options:
    """How to choose layers and ranks, and how to factor.

    ``keep`` is the share of the chosen layers' parameters. ``bytes`` is that of the token tables' bytes in float16, and
    ``size`` a number of bytes: these tables are then coded in a way that ``coder`` allows, and ``keep`` or ``rank`` is
    for the other layers. ``tapered`` gives the rows of a token table numbers by their worth, not one rank for all.
    """

    keep: float | None = None
    rank: int | None = None
    bytes: float | None = None
    size: int | None = None
    coder: How = "auto"
    tapered: bool = False
    layers: Layers = "embeddings"
    p: float = 1.0
    method: Method = "lewis"
    tol: float = 0.05
    refine: Refine | None = None
    uniform: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for pair in (("keep", "rank"), ("bytes", "size")):
            values = [getattr(self, name) for name in pair]
            if None not in values:
                raise InputError(f"need at most one of {' and '.join(pair)}, got {values[0]} and {values[1]}: pass one")
        if all(value is None for value in (self.keep, self.rank, self.bytes, self.size)):
            raise InputError("need one of keep, rank, bytes and size, got none: keep=0.25 keeps a quarter")
        if self.bytes is not None and not 0 < self.bytes <= 2:
            raise InputError(f"need a share of float16's bytes above 0 and at most 2, got {self.bytes}: 1/8 is 0.125")
        if self.size is not None and self.size < 1:
            raise InputError(f"need a size of at least 1 byte, got {self.size}: pass a number of bytes")
        if self.coder not in get_args(How):
            raise InputError(f"need a coder out of {', '.join(get_args(How))}, got {self.coder!r}: pass one of these")
        if self.tapered and self.keep is None:
            raise InputError("need a share to keep for tapered rows, got none: pass keep")
        if self.keep is not None and not 0 < self.keep <= 1:
            raise InputError(f"need a share to keep above 0 and at most 1, got {self.keep}: 0.25 keeps a quarter")
        if self.rank is not None and self.rank < 1:
            raise InputError(f"need a rank of at least 1, got {self.rank}: pass a positive whole number")
        check_p(self.p)
        check_seed(self.seed)
        if not self.tol > 0:
            raise InputError(f"need a tolerance above 0, got {self.tol}: 0.05 is proved in a few passes")
