"""Names of figures, for machines: lower case letters, digits and underscores."""

from __future__ import annotations

import re


def key(*words: str) -> str:
    """Return a name made of the letters and digits of some words, such as ``r_s_20_lottery``."""
    return re.sub(r"[^a-z0-9]+", "_", " ".join(words).lower()).strip("_")
