"""Importance from public word frequencies, through the model's own tokenizer: no data of the user's is needed.

The frequencies are those of the ``wordfreq`` package (several hundred thousand words of each large language, offline).
They are lower case and without punctuation, so three things are added:

* The vocabulary knows how a word is usually written: of ``london`` and ``London``, the form it spells in fewer pieces.
* A text is taken to be one sentence; its first word is capitalised and has no space before it.
* Punctuation comes as often as in English prose (V. Cook's count of 459,000 words).

What the list leaves out by its own account (1.3 % of English) may be anything: it is spread over all tokens.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import random
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ellp.errors import InputError
from ellp.importance.vocabulary import Vocabulary, from_distribution

MARKS = {".": 65.3, ",": 61.6, '"': 26.7, "'": 24.3, "-": 15.3, "?": 5.6, ":": 3.4, "!": 3.3, ";": 3.2}  # in 1000 words
OTHER_MARKS = {
    "zh": {".": "。", ",": "，", "?": "？", "!": "！", ":": "：", ";": "；"},
    "ja": {".": "。", ",": "、", "?": "？", "!": "！"},
    **{language: {",": "،", "?": "؟", ";": "؛"} for language in ("ar", "fa", "ur")},
    **{language: {".": "।"} for language in ("hi", "bn")},
    "el": {"?": ";"},
}
FIRST = (MARKS["."] + MARKS["?"] + MARKS["!"]) / 1000  # of all words, those that begin a sentence
SPACELESS = ("ja", "zh")
PROBES = 300  # words of a language that show whether a vocabulary was made for it
WORDS = 400_000  # of all languages together
NUMBERS = 10  # what a list counts as 000 is spelled as so many numbers of three digits

Progress = Callable[[str, int, int], None]


def has_word_lists() -> bool:
    return importlib.util.find_spec("wordfreq") is not None


def word_shares(vocabulary: Vocabulary, languages: Mapping[str, float], progress: Progress | None = None) -> Tensor:
    """Expected shares of the tokens in text of these languages, each with its weight."""
    shares = torch.zeros(vocabulary.size, dtype=torch.float64)
    for number, (language, weight) in enumerate(languages.items()):
        if progress is not None:
            progress(f"words of {language}", number, len(languages))
        shares += weight * _language_shares(vocabulary, language, WORDS // len(languages))
    if progress is not None:
        progress("", len(languages), len(languages))
    return from_distribution(shares, vocabulary, 0.0)


def _language_shares(vocabulary: Vocabulary, language: str, most: int) -> Tensor:
    frequencies = dict(itertools.islice(word_frequencies(language).items(), most))
    words, weights = list(frequencies), torch.tensor(list(frequencies.values()), dtype=torch.float64)
    spelling = Spelling.of(vocabulary)
    usual: Iterable[list[int]] = spelling.inside(words, language)
    if spelling.cased:
        upper = spelling.inside([capital(word) for word in words], language)
        usual = (small if len(small) <= len(large) else large for small, large in zip(usual, upper, strict=True))
    within = _counted(usual, weights, vocabulary.size)
    counts = within * (1 - FIRST)
    if spelling.space or spelling.cased:
        opening = vocabulary.ids([capital(word) for word in words])
        counts += _counted(opening, weights, vocabulary.size) * FIRST
    else:
        counts += within * FIRST
    counts += vocabulary.framing.double() * FIRST * weights.sum()
    for mark, rate in MARKS.items():
        shown = OTHER_MARKS.get(language, {}).get(mark, mark)
        counts += _counted([spelling.after(shown)], weights.sum()[None] * (rate / 1000), vocabulary.size)
    outside = min(1.0, max(0.0, 1 - float(weights.sum())))
    anything = (~vocabulary.unused).double()
    return counts / counts.sum() * (1 - outside) + anything / anything.sum() * outside


def _counted(spellings: Iterable[list[int]], weights: Tensor, size: int) -> Tensor:
    """How often each token occurs in spellings that occur so often."""
    lengths, ids = array("i"), array("i")
    for spelled in spellings:
        lengths.append(len(spelled))
        ids.extend(spelled)
    if not ids:
        return torch.zeros(size, dtype=torch.float64)
    times = torch.repeat_interleave(weights, torch.frombuffer(lengths, dtype=torch.int32).long())
    return torch.bincount(torch.frombuffer(ids, dtype=torch.int32), times, minlength=size)


@lru_cache(maxsize=4)
def word_frequencies(language: str) -> dict[str, float]:
    """Words and their shares of a language's text, the commonest first."""
    if not has_word_lists():
        raise InputError("need wordfreq for word frequencies, got none: pip install 'ellp[words]', or use prior")
    wordfreq: Any = importlib.import_module("wordfreq")
    known = wordfreq.available_languages("best")
    if language not in known:
        raise InputError(f"need a language out of {', '.join(sorted(known))}, got {language!r}: write words:en,de")
    chance = random.Random(0)
    found: dict[str, float] = {}
    for word, share in wordfreq.get_frequency_dict(language, "best").items():
        spelled = [word] if "00" not in word else [_some_number(word, chance) for _ in range(NUMBERS)]
        for one in spelled:
            found[one] = found.get(one, 0.0) + share / len(spelled)
    _forget(wordfreq)
    return found


