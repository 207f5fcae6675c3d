"""SVG files made part of a page: no ids that others have too, and the page's own colours."""

from __future__ import annotations

import re

from millrace.experiments.draw import GRID, INK, PAPER

_ID = re.compile(r'\b(id="|xlink:href="#|href="#|url\(#)')
_METADATA = re.compile(r"<metadata>.*?</metadata>\s*", re.DOTALL)
_SIZE = re.compile(r'(<svg\b[^>]*?) width="[^"]*"')
_HEIGHT = re.compile(r'(<svg\b[^>]*?) height="[^"]*"')


def inline(content: bytes, name: str, label: str) -> str:
    """Return an SVG file as an element of a page.

    Args:
        content: The file.
        name: Begins the ids in it.
        label: What it shows, for those who do not see it; escaped as an attribute.
    """
    text = content.decode()
    text = text[text.index("<svg") :]
    text = _METADATA.sub("", text)
    text = _ID.sub(rf"\g<1>{name}-", text)
    text = _HEIGHT.sub(r"\1", _SIZE.sub(r"\1", text))
    text = text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
    for colour, variable in ((INK, "ink"), (GRID, "grid"), (PAPER, "paper")):
        text = text.replace(colour, f"var(--{variable})")
    return text.strip()
