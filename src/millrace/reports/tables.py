"""A report's figures as tables: for people, in text and on pages, and for DataFrames.

A figure is declared once, by the name that it has in data: what people call it, how it is written, what it
means. A table is rows of figures, and its renderers know no figure by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from millrace.engine.figures import CellFigures, ModuleFigures, StateFigures
from millrace.errors import OptionError, near
from millrace.reports.text import count, duration, number, ratio, share, size

if TYPE_CHECKING:
    from millrace.limits.progress import LookupProgress
    from millrace.reports.run_report import RunReport

# For people

MOST_ROWS = 60
_OPEN = 12
"""Rows of a table that need no click."""


class Figure(NamedTuple):
    """What people call a figure, how it is written, what it means, and whether it is words in lines."""

    label: str
    show: Callable[[Any], str] = count
    about: str = ""
    is_words: bool = False


FIGURES = {
    "module": Figure("module", str),
    "action": Figure("does", str),
    "name": Figure("name", str),
    "way": Figure("way", str, "The modules that tuples went through, in this order."),
    "when": Figure("when", str),
    "before": Figure("from", str, is_words=True),
    "after": Figure("to", str, is_words=True),
    "why": Figure("why: what was known of the two modules", str, is_words=True),
    "followed": Figure("followed by", share, "Of the cell's tuples, those that came until the next change."),
    "option": Figure("option", str),
    "value": Figure("value", str, is_words=True),
    "what": Figure("figure", str),
    "first": Figure("first", str),
    "second": Figure("second", str),
    "factor": Figure("second over first", str),
    "cell": Figure("cell", lambda cell: f"cell {cell}" if cell >= 0 else "map task"),
    "worker_seconds": Figure("worker time", duration, "Wall time of all cells and map tasks, added up."),
    "slowest_seconds": Figure("slowest task", duration, "Wall time of the slowest cell or map task."),
    "start_seconds": Figure("start-up", duration, "Of workers and compiled kernels; in no module's time."),
    "cells": Figure("cells", about="Eddies that ran, one in a task."),
    "output_tuples": Figure("rows out", about="Rows of the results of eddies."),
    "tuples_routed": Figure("tuples routed", about="Tuples handed to a module, once for each."),
    "intermediate_tuples": Figure("intermediate tuples", about="Made by joins, and not yet results."),
    "rows_exchanged": Figure("rows exchanged", about="They went from map tasks to cells."),
    "blocks_exchanged": Figure("in blocks", about="Exchanged rows travel in blocks."),
    "bytes_exchanged": Figure("exchanged", size, "Size of the exchanged blocks."),
    "peak_state": Figure("most tuples held", about="By the join state of one cell, at a time."),
    "migrated_tuples": Figure("stored tuples moved", about="Demoted or promoted between STAIRs."),
    "recomputed_tuples": Figure("made again", about="Tuples made while stored ones were moved."),
    "spilled_bytes": Figure("spilled", size, "Written to files because of the memory budget."),
    "returned_bytes": Figure("read back", size, "Of what was spilled."),
    "peak_bytes": Figure("largest worker", size, "Resident memory of a Python worker at its peak."),
    "budget_peak_ratio": Figure("most held of the memory budget", share, "By one cell, at a time."),
    "tuples_in": Figure("in", about="Tuples that were sent there."),
    "tuples_out": Figure("out", about="Tuples that came back."),
    "ratio": Figure("out per in", ratio, "Below 100 % it drops tuples; above, it multiplies them."),
    "evaluated": Figure("calls", about="Rows that your function was called for."),
    "each": Figure("each", duration, "Time of a call, or of a tuple."),
    "seconds": Figure("time", duration, "Wall time."),
    "part": Figure("share of time", share, "Of the time of all modules."),
    "tuples": Figure("tuples"),
    "share": Figure("share", share),
    "rows": Figure("rows"),
    "late": Figure("late", about="Dropped because the watermark had passed them."),
    "expired": Figure("expired", about="Dropped because no row to come can match them."),
    "nbytes": Figure("memory", size, "Indexes included."),
    "index_bytes": Figure("indexes", size),
    "log_bytes": Figure("log", size, "In the checkpoint."),
    "log_blocks": Figure("blocks of it"),
    "inserted": Figure("inserted", about="Over the whole run."),
    "moved": Figure("moved", about="Demoted or promoted."),
    "evicted": Figure("evicted", about="Dropped because their time has passed."),
    "keys": Figure("keys", about="Distinct ones that tasks wanted."),
    "done": Figure("found", about="Keys with rows, or known to have none."),
    "cached": Figure("from cache"),
    "failed": Figure("failed"),
    "requests": Figure("requests", about="Repeated ones included."),
    "retried": Figure("repeated"),
    "limited": Figure("too many", about="Refused by the service because there were too many at once."),
    "p50": Figure("half within", duration),
    "p95": Figure("95 % within", duration),
    "rate": Figure("rate", lambda rate: f"{rate:,.0f} a second"),
    "max_requests": Figure("of", number),
    "cost": Figure("cost", number),
    "max_cost": Figure("of", number),
    "calls": Figure("batches"),
    "bytes": Figure("bytes", size),
}

WORDS = {
    "map task": "Cuts the rows of a table by cell, before they are exchanged.",
    "build": "Stores rows for others to find.",
    "probe": "Looks for matches among stored rows.",
    "select": "Lets tuples pass or drops them.",
    "profile": "Calls predicates on a sample, to learn their cost; its time counts at each predicate.",
    "partition": "Joins a part of the tuples, under a memory budget; its time counts at each module.",
    "settle": "Decides what errors of predicates come to.",
    "transfer": "Drops rows without a match elsewhere, before they meet a join.",
    "divide": "Sends tuples on by their content.",
    "aggregate": "Begins the GROUP BY.",
    "prune": "Leaves out row groups of files.",
}
"""What names of rows and actions mean."""


class Bar(NamedTuple):
    """A row with a bar: what it is, the bar's length from 0 to 1, and the texts beside it.

    ``number`` is that of its marker in the chart above; 0 without one.
    """

    name: str
    length: float
    texts: tuple[str, ...]
    number: int = 0


class Table(NamedTuple):
    """A table with bars: rows, those that open on demand, and what is not in it."""

    caption: str
    columns: tuple[Figure, ...]
    rows: tuple[Bar, ...]
    rest: tuple[Bar, ...] = ()
    more: str = ""

    def lines(self) -> list[str]:
        """Return it as text: names left, all else right."""
        labels = [column.label for column in self.columns]
        rows = [labels, *([row.name, *row.texts] for row in (*self.rows, *self.rest))]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        told = [
            "  ".join([name.ljust(widths[0]), *map(str.rjust, texts, widths[1:])]) for name, *texts in rows
        ]
        return [self.caption, *(f"  {line}" for line in told), *filter(None, [self.more])]


def table(
    caption: str,
    rows: Sequence[Mapping[str, Any]],
    names: Iterable[str],
    bar: str = "",
    *,
    more: int = 0,
    most: int = MOST_ROWS,
    numbered: int = 0,
) -> Table | None:
    """Return a table of figures by name, the first of which names the row; None without rows.

    Bars are shares of 1, or of the largest. A column without any value is left out. ``more`` rows are in the
    data alone. Rows that are ``numbered`` have markers in a chart, and they alone are open.
    """
    if not rows:
        return None
    first, *others = names
    shown = [name for name in others if any(row[name] is not None for row in rows)]
    whole = max(1.0, *(row.get(bar) or 0.0 for row in rows))
    bars = [
        Bar(
            FIGURES[first].show(row[first]),
            (row.get(bar) or 0.0) / whole,
            tuple("" if row[name] is None else FIGURES[name].show(row[name]) for name in shown),
            number if number <= numbered else 0,
        )
        for number, row in enumerate(rows[:most], 1)
    ]
    more += len(rows) - len(bars)
    opened = numbered or (_OPEN if len(bars) > _OPEN + 3 else len(bars))
    told = f"{more:,} more are in the data." if more else ""
    heads = tuple(FIGURES[name] for name in (first, *shown))
    return Table(caption, heads, tuple(bars[:opened]), tuple(bars[opened:]), told)


# For DataFrames

Rows = Iterable[Mapping[str, Any]]
_TYPES = {"int": pa.int64(), "float": pa.float64(), "str": pa.string()}


def columns(names: str, kind: type[Any] | None = None) -> pa.Schema:
    """Return columns as ``"name:type …"`` has them, then a dataclass's fields that are single values."""
    own = [] if kind is None else [f"{f.name}:{f.type}" for f in fields(kind) if f.name != "name"]
    types = dict(each.split(":") for each in [*names.split(), *own])
    return pa.schema([(name, _TYPES[each]) for name, each in types.items() if each in _TYPES])


