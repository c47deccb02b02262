"""The same small table, written in every format that is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import zarr
from safetensors.torch import save_file

Table = np.ndarray
ROWS, COLUMNS = 2500, 3


def table(dtype: str = "<f4") -> Table:
    """Numbers that every dtype and six digits of text can hold exactly."""
    return (np.random.default_rng(0).integers(0, 200, (ROWS, COLUMNS)) / (4 if "f" in dtype else 1)).astype(dtype)


def npy(folder: Path, rows: Table, name: str = "a.npy") -> str:
    np.save(folder / name, rows)
    return str(folder / name)


def fortran(folder: Path, rows: Table) -> str:
    return npy(folder, np.asfortranarray(rows))


def npy_parts(folder: Path, rows: Table) -> str:
    cuts = [0, 700, 700, 701, 1900, ROWS]
    (folder / "parts").mkdir()
    for number, (first, last) in enumerate(pairwise(cuts)):
        npy(folder / "parts", rows[first:last], f"part-{number}-of-5.npy")
    return str(folder / "parts")


def tensors(folder: Path, rows: Table, name: str = "a.safetensors") -> str:
    save_file({"bias": torch.ones(5), "table": torch.from_numpy(rows.copy()), "z": torch.ones(2, 2)}, folder / name)
    return f"{folder / name}:table"


def index(folder: Path, rows: Table) -> str:
    tensors(folder, rows, "model-00002-of-00002.safetensors")
    save_file({"other": torch.ones(2)}, folder / "model-00001-of-00002.safetensors")
    where = {"table": "model-00002-of-00002.safetensors", "other": "model-00001-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return f"{folder}/model.safetensors.index.json:table"


def tensor_parts(folder: Path, rows: Table) -> str:
    for number, part in enumerate(np.array_split(rows, 3), 1):
        tensors(folder, part, f"rows-{number:05d}-of-00003.safetensors")
    return f"{folder}/rows-*.safetensors:table"


def _lists(rows: Table, fixed: bool) -> pa.Array:
    values = pa.array(rows.reshape(-1))
    if fixed:
        return pa.FixedSizeListArray.from_arrays(values, rows.shape[1])
    return pa.ListArray.from_arrays(np.arange(0, rows.size + 1, rows.shape[1], dtype=np.int32), values)


def parquet_lists(folder: Path, rows: Table, fixed: bool = False) -> str:
    columns = {"id": pa.array(np.arange(len(rows))), "vector": _lists(rows, fixed)}
    pq.write_table(pa.table(columns), folder / "a.parquet", row_group_size=613)
    return str(folder / "a.parquet")


def parquet_fixed(folder: Path, rows: Table) -> str:
    return parquet_lists(folder, rows, fixed=True) + ":vector"


def parquet_columns(folder: Path, rows: Table, name: str = "a.parquet") -> str:
    columns = {f"x{number}": rows[:, number] for number in range(rows.shape[1])}
    pq.write_table(pa.table(columns), folder / name, compression="zstd")
    return str(folder / name)


def parquet_parts(folder: Path, rows: Table) -> str:
    (folder / "parts").mkdir()
    for number, part in enumerate(np.array_split(rows, 3)):
        parquet_columns(folder / "parts", part, f"part-{number:05d}.snappy.parquet")
    return str(folder / "parts")


def zarr2(folder: Path, rows: Table, chunks: tuple[int, int] = (700, 2)) -> str:
    array = zarr.create_array(folder / "a.zarr", shape=rows.shape, chunks=chunks, dtype=rows.dtype, zarr_format=2)
    array[:] = rows
    return str(folder / "a.zarr")


def zarr3(folder: Path, rows: Table, chunks: tuple[int, int] = (100, 3)) -> str:
    group, shards = zarr.create_group(folder / "b.zarr"), (10 * chunks[0], chunks[1])
    array = group.create_array("inner", shape=rows.shape, chunks=chunks, shards=shards, dtype=rows.dtype)
    array[:] = rows
    return f"{folder}/b.zarr:inner"


def hdf5(folder: Path, rows: Table, **options: object) -> str:
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("words", data=["a", "b"])
        file.create_dataset("deep/table", data=rows, **options)
    return f"{folder}/a.h5:deep/table"


def hdf5_chunked(folder: Path, rows: Table, chunks: tuple[int, int] = (300, 2)) -> str:
    return hdf5(folder, rows, chunks=chunks, compression="gzip", shuffle=True).removesuffix(":deep/table")


def text(folder: Path, rows: Table) -> str:
    words = [f"w{number}" if number % 7 else f"two words {number}" for number in range(len(rows))]
    lines = [f"{word} {' '.join(f'{one:.6g}' for one in row)}" for word, row in zip(words, rows, strict=True)]
    (folder / "a.vec").write_text(f"{len(rows)} {rows.shape[1]}\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return str(folder / "a.vec")


def binary(folder: Path, rows: Table, end: bytes = b"\n") -> str:
    records = [f"wörd{number} ".encode() + row.astype("<f4").tobytes() + end for number, row in enumerate(rows)]
    (folder / "a.bin").write_bytes(f"{len(rows)} {rows.shape[1]}\n".encode() + b"".join(records))
    return str(folder / "a.bin")


def binary_unbroken(folder: Path, rows: Table) -> str:
    return binary(folder, rows, b"")


WRITERS: dict[str, Callable[..., str]] = {
    maker.__name__: maker
    for maker in (
        npy,
        fortran,
        npy_parts,
        tensors,
        index,
        tensor_parts,
        parquet_lists,
        parquet_fixed,
        parquet_columns,
        parquet_parts,
        zarr2,
        zarr3,
        hdf5,
        hdf5_chunked,
        text,
        binary,
        binary_unbroken,
    )
}
ONE_FILE = {"npy", "fortran", "tensors", "parquet_fixed", "parquet_columns", "hdf5", "hdf5_chunked", "text", "binary"}
"""Those of a single file, which ends where the table ends."""


def file_of(place: str) -> Path:
    """The file that a place of :data:`ONE_FILE` names."""
    head, _, name = place.rpartition(":")
    return Path(head if head and "/" not in name.split("deep/")[0] else place)
