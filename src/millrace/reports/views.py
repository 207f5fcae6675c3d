"""What people see of a report, the same as text, in notebooks and on pages: figures, and tables with bars."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from millrace.engine.figures import CellFigures
from millrace.reports.pages.advice import advice
from millrace.reports.pages.saved import headline
from millrace.reports.run_report import RunReport, Totals
from millrace.reports.text import count, duration, ratio, share, size

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


@dataclass(frozen=True)
class Table:
    """A table with bars: names of columns, rows, those that open on demand, and what is not in it."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[Bar, ...]
    rest: tuple[Bar, ...] = ()
    more: str = ""


def tiles(sums: Totals) -> Iterator[tuple[str, str, str]]:
    """Yield ``(label, figure, note)``; what was nothing is left out where it mostly is."""
    yield "worker time", duration(sums.worker_seconds), f"slowest {duration(sums.slowest_seconds)}"
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
    if sums.budget_peak_ratio:
        yield "most held of the memory budget", share(sums.budget_peak_ratio), "in one cell"


def _table(caption: str, columns: Sequence[str], rows: Sequence[Bar], more: int = 0) -> Table | None:
    """Return a table, the first rows of which are open; ``more``: rows that are not among these."""
    if not rows:
        return None
    more += max(0, len(rows) - _MOST_ROWS)
    opened = _OPEN if len(rows) > _OPEN + 3 else len(rows)
    told = f"{more:,} more are in the data." if more else ""
    return Table(caption, tuple(columns), tuple(rows[:opened]), tuple(rows[opened:_MOST_ROWS]), told)


def block_tables(figures: tuple[CellFigures, ...]) -> dict[str, Table]:
    """Return the tables of a block by their headings, without those that would have no row."""
    report = RunReport({"": figures})
    found = {
        "Modules": _modules(report),
        "Ways": _orders(report),
        "Cells": _cells(figures),
        "State": _state(report),
    }
    return {heading: table for heading, table in found.items() if table is not None}


def _orders(report: RunReport) -> Table | None:
    rows = [Bar(one.order, one.share, (count(one.tuples), share(one.share))) for one in report.orders()]
    return _table("Ways that source tuples went, to the end of each", ("way", "tuples", "share"), rows)


def _modules(report: RunReport) -> Table | None:
    ran = [one for _, one in report.modules()]
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
    shown = _slowest(figures, _MOST_CELLS)
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


def _slowest(cells: tuple[CellFigures, ...], most: int) -> list[CellFigures]:
    """Return the cells that did most, in their order."""
    chosen = sorted(cells, key=lambda cell: (-cell.tuples_routed, -cell.seconds))[:most]
    return [cell for cell in cells if any(cell is each for each in chosen)]


def align(rows: Iterable[Sequence[str]]) -> list[str]:
    """Return rows as lines, each column as wide as its longest text: names left, numbers right."""
    found = [tuple(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*found, strict=True)]
    return [
        "  ".join([name.ljust(widths[0]), *map(str.rjust, numbers, widths[1:])]) for name, *numbers in found
    ]


def text_of(report: RunReport) -> str:
    """Return a report as text: what the figures prove, advice, and the page's tables."""
    lines = [*headline(report), *(f"- {each.finding} {each.help}" for each in advice(report))]
    lines += [f"{label}: {figure}{note and f' ({note})'}" for label, figure, note in tiles(report.totals)]
    for name, figures in report.blocks.items():
        lines.append(f"block {name}")
        for table in block_tables(tuple(figures)).values():
            lines += _table_lines(table)
        for cell in figures:
            for trace in (each for each in cell.traces if len(each.changes) > 1):
                told = "; ".join(f"{change.order} after {change.after:,}" for change in trace.changes)
                lines.append(f"  cell {cell.cell}, {trace.source} over time: {told}")
    if (lookups := lookups_table(report)) is not None:
        lines += ["lookups", *_table_lines(lookups)]
    return "\n".join([*lines, *(f"budget of {each.name}: {each}" for each in report.budgets)])


def _table_lines(table: Table) -> list[str]:
    rows = ((row.name, *row.numbers) for row in (*table.rows, *table.rest))
    lines = [table.caption, *("  " + line for line in align([table.columns, *rows]))]
    return [f"  {each}" for each in (*lines, table.more) if each]
