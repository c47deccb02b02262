"""A table and a number of bytes -> the code with the least error: many ways to spend the bytes are tried on a sample.

The ways: codebooks, scalar bits and int8 numbers on the ellipsoid's axes, with how many axes kept and how finely the
axes themselves stored; and plain rounding of the table. The error is the importance-weighted squared error in the
metric, as a share of the error of storing one mean row for all; every byte that is stored is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ellp.code.axes import AXIS_BITS, axes_bytes, read_axes, store_axes
from ellp.code.basis import BLOCK, Basis, basis
from ellp.code.prefixes import levels_up_to, map_bytes, map_rows
from ellp.code.reading import read_rows
from ellp.code.rounding import round_matrix, round_to_bits, rounded_bytes
from ellp.code.staged import OWN, WIDTHS, Coder, Stages, choose, encode, find_stages, price
from ellp.errors import InputError
from ellp.options import How

Progress = Callable[[str, float], None]
"""Called with what is at work and the share done."""

SAMPLE = 2048  # rows a candidate is judged on, and found on
SHARES = (1.0, 0.75, 0.5, 0.375, 0.25, 0.125)  # of all axes kept, tried from above until the error rises
LONGEST = 6  # a row gets at most so many times the mean number of bytes
FLOAT = 4  # bytes counted for each of the few real numbers, whatever the model's dtype
PER_BOOK = 2**16  # bytes of the budget for each trained codebook, which takes 2048 of them
SLACK = 0.5  # rows go on coding until a byte is worth so much of the estimated price


@dataclass(frozen=True)
class Candidate:
    """One way to spend the bytes, and its error on the sample."""

    coder: str
    error: float
    bytes: int
    axes: int | None = None
    axis_bits: int | None = None
    bits: int | None = None


@dataclass(frozen=True)
class Coded:
    """The code chosen: its tensors by name, its bytes, its error on the whole table, and what else was tried."""

    kind: Literal["staged", "rounded", "tapered"]
    tensors: dict[str, Tensor]
    bits: int
    bytes: int
    error: float
    chosen: Candidate
    tried: tuple[Candidate, ...]

    def record(self) -> dict[str, Any]:
        """The facts, ready for JSON."""
        facts = {"kind": self.kind, "bytes": self.bytes, "error": self.error, "chosen": asdict(self.chosen)}
        return facts | {"tried": [asdict(one) for one in self.tried]}


def code_table(
    matrix: Tensor,
    size: int,
    importance: Tensor | None = None,
    metric: Tensor | None = None,
    p: float = 1.0,
    how: How = "auto",
    seed: int = 0,
    progress: Progress | None = None,
) -> Coded:
    """Code a table (n x d) in at most ``size`` bytes, everything counted.

    >>> import torch
    >>> table = torch.randn(2000, 32, generator=torch.manual_seed(0))
    >>> coded = code_table(table, size=16000)  # an eighth of float16
    >>> coded.bytes <= 16000, coded.kind
    (True, 'staged')
    """
    told = progress or (lambda what, share: None)
    told("axes", 0.0)
    found = basis(matrix, importance, metric, p, seed)
    search = _Search(found, size, seed)
    tried: list[tuple[Candidate, _Draft | None]] = []
    coders: tuple[Coder, ...] = () if how == "rounding" else ("codebook", "scalar", "int8") if how == "auto" else (how,)
    for number, coder in enumerate(coders):
        told(f"trying {coder}", 0.05 + 0.15 * number)
        tried += search.staged(coder, tried)
    if how in ("auto", "rounding"):
        tried += [(one, None) for one in search.rounded()]
    if not tried:
        raise InputError(
            f"need more bytes for a table of {matrix.shape[0]} x {matrix.shape[1]}, got {size:,}: pass at least "
            f"{rounded_bytes(search.basis.shape, 2) + FLOAT * matrix.shape[1] if how == 'rounding' else search.least:,}"
        )
    chosen, draft = min(tried, key=lambda one: one[0].error)
    told(f"coding with {chosen.coder}", 0.5)
    if draft is None:
        coded = _round(found, chosen)
    else:
        coded = _stage(
            found, chosen, draft, size, seed, lambda share: told(f"coding with {chosen.coder}", 0.5 + share / 2)
        )
    kind, tensors, bits = coded
    error = measured(found, kind, tensors, bits)
    bytes_used = sum(tensor.numel() * _counted(tensor) for tensor in tensors.values())
    told("", 1.0)
    return Coded(kind, tensors, bits, bytes_used, error, chosen, tuple(one for one, _ in tried))


@dataclass(frozen=True)
class Learned:
    """The best staged code of the rows of a basis, before any row is coded: ``basis`` is that of its rounded axes."""

    chosen: Candidate
    axes: Tensor
    basis: Basis
    stages: Stages


def learn(found: Basis, size: int, how: How = "auto", seed: int = 0) -> Learned:
    """How to spend ``size`` bytes on the rows of a table, of which the basis may hold a sample only."""
    search, tried = _Search(found, size, seed), list[tuple[Candidate, "_Draft | None"]]()
    coders: tuple[Coder, ...] = ("codebook", "scalar", "int8") if how == "auto" or how == "rounding" else (how,)
    for coder in coders:
        tried += search.staged(coder, tried)
    if not tried:
        raise InputError(f"need more bytes for {found.shape[0]} rows, got {size:,}: pass at least {search.least:,}")
    chosen, draft = min(tried, key=lambda one: one[0].error)
    assert draft is not None
    rounded = found.onto(rounded_axes(found, draft.axes, draft.axis_bits))
    stages = find_stages(rounded, draft.axes, draft.most, draft.coder, seed=seed, own=_books(size))
    return Learned(chosen, found.back[: draft.axes], rounded, stages)


def decode_table(coded: Coded, shape: tuple[int, int]) -> Tensor:
    """The whole table as the layers read it (float32), for measurements."""
    device = coded.tensors["mean"].device
    spans = torch.split(torch.arange(shape[0], device=device), BLOCK)
    return torch.cat([read_rows(coded.kind, coded.tensors, coded.bits, shape[1], rows) for rows in spans])


def _counted(tensor: Tensor) -> int:
    return FLOAT if tensor.is_floating_point() else tensor.element_size()


@dataclass(frozen=True)
class _Draft:
    """What a staged candidate was judged with: its stages may be found again on more rows."""

    coder: Coder
    axes: int
    axis_bits: int
    most: int
    mu: float


class _Search:
    """Candidates and their errors on one sample of rows."""

    def __init__(self, found: Basis, size: int, seed: int) -> None:
        self.basis, self.size, self.seed = found, size, seed
        self.rows, self.weight = found.sample(SAMPLE, seed + 1)
        self.coordinates = found.coordinates(self.rows)
        self.all = float((self.weight * self.coordinates.square().sum(dim=1)).double().sum()) or 1.0
        self.least = fixed_bytes(found.shape, 1, 4, 1, 8, 1) + 1

    def staged(self, coder: Coder, before: list[Any]) -> list[tuple[Candidate, _Draft | None]]:
        """From all axes to few, as long as fewer are better; a second coder only with the first one's best number."""
        found: list[tuple[Candidate, _Draft | None]] = []
        last = float("inf")
        best = min(before, key=lambda one: one[0].error)[0].axes if before else None
        width = self.basis.shape[1]
        for axes in [best] if best else dict.fromkeys(max(1, round(share * width)) for share in SHARES):
            now = [one for bits in AXIS_BITS for one in self._candidates(coder, axes, bits)]
            found += now
            error = min((one[0].error for one in now), default=float("inf"))
            if error > last:
                break
            last = error
        return found

    def _candidates(self, coder: Coder, axes: int, bits: int) -> Iterator[tuple[Candidate, _Draft | None]]:
        count = self.basis.shape[0]
        room = self.size - fixed_bytes(self.basis.shape, axes, bits, 0, WIDTHS[coder], 0)
        if room < count / 8:
            return
        most = max(8, min(axes * (2 if coder == "int8" else 1), int(LONGEST * room / count) + 1))
        stages, errors = self._curves(coder, axes, most)
        if not stages.count:
            return
        larger, beyond = self._rounding(axes, bits)
        errors = larger * errors + beyond[:, None]
        room = self.size - fixed_bytes(self.basis.shape, axes, bits, stages.count, WIDTHS[coder], len(stages.books))
        if room <= 0:
            return
        levels = levels_up_to(stages.count).to(errors.device)
        own = self.basis.weight[self.rows]
        counts = (self.weight / own.clamp(min=1e-30)).double().clamp(max=count)
        mu = price(errors, own, levels, room, counts)
        taken = levels[choose(errors, own, levels, mu)].long()
        kept = errors.gather(1, taken[:, None])[:, 0]
        error = float((self.weight * kept).double().sum())
        told = int(room) if float(taken.max()) > 0 else 0
        yield (
            Candidate(coder, error / self.all, self.size - room + told, axes, bits),
            _Draft(coder, axes, bits, most, mu),
        )

    def _curves(self, coder: Coder, axes: int, most: int) -> tuple[Stages, Tensor]:
        """Stages and every sampled row's error after each; kept while only the axes' bits change."""
        key = (coder, axes, most)
        if getattr(self, "_key", None) != key:
            stages = find_stages(self.basis, axes, most, coder, SAMPLE, self.seed, _books(self.size))
            _, errors = encode(self.coordinates[:, :axes], stages)
            self._key, self._kept = key, (stages, errors)
        return self._kept

    def _rounding(self, axes: int, bits: int) -> tuple[float, Tensor]:
        """What rounding the axes does to the error: how many times larger it becomes, as the axes are no longer quite
        orthonormal, and what of each sampled row lies beyond them."""
        rounded = self.basis.onto(rounded_axes(self.basis, axes, bits))
        place = rounded.back @ self.basis.into
        inside = self.basis.matrix[self.rows].float().sub_(self.basis.mean) @ rounded.into
        return float(place.square().sum()) / axes, (self.coordinates - inside @ place).square().sum(dim=1)

    def rounded(self) -> Iterator[Candidate]:
        """The finest plain rounding that fits."""
        for bits in range(8, 1, -1):
            used = rounded_bytes(self.basis.shape, bits) + FLOAT * self.basis.shape[1]
            if used <= self.size:
                rows = self.basis.matrix[self.rows].float() - self.basis.mean
                lost = ((round_to_bits(rows, bits) - rows) @ self.basis.into).square().sum(dim=1)
                error = float((self.weight * lost).double().sum())
                yield Candidate("rounding", error / self.all, used, bits=bits)
                return


