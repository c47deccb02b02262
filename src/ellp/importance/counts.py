"""Importance from the user's own text: how often each token occurs in it."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, TextIO

import torch
from torch import Tensor

from ellp.errors import InputError
from ellp.importance.vocabulary import BATCH, Vocabulary, from_distribution

PLAIN = (".txt", ".text", ".md", ".rst")
COLUMNS = ("text", "sentence", "sentence1", "sentence2", "question", "premise", "hypothesis", "content")
LONGEST = 2**16  # characters of a line that are read at once
STEPS = 50  # of expectation maximisation in one unknown
FULL = 2**22  # characters that go to the tokenizer together

Progress = Callable[[str, int, int], None]


def text_shares(path: Path, vocabulary: Vocabulary, progress: Progress | None = None) -> Tensor:
    """Expected shares of the tokens in text like that of a file or folder.

    A token that the text lacks is not impossible: by Good and Turing's estimate, tokens not seen so far have together
    the share of those seen exactly once.
    """
    counts = count_tokens(texts_in(path, progress), vocabulary)
    if float(counts.sum()) == 0:
        raise InputError(f"need text to count tokens in, got none in {path}: one text a line")
    return smoothed(counts, vocabulary)


def smoothed(counts: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Shares from counts, with Good and Turing's estimate of what was not seen; at least that of one more token."""
    once = max(1.0, float((counts == 1).sum()))
    return from_distribution(counts, vocabulary, once / (float(counts.sum()) + 1))


def interpolation(texts: Iterable[str], shares: Tensor, vocabulary: Vocabulary) -> float:
    """How far a text's own counts are to be trusted beside public ``shares``: the weight of the counts in a mixture.

    It is the weight under which one half of the text is likeliest, when the counts are those of the other half
    (deleted interpolation, as of Jelinek and Mercer), both ways; found by expectation maximisation.
    """
    halves = [torch.zeros(vocabulary.size, dtype=torch.float64) for _ in range(2)]
    for number, batch in enumerate(_batches(texts, 64)):
        halves[number % 2] += count_tokens(batch, vocabulary)
    if not all(float(half.sum()) for half in halves):
        return 0.5
    mine = torch.stack([smoothed(half, vocabulary) for half in halves])
    held_out = torch.stack(halves[::-1])
    weight = 0.5
    for _ in range(STEPS):
        responsible = weight * mine / (weight * mine + (1 - weight) * shares)
        weight = float((held_out * responsible).sum() / held_out.sum())
    return weight


def count_tokens(texts: Iterable[str], vocabulary: Vocabulary) -> Tensor:
    """How often each token occurs in texts, with the tokens that frame each of them."""
    counts = torch.zeros(vocabulary.size, dtype=torch.float64)
    for batch in _batches(texts):
        ids = [row for one in vocabulary.ids(batch, framed=True) for row in one]
        counts += torch.bincount(torch.tensor(ids, dtype=torch.long), minlength=vocabulary.size)
    return counts


def _batches(texts: Iterable[str], most: int = BATCH) -> Iterator[list[str]]:
    batch: list[str] = []
    room = FULL
    for text in texts:
        batch.append(text)
        room -= len(text)
        if len(batch) == most or room <= 0:
            yield batch
            batch, room = [], FULL
    if batch:
        yield batch


def texts_in(path: Path, progress: Progress | None = None) -> Iterator[str]:
    """The texts in a file or in all files of a folder: lines, or the text columns of TSV, CSV and JSON lines."""
    files = _files(path)
    total, before = sum(file.stat().st_size for file in files), 0
    for file in files:
        with file.open(encoding="utf-8-sig", newline=None) as lines:
            reader = _READERS.get(file.suffix.lower(), _lines)
            try:
                for number, text in enumerate(reader(lines, file)):
                    if progress is not None and number % BATCH == 0:
                        progress(f"counting {file.name}", before + _position(lines), total)
                    yield text
            except UnicodeDecodeError as error:
                raise InputError(f"need UTF-8 text, got {_bad_byte(file, error)}: convert the file to UTF-8") from None
        before += file.stat().st_size
    if progress is not None:
        progress("", total, total)


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputError(f"need a text file or a folder of them, got {path}: check the path")
    known = (*PLAIN, *_READERS)
    found = sorted(file for file in path.rglob("*") if file.suffix.lower() in known and file.is_file())
    if not found:
        raise InputError(f"need files that end in {', '.join(known)} in {path}, got none: name the file itself")
    return found


def _position(lines: TextIO) -> int:
    """How many bytes of a file have been read, about."""
    return os.lseek(lines.fileno(), 0, os.SEEK_CUR)


def _bad_byte(file: Path, error: UnicodeDecodeError) -> str:
    """Where a file stops being UTF-8."""
    with file.open("rb") as content:
        if content.read(2) in (b"\xff\xfe", b"\xfe\xff"):
            return f"UTF-16 in {file}"
        content.seek(0)
        for number, line in enumerate(content, 1):
            bad = next((one for one in line.decode("utf-8", "surrogateescape") if "\udc80" <= one <= "\udcff"), None)
            if bad is not None:
                return f"byte 0x{ord(bad) - 0xDC00:02x} in line {number} of {file}"
    return f"{error.reason} in {file}"


def _lines(lines: TextIO, file: Path) -> Iterator[str]:
    while line := lines.readline(LONGEST):
        if "\0" in line:
            raise InputError(f"need text, got the binary file {file}: extract its text first")
        if text := line.strip():
            yield text


def _table(delimiter: str, quoting: Literal[0, 3]) -> Callable[[TextIO, Path], Iterator[str]]:
    def read(lines: TextIO, file: Path) -> Iterator[str]:
        rows = csv.DictReader(lines, delimiter=delimiter, quoting=quoting)
        chosen = _columns(list(rows.fieldnames or []), file)
        try:
            for row in rows:
                yield from (text for name in chosen if (text := (row[name] or "").strip()))
        except csv.Error as error:
            raise InputError(f"need a readable {file.suffix} file, got {file} ({error}): save it again") from None

    return read


def _json_lines(lines: TextIO, file: Path) -> Iterator[str]:
    chosen: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found: Any = json.loads(line)
        except ValueError as error:
            raise InputError(f"need JSON in line {number} of {file}, got {error}: correct it") from None
        if isinstance(found, str):
            yield found
            continue
        if not isinstance(found, dict):
            raise InputError(f"need an object or a string in line {number} of {file}, got something else: correct it")
        chosen = chosen or _columns(list(found), file)
        yield from (text for name in chosen if isinstance(text := found.get(name), str) and text.strip())


def _columns(names: list[str], file: Path) -> list[str]:
    chosen = [name for name in names if name.lower() in COLUMNS]
    if not chosen:
        got = ", ".join(map(str, names)) or "none"
        raise InputError(f"need a column out of {', '.join(COLUMNS)} in {file}, got {got}: rename it")
    return chosen


_READERS: dict[str, Callable[[TextIO, Path], Iterator[str]]] = {
    ".tsv": _table("\t", csv.QUOTE_NONE),  # as GLUE's: a quotation mark is text
    ".csv": _table(",", csv.QUOTE_MINIMAL),
    ".jsonl": _json_lines,
}
