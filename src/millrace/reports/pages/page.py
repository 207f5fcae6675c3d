"""A report as one page of HTML, and as the part of it that notebooks show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from millrace.engine.figures import CellFigures, ModuleFigures
from millrace.errors import require
from millrace.reports.pages import advice, orders, saved
from millrace.reports.pages.files import GENERATOR
from millrace.reports.pages.plots import COLOURS
from millrace.reports.run_report import RunReport, Totals
from millrace.reports.text import count, duration, ratio, share, size

if TYPE_CHECKING:
    from jinja2 import Environment

MOST_BYTES = 300_000
"""Of a page."""

_MOST_BLOCKS = (12, 4, 1, 0)
"""Blocks that are drawn; the next number where the page would be too large."""

_LONGEST = 400
"""Letters of a name or sentence that are shown."""

_MOST_CELLS = 24
_MOST_ROWS = 60
_OPEN = 12
"""Rows of a table that need no click."""


@dataclass(frozen=True)
class Bar:
    """A row with a bar: what it is, its share of the longest, and the numbers beside it."""

    name: str
    length: float
    numbers: tuple[str, ...]
    colour: int = 0


@dataclass(frozen=True)
class Table:
    """A table with bars: names of columns, rows, those that open on demand, and what is not in it."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[Bar, ...]
    rest: tuple[Bar, ...] = ()
    more: str = ""


@dataclass(frozen=True)
class BlockView:
    """What a page shows of one block."""

    name: str
    orders: orders.OrdersOverTime | None
    travelled: Table | None
    modules: Table | None
    cells: Table | None
    state: Table | None


def page(report: RunReport) -> str:
    """Return the whole page."""
    beside = {"generator": GENERATOR, "version": _version()}
    view, html = _view(report), ""
    for most in _MOST_BLOCKS:
        view |= {"blocks": view["blocks"][:most], "more_blocks": max(0, len(report.blocks) - most)}
        html = environment().get_template("report.html").render(view, **beside)
        if len(html.encode()) <= MOST_BYTES:
            break
    return html


def fragment(report: RunReport) -> str:
    """Return what notebooks show: the sentence, warnings, orders and modules."""
    return environment().get_template("fragment.html").render(_view(report))


def style() -> str:
    """Return the style sheet, for other pages that look the same: it holds within the class ``millrace``."""
    return environment().get_template("report.css").render()


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
    made.globals["colours"] = range(COLOURS)
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


def _view(report: RunReport) -> dict[str, Any]:
    return {
        "sentences": saved.headline(report),
        "advice": advice.advice(report),
        "tiles": list(_tiles(report.totals)),
        "blocks": [block_view(report, name) for name in list(report.blocks)[: _MOST_BLOCKS[0]]],
        "lookups": lookups_table(report),
        "budgets": budgets_table(report),
        "left": report.planned.left_to_spark[:_MOST_ROWS],
        "settings": sorted((name, str(value)) for name, value in report.planned.settings.items()),
    }


def _tiles(sums: Totals) -> Iterator[tuple[str, str, str]]:
    """Yield ``(label, figure, note)``."""
    yield (
        "worker time",
        duration(sums.worker_seconds),
        f"slowest {duration(sums.slowest_seconds)}",
    )
    yield "rows out of eddies", count(sums.output_tuples), f"{sums.cells} cells"
    yield "tuples routed", count(sums.tuples_routed), ""
    yield "intermediate tuples", count(sums.intermediate_tuples), ""
    if sums.rows_exchanged:
        blocks = f"{size(sums.bytes_exchanged)} in {count(sums.blocks_exchanged)} blocks"
        yield "rows exchanged", count(sums.rows_exchanged), blocks
    if sums.migrated_tuples:
        again = f"{count(sums.recomputed_tuples)} made again"
        yield "stored tuples moved", count(sums.migrated_tuples), again
    if sums.spilled_bytes:
        yield "spilled", size(sums.spilled_bytes), f"{size(sums.returned_bytes)} read back"
    yield "largest worker", size(sums.peak_bytes), "resident memory"


def block_view(report: RunReport, name: str) -> BlockView:
    """Return what is drawn of one block."""
    figures = tuple(report.blocks[name])
    alone = RunReport({name: figures})
    return BlockView(
        name,
        orders.orders_over_time([cell for cell in figures if cell.cell >= 0]),
        _travelled(alone),
        _modules([one for _, one in alone.modules()]),
        _cells(figures),
        _state(alone),
    )


def _table(caption: str, columns: Sequence[str], rows: Sequence[Bar], more: int = 0) -> Table | None:
    """Return a table, the first rows of which are open; ``more``: rows that are not among these."""
    if not rows:
        return None
    more += max(0, len(rows) - _MOST_ROWS)
    opened = _OPEN if len(rows) > _OPEN + 3 else len(rows)
    told = f"{more:,} more are in the data." if more else ""
    return Table(caption, tuple(columns), tuple(rows[:opened]), tuple(rows[opened:_MOST_ROWS]), told)


