"""One HTML file with every figure beside its claim: without scripts, nothing to fetch, and it prints well."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files

from lab.benchmarks.harness import versions
from lab.benchmarks.show import number
from lab.experiments.draw import GRID, INK, PAPER
from lab.experiments.runner import Result
from lab.experiments.show import plain, rows_of
from millrace.reports.pages.page import style

_ID = re.compile(r'\b(id="|xlink:href="#|href="#|url\(#)')
_METADATA = re.compile(r"<metadata>.*?</metadata>\s*", re.DOTALL)
_SIZE = re.compile(r'(<svg\b[^>]*?) (?:width|height)="[^"]*"')


def page(results: Sequence[Result], drawings: Mapping[str, bytes]) -> str:
    """Return the page.

    Args:
        results: In the order in which to show them.
        drawings: SVG files by experiment id; runs that failed have none.
    """
    # Loaded when a page is wanted: the command line starts without it.
    from jinja2 import Environment, StrictUndefined

    own = files("lab.experiments")
    made = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.globals |= {"number": number, "plain": plain, "rows_of": rows_of, "inline": inline}
    html = made.from_string((own / "page.html").read_text(encoding="utf-8"))
    css = style() + (own / "page.css").read_text(encoding="utf-8")
    return html.render(results=results, drawings=drawings, style=css, versions=versions()).lstrip()


def inline(content: bytes, name: str, label: str) -> str:
    """Return an SVG file as an element of a page: without ids that others have, in the page's own colours.

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
