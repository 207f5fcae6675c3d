"""Rows and reports as Rich tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from millrace.run_report import RunReport, describe, describe_cell, describe_state, size

if TYPE_CHECKING:
    from millrace.limits import LookupProgress

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


def rows_table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """Return result rows as a table; numbers stand right, NULL is dim."""
    table = Table(header_style="bold")
    for place, name in enumerate(names):
        values = [row[place] for row in rows if row[place] is not None]
        right = bool(values) and all(_is_number(value) for value in values)
        table.add_column(Text(name), justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell(value) for value in row))
    return table


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
    totals = Table("in total", "", title=f"{len(report.blocks)} block(s)", title_justify="left")
    for label, value in describe(report.totals):
        totals.add_row(label, value)
    parts: list[RenderableType] = [totals]
    if report.orders():
        orders = Table("block", "order", title="orders the eddies used", title_justify="left")
        orders.add_column("tuples", justify="right")
        orders.add_column("share", justify="right")
        for share in report.orders():
            orders.add_row(Text(share.block), Text(share.order), f"{share.tuples:,}", f"{share.share:.0%}")
        parts.append(orders)
    if report.modules():
        parts.append(_modules(report))
    if report.state():
        state = Table("block", "held", title="join state at the end", title_justify="left")
        for block, held in report.state():
            state.add_row(Text(block), Text(describe_state(held)))
        parts.append(state)
    cells = Table("block", "cell", title="cells", title_justify="left")
    for block, figures in report.cells():
        cells.add_row(Text(block), Text(describe_cell(figures)))
    parts.append(cells)
    return Group(*parts)


def _modules(report: RunReport) -> Table:
    table = Table("block", "module", "action", title="modules", title_justify="left")
    for name in ("tuples in", "tuples out", "batches", "seconds"):
        table.add_column(name, justify="right")
    for block, one in report.modules():
        counts = (one.tuples_in, one.tuples_out, one.calls)
        table.add_row(
            Text(block), Text(one.name), one.action, *(f"{n:,}" for n in counts), f"{one.seconds:.3f}"
        )
    return table


def print_rows(console: Console, names: Sequence[str], rows: Iterable[Sequence[Any]], more: str) -> None:
    """Print rows, and ``more`` below them."""
    console.print(rows_table(names, list(rows)))
    if more:
        console.print(Text(more, style="dim"))


__all__ = ["cell", "print_rows", "report_view", "rows_table", "size"]
