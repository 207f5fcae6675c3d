"""Every figure of the four papers, and some beyond them, run by the production engine on a virtual clock.

One file a paper. Each measures, states what the paper claims of it, and names the engine that fails the
claim.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from lab.figures.figure import FIGURES, Figure
from millrace.errors import InputError, near

PAPERS = ("eddies", "overheads", "stems", "stairs", "beyond", "peers")


def figures() -> dict[str, Figure]:
    """Return all figures by id, in the papers' order."""
    for paper in PAPERS:
        import_module(f"{__name__}.{paper}")
    return FIGURES


def find(ids: Iterable[str]) -> list[Figure]:
    """Return figures by their ids, each once; all of them for none.

    Raises:
        InputError: There is no figure of that id.
    """
    known, ids = figures(), list(dict.fromkeys(ids))
    for name in ids:
        if name not in known:
            raise InputError(f"there is no figure {name!r}: {near(name, known)}")
    return [known[name] for name in ids or known]
