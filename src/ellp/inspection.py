"""What a model's weight matrices look like to a low-rank factorization: facts, all of them measured.

A matrix is seen as its rows: an embedding's vectors, a linear layer's outputs. Two questions are answered: how low its
rank could be (the spectrum), and whether a robust norm changes anything (row lengths, and a factorization at p = 1
beside the SVD at the same rank). Trained tables rarely have rows that are long enough for the second.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from ellp.budget import break_even, rank_for
from ellp.errors import InputError
from ellp.factoring import Factors, Progress, factorize, svd
from ellp.rows import first_bad_row

THRESHOLD = 0.01  # a relative difference of errors up to here counts as none
LONGEST = 0.01  # the share of rows, by length, that is not called ordinary
OUTLIERS = 0.1  # a share of the squared sum in them from which on the longest rows are called outliers
EXACT = 1e-6  # relative errors up to here are rounding
TAIL = 0.05  # the share of rows, by length, whose decay is the tail
LISTED = 8
BLOCK = 2**22  # numbers in a block of rows
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Spectrum:
    """Singular values s, in four numbers.

    ``effective_rank`` is ``exp(-sum q log q)``, ``q = s^2 / sum s^2``; ``rank_90`` and ``rank_99`` are the smallest
    ranks holding that share of ``sum s^2``; ``condition`` is the largest over the smallest s, and infinite where the
    smallest is below what a Gram matrix in float64 resolves (about 1e-8 of the largest).
    """

    effective_rank: float
    rank_90: int
    rank_99: int
    condition: float


@dataclass(frozen=True)
class LongRow:
    """One of the longest rows; ``ratio`` is its length over the median length."""

    index: int
    length: float
    ratio: float
    token: str | None


@dataclass(frozen=True)
class RowLengths:
    """How uneven the rows' Euclidean lengths are.

    ``longest_over_median`` leaves zero rows out of the median. ``top_share`` is the share of the squared sum in the
    longest 1 % of rows. ``tail`` is Hill's estimate: the mean of log(length / the longest ordinary length) over the
    longest 5 % of rows, which is 0 for equal lengths and 1/a where lengths beyond t are as frequent as t^-a.
    """

    longest_over_median: float
    top_share: float
    tail: float
    zero_rows: int
    longest: tuple[LongRow, ...]


@dataclass(frozen=True)
class Robustness:
    """p = 1 beside the SVD at the same rank.

    ``entries`` is ``sum |A - A_k| / sum |A|``; ``ordinary`` is the mean of ``|a_i - a_i,k| / |a_i|`` over all rows but
    the zero ones and the longest 1 %. A gain is by how much p = 1's error is lower, relative to the SVD's.
    """

    rank: int
    distortion: float
    entries: float
    entries_svd: float
    ordinary: float
    ordinary_svd: float
    verdict: str

    @property
    def entries_gain(self) -> float:
        return _gain(self.entries, self.entries_svd)

    @property
    def ordinary_gain(self) -> float:
        return _gain(self.ordinary, self.ordinary_svd)

    @property
    def helps(self) -> bool:
        """Whether p = 1 is better than the threshold in one of the errors, and not worse by it in the other."""
        gains = self.entries_gain, self.ordinary_gain
        return max(gains) > THRESHOLD and min(gains) >= -THRESHOLD


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
    layers: str | Sequence[str] | None = None,
    measure: int | None = 4,
    progress: Progress | None = None,
) -> Inspection:
    """Describe every weight matrix of the embeddings and linear layers of a model; nothing in it is changed.

    ``layers`` are patterns such as ``"encoder.*"`` for layers' names. p = 1 is compared with the SVD, at the rank that
    ``keep`` leaves, on all embeddings and on the ``measure`` largest other matrices (None: on all). ``tokens`` name the
    rows of the input embedding. ``progress`` hears what is next, its number, and the share of matrices done.

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
        words = tokens if table is not None and _key(module) == _key(table) else None
        facts = _describe(name, module, tied, total, words)
        seen.append(_compare(facts, _rows(module), keep) if name in chosen else facts)
    if tokens is not None and table is None:
        raise InputError("need an input embedding for tokens to name, got a model without one: leave tokens out")
    return Inspection(total, keep, THRESHOLD, tuple(seen), tuple(skipped.items()))