def _books(size: int) -> int:
    """How many codebooks are trained: few in a small code, where they would take the rows' room."""
    return max(1, min(OWN, size // PER_BOOK))


def fixed_bytes(shape: tuple[int, int], axes: int, bits: int, stages: int, width: int, books: int) -> int:
    """Bytes of everything but the rows' codes."""
    count, columns = shape
    row_map = map_bytes(count, min(256, stages + 1))
    per_stage = stages * (2 * width + FLOAT + 1)
    return row_map + per_stage + books * 256 * width + axes_bytes(axes, columns, bits) + FLOAT * columns


def rounded_axes(found: Basis, axes: int, bits: int) -> Tensor:
    """The leading axes as they are read back."""
    packed, scale = store_axes(found.back[:axes], bits)
    return read_axes(packed, bits, found.shape[1]) * scale[:, None]


def _round(found: Basis, chosen: Candidate) -> Any:
    assert chosen.bits is not None
    parts = [round_matrix(found.matrix[span].float() - found.mean, chosen.bits) for span, _ in found.blocks()]
    codes, scales = torch.cat([part.codes for part in parts]), torch.cat([part.scales for part in parts])
    tensors = {"weight": found.mean.new_empty(found.shape[0], 0), "mean": found.mean[None].clone()}
    tensors |= {"code": codes, "scales": scales}
    return "rounded", tensors, chosen.bits


def measured(found: Basis, kind: str, tensors: dict[str, Tensor], bits: int) -> float:
    """The error of a code on the whole table, over that of the mean row alone."""
    error = 0.0
    for span, _ in found.blocks():
        rows = torch.arange(span.start, span.stop, device=found.matrix.device)
        error += found.error(rows, read_rows(kind, tensors, bits, found.shape[1], rows))
    return error / (found.size or 1.0)


def _stage(found: Basis, chosen: Candidate, draft: _Draft, size: int, seed: int, told: Callable[[float], None]) -> Any:
    found = found.onto(rounded_axes(found, draft.axes, draft.axis_bits))
    stages = find_stages(found, draft.axes, draft.most, draft.coder, seed=seed, own=_books(size))
    count, device = found.shape[0], found.matrix.device
    codes = torch.zeros(count, stages.count, dtype=torch.uint8, device=device)
    errors = torch.zeros(count, stages.count + 1, dtype=torch.float16, device=device)
    sizes = torch.zeros(count, device=device)
    for span, block in found.blocks():
        worth = SLACK * draft.mu / found.weight[span].clamp(min=1e-30)
        codes[span], lost = encode(block, stages, worth)
        sizes[span] = lost[:, 0]
        errors[span] = (lost / lost[:, :1].clamp(min=1e-30)).half()
        told(span.stop / count)
    levels, own = levels_up_to(stages.count).to(device), found.weight * sizes
    used = stages.count
    for _ in range(2):  # once more with the room that stages nobody uses leave
        books = len(stages.first(used).books)
        room = size - fixed_bytes(found.shape, draft.axes, draft.axis_bits, used, stages.books.shape[2], books)
        choice = choose_within(errors, own, levels, room)
        used = int(levels[choice].max())
    return _packed(found, stages.first(used), codes, choice, levels[: int(choice.max()) + 1], draft)


def choose_within(errors: Tensor, own: Tensor, levels: Tensor, room: float) -> Tensor:
    """A level for every row so that all fit into the room; chosen by blocks, since float32 copies are large."""

    def at(mu: float) -> Tensor:
        parts = zip(torch.split(errors, BLOCK), torch.split(own, BLOCK), strict=True)
        return torch.cat([choose(lost.float(), weight, levels, mu) for lost, weight in parts])

    scale = float(own.mean()) or 1.0
    low, high = 1e-9 * scale, 1e3 * scale
    best = at(high)
    for _ in range(20):
        middle = (low * high) ** 0.5
        choice = at(middle)
        if float(levels[choice].double().sum()) > room:
            low = middle
        else:
            high, best = middle, choice
        if high / low < 1.001:
            break
    return best


def _packed(found: Basis, stages: Stages, codes: Tensor, choice: Tensor, levels: Tensor, draft: _Draft) -> Any:
    lengths = levels[choice].long()
    steps = torch.arange(codes.shape[1], device=codes.device)
    stream = torch.cat(
        [
            block[steps < length[:, None]]
            for block, length in zip(torch.split(codes, BLOCK), torch.split(lengths, BLOCK), strict=True)
        ]
    )
    packed, scale = store_axes(found.back[: draft.axes], draft.axis_bits)
    row_map = map_rows(choice, levels)
    tensors = {
        "weight": found.mean.new_empty(found.shape[0], 0),
        "mean": found.mean[None].clone(),
        "code": stream,
        "lengths": row_map.lengths,
        "levels": row_map.levels,
        "starts": row_map.starts,
        "axes": stages.axes,
        "book": stages.book,
        "books": stages.books,
        "scale": stages.scale,
        "proj.weight": packed,
        "proj.scale": scale,
    }
    return "staged", tensors, draft.axis_bits
