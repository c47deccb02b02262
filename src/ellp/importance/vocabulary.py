"""What a tokenizer says about its tokens: what kind it is, which tokens text can produce, and in which order it
learned them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ellp.errors import InputError

# Placeholders that vocabularies are padded with: BERT's [unused7], T5's <extra_id_7>, fairseq's madeupword0007, Gemma's
# <unused7>, Llama's <|reserved_special_token_7|>. Trained little or not at all, and no text spells them.
PLACEHOLDER = re.compile(
    r"[\[<]\|?_*(unused|extra_id_|extra_token|reserved|dummy|pad|placeholder)[\w-]*\d[\w-]*\|?[\]>]"
)
MADE_UP = re.compile(r"madeupword\d+")
BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
MARKS = ("##", "▁", "Ġ", "@@", "</w>")  # what says where in a word a piece stands
BATCH = 2048  # texts that go to the tokenizer together


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a table with ``size`` rows; rows beyond the tokenizer's own are spare. There may be no tokenizer:
    then only what needs no names of tokens can be asked for."""

    tokenizer: Any
    size: int

    def __post_init__(self) -> None:
        if self.tokenizer is not None and len(self.tokenizer) > self.size:
            raise InputError(
                f"need a tokenizer that belongs to the table ({self.size} rows), got one of {len(self.tokenizer)} "
                "tokens: pass the model's own"
            )

    @cached_property
    def tokens(self) -> list[str | None]:
        """Every row's token; None for spare rows."""
        found = self.tokenizer.convert_ids_to_tokens(range(len(self.tokenizer)))
        return [*found, *[None] * (self.size - len(found))]

    @cached_property
    def model(self) -> dict[str, Any]:
        """The ``model`` part of tokenizer.json: its type, and merges or scores. Empty for a tokenizer without one."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        found: dict[str, Any] = {} if backend is None else json.loads(backend.to_str())["model"]
        return found

    @property
    def family(self) -> str:
        """WordPiece, BPE, Unigram or WordLevel; unknown for a tokenizer written in Python."""
        return str(self.model.get("type", "unknown"))

    @cached_property
    def special(self) -> Tensor:
        """Whether a token is one of the model's control tokens, as [CLS] is."""
        return self._mask(self.tokenizer.all_special_ids)

    @cached_property
    def framing(self) -> Tensor:
        """Whether a token is put around every text."""
        return self._mask(self.tokenizer("", add_special_tokens=True)["input_ids"])

    @cached_property
    def unused(self) -> Tensor:
        """Whether no text produces a token: placeholders and spare rows."""
        return self._mask(row for row, token in enumerate(self.tokens) if token is None or is_placeholder(token))

    @cached_property
    def added(self) -> Tensor:
        """Whether a token was added after training: it has no place in the order of learning."""
        return self._mask(self.tokenizer.added_tokens_decoder) & ~self.unused

    @cached_property
    def bytes(self) -> Tensor:
        """Whether a token stands for a byte of a character that the vocabulary lacks."""
        return self._mask(row for row, token in enumerate(self.tokens) if token is not None and BYTE.fullmatch(token))

    def _mask(self, rows: Iterable[int]) -> Tensor:
        mask = torch.zeros(self.size, dtype=torch.bool)
        mask[[row for row in rows if 0 <= row < self.size]] = True
        return mask

    @cached_property
    def _backend(self) -> Any:
        """The tokenizer's own engine, without the padding and truncation it may be set to."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            return None
        backend = type(backend).from_str(backend.to_str())
        backend.no_padding()
        backend.no_truncation()
        return backend

    def ids(self, texts: Sequence[str], framed: bool = False) -> Iterator[list[int]]:
        """The token ids of every text, alone or between the tokens that frame a text."""
        for first in range(0, len(texts), BATCH):
            batch = list(texts[first : first + BATCH])
            if self._backend is None:
                yield from self.tokenizer(batch, add_special_tokens=framed, truncation=False, verbose=False)[
                    "input_ids"
                ]
            else:
                yield from (one.ids for one in self._backend.encode_batch_fast(batch, add_special_tokens=framed))


def is_placeholder(token: str) -> bool:
    """Whether a token only holds a place.

    >>> [is_placeholder(token) for token in ("[unused7]", "<extra_id_12>", "<0x0A>", "unused")]
    [True, True, False, False]
    """
    return bool(PLACEHOLDER.fullmatch(token) or MADE_UP.fullmatch(token))


def bare(token: str) -> str:
    """A piece without the marks that say where in a word it stands.

    >>> bare("##ing"), bare("▁the")
    ('ing', 'the')
    """
    for mark in MARKS:
        token = token.removeprefix(mark).removesuffix(mark)
    return token


def from_distribution(shares: Tensor, vocabulary: Vocabulary, unseen: float) -> Tensor:
    """Expected shares of all tokens, when those with a share of zero together have the share ``unseen``.

    The unseen share is spread evenly over them. Tokens that no text produces weigh, all together, as much as one
    unseen token: hardly anything, but not nothing.
    """
    shares = shares.double().masked_fill(vocabulary.unused, 0.0)
    silent = (shares == 0) & ~vocabulary.unused
    count, total = int(silent.sum()), float(shares.sum())
    if total == 0:  # nothing is known of any token
        shares, count, total = silent.double(), 0, float(count)
    unseen = unseen if count else 0.0
    shares = shares * ((1 - unseen) / total)
    each = unseen / count if count else float(shares[shares > 0].min())
    if count:
        shares = shares.masked_fill(silent, each)
    reserved = int(vocabulary.unused.sum())
    return shares.masked_fill(vocabulary.unused, each / reserved) if reserved else shares
