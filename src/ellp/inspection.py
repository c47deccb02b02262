"""What a model's weight matrices look like to a low-rank factorization: facts, all of them measured.

A matrix is seen as its rows: an embedding's vectors, a linear layer's outputs. Two questions are answered: how low its
rank could be (the spectrum), and whether a robust norm changes anything (row lengths, and a factorization at p = 1
beside the SVD at the same rank). Trained tables rarely have rows that are long enough for the second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ellp.budget import break_even, rank_for
from ellp.errors import InputError
from ellp.factor.solve import Progress
from ellp.layers import KINDS, kind_of
from ellp.plans import Layers
from ellp.robustness import THRESHOLD, Robustness, compare
from ellp.rows import read_rows
from ellp.rowstats import RowLengths, Spectrum, row_lengths, spectrum
from ellp.selection import chosen_groups, tied_groups

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Matrix:
    """One weight matrix; ``shape`` counts rows first, so that a Conv1D, stored transposed, is outputs x inputs.

    Where ``robustness`` is None, ``unmeasured`` says why.
    """

    name: str
    kind: str
    tied: tuple[str, ...]
    shape: tuple[int, int]
    dtype: str
    parameters: int
    share: float
    break_even: int
    spectrum: Spectrum
    lengths: RowLengths
    robustness: Robustness | None
    unmeasured: str | None


@dataclass(frozen=True)
class Inspection:
    """All matrices of a model in the model's order, and layers passed over with the reason."""

    parameters: int
    keep: float
    threshold: float
    matrices: tuple[Matrix, ...]
    skipped: tuple[tuple[str, str], ...]

    @property
    def measured(self) -> tuple[str, ...]:
        """The names of the matrices on which p = 1 was compared with the SVD."""
        return tuple(matrix.name for matrix in self.matrices if matrix.robustness is not None)

    def record(self) -> dict[str, Any]:
        """The same facts as JSON can hold them; an infinite number is the string ``"inf"``."""
        facts: dict[str, Any] = _plain(asdict(self))
        facts["measured"] = list(self.measured)
        for matrix, found in zip(facts["matrices"], self.matrices, strict=True):
            if found.robustness is not None:
                matrix["robustness"] |= {
                    "entries_gain": _plain(found.robustness.entries_gain),
                    "ordinary_gain": _plain(found.robustness.ordinary_gain),
                    "helps": found.robustness.helps,
                }
        return facts


def inspect(
    model: nn.Module,
    tokens: Sequence[str] | None = None,
    keep: float = 0.25,
    layers: Layers | None = None,
    measure: int | None = 4,
    progress: Progress | None = None,
) -> Inspection:
    """Describe every weight matrix of the embeddings and linear layers of a model; nothing in it is changed.

    ``layers`` are the words :func:`ellp.plan` knows, or patterns such as ``"encoder.*"`` for layers' names. p = 1 is
    compared with the SVD, at the rank that ``keep`` leaves, on all embeddings and on the ``measure`` largest other
    matrices (None: on all). ``tokens`` name the rows of the input embedding. ``progress`` hears what is next, its
    number, and the share of matrices done.

    >>> import torch, ellp.inspection
    >>> model = torch.nn.Sequential(torch.nn.Embedding(1000, 32), torch.nn.Linear(32, 8))
    >>> [(matrix.name, matrix.shape, matrix.break_even) for matrix in ellp.inspection.inspect(model).matrices]
    [('0', (1000, 32), 31), ('1', (8, 32), 6)]
    """
    if not 0 < keep <= 1:
        raise InputError(f"need a share to keep above 0 and at most 1, got {keep}: 0.25 keeps a quarter")
    if measure is not None and measure < 0:
        raise InputError(f"need a number of matrices to measure, got {measure}: pass 0 or more, or None for all")
    found, skipped = _matrices(model, layers)
    total = sum(part.numel() for part in model.parameters() if not isinstance(part, nn.UninitializedParameter))
    table = _input_embedding(model) if tokens is not None else None
    chosen = _chosen(found, measure)
    seen = []
    for number, (name, (module, tied)) in enumerate(found.items(), 1):
        if progress is not None:
            progress(f"inspect {name}", number, (number - 1) / len(found))
        words = tokens if table is not None and module.weight is table.weight else None
        facts = _describe(name, module, tied, total, words)
        seen.append(_compare(facts, _rows(module), keep) if name in chosen else facts)
    if tokens is not None and table is None:
        raise InputError("need an input embedding for tokens to name, got a model without one: leave tokens out")
    return Inspection(total, keep, THRESHOLD, tuple(seen), tuple(skipped.items()))


