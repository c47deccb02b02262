"""Numbers as a person reads them."""

from __future__ import annotations

import math
import re

from ellp.report.curves import Estimate

MINUS = "\u2212"


def points(value: float, digits: int = 1) -> str:
    """A drop or a score in points, with a true minus sign and no negative zero.

    >>> points(-1.25), points(-0.04), points(float("inf"))
    ('−1.2', '0.0', '∞')
    """
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    shown = f"{value:.{digits}f}"
    if float(shown) == 0:
        shown = shown.lstrip("-")
    return shown.replace("-", MINUS)


def interval(drop: Estimate, digits: int = 1) -> str:
    """
    >>> interval(Estimate(1.0, -0.26, 2.3))
    '−0.3 to 2.3'
    """
    return f"{points(drop.low, digits)} to {points(drop.high, digits)}"


def share(value: float, digits: int = 1) -> str:
    """
    >>> share(0.28125)
    '28.1 %'
    """
    return f"{100 * value:.{digits}f} %".replace("-", MINUS) if math.isfinite(value) else points(value)


def exact(value: float) -> str:
    """A share that was asked for, as it was asked.

    >>> exact(0.99), exact(0.995)
    ('99 %', '99.5 %')
    """
    return f"{100 * value:.6g} %"


def kept(value: float) -> str:
    """A share of the score that is left, never rounded up to all of it.

    >>> kept(0.9996), kept(0.991), kept(1.004)
    ('99.9 %', '99.1 %', '100.4 %')
    """
    if not math.isfinite(value):
        return points(value)
    return f"{math.floor(1000 * value + 1e-9) / 10:.1f} %".replace("-", MINUS)


def fraction(value: float) -> str:
    """A share of bytes as one over something, where that is simpler than a percentage.

    >>> fraction(0.125), fraction(0.28125), fraction(0.85)
    ('1/8', '1/3.6', '85 %')
    """
    if not 0 < value <= 2 / 3:
        return f"{100 * value:.3g} %"
    times = 1 / value
    shown = f"{times:.0f}" if times >= 10 or abs(times - round(times)) < 0.05 else f"{times:.1f}"
    return f"1/{shown}"


def size(count: float) -> str:
    """A number of bytes, in units of a thousand.

    >>> size(23_440_896), size(950)
    ('23.4 MB', '950 B')
    """
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}" if count < 999.5 else f"1 {_next(unit)}"
        count /= 1000
    return f"{count:.3g} GB"


def _next(unit: str) -> str:
    return {"B": "kB", "kB": "MB", "MB": "GB"}[unit]


def whole(number: float | None) -> str:
    """A count with thin spaces between thousands.

    >>> whole(22713216)
    '22\u202f713\u202f216'
    """
    return "–" if number is None else f"{number:,.0f}".replace(",", "\u202f")


def unbroken(sentence: str) -> str:
    """A sentence in which no line ends between a number and its unit, or within ``p = 1``.

    >>> unbroken("99 % at p = 1")
    '99\xa0% at p\xa0=\xa01'
    """
    joined = re.sub(r"(?<=\d) (?=%|[kMG]?B\b|points)", "\u00a0", sentence)
    return re.sub(r"\bp = (?=[\d∞])", "p\u00a0=\u00a0", joined)


def counted(number: int, one: str, many: str | None = None) -> str:
    """
    >>> counted(1, "cell"), counted(3, "cell")
    ('1 cell', '3 cells')
    """
    return f"{whole(number)} {one if number == 1 else many or one + 's'}"


def duration(seconds: float) -> str:
    """
    >>> duration(12.3), duration(700), duration(8000)
    ('12 s', '12 min', '2 h 13 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
