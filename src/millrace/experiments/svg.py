"""SVG files made small, and made part of a page: no ids that others have too, and the page's own colours.

A tenth of a point is finer than any screen or printer shows.
"""

from __future__ import annotations

import re
from html import escape

INK, GRID, PAPER = "#1b1f24", "#d8dce1", "#fffffe"
"""Colours of lines and letters, of the grid and of the background; no curve has any of them, so that a page
can put its own in their places."""

_PLACES = re.compile(r' (?:d|x|y|width|height)="[^"]*"')
"""Attributes that hold coordinates; words, scales and opacities keep their digits."""

_FRACTION = re.compile(r"-?\d+\.\d{2,}(?![\de])")
_BREAK = re.compile(r"\s*\n\s*")
_FONT = "'DejaVu Sans'"
_FONTS = f"{_FONT}, Verdana, sans-serif"
"""Verdana has the same widths, and is where DejaVu is not."""

_ID = re.compile(r'\b(id="|xlink:href="#|href="#|url\(#)')
_METADATA = re.compile(r"<metadata>.*?</metadata>\s*", re.DOTALL)
_SIZE = re.compile(r'(<svg\b[^>]*?) (?:width|height)="[^"]*"')


def compact(content: bytes) -> bytes:
    """Return a drawing with coordinates of one decimal, no line breaks, and fonts to fall back on."""
    text = _PLACES.sub(lambda found: _FRACTION.sub(_rounded, found[0]), content.decode())
    return _BREAK.sub(" ", text).replace(_FONT, _FONTS).encode()


def _rounded(found: re.Match[str]) -> str:
    return f"{float(found[0]):.1f}".removesuffix(".0")


def inline(content: bytes, name: str, label: str) -> str:
    """Return an SVG file as an element of a page.

    Args:
        content: The file.
        name: Begins the ids in it.
        label: What it shows, for those who do not see it.
    """
    text = content.decode()
    text = _METADATA.sub("", text[text.index("<svg") :])
    text = _SIZE.sub(r"\1", _SIZE.sub(r"\1", _ID.sub(rf"\g<1>{name}-", text)))
    text = text.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)
    for colour, variable in ((INK, "ink"), (GRID, "grid"), (PAPER, "paper")):
        text = text.replace(colour, f"var(--{variable})")
    return text.strip()
