"""Word vectors as word2vec and fastText write them: a line ``n d``, then n words with d numbers each.

In text every row is a line, and in binary the word, a space and d numbers of 4 bytes. Rows begin wherever the word
before happens to end, so one pass notes where every 1024th begins, and a span is read from the nearest one before.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ellp.errors import InputError
from ellp.scale.sources.place import base_name, fill, piece, size, stamp
from ellp.scale.sources.source import check_span

STEP = 1024  # rows from one noted place to the next
PIECE = 8 * 2**20  # bytes read at a time while the places are noted
LONGEST_WORD = 2**16
HEADER = re.compile(rb"(\d{1,12}) (\d{1,7})[ \t]*\r?\n")

Places = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Vectors:
    """``places[i]`` is where row 1024 i begins; the last one is where the last row ends."""

    path: str
    shape: tuple[int, int]
    binary: bool
    name: str
    places: Places = field(compare=False, repr=False)
    dtype: torch.dtype = torch.float32

    def read(self, first: int, last: int, into: Tensor | None = None) -> Tensor:
        check_span(self, first, last)
        room = torch.empty(last - first, self.shape[1]) if into is None else into[: last - first]
        for block in range(first // STEP, -(-last // STEP) if last > first else 0):
            begin = block * STEP
            content = self._content(block)
            span = slice(max(first - begin, 0), min(last - begin, STEP))
            rows = _from_bytes(content, self, span) if self.binary else _from_lines(content, self, begin, span)
            room[begin + span.start - first : begin + span.stop - first] = torch.from_numpy(rows)
        return room

    def stamp(self) -> dict[str, Any]:
        return stamp(self.path) | {"shape": list(self.shape)}

    def _content(self, block: int) -> np.ndarray[Any, Any]:
        begin, end = int(self.places[block]), int(self.places[block + 1])
        content = np.empty(end - begin, np.uint8)
        fill(self.path, begin, content, self.name)
        return content


def open_text_vectors(path: str, name: str | None = None) -> Vectors:
    """Word vectors as text, ``.vec`` or ``.txt``; the whole file is read once to note where rows begin."""
    return _open(path, name, binary=False)


def open_binary_vectors(path: str, name: str | None = None) -> Vectors:
    """Word vectors in binary, ``.bin``; the whole file is read once to note where rows begin."""
    return _open(path, name, binary=True)


def _open(path: str, name: str | None, *, binary: bool) -> Vectors:
    file = base_name(path)
    if name is not None:
        raise InputError(f"need no name in {file}, which holds one table, got {name!r}: leave it out")
    header = HEADER.match(piece(path, 0, 64))
    if header is None or not int(header[1]) or not int(header[2]):
        raise InputError(
            f"need word vectors, got {file} without a first line of rows and columns: write 'n d' above them"
        )
    shape = int(header[1]), int(header[2])
    least = shape[0] * (shape[1] * (4 if binary else 2))
    if size(path) - header.end() < least:
        raise _incomplete(file, shape[0], f"{size(path)} bytes")
    note = _note_records if binary else _note_lines
    return Vectors(path, shape, binary, file, note(path, header.end(), shape))


def _pieces(path: str, begin: int) -> Iterator[bytes]:
    end = size(path)
    while begin < end:
        content = piece(path, begin, min(PIECE, end - begin))
        yield content
        begin += len(content)


def _note_lines(path: str, begin: int, shape: tuple[int, int]) -> Places:
    """Where every 1024th line begins, and where the last one ends."""
    places, row, where, whole = [np.array([begin])], 0, begin, False
    for content in _pieces(path, begin):
        ends = np.flatnonzero(np.frombuffer(content, np.uint8) == 10) + 1
        places.append(where + ends[-(row + 1) % STEP :: STEP])
        row += len(ends)
        where += len(content)
        whole = content.endswith(b"\n")
    if row != shape[0] or not whole:
        raise _incomplete(base_name(path), shape[0], f"{row} whole lines")
    noted = np.concatenate(places)
    return np.append(noted, where) if row % STEP else noted


def _note_records(path: str, begin: int, shape: tuple[int, int]) -> Places:
    """Where every 1024th record begins, and where the last one ends."""
    places, row, length = [], 0, 4 * shape[1]
    content, where, at = b"", begin, 0  # content begins at where; the next record at content[at]
    for more in _pieces(path, begin):
        content, where, at = content[at:] + more, where + at, 0
        while row < shape[0]:
            space = content.find(b" ", at)
            if space < 0 or space + 1 + length > len(content):
                break
            if space - at > LONGEST_WORD:
                raise _incomplete(base_name(path), shape[0], f"{row} before one without a word")
            if row % STEP == 0:
                places.append(where + at)
            at = space + 1 + length
            row += 1
        if len(content) - at > length + LONGEST_WORD:
            raise _incomplete(base_name(path), shape[0], f"{row} and something else after them")
    if row != shape[0] or content[at:].strip(b"\r\n"):
        raise _incomplete(base_name(path), shape[0], f"{row} and {len(content) - at} bytes")
    return np.array([*places, where + at])


def _incomplete(file: str, rows: int, told: str) -> InputError:
    return InputError(f"need {rows} rows in {file}, as its first line says, got {told}: copy or download it again")


def _from_lines(content: np.ndarray[Any, Any], table: Vectors, begin: int, span: slice) -> np.ndarray[Any, Any]:
    """Rows of a block of lines; a word may hold spaces, the numbers are the last d fields."""
    lines = content.tobytes().split(b"\n")[span]
    width = table.shape[1]
    try:
        numbers = b"\n".join(line.lstrip(b" ").split(b" ", 1)[1] for line in lines)
        rows = np.loadtxt(io.BytesIO(numbers), dtype=np.float32, comments=None, ndmin=2)
        if rows.shape == (len(lines), width):
            return rows
    except (ValueError, IndexError):
        pass
    rows = np.empty((len(lines), width), np.float32)
    for number, line in enumerate(lines):
        rows[number] = _from_line(line, table, begin + span.start + number)
    return rows


def _from_line(line: bytes, table: Vectors, row: int) -> list[float]:
    width = table.shape[1]
    try:
        numbers = [float(one) for one in line.rsplit(None, width)[-width:]]
        if len(numbers) == width:
            return numbers
    except ValueError:
        pass
    told = line[:40].decode(errors="replace")
    raise InputError(f"need a word and {width} numbers in row {row} of {table.name}, got {told!r}: repair that line")


def _from_bytes(content: np.ndarray[Any, Any], table: Vectors, span: slice) -> np.ndarray[Any, Any]:
    """Rows of a block of records."""
    raw, length = content.tobytes(), 4 * table.shape[1]
    at, parts = 0, []
    for row in range(span.stop):
        space = raw.find(b" ", at)
        if space < 0 or space + 1 + length > len(raw):
            raise InputError(f"need the words of {table.name} as they were, got others: it was changed, start again")
        if row >= span.start:
            parts.append(raw[space + 1 : space + 1 + length])
        at = space + 1 + length
    rows = np.frombuffer(b"".join(parts), "<f4").reshape(-1, table.shape[1])
    return rows.astype(np.float32)
