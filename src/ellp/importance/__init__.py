"""How much each row of a token table matters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ellp.errors import InputError
from ellp.importance import spec as language
from ellp.importance.counts import interpolation, text_shares, texts_in
from ellp.importance.fisher import fisher_rows
from ellp.importance.prior import prior
from ellp.importance.spec import Mixture, Power, Source, Spec, parse, sources
from ellp.importance.vocabulary import Vocabulary
from ellp.importance.words import has_word_lists, languages_of, word_shares
from ellp.store import read_matrix

__all__ = ["Choice", "Vocabulary", "choose", "fisher_rows", "parse", "token_importance"]

Progress = Callable[[str, int, int], None]
Given = Mapping[str, Callable[[], Tensor]]
"""How to find importances that need the model: ``{"sensitivity": ..., "fisher:DATA": ...}``."""


NEED_A_TOKENIZER = {"auto", "prior", "words", "text"}


@dataclass(frozen=True)
class Choice:
    """A specification in full, and why it is this one."""

    spec: str
    reason: str | None = None


def token_importance(
    spec: str, vocabulary: Any, size: int, *, given: Given | None = None, progress: Progress | None = None
) -> Tensor:
    """What each row of a token table weighs (``size``, float64, mean 1).

    ``vocabulary`` is the model's tokenizer. ``spec`` says where importances come from: ``uniform``, ``prior``,
    ``words[:en,de]``, ``text:PATH``, ``file:C.npy``, ``sensitivity``, ``fisher:DATA``, mixtures
    ``0.8*text:PATH+0.2*words`` and powers ``words^0.7``. ``auto`` is the best that needs no data; see :func:`choose`.

    >>> from transformers import AutoTokenizer
    >>> from ellp.bundle import open_bundle
    >>> tokenizer = AutoTokenizer.from_pretrained(open_bundle("demo").folder)
    >>> weights = token_importance("prior", tokenizer, 30522)
    >>> the, rare = tokenizer.convert_tokens_to_ids(["the", "salamanca"])
    >>> bool(weights[the] > 100 * weights[rare]), round(float(weights.mean()), 6)
    (True, 1.0)
    """
    known = vocabulary if isinstance(vocabulary, Vocabulary) else Vocabulary(vocabulary, size)
    if known.size != size:
        raise InputError(f"need a vocabulary of {size} rows, got one of {known.size}: pass the tokenizer itself")
    found = parse(choose(spec, known).spec)
    return language.evaluate(found, lambda source: _values(source, known, given or {}, progress))


def choose(spec: str, vocabulary: Vocabulary, text: Path | None = None) -> Choice:
    """The specification with ``auto``, and the languages of ``words``, filled in.

    Word frequencies are best where the vocabulary has a language's words; a Unigram vocabulary also tells the
    probabilities of its tokens in the text the model was trained on, and the two are averaged. Elsewhere there is the
    order of the vocabulary itself. The user's ``text`` is mixed with that, as far as one half of it foretells the
    other.
    """
    reasons: list[str] = []
    if text is not None and spec.strip() == "auto":
        best = _best(vocabulary, reasons)
        shares = token_importance(str(best), vocabulary, vocabulary.size) / vocabulary.size
        weight = round(interpolation(texts_in(text), shares, vocabulary), 3)
        reasons.append(f"one half of {text.name} is likeliest, given the other, if its counts weigh {weight:g}")
        parts = ((weight, Source("text", str(text))), (round(1 - weight, 3), best))
        return Choice(str(Mixture(tuple(part for part in parts if part[0]))), "; ".join(reasons))
    asked = parse(spec)
    if vocabulary.tokenizer is None and {source.name for source in sources(asked)} & NEED_A_TOKENIZER:
        raise InputError(f"need a tokenizer for the importance {spec}, got none: use uniform or file:C.npy")
    filled = _filled(asked, vocabulary, reasons)
    return Choice(str(filled), "; ".join(dict.fromkeys(reasons)) or None)


def _filled(spec: Spec, vocabulary: Vocabulary, reasons: list[str]) -> Spec:
    if isinstance(spec, Mixture):
        return Mixture(tuple((weight, _filled(part, vocabulary, reasons)) for weight, part in spec.parts))
    if isinstance(spec, Power):
        base = _filled(spec.base, vocabulary, reasons)
        return Power(base, spec.exponent) if not isinstance(base, Power) else base
    if spec.name == "words" and spec.argument is None:
        return _words(vocabulary, reasons, wanted=True)
    return _best(vocabulary, reasons) if spec.name == "auto" else spec


def _best(vocabulary: Vocabulary, reasons: list[str]) -> Spec:
    if not has_word_lists():
        reasons.append("prior, as wordfreq is not installed: pip install 'ellp[words]' for the better word frequencies")
        return Source("prior")
    words = _words(vocabulary, reasons, wanted=False)
    if vocabulary.family == "Unigram" and words.argument is not None:
        reasons.append("a Unigram vocabulary also tells its tokens' probabilities")
        return Mixture(((0.5, words), (0.5, Source("prior"))))
    return words


def _words(vocabulary: Vocabulary, reasons: list[str], wanted: bool) -> Source:
    if not has_word_lists():
        raise InputError("need wordfreq for word frequencies, got none: pip install 'ellp[words]', or use prior")
    found = languages_of(vocabulary)
    if found:
        shown = ", ".join(f"{name} {share:.0%}" for name, share in sorted(found.items(), key=lambda one: -one[1]))
        reasons.append(f"the vocabulary has the common words of {shown} as single tokens")
        return Source("words", ",".join(found))
    if wanted:
        raise InputError("need a vocabulary with a language's words in it for words, got another: name one, words:en")
    reasons.append("prior, as the vocabulary has the common words of no language with a word list")
    return Source("prior")


def _values(source: Source, vocabulary: Vocabulary, given: Given, progress: Progress | None) -> Tensor:
    if source.name == "uniform":
        return torch.ones(vocabulary.size, dtype=torch.float64)
    if source.name == "prior":
        return prior(vocabulary)
    if source.name == "words":
        return word_shares(vocabulary, _weights(source, vocabulary), progress)
    if source.name == "text":
        return text_shares(Path(source.argument or ""), vocabulary, progress)
    if source.name == "file":
        return _read(source.argument or "", vocabulary.size)
    if str(source) not in given:
        raise InputError(f"need the model for {source}, got none: use it where the model is at hand")
    values = given[str(source)]()
    if values.shape != (vocabulary.size,):
        raise InputError(f"need {vocabulary.size} importances from {source}, got {tuple(values.shape)}: one a row")
    return values


def _weights(source: Source, vocabulary: Vocabulary) -> dict[str, float]:
    """The languages named, each as strong as the vocabulary is in it."""
    names = [name.strip() for name in (source.argument or "").split(",") if name.strip()]
    if not names:
        raise InputError("need a language after words:, got none: write words:en,de")
    if len(names) == 1:
        return {names[0]: 1.0}
    found = languages_of(vocabulary)
    return {name: found.get(name) or 0.5 * min(found.values(), default=1.0) for name in names}


def _read(path: str, size: int) -> Tensor:
    values = torch.from_numpy(np.array(read_matrix(path), dtype=np.float64)).reshape(-1)
    if len(values) != size:
        raise InputError(f"need one importance a row ({size}), got {len(values)} in {path}: check their count")
    return values
