"""What people see of a report, the same as text, in notebooks and on pages: figures, and tables with bars."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any, NamedTuple

from millrace.engine.figures import SUMMARIES, CellFigures, Counts
from millrace.reports.pages.advice import advice
from millrace.reports.pages.saved import headline
from millrace.reports.run_report import RunReport, Totals
from millrace.reports.tables import FIGURES, Table, progress_row, table

_MOST_CELLS = 24
_COUNTED = [name for name in FIGURES if name in {each.name for each in fields(Counts)}]


class Tile(NamedTuple):
    """A figure that stands by itself: with a note for all to read, and what it means."""

    label: str
    text: str
    note: str = ""
    about: str = ""


def tiles(sums: Totals) -> Iterator[Tile]:
    """Yield the figures that are not nothing."""
    for name, figure in FIGURES.items():
        if value := getattr(sums, name, 0):
            yield Tile(figure.label, figure.show(value), about=figure.about)


def block_tables(figures: tuple[CellFigures, ...]) -> dict[str, Table]:
    """Return the tables of a block by their headings, without those that would have no row."""
    report = RunReport({"": figures})
    made = {
        "Modules": _modules(report),
        "Ways": _orders(report),
        "Cells": _cells(figures),
        "State": _state(report),
    }
    return {heading: each for heading, each in made.items() if each is not None}


def _orders(report: RunReport) -> Table | None:
    rows = [{"way": one.order, "tuples": one.tuples, "share": one.share} for one in report.orders()]
    return table(
        "Ways that source tuples went, to the end of each", rows, ("way", "tuples", "share"), "share"
    )


def _modules(report: RunReport) -> Table | None:
    ran = [one for _, one in report.modules()]
    whole = sum(one.seconds for one in ran if one.action not in SUMMARIES)
    rows = []
    for one in sorted(ran, key=lambda one: -one.seconds):
        part = one.seconds / whole if whole else 0.0
        rows.append(
            {
                "module": one.name,
                **vars(one),
                "ratio": one.tuples_out / one.tuples_in if one.tuples_in else None,
                "evaluated": one.evaluated or None,
                "each": one.seconds / (one.evaluated or one.tuples_in) if one.tuples_in else 0.0,
                "part": None if one.action in SUMMARIES else part,
            }
        )
    names = ("module", "action", "tuples_in", "tuples_out", "ratio", "evaluated", "each", "seconds", "part")
    return table("Modules, the costliest first", rows, names, "part")


def _cells(figures: tuple[CellFigures, ...]) -> Table | None:
    """Return the cells that did most, in their order."""
    chosen = sorted(figures, key=lambda cell: (-cell.tuples_routed, -cell.seconds))[:_MOST_CELLS]
    rows: list[dict[str, Any]] = [
        {**vars(cell), **{name: getattr(cell, name) or None for name in _COUNTED}}
        for cell in figures
        if any(cell is each for each in chosen)
    ]
    caption = "Cells and map tasks" + (", those that did most" if len(figures) > len(rows) else "")
    names = ("cell", "seconds", *_COUNTED)
    return table(caption, rows, names, "tuples_routed", more=len(figures) - len(rows))


def _state(report: RunReport) -> Table | None:
    held = sorted((one for _, one in report.state()), key=lambda one: -one.nbytes)
    rows = [{"module": one.name, **vars(one), "moved": one.demoted + one.promoted} for one in held]
    names = ("module", "tuples", "nbytes", "inserted", "moved", "evicted")
    return table("Join state at the end", rows, names, "nbytes")


def lookups_table(report: RunReport) -> Table | None:
    """Return how far lookups are, and what calls of predicates have come to; None without any."""
    rows = [
        {
            **progress_row(one),
            "rate": one.keys / one.seconds if one.seconds else None,
            "part": one.done / one.keys if one.keys else 0.0,
        }
        for one in (*report.lookups, *report.calls)
    ]
    names = ("name", "keys", "done", "cached", "failed", "requests", "retried", "limited", "p50", "p95")
    caption = "Requests; the bars are keys and questions that were answered"
    return table(caption, rows, (*names, "rate", "seconds"), "part")


def budgets_table(report: RunReport) -> Table | None:
    """Return what is spent of budgets; None without any."""
    rows = []
    for one in report.budgets:
        of = ((one.requests, one.max_requests), (one.cost, one.max_cost))
        shares = [spent / most for spent, most in of if most is not None]
        rows.append({**vars(one), "part": max(shares, default=0.0)})
    caption = "Budgets; the bars are what is spent, over all runs of the query"
    return table(caption, rows, ("name", "requests", "max_requests", "cost", "max_cost"), "part")


def text_of(report: RunReport) -> str:
    """Return a report as text: what the figures prove, advice, and the page's tables."""
    lines = [*headline(report), *(f"- {each.finding} {each.help}" for each in advice(report))]
    lines += [f"{tile.label}: {tile.text}" for tile in tiles(report.totals)]
    for name, figures in report.blocks.items():
        lines.append(f"block {name}")
        for each in block_tables(tuple(figures)).values():
            lines += [f"  {line}" for line in each.lines()]
        for cell in figures:
            for trace in (each for each in cell.traces if len(each.changes) > 1):
                told = "; ".join(f"{change.order} after {change.after:,}" for change in trace.changes)
                lines.append(f"  cell {cell.cell}, {trace.source} over time: {told}")
    if (lookups := lookups_table(report)) is not None:
        lines += ["lookups", *(f"  {line}" for line in lookups.lines())]
    return "\n".join([*lines, *(f"budget of {each.name}: {each}" for each in report.budgets)])
