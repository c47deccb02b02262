"""Rounding keeps what it promises: few values, every number within half a step, all bytes counted."""

from __future__ import annotations

import pytest
import torch

from ellp import InputError
from ellp.code.rounding import pack_bits, read_halves, round_to_bits, rounded_bytes, unpack_bits


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("shape", [(7, 64), (5, 33), (3, 5)])
def test_each_group_has_few_values_and_small_errors(bits: int, shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    read = round_to_bits(matrix, bits)
    for row, back in zip(matrix, read, strict=True):
        for group, found in zip(row.split(32), back.split(32), strict=True):
            step = float(group.abs().max()) / 2 ** (bits - 1) * 1.001
            assert len(found.unique()) <= 2**bits
            error = (group - found).abs()
            opposite = group * group[group.abs().argmax()] < 0  # may lie beyond the largest code on the other side
            assert float(error[~opposite].max()) <= step / 2
            assert float(error.max()) <= step


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("columns", [1, 7, 8, 33])
def test_packing_and_unpacking_changes_nothing(bits: int, columns: int) -> None:
    codes = torch.randint(2**bits, (9, columns), generator=torch.Generator().manual_seed(bits)).to(torch.uint8)
    packed = pack_bits(codes, bits)
    assert packed.shape == (9, -(-columns * bits // 8))
    assert torch.equal(unpack_bits(packed, bits, columns), codes.float())


def test_every_float16_is_read_from_its_bits() -> None:
    bits = torch.arange(-(2**15), 2**15).to(torch.int16)
    wanted = bits.view(torch.float16).float()
    finite = torch.isfinite(wanted)
    assert torch.equal(read_halves(bits)[finite], wanted[finite])


def test_more_bits_are_closer() -> None:
    matrix = torch.randn(50, 96, generator=torch.Generator().manual_seed(0))
    errors = [float((round_to_bits(matrix, bits) - matrix).norm() / matrix.norm()) for bits in (2, 3, 4, 5, 6, 7, 8)]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] < 0.5 and errors[2] < 0.1 and errors[-1] < 0.01


def test_rounding_twice_changes_nothing() -> None:
    once = round_to_bits(torch.randn(20, 64, generator=torch.Generator().manual_seed(0)), 4)
    assert torch.equal(round_to_bits(once, 4), once)


def test_zeros_stay_zeros_and_dtypes_stay() -> None:
    matrix = torch.zeros(2, 40, dtype=torch.float64)
    matrix[1, 3] = 5.0
    read = round_to_bits(matrix, 3)
    assert read.dtype == torch.float64 and not bool(read[0].any()) and float(read[1, 3]) == 5.0


def test_scaling_by_a_power_of_two_scales_the_answer() -> None:
    matrix = torch.randn(10, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(round_to_bits(4 * matrix, 4), 4 * round_to_bits(matrix, 4))


def test_bytes_count_codes_and_scales() -> None:
    assert rounded_bytes((100, 64), 4) == 100 * 64 // 2 + 2 * 100 * 2
    assert rounded_bytes((3, 5), 3) == 6 + 2 * 3  # 45 bits are 6 bytes
    assert rounded_bytes((10, 33), 8, group=16) == 330 + 2 * 10 * 3


@pytest.mark.parametrize(("bits", "group"), [(1, 32), (9, 32), (4, 0)])
def test_impossible_codes_are_refused(bits: int, group: int) -> None:
    with pytest.raises(InputError, match="need"):
        round_to_bits(torch.ones(2, 2), bits, group)
    with pytest.raises(InputError, match="need"):
        rounded_bytes((2, 2), bits, group)


def test_numbers_beyond_float16_scales_are_refused() -> None:
    with pytest.raises(InputError, match="float16"):
        round_to_bits(torch.full((2, 32), 1e7), 4)
