"""Readers: every span of rows as it was written, and damage named."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from ellp import InputError
from ellp.scale.sources import open_source

SPANS = [(0, 1), (0, 40), (7, 19), (39, 40)]


def made(kind: str) -> np.ndarray:
    table = np.random.default_rng(0).standard_normal((40, 3)) * 100
    return np.asfortranarray(table.astype(np.float32)) if kind == "fortran" else table.astype(kind)


@pytest.mark.parametrize("kind", ["<f4", "<f8", "<f2", ">f4", ">f8", "<i4", ">i2", "fortran"])
@pytest.mark.parametrize("span", SPANS)
def test_npy_spans(tmp_path: Path, kind: str, span: tuple[int, int]) -> None:
    table = made(kind)
    np.save(tmp_path / "a.npy", table)
    source = open_source(str(tmp_path / "a.npy"))
    expected = torch.from_numpy(np.ascontiguousarray(table.astype(table.dtype.newbyteorder("="))))
    expected = expected if expected.is_floating_point() else expected.double()
    assert source.shape == (40, 3) and source.dtype == expected.dtype
    into = torch.empty(64, 3, dtype=source.dtype)
    assert torch.equal(source.read(*span), expected[slice(*span)])
    assert torch.equal(source.read(*span, into), expected[slice(*span)])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int32])
@pytest.mark.parametrize("span", SPANS)
def test_tensor_spans(tmp_path: Path, dtype: torch.dtype, span: tuple[int, int]) -> None:
    table = (torch.from_numpy(made("<f4"))).to(dtype)
    save_file({"bias": torch.ones(5), "table": table, "zzz": torch.ones(2, 2)}, tmp_path / "a.safetensors")
    source = open_source(f"{tmp_path}/a.safetensors:table")
    expected = table if dtype.is_floating_point else table.float()
    into = torch.empty(40, 3, dtype=source.dtype)
    assert torch.equal(source.read(*span, into), expected[slice(*span)])


def test_a_file_that_shrinks_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", made("<f4"))
    source = open_source(str(tmp_path / "a.npy"))
    with open(tmp_path / "a.npy", "r+b") as file:
        file.truncate(300)
    with pytest.raises(InputError, match=r"a\.npy.*shorter"):
        source.read(0, 40)


def test_the_stamp_follows_the_content(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", made("<f4"))
    source = open_source(str(tmp_path / "a.npy"))
    before = source.stamp()
    assert before == source.stamp()
    np.save(tmp_path / "a.npy", 2 * made("<f4"))
    assert source.stamp() != before
