"""No tensors, however damaged, make a reader crash or look outside of them: they are refused, or they can be read."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import tables
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from torch import Tensor

from ellp import InputError
from ellp.code.checking import LAYOUTS, check_code, digest
from ellp.code.reading import read_rows
from ellp.code.search import Coded, code_table
from ellp.code.tapered import taper_table
from ellp.coded import empty_code, layout_of

ROWS, COLUMNS = 150, 33
SHAPE = (ROWS, COLUMNS)
TYPES = (torch.uint8, torch.int8, torch.int16, torch.int64, torch.float32, torch.bool)
kinds = some.sampled_from(sorted(LAYOUTS))
thorough = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@functools.cache
def coded(kind: str) -> Coded:
    table = tables.table(ROWS, COLUMNS)
    if kind == "tapered":
        return taper_table(table, 4000)
    return code_table(table, 5000, how="rounding" if kind == "rounded" else "codebook")


def read_or_refuse(kind: str, tensors: dict[str, Tensor], bits: int, shape: tuple[int, int] = SHAPE) -> None:
    try:
        check_code(kind, tensors, bits, shape)
    except InputError:
        return
    for traced in (False, True):
        assert read_rows(kind, tensors, bits, shape[1], torch.arange(shape[0]), traced).shape == shape


@pytest.mark.parametrize("kind", sorted(LAYOUTS))
def test_what_was_made_is_accepted(kind: str) -> None:
    check_code(kind, coded(kind).tensors, coded(kind).bits, SHAPE)
    assert {name: sides[0] for name, sides in layout_of(coded(kind).tensors).items()} == {
        name: wanted for name, (wanted, _) in LAYOUTS[kind].items()
    }


@thorough
@given(kinds, some.data())
def test_one_number_changed(kind: str, data: some.DataObject) -> None:
    tensors = {name: part.clone() for name, part in coded(kind).tensors.items()}
    name = data.draw(some.sampled_from(sorted(name for name in tensors if tensors[name].numel())))
    part = tensors[name].view(-1)
    place = data.draw(some.integers(0, part.numel() - 1))
    if part.is_floating_point():
        part[place] = data.draw(some.floats(width=32))
    else:
        limits = torch.iinfo(part.dtype)
        part[place] = data.draw(some.integers(limits.min, limits.max))
    read_or_refuse(kind, tensors, coded(kind).bits)


@thorough
@given(kinds, some.data())
def test_one_tensor_cut_turned_recast_or_gone(kind: str, data: some.DataObject) -> None:
    tensors = dict(coded(kind).tensors)
    name = data.draw(some.sampled_from(sorted(tensors)))
    part = tensors[name]
    match data.draw(some.sampled_from(["cut", "turned", "recast", "gone", "flat", "doubled"])):
        case "cut":
            tensors[name] = part[: data.draw(some.integers(0, max(0, part.shape[0] - 1)))]
        case "turned":
            tensors[name] = part.transpose(0, -1)
        case "recast":
            tensors[name] = part.to(data.draw(some.sampled_from(TYPES)))
        case "gone":
            del tensors[name]
        case "flat":
            tensors[name] = part.reshape(-1) if part.ndim > 1 else part.sum()
        case "doubled":
            tensors[name] = torch.cat([part, part])
    read_or_refuse(kind, tensors, coded(kind).bits)


@thorough
@given(kinds, some.integers(-3, 20), some.integers(0, 200), some.integers(0, 80))
def test_a_config_that_says_something_else(kind: str, bits: int, rows: int, columns: int) -> None:
    read_or_refuse(kind, dict(coded(kind).tensors), bits, (rows, columns))


@thorough
@given(kinds, some.integers(0, 2**32 - 1))
def test_noise(kind: str, seed: int) -> None:
    """Random numbers of the right types and shapes."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: torch.randn(part.shape, generator=generator)
        if part.is_floating_point()
        else torch.randint(-9, 300, part.shape, generator=generator).to(part.dtype)
        for name, part in coded(kind).tensors.items()
    }
    read_or_refuse(kind, tensors, coded(kind).bits)


junk: Any = some.recursive(
    some.none() | some.integers(-5, 2**50) | some.text(max_size=4) | some.sampled_from(["real", "uint8", "int64"]),
    lambda inner: some.lists(inner, max_size=4) | some.dictionaries(some.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@thorough
@given(kinds | some.text(max_size=5), some.data())
def test_a_layout_of_junk_makes_tensors_or_is_refused(kind: str, data: some.DataObject) -> None:
    layout = layout_of(coded(kind).tensors) if kind in LAYOUTS else {}
    if layout and data.draw(some.booleans()):
        name = data.draw(some.sampled_from(sorted(layout)))
        layout[name] = data.draw(junk)
        given_layout: Any = layout
    else:
        given_layout = data.draw(junk)
    like = torch.empty(0, device="meta")
    try:
        found = empty_code(kind, given_layout, like)
    except InputError:
        return
    assert set(found) == set(LAYOUTS[kind])


def test_a_digest_marks_integers_only() -> None:
    tensors = dict(coded("staged").tensors)
    mark = digest(tensors)
    assert digest({**tensors, "scale": tensors["scale"] * 2}) == mark
    assert digest({name: part.half() if part.is_floating_point() else part for name, part in tensors.items()}) == mark
    changed = tensors["code"].clone()
    changed[0] ^= 1
    assert digest({**tensors, "code": changed}) != mark
