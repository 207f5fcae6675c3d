"""A report's figures as flat tables, for DataFrames."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millrace.engine.figures import CellFigures, ModuleFigures, StateFigures
from millrace.errors import OptionError, near

if TYPE_CHECKING:
    from millrace.limits.progress import LookupProgress
    from millrace.reports.run_report import RunReport

Rows = Iterator[dict[str, Any]]
_WHOLE, _REAL, _TEXT = pa.int64(), pa.float64(), pa.string()
_TYPES = {"int": _WHOLE, "float": _REAL, "str": _TEXT}
_PLACE = (("block", _TEXT), ("cell", _WHOLE))


def _figures(kind: type[Any]) -> list[tuple[str, pa.DataType]]:
    """Return the columns of a dataclass: its fields that are single values, but for names."""
    return [(f.name, _TYPES[str(f.type)]) for f in fields(kind) if f.type in _TYPES and f.name != "name"]


def _cells(report: RunReport) -> Rows:
    for block, cell in report.cells():
        yield {"block": block, **vars(cell)}


def _each(part: str) -> Callable[[RunReport], Rows]:
    """Return what makes rows of a part of each cell: a row for each of its members, which have names."""

    def rows(report: RunReport) -> Rows:
        for block, cell in report.cells():
            for one in getattr(cell, part):
                yield {"block": block, "cell": cell.cell, "module": one.name, **vars(one)}

    return rows


def _orders(report: RunReport) -> Rows:
    for one in report.orders():
        yield asdict(one)


def _changes(report: RunReport) -> Rows:
    for block, cell in report.cells():
        for trace in cell.traces:
            for change in trace.changes:
                why = "; ".join(
                    f"{s.module}: selectivity {_shown(s.selectivity)}, seconds a tuple {_shown(s.cost)}"
                    for s in change.why
                )
                place = {"block": block, "cell": cell.cell, "source": trace.source, "part": trace.part}
                yield {**place, "after": change.after, "order": change.order, "why": why}


def _shown(pair: tuple[float | None, float]) -> str:
    return f"{'unknown' if pair[0] is None else f'{pair[0]:.3g}'} → {pair[1]:.3g}"


def _readings(report: RunReport) -> Rows:
    names = ("after", "tuples_in", "tuples_out", "seconds")
    for block, cell in report.cells():
        for one in cell.readings:
            place = {"block": block, "cell": cell.cell, "module": one.module, "action": one.action}
            for point in one.points:
                yield {**place, **dict(zip(names, point, strict=True))}


def _joins(report: RunReport) -> Rows:
    for block, cell in report.cells():
        for one in cell.joins:
            place = {"block": block, "cell": cell.cell, "span": ", ".join(one.span), "join": one.name}
            yield {**place, "tuples_in": one.tuples_in, "tuples_out": one.tuples_out}


def _progress(one: LookupProgress) -> dict[str, Any]:
    return {**asdict(one), "p50": one.p50, "p95": one.p95}


def _of(kind: pa.DataType, *names: str) -> tuple[tuple[str, pa.DataType], ...]:
    return tuple((name, kind) for name in names)


_MODULE = (*_PLACE, ("module", _TEXT))
_COUNTS = _of(_WHOLE, "tuples_in", "tuples_out")
_PROGRESS = [
    ("name", _TEXT),
    *_of(_WHOLE, "keys", "done", "cached", "failed", "requests", "retried", "limited"),
    *_of(_REAL, "seconds", "rate", "p50", "p95"),
]
_COLUMNS: dict[str, tuple[Sequence[tuple[str, pa.DataType]], Callable[[RunReport], Rows]]] = {
    "modules": ([*_MODULE, *_figures(ModuleFigures)], _each("modules")),
    "cells": ([("block", _TEXT), *_figures(CellFigures)], _cells),
    "orders": ([*_of(_TEXT, "block", "order"), ("tuples", _WHOLE), ("share", _REAL)], _orders),
    "changes": (
        [*_PLACE, ("source", _TEXT), *_of(_WHOLE, "part", "after"), *_of(_TEXT, "order", "why")],
        _changes,
    ),
    "readings": (
        [*_MODULE, ("action", _TEXT), ("after", _WHOLE), *_COUNTS, ("seconds", _REAL)],
        _readings,
    ),
    "joins": ([*_PLACE, *_of(_TEXT, "span", "join"), *_COUNTS], _joins),
    "state": ([*_MODULE, *_figures(StateFigures)], _each("state")),
    "lookups": (_PROGRESS, lambda report: map(_progress, report.lookups)),
    "calls": (_PROGRESS, lambda report: map(_progress, report.calls)),
}
TABLES = {name: (pa.schema(columns), rows) for name, (columns, rows) in _COLUMNS.items()}
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
