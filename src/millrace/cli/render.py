"""Rows and reports as Rich tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from millrace.cli.fitting import Column, Fitted
from millrace.engine.figures import ModuleFigures
from millrace.reports.run_report import RunReport
from millrace.reports.text import describe, describe_cell, describe_state, size

if TYPE_CHECKING:
    from millrace.limits.progress import LookupProgress

_NUMBERS = (int, float)


def failures(lookups: Iterable[LookupProgress]) -> list[str]:
    """Return a line for each lookup of which keys failed."""
    lines = []
    for one in lookups:
        if one.failed:
            kinds = ", ".join(f"{kind}: {count:,}" for kind, count in one.failures)
            lines.append(
                f"{one.failed:,} of {one.keys:,} keys of {one.name} could not be looked up ({kinds})"
            )
        if one.problem:
            lines.append(f"the cache of {one.name} is not kept: {one.problem}")
    return lines


def rows_table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Fitted:
    """Return result rows as a table; numbers stand right, NULL is dim, and no column is left out."""
    columns = []
    for place, name in enumerate(names):
        values = [row[place] for row in rows if row[place] is not None]
        columns.append(Column(name, bool(values) and all(_is_number(value) for value in values)))
    return Fitted(columns, [[cell(value) for value in row] for row in rows], whole=True)


def cell(value: Any) -> Text:
    """Return one value as text."""
    if value is None:
        return Text("NULL", style="dim")
    if isinstance(value, bool):
        return Text(str(value).lower())
    if isinstance(value, bytes | bytearray):
        return Text(bytes(value).hex())
    return Text(str(value))


def _is_number(value: Any) -> bool:
    from decimal import Decimal

    return isinstance(value, (*_NUMBERS, Decimal)) and not isinstance(value, bool)


def report_view(report: RunReport) -> RenderableType:
    """Return a report as tables: in total, the orders used, per module, per cell."""
    several = len(report.blocks) > 1
    rows: list[tuple[str, ...]]
    in_total = [Column("in total", rank=0), Column("", rank=0)]
    parts: list[RenderableType] = [
        Fitted(in_total, describe(report.totals), f"{len(report.blocks)} block(s)")
    ]
    if report.orders():
        columns = [
            Column("order", rank=0),
            Column("tuples", number=True),
            Column("share", number=True, rank=0),
        ]
        rows = [(o.block, o.order, f"{o.tuples:,}", f"{o.share:.0%}") for o in report.orders()]
        parts.append(_by_block(columns, rows, "orders the eddies used", several=several))
    if report.modules():
        columns = [
            Column("module", rank=0),
            Column("action", rank=2),
            Column("tuples in", number=True),
            Column("tuples out", number=True),
            Column("batches", number=True, rank=4),
            Column("seconds", number=True, rank=0),
        ]
        rows = [(block, *_module(one)) for block, one in report.modules()]
        parts.append(_by_block(columns, rows, "modules", several=several))
    if report.state():
        rows = [(block, describe_state(held)) for block, held in report.state()]
        parts.append(_by_block([Column("held", rank=0)], rows, "join state at the end", several=several))
    rows = [(block, describe_cell(cell)) for block, cell in report.cells()]
    parts.append(_by_block([Column("cell", rank=0)], rows, "cells", several=several))
    return Group(*parts)


def _by_block(
    columns: Sequence[Column], rows: Sequence[tuple[str, ...]], title: str, *, several: bool
) -> Fitted:
    """Return a table of rows that begin with their block, which is shown if there are several."""
    missing = "report().to_json() has them"
    if several:
        return Fitted([Column("block", rank=3), *columns], rows, title, missing=missing)
    return Fitted(columns, [row[1:] for row in rows], title, missing=missing)


def _module(one: ModuleFigures) -> tuple[str, ...]:
    counts = (f"{n:,}" for n in (one.tuples_in, one.tuples_out, one.calls))
    return (one.name, one.action, *counts, f"{one.seconds:.3f}")


def print_rows(console: Console, names: Sequence[str], rows: Iterable[Sequence[Any]], more: str) -> None:
    """Print rows, and ``more`` below them."""
    console.print(rows_table(names, list(rows)))
    if more:
        console.print(Text(more, style="dim"))


__all__ = ["cell", "print_rows", "report_view", "rows_table", "size"]