# Finding the matrices -------------------------------------------------------------------------------------------------

Found = dict[str, tuple[nn.Module, tuple[str, ...]]]


def _matrices(model: nn.Module, layers: Layers | None) -> tuple[Found, dict[str, str]]:
    """Layers by name, each matrix once with its other names; and the names of layers passed over, with the reason."""
    found: Found = {}
    factored = tuple(KINDS.values())
    skipped = {name or ".": "factored already" for name, layer in model.named_modules() if isinstance(layer, factored)}
    for first, *others in tied_groups(model) if layers is None else chosen_groups(model, layers):
        module = model.get_submodule(first)
        reason = _unfit(module.weight)
        if reason is None:
            found[first or "."] = module, tuple(others)
        else:
            skipped |= {name or ".": reason for name in (first, *others)}
    return found, skipped


def _unfit(weight: object) -> str | None:
    """Why a layer's weight cannot be read as its matrix, if so."""
    if not isinstance(weight, Tensor) or nn.parameter.is_lazy(weight):
        return "its weight is not there yet"
    if weight.dtype not in DTYPES:
        return f"stored as {str(weight.dtype).removeprefix('torch.')}, not as numbers to factor"
    if weight.ndim != 2 or weight.numel() == 0:
        return f"stored in the shape {tuple(weight.shape)}, not as a matrix"
    return None


def _rows(module: nn.Module) -> Tensor:
    weight = module.weight
    assert isinstance(weight, Tensor)  # layers without one have been passed over
    return weight.detach().T if kind_of(module) == "conv1d" else weight.detach()


def _input_embedding(model: nn.Module) -> nn.Module | None:
    """What the model says its input embedding is; otherwise its first embedding."""
    for module in model.modules():
        getter = getattr(module, "get_input_embeddings", None)
        if getter is None:
            continue
        try:
            table = getter()
        except (AttributeError, NotImplementedError):  # transformers' way of saying that there is none
            continue
        if isinstance(table, nn.Embedding):
            return table
    return next((module for module in model.modules() if isinstance(module, nn.Embedding)), None)


def _chosen(found: Found, measure: int | None) -> set[str]:
    if measure is None:
        return set(found)
    embeddings = {name for name, (module, _) in found.items() if isinstance(module, nn.Embedding)}
    rest = [name for name in found if name not in embeddings]
    rest.sort(key=lambda name: -_rows(found[name][0]).numel())
    return embeddings | set(rest[:measure])


# Describing one -------------------------------------------------------------------------------------------------------


def _describe(name: str, module: nn.Module, tied: tuple[str, ...], total: int, tokens: Sequence[str] | None) -> Matrix:
    matrix = _rows(module)
    if matrix.is_meta:
        raise InputError(f"need a model with its weights, got {name} on the meta device: load them first")
    count, width = matrix.shape
    if tokens is not None and len(tokens) > count:
        raise InputError(f"need at most one token per row of {name} ({count}), got {len(tokens)}: check the tokenizer")
    try:
        rows = read_rows(matrix, None, None).precise()
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    return Matrix(
        name=name,
        kind=kind_of(module) or "",
        tied=tied,
        shape=(count, width),
        dtype=str(matrix.dtype).removeprefix("torch."),
        parameters=matrix.numel(),
        share=matrix.numel() / total if total else 1.0,
        break_even=break_even((count, width)),
        spectrum=spectrum(matrix),
        lengths=row_lengths(rows.lengths(), rows.scale, tokens),
        robustness=None,
        unmeasured="not among the largest: name these layers to have them compared",
    )


def _compare(facts: Matrix, matrix: Tensor, keep: float) -> Matrix:
    """The same facts with p = 1 and the SVD compared at the rank that ``keep`` leaves."""
    try:
        rank = rank_for(facts.shape, keep)
    except InputError:
        return replace(facts, unmeasured=f"too small for rank 1 at {keep:g} of its parameters")
    if facts.lengths.zero_rows == facts.shape[0]:
        return replace(facts, unmeasured="all of its entries are zero")
    return replace(facts, robustness=compare(matrix, rank, facts.lengths.top_share), unmeasured=None)


def _plain(value: Any) -> Any:
    """A value as JSON can hold it."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
