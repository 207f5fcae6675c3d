"""A report as one page of HTML, and as the part of it that notebooks show."""

from __future__ import annotations

from functools import lru_cache
from html import escape
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, NamedTuple

from millrace.errors import MissingExtra, require
from millrace.reports.pages import advice, orders, saved
from millrace.reports.pages.files import GENERATOR
from millrace.reports.pages.plots import COLOURS
from millrace.reports.run_report import RunReport
from millrace.reports.tables import WORDS, Table, table
from millrace.reports.views import block_tables, budgets_table, lookups_table, tiles

if TYPE_CHECKING:
    from jinja2 import Environment

MOST_BYTES = 300_000
"""Of a page."""

_MOST_BLOCKS = (12, 4, 1, 0)
"""Blocks that are drawn; the next number where the page would be too large."""

_LONGEST = 400
"""Letters of a name or sentence that are shown."""

_LONGEST_QUERY = 4000
_LONGEST_TITLE = 70
_MOST_REASONS = 60


class BlockView(NamedTuple):
    """What a page shows of one block."""

    name: str
    orders: orders.OrdersOverTime | None
    tables: dict[str, Table]


def page(report: RunReport) -> str:
    """Return the whole page."""
    beside = {"generator": GENERATOR, "version": _version()}
    view, html = view_of(report), ""
    for most in _MOST_BLOCKS:
        view |= {"blocks": view["blocks"][:most], "more_blocks": max(0, len(report.blocks) - most)}
        html = environment().get_template("report.html").render(view, **beside)
        if len(html.encode()) <= MOST_BYTES:
            break
    return html


def part(template: str, view: dict[str, Any], shown: object) -> str:
    """Return what notebooks show: plain text where nothing is installed that draws pages."""
    try:
        return environment().get_template(template).render(view)
    except MissingExtra:
        return f"<pre>{escape(str(shown))}</pre>"


@lru_cache(1)
def environment() -> Environment:
    """Return the templates."""
    # Loaded when a page is wanted: tasks and the command line start without it.
    require("report", "a page", "jinja2")
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("millrace.reports.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shortened,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"colours": range(COLOURS), "words": WORDS}
    return made


def _shortened(value: object) -> object:
    """Return what a page shows of a value: markup as it is, and of a long text its beginning."""
    if isinstance(value, str) and not hasattr(value, "__html__") and len(value) > _LONGEST:
        return value[: _LONGEST - 1] + "…"
    return value


def _version() -> str:
    try:
        return version("millrace")
    except PackageNotFoundError:  # from a folder of sources
        return ""


def view_of(report: RunReport) -> dict[str, Any]:
    """Return what a page shows of a report, for templates."""
    planned = report.planned
    query = planned.query[:_LONGEST_QUERY]
    return {
        "query": [query[i : i + _LONGEST] for i in range(0, len(query), _LONGEST)],
        "title": " ".join(planned.query.split())[:_LONGEST_TITLE],
        "made": planned.made.replace("T", " "),
        "sentences": saved.headline(report),
        "advice": advice.advice(report),
        "tiles": list(tiles(report.totals)),
        "blocks": [block_view(report, name) for name in list(report.blocks)[: _MOST_BLOCKS[0]]],
        "lookups": lookups_table(report),
        "budgets": budgets_table(report),
        "left": planned.left_to_spark[:_MOST_REASONS],
        "settings": table(
            "Settings",
            [{"option": name, "value": str(value)} for name, value in sorted(planned.settings.items())],
            ("option", "value"),
        ),
    }


def block_view(report: RunReport, name: str) -> BlockView:
    """Return what is drawn of one block."""
    figures = tuple(report.blocks[name])
    cells = [cell for cell in figures if cell.cell >= 0]
    return BlockView(name, orders.orders_over_time(cells), block_tables(figures))
