"""A report's figures as flat tables, for DataFrames."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millrace.errors import OptionError, near

if TYPE_CHECKING:
    from millrace.limits.progress import LookupProgress
    from millrace.reports.run_report import RunReport

Rows = Iterator[dict[str, Any]]
_PLACE = (("block", pa.string()), ("cell", pa.int64()))
_COUNTS = tuple((name, pa.int64()) for name in ("tuples_in", "tuples_out"))


def _cells(report: RunReport) -> Rows:
    for block, cell in report.cells():
        yield {"block": block, **vars(cell)}


def _modules(report: RunReport) -> Rows:
    for block, cell in report.cells():
        for one in cell.modules:
            yield {"block": block, "cell": cell.cell, "module": one.name, **asdict(one)}


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


def _state(report: RunReport) -> Rows:
    for block, cell in report.cells():
        for one in cell.state:
            yield {"block": block, "cell": cell.cell, "module": one.name, **asdict(one)}


def _lookups(report: RunReport) -> Rows:
    return map(_progress, report.lookups)


def _calls(report: RunReport) -> Rows:
    return map(_progress, report.calls)


def _progress(one: LookupProgress) -> dict[str, Any]:
    return {**asdict(one), "p50": one.p50, "p95": one.p95}


def _schema(*columns: tuple[str, pa.DataType]) -> pa.Schema:
    return pa.schema([pa.field(name, kind) for name, kind in columns])


def _of(kind: pa.DataType, *names: str) -> tuple[tuple[str, pa.DataType], ...]:
    return tuple((name, kind) for name in names)


_WHOLE, _REAL, _TEXT = pa.int64(), pa.float64(), pa.string()
_MODULE = (*_PLACE, *_of(_TEXT, "module", "action"))
_PROGRESS = _schema(
    ("name", _TEXT),
    *_of(_WHOLE, "keys", "done", "cached", "failed", "requests", "retried", "limited"),
    *_of(_REAL, "seconds", "rate", "p50", "p95"),
)
TABLES: dict[str, tuple[pa.Schema, Callable[[RunReport], Rows]]] = {
    "modules": (
        _schema(
            *_MODULE, *_COUNTS, ("calls", _WHOLE), ("seconds", _REAL), *_of(_WHOLE, "evaluated", "bytes")
        ),
        _modules,
    ),
    "cells": (
        _schema(
            *_PLACE,
            ("seconds", _REAL),
            *_of(_WHOLE, "tuples_routed", "intermediate_tuples", "output_tuples", "rows_exchanged"),
            *_of(_WHOLE, "blocks_exchanged", "bytes_exchanged", "peak_bytes", "peak_state"),
            *_of(_WHOLE, "migrated_tuples", "recomputed_tuples", "spilled_bytes", "returned_bytes"),
            ("budget_peak_ratio", _REAL),
        ),
        _cells,
    ),
    "orders": (_schema(*_of(_TEXT, "block", "order"), ("tuples", _WHOLE), ("share", _REAL)), _orders),
    "changes": (
        _schema(*_PLACE, ("source", _TEXT), *_of(_WHOLE, "part", "after"), *_of(_TEXT, "order", "why")),
        _changes,
    ),
    "readings": (_schema(*_MODULE, ("after", _WHOLE), *_COUNTS, ("seconds", _REAL)), _readings),
    "joins": (_schema(*_PLACE, *_of(_TEXT, "span", "join"), *_COUNTS), _joins),
    "state": (
        _schema(
            *_PLACE,
            ("module", _TEXT),
            *_of(_WHOLE, "tuples", "nbytes", "inserted", "demoted", "promoted", "evicted"),
        ),
        _state,
    ),
    "lookups": (_PROGRESS, _lookups),
    "calls": (_PROGRESS, _calls),
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