def _by_cell(rows: Callable[[CellFigures], Rows]) -> Callable[[RunReport], Rows]:
    """Return what makes a table's rows, from what makes those of a cell."""
    return lambda report: (
        {"block": block, "cell": cell.cell, **row} for block, cell in report.cells() for row in rows(cell)
    )


def _changes(cell: CellFigures) -> Rows:
    for trace in cell.traces:
        for change in trace.changes:
            why = "; ".join(
                f"{s.module}: selectivity {_moved(s.selectivity)}, seconds a tuple {_moved(s.cost)}"
                for s in change.why
            )
            yield {**vars(trace), **vars(change), "why": why}


def _moved(pair: tuple[float | None, float]) -> str:
    return f"{'unknown' if pair[0] is None else f'{pair[0]:.3g}'} → {pair[1]:.3g}"


def _readings(cell: CellFigures) -> Rows:
    names = ("after", "tuples_in", "tuples_out", "seconds")
    for one in cell.readings:
        yield from ({**vars(one), **dict(zip(names, point, strict=True))} for point in one.points)


def progress_row(one: LookupProgress) -> dict[str, Any]:
    """Return the figures of a lookup, or of calls."""
    return {**vars(one), "p50": one.p50, "p95": one.p95}


_CELL, _FLOW = "block:str cell:int", "tuples_in:int tuples_out:int"
_PROGRESS = columns(
    "name:str keys:int done:int cached:int failed:int requests:int retried:int limited:int seconds:float "
    "rate:float p50:float p95:float"
)
TABLES: dict[str, tuple[pa.Schema, Callable[[RunReport], Rows]]] = {
    "modules": (
        columns(f"{_CELL} module:str", ModuleFigures),
        _by_cell(lambda cell: ({"module": one.name, **vars(one)} for one in cell.modules)),
    ),
    "cells": (columns(_CELL, CellFigures), _by_cell(lambda cell: [vars(cell)])),
    "orders": (
        columns("block:str order:str tuples:int share:float"),
        lambda report: map(vars, report.orders()),
    ),
    "changes": (columns(f"{_CELL} source:str part:int after:int order:str why:str"), _by_cell(_changes)),
    "readings": (
        columns(f"{_CELL} module:str action:str after:int {_FLOW} seconds:float"),
        _by_cell(_readings),
    ),
    "joins": (
        columns(f"{_CELL} span:str join:str {_FLOW}"),
        _by_cell(lambda c: ({**vars(j), "span": ", ".join(j.span), "join": j.name} for j in c.joins)),
    ),
    "state": (
        columns(f"{_CELL} module:str", StateFigures),
        _by_cell(lambda cell: ({"module": one.name, **vars(one)} for one in cell.state)),
    ),
    "lookups": (_PROGRESS, lambda report: map(progress_row, report.lookups)),
    "calls": (_PROGRESS, lambda report: map(progress_row, report.calls)),
}
"""Each table's columns, and what makes its rows."""


def table_of(report: RunReport, name: str) -> pa.Table:
    """Return one of a report's tables.

    Raises:
        OptionError: There is none of that name.
    """
    if name not in TABLES:
        raise OptionError(f"a report has no table {name!r}: {near(name, list(TABLES))}")
    schema, rows = TABLES[name]
    return pa.Table.from_pylist(list(rows(report)), schema)
