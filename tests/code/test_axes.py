"""Axes are stored small, and read back close to what they were."""

from __future__ import annotations

import pytest
import torch

from ellp.code.axes import AXIS_BITS, axes_bytes, read_axes, store_axes


@pytest.mark.parametrize("bits", AXIS_BITS)
@pytest.mark.parametrize("shape", [(1, 1), (5, 33), (12, 48)])
def test_every_number_is_within_half_a_step(bits: int, shape: tuple[int, int]) -> None:
    axes = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    packed, scale = store_axes(axes, bits)
    lost = (read_axes(packed, bits, shape[1]) * scale[:, None] - axes).abs()
    assert bool((lost <= scale[:, None] * 0.5001).all())
    assert packed.numel() + 4 * scale.numel() == axes_bytes(*shape, bits)


@pytest.mark.parametrize("bits", AXIS_BITS)
def test_storing_twice_changes_nothing(bits: int) -> None:
    packed, scale = store_axes(torch.randn(6, 20, generator=torch.Generator().manual_seed(1)), bits)
    again, other = store_axes(read_axes(packed, bits, 20) * scale[:, None], bits)
    assert torch.equal(packed, again)
    assert torch.allclose(scale, other)


def test_an_axis_of_zeros_stays_one() -> None:
    packed, scale = store_axes(torch.zeros(2, 8), 4)
    assert not bool((read_axes(packed, 4, 8) * scale[:, None]).any())
