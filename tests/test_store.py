"""Reading refuses what it cannot trust; what is written can be read again."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ellp import InputError, store


def test_npy_round_trip(tmp_path: Path) -> None:
    matrix = np.arange(6.0).reshape(2, 3)
    np.save(tmp_path / "a.npy", matrix)
    assert np.array_equal(store.read_matrix(str(tmp_path / "a.npy")), matrix)


def test_the_only_matrix_needs_no_name(tmp_path: Path) -> None:
    save_file({"bias": torch.ones(3), "table": torch.eye(3)}, tmp_path / "a.safetensors")
    assert torch.equal(store.read_matrix(str(tmp_path / "a.safetensors")), torch.eye(3))


def test_several_matrices_are_listed(tmp_path: Path) -> None:
    save_file({"one": torch.eye(2), "two": torch.eye(3)}, tmp_path / "a.safetensors")
    assert torch.equal(store.read_matrix(f"{tmp_path}/a.safetensors:two"), torch.eye(3))
    with pytest.raises(InputError, match="one, two"):
        store.read_matrix(str(tmp_path / "a.safetensors"))
    with pytest.raises(InputError, match="'three'"):
        store.read_matrix(f"{tmp_path}/a.safetensors:three")


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "boom"),)

    np.save(tmp_path / "a.npy", np.array([Bomb()], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="numbers"):
        store.read_matrix(str(tmp_path / "a.npy"))
    assert not (tmp_path / "boom").exists()


@pytest.mark.parametrize("name", ["a.npy", "a.safetensors"])
@pytest.mark.parametrize("damage", ["truncated", "garbage", "empty"])
def test_damaged_files_are_named(tmp_path: Path, name: str, damage: str) -> None:
    path = tmp_path / name
    if name == "a.npy":
        np.save(path, np.ones((50, 50)))
    else:
        save_file({"table": torch.ones(50, 50)}, path)
    whole = path.read_bytes()
    path.write_bytes({"truncated": whole[: len(whole) // 2], "garbage": b"\x93" * 500, "empty": b""}[damage])
    with pytest.raises(InputError, match="a complete"):
        store.read_matrix(str(path))


@pytest.mark.parametrize("place", range(10, 128, 3))
def test_a_damaged_header_is_named_or_read(tmp_path: Path, place: int) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.ones((50, 50)))
    whole = bytearray(path.read_bytes())
    whole[place] = ord("(")
    path.write_bytes(whole)
    told = "a complete"
    try:
        store.read_matrix(str(path))
    except InputError as error:
        told = str(error)
    assert "a complete" in told


@pytest.mark.parametrize("name", ["missing.npy", "missing.safetensors:x", "table.csv"])
def test_what_is_no_matrix_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "table.csv").write_text("1,2")
    with pytest.raises(InputError, match="need"):
        store.read_matrix(str(tmp_path / name))


def test_output_is_as_readable_as_any_new_file(tmp_path: Path) -> None:
    store.write_tensors(tmp_path / "out.safetensors", {"a": torch.eye(2)}, {})
    (tmp_path / "plain").touch()
    assert (tmp_path / "out.safetensors").stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert torch.equal(load_file(tmp_path / "out.safetensors")["a"], torch.eye(2))
