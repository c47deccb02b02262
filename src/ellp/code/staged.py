r"""Rows as sequences of bytes, of which each refines the ones before: important rows are read further.

Byte t of a row adds one of 256 entries of a codebook, times a scale, to w of its coordinates:

    y_i  ~  sum_{t < length_i}  scale_t  book[b_t, code_it]  on the axes  a_t1 ... a_tw.

The coders differ in w and in the book. ``codebook``: w = 8, entries found by weighted k-means. ``scalar``: w = 4, two
bits for each axis by itself. ``int8``: w = 1. The axes of a stage are those with the largest weighted variance left by
the stages before, so the bits go where reverse water-filling sends them, one by one to whatever is largest. Every row
reads the same stages in the same order and stops where the next byte is worth less than elsewhere: where
``c_i error_i(t) + mu t`` is least. A row that is unimportant or fits well stops early; an important one goes on until
it is all but exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ellp.code.basis import Basis
from ellp.code.prefixes import levels_up_to

ENTRIES = 256
OWN = 4  # trained codebooks at most: one for each of the first stages, whose axes are unequal, the last for all others
QUARTILES = (-1.510, -0.4528, 0.4528, 1.510)  # the four levels that round a normal number best (Max 1960)
TRAINING = 8192  # rows the stages are found on
LLOYD = 10
FAINTEST = 1e-30  # what a row of no importance weighs
PATIENCE = 32  # bytes a row may go on without a gain before it is given up


Coder = Literal["codebook", "scalar", "int8"]
WIDTHS: dict[Coder, int] = {"codebook": 8, "scalar": 4, "int8": 1}  # axes a byte refines


@dataclass(frozen=True)
class Stages:
    """``axes`` (int16, M x w), ``scale`` (float32, M), ``book`` (uint8, M), ``books`` (int8, C x 256 x w)."""

    axes: Tensor
    scale: Tensor
    book: Tensor
    books: Tensor

    @property
    def count(self) -> int:
        return int(self.scale.shape[0])

    @property
    def used_axes(self) -> int:
        """Leading axes that any stage touches."""
        return int(self.axes.max()) + 1 if self.count else 0

    def entries(self, stage: int) -> Tensor:
        """The 256 vectors of a stage."""
        return self.books[self.book[stage].long()].float() * self.scale[stage]

    def first(self, count: int) -> Stages:
        """Only the first ``count`` stages, and the codebooks they use."""
        last = int(self.book[:count].max()) + 1 if count else 0
        return replace(
            self, axes=self.axes[:count], scale=self.scale[:count], book=self.book[:count], books=self.books[:last]
        )


def find_stages(
    basis: Basis, axes: int, most: int, coder: Coder = "codebook", size: int = TRAINING, seed: int = 0, own: int = OWN
) -> Stages:
    """The first ``most`` stages on the ``axes`` leading axes, with ``own`` codebooks, found on a sample of rows."""
    rows, weight = basis.sample(size, seed)
    left = basis.coordinates(rows)[:, :axes].T.contiguous()  # a row an axis: a stage's axes are contiguous
    generator = torch.Generator().manual_seed(seed)
    width = min(WIDTHS[coder], axes)
    variance = left.square() @ weight
    books: list[Tensor] = []
    units: list[float] = []  # what one step of a book's integers is worth, in scales
    chosen, scales, which = [], [], []
    for stage in range(most):
        picked = variance.topk(width).indices
        target = left[picked].T.contiguous()
        scale = float(variance[picked].mean().div(weight.sum()).sqrt())
        if scale == 0.0:
            break
        if stage < (own if coder == "codebook" else 1):
            found = cluster(target / scale, weight, generator) if coder == "codebook" else grid(width, target.device)
            units.append(float(found.abs().max()) / 127 or 1.0)
            books.append((found / units[-1]).round().to(torch.int8))
        book = min(stage, len(books) - 1)
        if coder == "int8":
            scale = float(target.abs().max()) or 1.0
        entries = books[book].float() * (scale * units[book])
        left[picked] -= entries[nearest(target, entries)].T
        variance[picked] = left[picked].square() @ weight
        chosen.append(picked)
        scales.append(scale * units[book])
        which.append(book)
    device = basis.matrix.device
    table = torch.stack(chosen) if chosen else torch.zeros(0, width, device=device)
    empty = torch.zeros(0, ENTRIES, width, dtype=torch.int8, device=device)
    return Stages(
        table.to(torch.int16),
        torch.tensor(scales, device=device),
        torch.tensor(which, dtype=torch.uint8, device=device),
        torch.stack(books) if books else empty,
    )


def grid(width: int, device: torch.device) -> Tensor:
    """The 256 entries that give every one of ``width`` axes 8 / width bits of its own: scalar codes."""
    levels = {1: torch.linspace(-1, 1, ENTRIES), 4: torch.tensor(QUARTILES)}.get(width)
    if levels is None:  # fewer axes than the coder is made for
        levels = torch.linspace(-1.5, 1.5, int(ENTRIES ** (1 / width) + 1e-9))
    entries = torch.cartesian_prod(*[levels] * width).view(-1, width)
    return torch.cat([entries, entries[:1].expand(ENTRIES - len(entries), -1)]).to(device)


def cluster(points: Tensor, weight: Tensor, generator: torch.Generator) -> Tensor:
    """256 centres of weighted points (k-means: a weighted draw, then Lloyd's steps)."""
    chance = (weight * points.square().sum(dim=1)).double().cpu() + 1e-30
    drawn = torch.multinomial(chance, ENTRIES, replacement=len(points) < ENTRIES, generator=generator)
    centres = points[drawn.to(points.device)].clone()
    for _ in range(LLOYD):
        owner = nearest(points, centres)
        mass = torch.zeros(ENTRIES, device=points.device).index_add_(0, owner, weight)
        sums = torch.zeros_like(centres).index_add_(0, owner, points * weight[:, None])
        centres = torch.where((mass > 0)[:, None], sums / mass.clamp(min=1e-30)[:, None], centres)
    return centres


def nearest(points: Tensor, centres: Tensor) -> Tensor:
    """The index of the nearest of 256 centres for every point.

    In two steps, over 32 classes of 8 centres and then in the best class: torch finds a maximum ten times faster than
    the place of one.
    """
    scores = torch.addmm(-0.5 * centres.square().sum(dim=1), points, centres.T).view(-1, 8, 32)
    best = scores.amax(dim=1).max(dim=1).indices
    within = scores.gather(2, best[:, None, None].expand(-1, 8, 1))[:, :, 0].max(dim=1).indices
    return within * 32 + best


def encode(coordinates: Tensor, stages: Stages, worth: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Codes (rows x M, uint8) and errors after 0 to M bytes (rows x M+1, float32) of rows by their coordinates.

    With ``worth``, the error a byte has to save in each row, rows that no longer pay are given up: their further errors
    are infinite.
    """
    count, most = coordinates.shape[0], stages.count
    left = coordinates.T.contiguous()
    codes = torch.zeros(most, count, dtype=torch.uint8, device=left.device)
    errors = torch.full((most + 1, count), math.inf, device=left.device)
    now = left.square().sum(dim=0)
    errors[0] = now
    alive = torch.arange(count, device=left.device)
    best, since = now.clone(), torch.zeros_like(alive)
    for stage in range(most):
        axes, entries = stages.axes[stage].long(), stages.entries(stage)
        target = left[axes]
        code = nearest(target.T, entries)
        after = target - entries[code].T
        left[axes] = after
        now = now + (after.square() - target.square()).sum(dim=0)
        codes[stage, alive] = code.to(torch.uint8)
        errors[stage + 1, alive] = now.clamp(min=0.0)
        if worth is None:
            continue
        cost = now + worth[alive] * (stage + 1)
        better = cost < best
        best, since = torch.where(better, cost, best), torch.where(better, stage, since)
        if stage % 16 == 15:
            going = stage - since < PATIENCE
            if not bool(going.any()):
                break
            if bool(going.float().mean() < 0.9):
                alive, best, since, now = alive[going], best[going], since[going], now[going]
                left = left[:, going].contiguous()
    return codes.T, errors.T


def choose(errors: Tensor, weight: Tensor, levels: Tensor, mu: float) -> Tensor:
    """For every row the level at which ``weight error + mu bytes`` is least."""
    heavy = weight.clamp(min=FAINTEST)[:, None]  # rows given up stay so: nothing times infinity is not a number
    cost = heavy * errors[:, levels.long()] + mu * levels.to(errors)
    return cost.argmin(dim=1)


def price(errors: Tensor, weight: Tensor, levels: Tensor, room: float, counts: Tensor | None = None) -> float:
    """The least mu at which rows (each counting ``counts`` times) take at most ``room`` bytes in all."""
    scale = float((weight * errors[:, 0]).mean()) or 1.0
    low, high = 1e-12 * scale, 1e6 * scale
    for _ in range(20):  # the bracket spans 18 decades, and is closed to 0.01 %
        middle = math.sqrt(low * high)
        taken = levels[choose(errors, weight, levels, middle)].double()
        total = float(taken.sum() if counts is None else (taken * counts).sum())
        low, high = (middle, high) if total > room else (low, middle)
    return high


def decode(codes: Tensor, lengths: Tensor, stages: Stages) -> Tensor:
    """Coordinates of rows from their codes (rows x M), each up to its length."""
    count = codes.shape[0]
    found = torch.zeros(stages.used_axes, count, device=codes.device)
    for stage in range(int(lengths.max()) if count else 0):
        entries = stages.entries(stage)[codes[:, stage].long()]
        found[stages.axes[stage].long()] += (entries * (lengths > stage)[:, None]).T
    return found.T


def all_levels(most: int, device: torch.device) -> Tensor:
    """The levels of rows of at most ``most`` bytes."""
    return levels_up_to(most).to(device)
