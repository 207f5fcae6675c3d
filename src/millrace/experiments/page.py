"""One HTML file with every figure beside its claim: without scripts, nothing to fetch, and it prints well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files

from millrace.benchmarks.harness import versions
from millrace.benchmarks.show import number
from millrace.experiments.runner import Result
from millrace.experiments.show import plain, rows_of
from millrace.experiments.svg import inline
from millrace.pages.page import style


def page(results: Sequence[Result], drawings: Mapping[str, bytes]) -> str:
    """Return the page.

    Args:
        results: In the order in which to show them.
        drawings: SVG files by experiment id; runs that failed have none.
    """
    # Loaded when a page is wanted: the command line starts without it.
    from jinja2 import Environment, StrictUndefined

    own = files("millrace.experiments")
    made = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.globals |= {"number": number, "plain": plain, "rows_of": rows_of, "inline": inline}
    html = made.from_string((own / "page.html").read_text(encoding="utf-8"))
    css = style() + (own / "page.css").read_text(encoding="utf-8")
    return html.render(results=results, drawings=drawings, style=css, versions=versions()).lstrip()
