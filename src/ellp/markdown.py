"""Values written into Markdown and YAML: whatever they contain, they stay text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any


def visible(value: Any) -> str:
    """A value in one line: what cannot be printed, line ends among it, is written as Python escapes it."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in str(value))


def text(value: Any) -> str:
    """A value as plain text within a line of Markdown or a table's cell.

    >>> text("a|b *c*")
    'a&#124;b &#42;c&#42;'
    """
    return re.sub(r"[\\`*_\[\]<>|&#~$]|(?<=:)//|@", lambda found: _entities(found[0]), visible(value))


def code(value: Any) -> str:
    """A value as code within a line of Markdown, not in a table.

    >>> print(code("a`b"), code("embeddings.word_embeddings"))
    ``a`b`` `embeddings.word_embeddings`
    """
    shown = visible(value)
    if not shown.strip():
        return f"<code>{_entities(shown)}</code>"
    fence = "`" * (_longest_run(shown) + 1)
    pad = " " if shown[0] in "` " or shown[-1] in "` " else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def cell(value: Any) -> str:
    """A value as code within a table's cell, where not even code may hold a bare bar.

    >>> print(cell("a|b"), cell("lm_head"))
    <code>a&#124;b</code> `lm_head`
    """
    shown = visible(value)
    if re.fullmatch(r"[\w.:/ ()+=-]*[\w.:/()+=-]", shown) and shown[0] != " ":
        return code(shown)
    return f"<code>{re.sub(r'[^A-Za-z0-9 .]', lambda found: _entities(found[0]), shown)}</code>"


def fenced(body: str, language: str) -> str:
    """A block of code whose fence is longer than any in it; characters that cannot be printed are escaped."""
    fence = "`" * max(3, _longest_run(body) + 1)
    lines = "\n".join(visible(line) for line in body.split("\n"))
    return f"{fence}{language}\n{lines}\n{fence}"


def table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], right: int = 0, aligned: Sequence[str] | None = None
) -> str:
    """A Markdown table of cells that are escaped already; the last ``right`` columns are numbers."""
    marks = aligned or ["---"] * (len(heads) - right) + ["---:"] * right
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, marks, *rows))


def yaml_text(value: Any) -> str:
    r"""A value as a double-quoted YAML scalar.

    >>> print(yaml_text('a"b' + chr(10)))
    "a\"b\x0a"
    """
    return '"' + "".join(_yaml_character(one) for one in str(value)) + '"'


def _yaml_character(one: str) -> str:
    if one in '"\\':
        return "\\" + one
    if one.isprintable():
        return one
    point = ord(one) if not 0xD800 <= ord(one) < 0xE000 else 0xFFFD  # half of a pair is no character
    return f"\\x{point:02x}" if point < 0x100 else f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"


def _entities(characters: str) -> str:
    return "".join(f"&#{ord(one)};" for one in characters)


def _longest_run(body: str) -> int:
    return max((len(run) for run in re.findall("`+", body)), default=0)
