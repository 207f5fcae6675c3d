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


def figures(papers: Iterable[str] = PAPERS) -> dict[str, Figure]:
    """Return the figures of some papers by id, in the papers' order."""
    modules = (import_module(f"{__name__}.{paper}") for paper in papers if find_spec(f"{__name__}.{paper}"))
    return {figure.id: figure for module in modules for figure in getattr(module, "FIGURES", ())}


def find(ids: Iterable[str]) -> list[Figure]:
    """Return figures by their ids, each once; all of them for none.

    Raises:
        InputError: There is no figure of that id.
    """
    ids = list(dict.fromkeys(ids))
    # An id begins with its paper, so that the others need not be imported.
    known = figures([paper for paper in PAPERS if any(name.startswith(paper) for name in ids)] or PAPERS)
    if not set(ids) <= known.keys():
        known = figures()
    for name in ids:
        if name not in known:
            raise InputError(f"there is no figure {name!r}: {near(name, known)}")
    return [known[name] for name in ids or known]
