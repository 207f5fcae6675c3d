"""Every figure of the four papers, and some beyond them, run by the production engine on a virtual clock.

One file a paper. Each measures, states what the paper claims of it, and names the engine that fails the
claim.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec

from lab.figures.figure import Figure
from millrace.errors import InputError, near

PAPERS = ("eddies", "overheads", "stems", "stairs", "beyond", "peers")


def figures() -> dict[str, Figure]:
    """Return all figures by id, in the papers' order."""
    there = [paper for paper in PAPERS if find_spec(f"{__name__}.{paper}")]
    modules = (import_module(f"{__name__}.{paper}") for paper in there)
    return {figure.id: figure for module in modules for figure in module.FIGURES}


def find(ids: Iterable[str]) -> list[Figure]:
    """Return figures by their ids, each once; all of them for none.

    Raises:
        InputError: There is no figure of that id.
    """
    known = figures()
    for name in (ids := list(dict.fromkeys(ids)) or list(known)):
        if name not in known:
            raise InputError(f"there is no figure {name!r}: {near(name, known)}")
    return [known[name] for name in ids]