# Finding the matrices -------------------------------------------------------------------------------------------------

Found = dict[str, tuple[nn.Module, tuple[str, ...]]]


def _matrices(model: nn.Module, layers: str | Sequence[str] | None) -> tuple[Found, dict[str, str]]:
    """Layers by name, each matrix once with its other names; and the names of layers passed over, with the reason."""
    names: dict[tuple[int, ...], list[str]] = {}
    modules: dict[str, nn.Module] = {}
    skipped: dict[str, str] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if _kind(module) is None:
            continue
        shown = name or "."
        reason = _unfit(module)
        if reason is None:
            modules[shown] = module
            names.setdefault(_key(module), []).append(shown)
        else:
            skipped[shown] = reason
    groups = list(names.values())
    if layers is not None:
        patterns = [layers] if isinstance(layers, str) else list(layers)
        _refuse_idle(patterns, [*modules, *skipped])
        groups = [group for group in groups if any(_matches(name, patterns) for name in group)]
        skipped = {name: reason for name, reason in skipped.items() if _matches(name, patterns)}
    return {group[0]: (modules[group[0]], tuple(group[1:])) for group in groups}, skipped


def _kind(module: nn.Module) -> str | None:
    """``Embedding``, ``Linear``, ``Conv1D`` (transformers' linear layer, stored inputs x outputs) or None."""
    if isinstance(module, nn.Embedding):
        return "Embedding"
    if isinstance(module, nn.Linear):
        return "Linear"
    if any(kind.__name__ == "Conv1D" for kind in type(module).__mro__):
        weight = getattr(module, "weight", None)
        return "Conv1D" if isinstance(weight, Tensor) and weight.ndim == 2 else None
    return None


def _unfit(module: nn.Module) -> str | None:
    """Why a layer's weight cannot be read as its matrix, if so."""
    weight = module.weight
    if not isinstance(weight, Tensor) or nn.parameter.is_lazy(weight):
        return "its weight is not there yet"
    if weight.dtype not in DTYPES:
        return f"stored as {str(weight.dtype).removeprefix('torch.')}, not as numbers to factor"
    declared = _declared(module)
    if declared is not None and tuple(weight.shape) != declared:
        return f"stored as {tuple(weight.shape)} for a layer of {declared}: packed, or factored already"
    if weight.numel() == 0:
        return "it is empty"
    return None


def _declared(module: nn.Module) -> tuple[int, int] | None:
    if isinstance(module, nn.Embedding):
        return module.num_embeddings, module.embedding_dim
    if isinstance(module, nn.Linear):
        return module.out_features, module.in_features
    inputs, outputs = getattr(module, "nx", None), getattr(module, "nf", None)  # a Conv1D's, in some versions
    return (inputs, outputs) if isinstance(inputs, int) and isinstance(outputs, int) else None


def _weight(module: nn.Module) -> Tensor:
    weight = module.weight
    assert isinstance(weight, Tensor)  # layers without one have been passed over
    return weight.detach()


def _key(module: nn.Module) -> tuple[int, ...]:
    """The same for layers that share one matrix."""
    weight = module.weight
    if not isinstance(weight, Tensor) or weight.is_meta or weight.data_ptr() == 0:
        return (id(weight),)
    return weight.data_ptr(), *weight.shape, *weight.stride()


def _rows(module: nn.Module) -> Tensor:
    weight = _weight(module)
    return weight.T if _kind(module) == "Conv1D" else weight


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _refuse_idle(patterns: Sequence[str], names: Sequence[str]) -> None:
    idle = [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in names)]
    if idle:
        raise InputError(
            f"need patterns that match a layer, got {idle[0]!r}: the layers are named like {', '.join(names[:3])}"
        )


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
    rest.sort(key=lambda name: -_weight(found[name][0]).numel())
    return embeddings | set(rest[:measure])


# Describing one -------------------------------------------------------------------------------------------------------


