"""Turn the formulas of a page into MathML when the site is built: readers need no script and no network."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

INLINE = re.compile(r'<span class="arithmatex">\\\((.+?)\\\)</span>', re.DOTALL)
DISPLAY = re.compile(r'<div class="arithmatex">\s*\\\[(.+?)\\\]\s*</div>', re.DOTALL)


def on_page_content(page_html: str, **_: Any) -> str:
    """MkDocs calls this with a page's HTML, where arithmatex has wrapped every formula."""
    page_html = INLINE.sub(lambda found: mathml(found[1], "inline"), page_html)
    return DISPLAY.sub(lambda found: mathml(found[1], "block"), page_html)


def mathml(latex: str, display: str) -> str:
    return convert(html.unescape(latex).strip(), display=display)
