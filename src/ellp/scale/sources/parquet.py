"""``.parquet``: a column of lists of one length, or one column per dimension."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ellp.errors import InputError
from ellp.scale.sources.extras import extra
from ellp.scale.sources.npy import read_as
from ellp.scale.sources.place import base_name, stamp, stream_of
from ellp.scale.sources.source import check_span, decoding, few

BATCH = 4 * 2**20  # bytes decoded at a time
BUFFER = 4 * 2**20  # bytes read from the file at a time, for all columns together
IDLE = 4  # cursors kept for the next span

_lock = threading.Lock()


@dataclass(frozen=True)
class Parquet:
    """Rows of the ``columns``: one of lists, or several of numbers.

    A row group is decoded from its start, however large it is; where a span begins where an earlier one ended, decoding
    goes on from there.
    """

    path: str
    columns: tuple[str, ...]
    shape: tuple[int, int]
    stored: str
    starts: tuple[int, ...]
    name: str
    _idle: list[_Cursor] = field(default_factory=list, compare=False, repr=False)

    @property
    def dtype(self) -> torch.dtype:
        return read_as(np.dtype(self.stored), self.name)

    def read(self, first: int, last: int, into: Tensor | None = None) -> Tensor:
        check_span(self, first, last)
        room = torch.empty(last - first, self.shape[1], dtype=self.dtype) if into is None else into[: last - first]
        if first == last:
            return room
        cursor = self._cursor(first)
        with decoding("parquet file", self.name):
            cursor.skip_to(first)
            for block in cursor.blocks(last):
                room.numpy()[block.first - first : block.first - first + len(block.rows)] = block.rows
        with _lock:
            self._idle.append(cursor)
            dropped = self._idle[:-IDLE]
            del self._idle[:-IDLE]
        for one in dropped:
            one.close()
        return room

    def stamp(self) -> dict[str, Any]:
        return stamp(self.path) | {"columns": list(self.columns), "shape": list(self.shape), "stored": self.stored}

    def _cursor(self, first: int) -> _Cursor:
        """The one nearest before a row in its row group, or a new one at the start of that group."""
        group = bisect_right(self.starts, first) - 1
        with _lock:
            ready = [one for one in self._idle if self.starts[group] <= one.row <= first]
            if ready:
                best = max(ready, key=lambda one: one.row)
                self._idle.remove(best)
                return best
        return _Cursor(self, group)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_idle": []}


@dataclass
class _Block:
    first: int
    rows: np.ndarray[Any, Any]


class _Cursor:
    """A place in the file up to which it has been decoded."""

    def __init__(self, table: Parquet, group: int) -> None:
        self.table, self.row = table, table.starts[group]
        self.ahead: np.ndarray[Any, Any] | None = None
        self.stream = stream_of(table.path)
        with decoding("parquet file", table.name):
            self.file = _open(self.stream, len(table.columns))
            count = max(1, BATCH // (table.shape[1] * np.dtype(table.stored).itemsize))
            groups = range(group, self.file.num_row_groups)
            columns = list(table.columns)
            self.batches = self.file.iter_batches(count, row_groups=groups, columns=columns, use_threads=False)

    def blocks(self, last: int) -> Iterator[_Block]:
        """What follows up to a row."""
        while self.row < last:
            rows = self.ahead
            if rows is None or not len(rows):
                batch = next(self.batches, None)
                if batch is None:
                    raise InputError(f"need row {self.row} of {self.table.name}, got its end: restore the file")
                rows = _numbers(batch, self.table)
            taken = min(len(rows), last - self.row)
            block, self.ahead = _Block(self.row, rows[:taken]), rows[taken:]
            self.row += taken
            yield block

    def skip_to(self, first: int) -> None:
        for _ in self.blocks(first):
            pass

    def close(self) -> None:
        self.stream.close()


def open_parquet(path: str, name: str | None = None) -> Parquet:
    """The table in a parquet file; ``name`` is a column of lists, where there are several or others beside it."""
    arrow = extra("pyarrow", base_name(path))
    stream = stream_of(path)
    try:
        with decoding("parquet file", base_name(path)):
            file = _open(stream)
            columns = _chosen(file.schema_arrow, name, base_name(path), arrow)
            count, meta = file.metadata.num_rows, file.metadata
            groups = [meta.row_group(index).num_rows for index in range(meta.num_row_groups)]
            if sum(groups) != count:
                raise InputError(
                    f"need {count} rows in {base_name(path)}, as it says, got {sum(groups)}: copy it again"
                )
            width, stored = _described(file, columns, base_name(path), arrow)
    finally:
        stream.close()
    named = f"{base_name(path)}:{name}" if name else base_name(path)
    read_as(stored, named)
    return Parquet(path, columns, (count, width), stored.str, (0, *accumulate(groups)), named)


def _open(stream: Any, columns: int = 1) -> Any:
    parquet, buffer = extra("pyarrow.parquet", "parquet"), max(2**14, BUFFER // columns)
    return parquet.ParquetFile(stream, buffer_size=buffer, pre_buffer=False, page_checksum_verification=True)


def _chosen(schema: Any, name: str | None, file: str, arrow: Any) -> tuple[str, ...]:
    """The columns meant: the one named, the only one of lists, or all if all are numbers of one kind."""
    lists = [one.name for one in schema if _item(one.type, arrow) is not None]
    if name is not None:
        if name not in schema.names:
            raise InputError(f"need a column that is in {file}, got {name!r}: it holds {few(schema.names)}")
        return (name,)
    if len(lists) == 1:
        return (lists[0],)
    plain = [one.name for one in schema if arrow.types.is_floating(one.type)]
    if lists or len(plain) != len(schema.names) or not plain:
        told = few(lists or [one for one in schema.names if one not in plain])
        raise InputError(
            f"need one column of lists of numbers in {file}, or columns of floats only, got {told}: write {file}:COLUMN"
        )
    return tuple(schema.names)


def _described(file: Any, columns: tuple[str, ...], name: str, arrow: Any) -> tuple[int, np.dtype[Any]]:
    """Numbers in a row, and how they are stored."""
    kinds = [file.schema_arrow.field(column).type for column in columns]
    items = [_item(kind, arrow) for kind in kinds]
    if items[0] is None:
        stored = [np.dtype(kind.to_pandas_dtype()) for kind in kinds]
        return len(columns), np.result_type(*stored)
    size = getattr(_storage(kinds[0], arrow), "list_size", -1)
    if size < 0:
        first = next(file.iter_batches(1, columns=list(columns)), None)
        size = len(first.column(0)[0].as_py() or ()) if first is not None and len(first) else 0
    if size < 1:
        raise InputError(f"need rows of numbers in {name}, got none in column {columns[0]}: check the file")
    return int(size), np.dtype(items[0].to_pandas_dtype())


def _storage(kind: Any, arrow: Any) -> Any:
    """What an extension type, as a tensor of fixed shape, is stored as."""
    return kind.storage_type if isinstance(kind, arrow.BaseExtensionType) else kind


def _item(kind: Any, arrow: Any) -> Any:
    """The type of the items of a list type."""
    kind, types = _storage(kind, arrow), arrow.types
    if types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind):
        return kind.value_type
    return None


def _numbers(batch: Any, table: Parquet) -> np.ndarray[Any, Any]:
    """Rows of a decoded batch."""
    stored, width = np.dtype(table.stored), table.shape[1]
    parts = [_plain(batch.column(batch.schema.get_field_index(column)), table) for column in table.columns]
    if len(parts) > 1 or width == 1:
        return np.column_stack(parts).astype(stored, copy=False)
    (values,) = parts
    return values.reshape(-1, width).astype(stored, copy=False)


def _plain(column: Any, table: Parquet) -> np.ndarray[Any, Any]:
    """The numbers in a column, lists one after the other."""
    column = getattr(column, "storage", column)
    empty = column.null_count
    if hasattr(column, "flatten") and hasattr(column.type, "value_type"):
        compute = extra("pyarrow.compute", "parquet")
        lengths = compute.list_value_length(column).drop_null().to_numpy(zero_copy_only=False)
        if not empty and (lengths != table.shape[1]).any():
            odd = int(lengths[lengths != table.shape[1]][0])
            raise InputError(f"need {table.shape[1]} numbers in every row of {table.name}, got one of {odd}: repair it")
        column = column.flatten()
    if empty or column.null_count:
        raise InputError(f"need numbers in every row of {table.name}, got a null: fill or drop such rows")
    return np.asarray(column.to_numpy(zero_copy_only=False))