def _describe(name: str, module: nn.Module, tied: tuple[str, ...], total: int, tokens: Sequence[str] | None) -> Matrix:
    matrix = _rows(module)
    largest = _largest(name, matrix)
    rows, columns = matrix.shape
    if tokens is not None and len(tokens) > rows:
        raise InputError(f"need at most one token per row of {name} ({rows}), got {len(tokens)}: check the tokenizer")
    scale = 2.0 ** math.floor(math.log2(largest)) if largest > 0 else 1.0
    lengths = torch.cat([torch.linalg.vector_norm(block, dim=1) for block in _blocks(matrix, scale)])
    return Matrix(
        name=name,
        kind=str(_kind(module)),
        tied=tied,
        shape=(rows, columns),
        dtype=str(matrix.dtype).removeprefix("torch."),
        parameters=matrix.numel(),
        share=matrix.numel() / total if total else 1.0,
        break_even=break_even((rows, columns)),
        spectrum=spectrum(matrix, scale),
        lengths=row_lengths(lengths, scale, tokens),
        robustness=None,
        unmeasured="not among the largest matrices: pass measure=None to compare all",
    )


def _largest(name: str, matrix: Tensor) -> float:
    if matrix.is_meta:
        raise InputError(f"need a model with its weights, got {name} on the meta device: load them first")
    low, high = torch.aminmax(matrix)
    largest = max(-float(low), float(high))
    if not math.isfinite(largest):
        raise InputError(f"need finite weights, got {first_bad_row(matrix)} of {name}: repair or reload the model")
    return largest