def _forget(wordfreq: Any) -> None:
    """Lists of words are large, and the package keeps them until the process ends."""
    for name in ("get_frequency_dict", "get_frequency_list"):
        getattr(getattr(wordfreq, name), "cache_clear", lambda: None)()


def forget_words() -> None:
    """Drop the lists kept from one use to the next: all of a language's words are as large as a small model's table."""
    word_frequencies.cache_clear()
    _drawable.cache_clear()


def _some_number(shape: str, chance: random.Random) -> str:
    """A number where a list has noughts for any digits."""
    digits = (str(chance.randint(index == 0, 9)) if one == "0" else one for index, one in enumerate(shape))
    return "".join(digits)


def capital(word: str) -> str:
    """A word with its first letter in upper case, the rest as it is."""
    return word[:1].upper() + word[1:]


@dataclass(frozen=True)
class Spelling:
    """How a tokenizer spells a word within a text, and a mark after a word."""

    vocabulary: Vocabulary
    space: str  # what goes before a word for it to be spelled as within a text
    cased: bool

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> Spelling:
        one, plain, both, large = vocabulary.ids(["one", "house", "one house", "House"])
        space = "" if one + plain == both else " "
        return cls(vocabulary, space, plain != large)

    def inside(self, words: Sequence[str], language: str) -> Iterator[list[int]]:
        """Words within a text: after a space, where the language has spaces."""
        space = "" if language in SPACELESS else self.space
        return self.vocabulary.ids([space + word for word in words])

    def after(self, mark: str) -> list[int]:
        """A mark after a word, without the word's own tokens."""
        word, both = self.vocabulary.ids(["one", f"one{mark}"])
        return both[len(word) :] if both[: len(word)] == word else both[-1:]


@lru_cache(maxsize=8)
def languages_of(vocabulary: Vocabulary) -> dict[str, float]:
    """The languages a vocabulary was made for, each with its weight; empty if none fits.

    A vocabulary has the common words of its own languages as single tokens. The weight of a language is the share of
    its commonest words that are; languages with less than half of the best one's share are left out, and if even the
    best has less than half of its words there, this is no vocabulary of a language with a word list.
    """
    wordfreq: Any = importlib.import_module("wordfreq")
    spelling = Spelling.of(vocabulary)
    cover = {}
    for language in sorted(wordfreq.available_languages("small")):
        cover[language] = _cover(spelling, wordfreq, language)
        _forget(wordfreq)
    best = max(cover.values())
    return {language: share for language, share in cover.items() if share >= best / 2} if best >= 0.5 else {}


def _cover(spelling: Spelling, wordfreq: Any, language: str) -> float:
    """The share of a language's commonest words that are single tokens, in their usual form."""
    bins = wordfreq.get_frequency_list(language, "small")
    listed, seen = itertools.tee(word for words in bins for word in words if not re.search(r"\d", word))
    first = list(itertools.islice(seen, PROBES))
    foreign = sum(word.isascii() for word in first) < PROBES / 2  # then what is ASCII is borrowed
    shortest = 2 if language in ("zh", "ja", "ko") else 4
    own = (word for word in listed if len(word) >= shortest and not (foreign and word.isascii()))
    words = list(itertools.islice(own, PROBES))
    forms = [spelling.inside(words, language), spelling.inside([capital(word) for word in words], language)]
    unknown = spelling.vocabulary.tokenizer.unk_token_id
    single = [min(map(len, pair)) == 1 and [unknown] not in pair for pair in zip(*forms, strict=True)]
    return sum(single) / len(single)


def made_texts(languages: Mapping[str, float], count: int, seed: int = 0) -> list[str]:
    """Sentences of words drawn by their frequency: no sense, but the words, marks and lengths of real ones.

    >>> len(made_texts({"en": 1.0}, 3))
    3
    """
    chance = random.Random(seed)
    chosen = chance.choices(list(languages), list(languages.values()), k=count)
    return [_sentence(language, chance) for language in chosen]


def _sentence(language: str, chance: random.Random) -> str:
    words, steps = _drawable(language)
    length = 1 + int(chance.expovariate(FIRST))  # 13.5 words on average, as many as marks that end a sentence tell
    drawn = chance.choices(words, cum_weights=steps, k=min(length, 64))
    other = OTHER_MARKS.get(language, {})
    comma, end = other.get(",", ","), other.get(".", ".")
    drawn = [word + comma * (chance.random() < MARKS[","] / 1000) for word in drawn]
    space = "" if language in SPACELESS else " "
    return capital(space.join(drawn)).removesuffix(comma) + end


@lru_cache(maxsize=4)
def _drawable(language: str) -> tuple[list[str], list[float]]:
    frequencies = word_frequencies(language)
    steps = torch.tensor(list(frequencies.values()), dtype=torch.float64).cumsum(0)
    return list(frequencies), steps.tolist()
