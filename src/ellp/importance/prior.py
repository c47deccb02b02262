"""Importance from the vocabulary alone: the order, or the probabilities, in which the tokenizer learned its tokens.

* WordPiece and word lists are sorted by frequency: the id is a rank.
* BPE learns merges in order of frequency: the number of the merge that makes a token is its rank.
* Unigram (SentencePiece) keeps every piece's log-probability: no guess is needed.

Ranks become frequencies by Zipf's and Mandelbrot's law, ``1 / (rank + 20)``. Where the order says nothing (an alphabet
in the order of its code points, tokens added later) a token is as likely to be common as rare, and gets the mean.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ellp.importance.vocabulary import Vocabulary, bare, from_distribution

OFFSET = 20.0  # Mandelbrot's: the commonest pieces are more alike than Zipf's law has it
RUN = 8  # single characters in order of their code points: by chance once in 8! = 40,320 places


def prior(vocabulary: Vocabulary) -> Tensor:
    """Expected shares of the tokens in text, from the tokenizer's own files."""
    shares = _from_scores(vocabulary) if vocabulary.family == "Unigram" else _from_ranks(vocabulary)
    usual = shares[shares > 0]
    mean, least, most = float(usual.mean()), float(usual.min()), float(usual.max())
    shares = shares.masked_fill(shares == 0, mean)
    shares = shares.masked_fill(vocabulary.special | vocabulary.added, mean).masked_fill(vocabulary.bytes, least)
    shares = shares.masked_fill(vocabulary.framing, most)
    return from_distribution(shares, vocabulary, 0.0)


def _from_scores(vocabulary: Vocabulary) -> Tensor:
    """Probabilities of a Unigram vocabulary; control pieces have the score 0, which is no probability."""
    scores = torch.zeros(vocabulary.size, dtype=torch.float64)
    found = torch.tensor([score for _, score in vocabulary.model["vocab"]], dtype=torch.float64)[: vocabulary.size]
    scores[: len(found)] = found
    plain = (scores < 0) & ~(vocabulary.special | vocabulary.added | vocabulary.unused | vocabulary.bytes)
    return torch.where(plain, (scores - scores[plain].max()).exp(), 0.0)


def _from_ranks(vocabulary: Vocabulary) -> Tensor:
    """``1 / (rank + 20)`` where there is a rank, 0 elsewhere."""
    ranks = _merge_ranks(vocabulary) if vocabulary.family == "BPE" else _id_ranks(vocabulary)
    plain = ~(vocabulary.special | vocabulary.added | vocabulary.unused | vocabulary.bytes) & (ranks >= 0)
    if not bool(plain.any()):
        return torch.ones(vocabulary.size, dtype=torch.float64)
    return torch.where(plain, 1 / (ranks + OFFSET), 0.0)


def _merge_ranks(vocabulary: Vocabulary) -> Tensor:
    """The number of the merge that makes each token; -1 for the alphabet."""
    ranks = torch.full((vocabulary.size,), -1.0, dtype=torch.float64)
    ids = vocabulary.model["vocab"]
    for number, merge in enumerate(vocabulary.model["merges"]):
        row = ids.get("".join(merge.split(" ", 1) if isinstance(merge, str) else merge))
        if row is not None and row < vocabulary.size and ranks[row] < 0:
            ranks[row] = number
    return ranks


def _id_ranks(vocabulary: Vocabulary) -> Tensor:
    """The place in the list among tokens that text produces; -1 for an alphabet that is not at the list's end."""
    alphabet = _alphabet(vocabulary)
    plain = ~(vocabulary.special | vocabulary.added | vocabulary.unused | alphabet)
    ranks = torch.cumsum(plain, 0).double() - 1
    return ranks.masked_fill(~plain, -1.0)


def _alphabet(vocabulary: Vocabulary) -> Tensor:
    """Runs of single characters in the order of their code points; one that ends the list is its rarest part."""
    tokens = [token for token in vocabulary.tokens if token is not None]
    mask = torch.zeros(vocabulary.size, dtype=torch.bool)
    first, before = 0, ("", -1)
    for row, token in enumerate([*tokens, ""]):
        piece = bare(token) or token
        now = (token.removesuffix(piece), ord(piece) if len(piece) == 1 else -1)
        if now[1] < 0 or now[0] != before[0] or now[1] <= before[1]:
            if row - first >= RUN and row < len(tokens):
                mask[first:row] = True
            first = row if now[1] >= 0 else row + 1
        before = now
    return mask
