"""Readers of all formats: every span of rows as it was written, in bounded memory, and damage named."""

import json
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file
from tables_on_disk import ONE_FILE, ROWS, WRITERS, file_of, table

import ellp
from ellp import InputError
from ellp.arrays import Caller
from ellp.scale.sources import open_source

SPANS = [(0, ROWS), (0, 1), (0, 0), (ROWS, ROWS), (ROWS - 1, ROWS), (7, 1023), (1023, 1025), (699, 1901), (612, 614)]


@pytest.mark.parametrize("format", WRITERS)
def test_every_span_is_the_arrays(tmp_path: Path, format: str) -> None:
    rows = table()
    source = open_source(WRITERS[format](tmp_path, rows))
    expected = torch.from_numpy(rows)
    assert source.shape == rows.shape and source.dtype == torch.float32
    into = torch.full((ROWS + 5, rows.shape[1]), torch.nan)
    for again in (source, pickle.loads(pickle.dumps(source))):
        for first, last in SPANS:
            assert torch.equal(again.read(first, last), expected[first:last])
            assert torch.equal(again.read(first, last, into), expected[first:last])
        assert again.stamp() == source.stamp()


@pytest.mark.parametrize("format", WRITERS)
def test_spans_outside_are_refused(tmp_path: Path, format: str) -> None:
    source = open_source(WRITERS[format](tmp_path, table()))
    for first, last in ((-1, 2), (0, ROWS + 1), (5, 4)):
        with pytest.raises(InputError, match=r"need rows out of the 2500"):
            source.read(first, last)


@pytest.mark.parametrize("format", WRITERS)
def test_threads_read_at_once(tmp_path: Path, format: str) -> None:
    rows = table()
    source = open_source(WRITERS[format](tmp_path, rows))
    spans = [(first, min(first + 97, ROWS)) for first in range(0, ROWS, 97)] * 3
    with ThreadPoolExecutor(4) as threads:
        for (first, last), found in zip(spans, threads.map(lambda span: source.read(*span), spans), strict=True):
            assert torch.equal(found, torch.from_numpy(rows[first:last]))


KINDS = {
    "npy": ("<f8", "<f2", ">f4", ">f8", "<i4", ">i2", "|b1"),
    "fortran": ("<f8", ">f4", "<i4"),
    "tensors": ("<f8", "<f2", "<i4", "|u1"),
    "parquet_fixed": ("<f8", "<f2", "<i4"),
    "parquet_columns": ("<f8", "<f2"),
    "zarr2": ("<f8", "<f2", ">f4", "<i4"),
    "zarr3": ("<f8", "<f2", "<i4"),
    "hdf5": ("<f8", "<f2", ">f4", "<i4"),
    "hdf5_chunked": ("<f8", ">f4", "<i4"),
}


@pytest.mark.parametrize(("format", "kind"), [(format, kind) for format, kinds in KINDS.items() for kind in kinds])
def test_numbers_are_read_as_in_memory(tmp_path: Path, format: str, kind: str) -> None:
    rows = table("<i4" if kind[1] in "iub" else kind).astype(kind)
    source = open_source(WRITERS[format](tmp_path, rows))
    tensor = torch.from_numpy(rows.astype(rows.dtype.newbyteorder("=")))
    in_memory = Caller(tensor if format == "tensors" else rows).matrix
    assert source.dtype == in_memory.dtype
    assert torch.equal(source.read(3, 1999), in_memory[3:1999])


def test_bfloat16(tmp_path: Path) -> None:
    rows = torch.from_numpy(table()).bfloat16()
    save_file({"table": rows}, tmp_path / "a.safetensors")
    source = open_source(f"{tmp_path}/a.safetensors")
    assert source.dtype == torch.bfloat16 and torch.equal(source.read(5, 77), rows[5:77])