def _blocks(matrix: Tensor, scale: float = 1.0) -> Iterator[Tensor]:
    """Blocks of rows in float64, over ``scale``."""
    for block in torch.split(matrix, max(1, BLOCK // matrix.shape[1])):
        yield block.double() / scale


def spectrum(matrix: Tensor, scale: float = 1.0) -> Spectrum:
    """The singular values of a matrix, through the eigenvalues of the smaller Gram matrix in float64."""
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    gram = torch.zeros(tall.shape[1], tall.shape[1], dtype=torch.float64, device=matrix.device)
    for block in _blocks(tall, scale):
        gram.addmm_(block.T, block)
    squares = torch.linalg.eigvalsh(gram).flip(0).clamp(min=0)
    total = float(squares.sum())
    if total == 0:
        return Spectrum(0.0, 0, 0, math.inf)
    shares = squares / total
    held = shares.cumsum(0)
    ranks = [min(int((held < part).sum()) + 1, len(held)) for part in (0.90, 0.99)]
    resolved = len(squares) * torch.finfo(torch.float64).eps * float(squares[0])
    smallest = float(squares[-1])
    condition = math.sqrt(float(squares[0]) / smallest) if smallest > resolved else math.inf
    return Spectrum(math.exp(float(torch.special.entr(shares).sum())), ranks[0], ranks[1], condition)


def row_lengths(lengths: Tensor, unit: float = 1.0, tokens: Sequence[str] | None = None) -> RowLengths:
    """Facts about rows from their lengths (float64), which are counted in ``unit``."""
    count = len(lengths)
    order = lengths.argsort(descending=True)
    ranked = lengths[order]
    live = int((lengths > 0).sum())
    if live == 0:
        return RowLengths(1.0, _top(count) / count, 0.0, count, ())
    median = float(ranked[:live].median())
    squares = ranked.square()
    longest = tuple(
        LongRow(
            index=row,
            length=float(lengths[row]) * unit,
            ratio=float(lengths[row]) / median,
            token=tokens[row] if tokens is not None and row < len(tokens) else None,
        )
        for row in order[: min(LISTED, live)].tolist()
    )
    return RowLengths(
        longest_over_median=float(ranked[0]) / median,
        top_share=float(squares[: _top(count)].sum() / squares.sum()),
        tail=_hill(ranked[:live]),
        zero_rows=count - live,
        longest=longest,
    )


def _top(count: int) -> int:
    """How many rows the longest 1 % are."""
    return math.ceil(LONGEST * count)


def _hill(ranked: Tensor) -> float:
    """Hill's estimate over the longest rows; ``ranked`` are positive lengths, descending."""
    beyond = min(math.ceil(TAIL * len(ranked)), len(ranked) - 1)
    return float((ranked[:beyond] / ranked[beyond]).log().mean()) if beyond else 0.0


# Whether robustness helps ---------------------------------------------------------------------------------------------


def _compare(facts: Matrix, matrix: Tensor, keep: float) -> Matrix:
    """The same facts with p = 1 and the SVD compared at the rank that ``keep`` leaves."""
    try:
        rank = rank_for(facts.shape, keep)
    except InputError:
        return replace(facts, unmeasured=f"too small for rank 1 at {keep:g} of its parameters")
    if facts.lengths.zero_rows == facts.shape[0]:
        return replace(facts, unmeasured="all of its entries are zero")
    if matrix.dtype.itemsize == 2:
        matrix = matrix.float()  # compares the subspaces, not how their factors round
    robust, plain = factorize(matrix, rank, strict=False), svd(matrix, rank)
    ordinary = _ordinary(matrix)
    (entries, rows), (entries_svd, rows_svd) = (_errors(matrix, factors, ordinary) for factors in (robust, plain))
    distortion = robust.certificate.distortion
    found = Robustness(robust.rank, distortion, entries, entries_svd, rows, rows_svd, "")
    found = replace(found, verdict=_verdict(found, facts.lengths.top_share))
    return replace(facts, robustness=found, unmeasured=None)


def _ordinary(matrix: Tensor) -> Tensor:
    """Which rows are neither zero nor among the longest 1 %."""
    largest = float(matrix.abs().max())
    lengths = torch.cat([torch.linalg.vector_norm(block, dim=1) for block in _blocks(matrix, largest)])
    ordinary = lengths > 0
    if int(ordinary.sum()) > _top(len(lengths)):
        ordinary[lengths.topk(_top(len(lengths))).indices] = False
    return ordinary


def _errors(matrix: Tensor, factors: Factors, ordinary: Tensor) -> tuple[float, float]:
    """The relative l_1 error of the entries, and the mean relative error of the ordinary rows."""
    lost = size = rows = 0.0
    largest = float(matrix.abs().max())
    right = factors.right.double()
    left, kept = (torch.split(part, max(1, BLOCK // matrix.shape[1])) for part in (factors.left, ordinary))
    for block, coordinates, live in zip(_blocks(matrix, largest), left, kept, strict=True):
        residual = torch.addmm(block, coordinates.double() / largest, right, alpha=-1)
        lost += float(residual.abs().sum())
        size += float(block.abs().sum())
        lengths = (torch.linalg.vector_norm(part[live], dim=1) for part in (residual, block))
        rows += float(torch.div(*lengths).sum())
    return lost / size, rows / int(ordinary.sum())


def _gain(robust: float, plain: float) -> float:
    return 1 - max(robust, EXACT) / max(plain, EXACT)


def _verdict(found: Robustness, top_share: float) -> str:
    """The two gains in words; outliers are named only where the longest rows hold enough to be called so."""
    rows, entries = found.ordinary_gain, found.entries_gain
    most = max(abs(rows), abs(entries))
    if max(found.entries, found.entries_svd) <= EXACT:
        return "both p = 1 and the SVD are exact at this rank"
    if most <= THRESHOLD:
        return f"p = 1 and the SVD are within {_at_most(most):.1%} here: robustness changes nothing that counts"
    if found.helps and rows > THRESHOLD:
        cause = f"the longest 1% of rows hold {top_share:.0%} of the squared sum"
        outliers = "outlier rows dominate the SVD, " if top_share >= OUTLIERS else ""
        return f"p = 1 keeps the ordinary rows {rows:.1%} better: {outliers}{cause}"
    if found.helps:
        return f"p = 1 has an l_1 error {entries:.1%} lower, and ordinary rows within {_at_most(abs(rows)):.1%}"
    return (
        f"p = 1 does not help: it loses {_more(-rows)} of the ordinary rows, and its l_1 error is {_higher(-entries)}"
    )


def _at_most(value: float) -> float:
    """Rounded up to a tenth of a percent."""
    return math.ceil(value * 1000 - 1e-9) / 1000


def _more(change: float) -> str:
    return f"{abs(change):.1%} {'more' if change > 0 else 'less'}"


def _higher(change: float) -> str:
    return f"{abs(change):.1%} {'higher' if change > 0 else 'lower'}"


def _plain(value: Any) -> Any:
    """A value as JSON can hold it."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