def _travelled(report: RunReport) -> Table | None:
    rows = [Bar(one.order, one.share, (count(one.tuples), share(one.share))) for one in report.orders()]
    return _table("Ways that source tuples went, to the end of each", ("way", "tuples", "share"), rows)


def _modules(ran: Sequence[ModuleFigures]) -> Table | None:
    whole = sum(one.seconds for one in ran if one.action != "profile")
    rows = []
    for one in sorted(ran, key=lambda one: -one.seconds):
        per = one.seconds / (one.evaluated or one.tuples_in) if one.tuples_in else 0.0
        within = one.action == "profile"  # its time counts at each of its predicates already
        part = one.seconds / whole if whole and not within else 0.0
        numbers = (
            one.action,
            count(one.tuples_in),
            count(one.tuples_out),
            ratio(one.tuples_out / one.tuples_in) if one.tuples_in else "",
            count(one.evaluated) if one.evaluated else "",
            duration(per),
            duration(one.seconds),
            "" if within else share(part),
        )
        rows.append(Bar(one.name, part, numbers))
    columns = ("module", "does", "in", "out", "out per in", "calls", "each", "time", "share of time")
    return _table("Modules, the costliest first", columns, rows)


def _cells(figures: tuple[CellFigures, ...]) -> Table | None:
    shown = advice.slowest(figures, _MOST_CELLS)
    most = max((cell.tuples_routed for cell in shown), default=0)
    rows = [
        Bar(
            f"cell {cell.cell}" if cell.cell >= 0 else "map task",
            cell.tuples_routed / most if most else 0.0,
            (
                count(cell.tuples_routed),
                duration(cell.seconds),
                count(cell.rows_exchanged),
                count(cell.output_tuples),
                count(cell.peak_state),
                count(cell.migrated_tuples),
                size(cell.spilled_bytes),
                size(cell.peak_bytes),
            ),
        )
        for cell in shown
    ]
    columns = (
        "cell",
        "tuples routed",
        "time",
        "exchanged",
        "rows out",
        "peak state",
        "moved",
        "spilled",
        "memory",
    )
    caption = "Cells and map tasks" + (", those that did most" if len(figures) > len(shown) else "")
    return _table(caption, columns, rows, len(figures) - len(shown))


def _state(report: RunReport) -> Table | None:
    held, sums = [one for _, one in report.state()], report.totals
    most = max((one.nbytes for one in held), default=0)
    rows = [
        Bar(
            one.name,
            one.nbytes / most if most else 0.0,
            (
                count(one.tuples),
                size(one.nbytes),
                count(one.inserted),
                count(one.demoted + one.promoted),
                count(one.evicted),
            ),
        )
        for one in sorted(held, key=lambda one: -one.nbytes)
    ]
    columns = ("holds", "tuples", "memory", "inserted", "moved", "evicted")
    peak = f", at most {count(sums.peak_state)} tuples in one cell" if sums.peak_state else ""
    return _table(f"Join state at the end{peak}", columns, rows)


def lookups_table(report: RunReport) -> Table | None:
    """Return how far lookups are, and what calls of predicates have come to; None without any."""
    rows = [
        Bar(
            one.name,
            one.done / one.keys if one.keys else 0.0,
            (
                count(one.keys),
                count(one.done),
                count(one.cached),
                count(one.failed),
                count(one.requests),
                count(one.retried),
                count(one.limited),
                "" if one.p50 is None else duration(one.p50),
                "" if one.p95 is None else duration(one.p95),
                f"{one.keys / one.seconds:,.0f} a second" if one.seconds else "",
                duration(one.seconds),
            ),
        )
        for one in (*report.lookups, *report.calls)
    ]
    columns = (
        *("source", "keys", "found", "from cache", "failed", "requests", "repeated", "too many"),
        *("half within", "95 % within", "rate", "time"),
    )
    return _table("Requests; the bars are keys and questions that were answered", columns, rows)


def budgets_table(report: RunReport) -> Table | None:
    """Return what is spent of budgets; None without any."""
    rows = []
    for one in report.budgets:
        shares = [
            spent / most
            for spent, most in ((one.requests, one.max_requests), (one.cost, one.max_cost))
            if most is not None
        ]
        requests, cost = ("" if most is None else f"{most:,.6g}" for most in (one.max_requests, one.max_cost))
        texts = (count(one.requests), requests, f"{one.cost:,.6g}", cost)
        rows.append(Bar(one.name, max(shares, default=0.0), texts))
    columns = ("budget", "requests", "of", "cost", "of")
    return _table("Budgets; the bars are what is spent, over all runs of the query", columns, rows)