@pytest.mark.parametrize("format", sorted(ONE_FILE))
def test_a_truncated_file_is_named(tmp_path: Path, format: str) -> None:
    place = WRITERS[format](tmp_path, table())
    file = file_of(place)
    whole = file.read_bytes()
    ends = {0, 1, 7, 8, 9, 64, 127, 128, len(whole) // 2, *(len(whole) - less for less in (9, 8, 5, 4, 3, 2))}
    for end in sorted(ends):
        file.write_bytes(whole[:end])
        with pytest.raises(InputError, match=rf"need .*{file.name}"):
            open_source(place).read(0, ROWS)


@pytest.mark.parametrize("format", sorted(ONE_FILE))
def test_a_file_that_shrinks_is_named(tmp_path: Path, format: str) -> None:
    place = WRITERS[format](tmp_path, table())
    source, file = open_source(place), file_of(place)
    with file.open("r+b") as content:
        content.truncate(file.stat().st_size // 2)
    with pytest.raises(InputError, match=rf"need .*{file.name}"):
        source.read(0, ROWS)


@pytest.mark.parametrize("format", sorted(ONE_FILE))
def test_damage_is_an_input_error_or_other_numbers(tmp_path: Path, format: str) -> None:
    place = WRITERS[format](tmp_path, table())
    file, chance = file_of(place), np.random.default_rng(0)
    whole = np.frombuffer(file.read_bytes(), np.uint8)
    refused = 0
    for _ in range(120):
        damaged = whole.copy()
        near = chance.integers(0, 400, 3) % len(whole)  # headers are at the start, footers at the end
        damaged[np.where(chance.random(3) < 0.5, near, -1 - near)] = chance.integers(0, 256, 3)
        file.write_bytes(damaged.tobytes())
        try:
            source = open_source(place)
            assert len(source.read(0, min(ROWS, source.shape[0]))) <= ROWS
        except InputError:
            refused += 1
    assert refused  # damage is not always seen, but it was done


@pytest.mark.parametrize("format", ["npy", "parquet_fixed", "zarr2", "hdf5_chunked", "npy_parts"])
def test_the_stamp_follows_the_content(tmp_path: Path, format: str) -> None:
    (tmp_path / "old").mkdir()
    source = open_source(WRITERS[format](tmp_path, table()))
    before = source.stamp()
    assert before == source.stamp() and json.loads(json.dumps(before)) == before
    for path in [*tmp_path.iterdir()]:
        path.rename(tmp_path / "old" / path.name) if path.name != "old" else None
    WRITERS[format](tmp_path, 2 * table())
    assert source.stamp() != before


def test_missing_parts_are_named(tmp_path: Path) -> None:
    index = WRITERS["index"](tmp_path, table())
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(InputError, match=r"need model-00002-of-00002\.safetensors"):
        open_source(index)
    parts = WRITERS["tensor_parts"](tmp_path, table())
    (tmp_path / "rows-00002-of-00003.safetensors").unlink()
    with pytest.raises(InputError, match=r"got no rows-00002-of-00003\.safetensors"):
        open_source(parts)


def test_parts_of_another_table_are_refused(tmp_path: Path) -> None:
    WRITERS["npy_parts"](tmp_path, table())
    np.save(tmp_path / "parts" / "part-5.npy", np.zeros((4, 7), np.float32))
    with pytest.raises(InputError, match="need parts alike"):
        open_source(str(tmp_path / "parts"))


class Bomb:
    """Leaves a trace if it is ever unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.trace,)


def test_nothing_in_a_file_runs(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    objects = np.array([[Bomb(trace)]], object)
    np.save(tmp_path / "a.npy", objects, allow_pickle=True)
    (tmp_path / "a.bin").write_bytes(pickle.dumps(Bomb(trace)))
    (tmp_path / "a.zarr").mkdir()
    facts = {"zarr_format": 2, "shape": [1, 1], "chunks": [1, 1], "fill_value": 0, "order": "C", "compressor": None}
    pickled = [{"id": "pickle", "protocol": 5}]
    (tmp_path / "a.zarr" / "0.0").write_bytes(pickle.dumps(objects))
    for dtype, filters in (("|O", pickled), ("<f4", pickled)):
        (tmp_path / "a.zarr" / ".zarray").write_text(json.dumps(facts | {"dtype": dtype, "filters": filters}))
        with pytest.raises(InputError):
            open_source(f"{tmp_path}/a.zarr").read(0, 1)
    for name in ("a.npy", "a.bin"):
        with pytest.raises(InputError):
            open_source(str(tmp_path / name)).read(0, 1)
    assert not trace.exists()
    pickle.loads((tmp_path / "a.bin").read_bytes())
    assert trace.exists()  # the bomb was sharp


def test_links_out_of_an_hdf5_file_are_refused(tmp_path: Path) -> None:
    WRITERS["hdf5"](tmp_path, table())
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["away"] = h5py.ExternalLink("a.h5", "deep/table")
        file.create_dataset("raw", (4, 3), "<f4", external=[(str(tmp_path / "a.h5"), 0, 48)])
    for name in ("away", "raw"):
        with pytest.raises(InputError, match="need"):
            open_source(f"{tmp_path}/b.h5:{name}")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.npy", "need an existing file"),
        ("a.csv", "need a file of a known kind"),
        ("a.safetensors:nothing", "it holds bias, table, z"),
        ("a.safetensors", "need the name of one matrix, got 2"),
        ("a.parquet:nothing", "it holds id, vector"),
        ("a.h5:nothing", "it holds deep/table"),
        ("a.zarr:nothing", "need an array"),
        ("b.zarr:../a.zarr", "need an array"),
        ("a.npy:what", "leave it out"),
        ("*.csv", "need parts of one kind"),
        (".", "need parts of one kind"),
    ],
)
def test_what_cannot_be_read_says_what_to_do(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "a.csv").write_text("1,2\n")
    for format in ("npy", "tensors", "parquet_lists", "hdf5", "zarr2", "zarr3"):
        WRITERS[format](tmp_path, table())
    with pytest.raises(InputError, match=message):
        open_source(f"{tmp_path}/{name}")


def test_ragged_rows_and_nulls_are_named(tmp_path: Path) -> None:
    for rows, message in (([[1.0, 2.0], [3.0]], "got one of 1"), ([[1.0, 2.0], None], "a null")):
        pq.write_table(pa.table({"v": rows}), tmp_path / "a.parquet")
        with pytest.raises(InputError, match=message):
            open_source(str(tmp_path / "a.parquet")).read(0, 2)


def test_a_line_that_is_no_row_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.vec").write_text("3 2\na 1 2\nb 3 x\nc 4 5\n")
    source = open_source(str(tmp_path / "a.vec"))
    with pytest.raises(InputError, match=r"row 1 of a\.vec"):
        source.read(0, 3)


@pytest.mark.parametrize(
    "format", ["npy", "tensors", "index", "tensor_parts", "parquet_fixed", "text", "binary", "zarr2"]
)
def test_urls(tmp_path: Path, format: str) -> None:
    rows = table()
    place = WRITERS[format](tmp_path, rows)
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path), "/bucket", recursive=True)
    try:
        source = open_source(place.replace(str(tmp_path), "memory://bucket"))
        assert torch.equal(source.read(11, 1234), torch.from_numpy(rows[11:1234]))
        before = source.stamp()
        assert before == source.stamp() == pickle.loads(pickle.dumps(source)).stamp()
        memory.rm("/bucket", recursive=True)
        with pytest.raises(InputError, match="need"):
            source.read(0, ROWS)
    finally:
        memory.store.clear()


def test_a_url_that_nothing_reads_says_what_to_install() -> None:
    with pytest.raises(InputError, match="s3:// needs s3fs"):
        open_source("s3://bucket/table.npy")


SCAN = """
import resource, sys, torch
from ellp.scale.sources import open_source
source = open_source(sys.argv[1])
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
rows = source.shape[0]
into = torch.empty(4096, source.shape[1], dtype=source.dtype)
source.read(0, 4096, into)
before = peak()
for first in range(4096, rows, 4096):
    source.read(first, min(first + 4096, rows), into)
print(peak() - before, source.shape[0])
"""


@pytest.mark.parametrize("format", ["npy", "parquet_fixed", "hdf5_chunked", "binary"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, format: str) -> None:
    rows = np.random.default_rng(0).standard_normal((400_000, 64), dtype=np.float32)  # 102 MB
    place = WRITERS[format](tmp_path, rows)
    ran = subprocess.run([sys.executable, "-c", SCAN, place], capture_output=True, text=True, check=True)
    grown, count = map(int, ran.stdout.split())
    assert count == len(rows) and grown < 30


@pytest.mark.parametrize("format", ["zarr2", "zarr3"])
def test_a_missing_chunk_is_not_read_as_zeros(tmp_path: Path, format: str) -> None:
    place = WRITERS[format](tmp_path, table() + 1)
    source = open_source(place)
    chunk = next(path for path in tmp_path.rglob("*") if path.is_file() and not path.name.startswith((".z", "zarr")))
    chunk.unlink()
    with pytest.raises(InputError, match=r"need all \d chunks"):
        source.read(0, ROWS)
    with pytest.raises(InputError, match=r"need all \d chunks"):
        open_source(place)


@pytest.mark.parametrize("format", ["npy_parts", "index", "parquet_lists", "zarr3", "hdf5_chunked", "text", "binary"])
def test_factors_do_not_depend_on_the_format(tmp_path: Path, format: str) -> None:
    rows, places = table(), {}
    for name in ("npy", format):
        (tmp_path / name).mkdir()
        places[name] = WRITERS[name](tmp_path / name, rows)
    one, other = (ellp.factorize(place, 2, seed=1) for place in places.values())
    for part in ("left", "right", "sigma", "axes"):
        assert torch.equal(getattr(one, part), getattr(other, part))
    assert one.certificate == other.certificate
