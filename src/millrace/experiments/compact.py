"""SVG files made small: a tenth of a point is finer than any screen or printer shows."""

from __future__ import annotations

import re

_PLACES = re.compile(r' (?:d|x|y|width|height)="[^"]*"')
"""Attributes that hold coordinates; words, scales and opacities keep their digits."""

_FRACTION = re.compile(r"-?\d+\.\d{2,}(?![\de])")
_BREAK = re.compile(r"\s*\n\s*")
_FONT = "'DejaVu Sans'"
_FONTS = f"{_FONT}, Verdana, sans-serif"
"""Verdana has the same widths, and is where DejaVu is not."""


def compact(content: bytes) -> bytes:
    """Return a drawing with coordinates of one decimal, no line breaks, and fonts to fall back on."""
    text = _PLACES.sub(lambda found: _FRACTION.sub(_rounded, found[0]), content.decode())
    return _BREAK.sub(" ", text).replace(_FONT, _FONTS).encode()


def _rounded(found: re.Match[str]) -> str:
    return f"{float(found[0]):.1f}".removesuffix(".0")
