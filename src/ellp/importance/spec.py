"""The little language of ``--importance``: sources, mixed and raised to powers.

    mixture := term ("+" term)*            0.8*text:corpus.txt + 0.2*words:en
    term    := [number "*"] factor
    factor  := source ["^" number]         (0.8*text:corpus.txt + 0.2*words)^0.7
    source  := name [":" argument] | "(" mixture ")"

Every source is brought to mean one before it is mixed. An argument ends at one of ``+ ^ )``; one that holds such a
character is put in double quotes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor

from ellp.errors import InputError

PLAIN = ("uniform", "prior", "words", "sensitivity", "auto")
WITH_ARGUMENT = ("text", "fisher", "file")
_NUMBER = re.compile(r"\d+(\.\d*)?([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?")
_NAME = re.compile(r"[A-Za-z_]+")
_ARGUMENT = re.compile(r'"([^"]*)"|([^+^)]*)')


@dataclass(frozen=True)
class Source:
    """Where importances come from: a name, and for some names a file, a folder or languages."""

    name: str
    argument: str | None = None

    def __str__(self) -> str:
        if self.argument is None:
            return self.name
        quoted = f'"{self.argument}"' if re.search(r"[+^)]", self.argument) else self.argument
        return f"{self.name}:{quoted}"


@dataclass(frozen=True)
class Power:
    """Importances raised to a power: below one, rows become more alike."""

    base: Source | Mixture
    exponent: float

    def __str__(self) -> str:
        base = f"({self.base})" if isinstance(self.base, Mixture) else str(self.base)
        return f"{base}^{self.exponent:g}"


@dataclass(frozen=True)
class Mixture:
    """A weighted sum; its weights need not add up to one."""

    parts: tuple[tuple[float, Spec], ...]

    def __str__(self) -> str:
        shown = ((weight, f"({part})" if isinstance(part, Mixture) else str(part)) for weight, part in self.parts)
        return "+".join(part if weight == 1 else f"{weight:g}*{part}" for weight, part in shown)


Spec = Source | Power | Mixture


def parse(text: str) -> Spec:
    """Read a specification; its ``str`` is the same again.

    >>> str(parse("(0.8*text:corpus.txt + 0.2*words:en,de)^0.7"))
    '(0.8*text:corpus.txt+0.2*words:en,de)^0.7'
    """
    reader = _Reader(text)
    found = reader.mixture()
    if reader.rest():
        raise reader.error("+, ^ or the end", reader.rest()[0], "quote a file name that holds one of + ^ )")
    return found


def sources(spec: Spec) -> Iterator[Source]:
    """Every source in a specification."""
    if isinstance(spec, Source):
        yield spec
    elif isinstance(spec, Power):
        yield from sources(spec.base)
    else:
        for _, part in spec.parts:
            yield from sources(part)


def evaluate(spec: Spec, values: Callable[[Source], Tensor]) -> Tensor:
    """The importances that a specification stands for, with mean one, from those of its sources."""
    if isinstance(spec, Source):
        return mean_one(values(spec), str(spec))
    if isinstance(spec, Power):
        return mean_one(evaluate(spec.base, values).pow(spec.exponent), str(spec))
    return mean_one(sum_of([weight * evaluate(part, values) for weight, part in spec.parts]), str(spec))


def sum_of(parts: list[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def mean_one(values: Tensor, name: str) -> Tensor:
    """The same importances in units in which their mean is one."""
    mean = float(values.mean())
    if not (math.isfinite(mean) and mean > 0 and bool((values >= 0).all())):
        raise InputError(f"need importances that are finite, not negative and not all zero, got others from {name}")
    return values.double() / mean


class _Reader:
    """Reads one specification from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def rest(self) -> str:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
        return self.text[self.at :]

    def takes(self, mark: str) -> bool:
        found = self.rest().startswith(mark)
        self.at += found * len(mark)
        return found

    def error(self, need: str, got: str, advice: str) -> InputError:
        return InputError(
            f"need {need} at character {self.at + 1} of the importance {self.text!r}, got {got or 'its end'}: {advice}"
        )

    def mixture(self) -> Spec:
        parts = [self.term()]
        while self.takes("+"):
            parts.append(self.term())
        return parts[0][1] if len(parts) == 1 else Mixture(tuple(parts))

    def term(self) -> tuple[float, Spec]:
        weight = self.number()
        if weight is None:
            return 1.0, self.factor()
        if not self.takes("*"):
            raise self.error("*", self.rest()[:1], "write 0.5*words")
        if weight == 0:
            raise self.error("a weight above 0", "0", "leave the part out")
        return weight, self.factor()

    def factor(self) -> Spec:
        base = self.source()
        if not self.takes("^"):
            return base
        exponent = self.number()
        if exponent is None or exponent == 0:
            raise self.error("a power above 0", self.rest()[:1], "write words^0.7, or uniform in place of power 0")
        return Power(base, exponent) if not isinstance(base, Power) else Power(base.base, base.exponent * exponent)

    def number(self) -> float | None:
        found = _NUMBER.match(self.rest())
        if found is None:
            return None
        self.at += found.end()
        return float(found[0])

    def source(self) -> Spec:
        if self.takes("("):
            inside = self.mixture()
            if not self.takes(")"):
                raise self.error(")", self.rest()[:1], "close the bracket")
            return inside
        found = _NAME.match(self.rest())
        name = found[0] if found else ""
        if name not in PLAIN and name not in WITH_ARGUMENT:
            known = ", ".join((*PLAIN, *(f"{one}:..." for one in WITH_ARGUMENT)))
            raise self.error(f"one of {known}", name or self.rest()[:1], "correct it; a file name may need quotes")
        self.at += len(name)
        argument = self.argument() if self.takes(":") else None
        if argument is None and name in WITH_ARGUMENT:
            raise self.error(f"a path after {name}", self.rest()[:1], f"write {name}:PATH")
        if argument is not None and name not in WITH_ARGUMENT and name != "words":
            raise self.error(f"nothing after {name}", f":{argument}", "leave it out")
        return Source(name, argument)

    def argument(self) -> str:
        found = _ARGUMENT.match(self.rest())
        value = "" if found is None else (found[1] if found[1] is not None else found[2].strip())
        if found is None or not value:
            raise self.error("an argument after :", self.rest()[:1], "write text:corpus.txt or words:en,de")
        self.at += found.end()
        return value
