"""A report as a trace of Chrome's event format, which https://ui.perfetto.dev draws.

A block is a process there, a cell or map task a thread, a module's work a slice, a change of order an
instant. Reports know how long modules worked between two moments, and not when. So every thread begins at 0,
its time is that of its modules' work, and of one moment their slices stand behind each other. Slices of a
thread have to nest, so the cell's own is as long as they all are, at least.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from itertools import pairwise
from typing import Any

import numpy as np

from millrace.engine.figures import SUMMARIES, CellFigures, Counts
from millrace.reports.run_report import RunReport
from millrace.reports.tables import FIGURES

Event = dict[str, Any]


def trace_of(report: RunReport) -> str:
    """Return the trace as JSON text; times in it are microseconds."""
    return json.dumps({"traceEvents": list(_events(report))}, ensure_ascii=False, separators=(",", ":"))


def _events(report: RunReport) -> Iterator[Event]:
    for process, (block, figures) in enumerate(report.blocks.items(), 1):
        yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": block}}
        for thread, cell in enumerate(figures, 1):
            place = {"pid": process, "tid": thread}
            name = FIGURES["cell"].show(cell.cell)
            yield {"ph": "M", **place, "name": "thread_name", "args": {"name": name}}
            for event in _of_cell(cell, name):
                yield {**place, **event}


def _of_cell(cell: CellFigures, name: str) -> Iterator[Event]:
    readings = [one for one in cell.readings if one.action not in SUMMARIES]
    longest = max((one.points for one in readings), key=len, default=())
    shares, times = [0.0], [0.0]  # of the source tuples that were sent on by a moment, and when that was
    now = 0.0
    for moment in range(-len(longest), 0):  # a module has a point for each moment since it was first used
        for one in readings:
            if len(one.points) < -moment:
                continue
            _, tuples_in, tuples_out, seconds = one.points[moment]
            before = one.points[moment - 1] if len(one.points) > -moment else (0, 0, 0, 0.0)
            end = now + 1e6 * (seconds - before[3])
            if end > now:
                did = {"tuples_in": tuples_in - before[1], "tuples_out": tuples_out - before[2]}
                yield {"ph": "X", "name": one.module, "cat": one.action, **_span(now, end), "args": did}
                now = end
        shares.append(longest[moment][0] / max(1, longest[-1][0]))
        times.append(now)
    end = max(now, 1e6 * cell.seconds)
    if not longest:
        shares, times = [0.0, 1.0], [0.0, end]
    counts = {each.name: value for each in fields(Counts) if (value := getattr(cell, each.name))}
    modules = {f"{one.name} {one.action}": one.seconds for one in cell.modules}
    yield {"ph": "X", "name": name, "cat": "cell", **_span(0.0, end), "args": {**counts, "seconds": modules}}
    for trace in cell.traces:
        for before_it, change in pairwise(trace.changes):
            when = round(float(np.interp(change.after / max(1, trace.tuples), shares, times)), 3)
            why = {shift.module: vars(shift) for shift in change.why}
            args = {"source": trace.source, "after": change.after, "before": before_it.order, "why": why}
            yield {"ph": "i", "s": "t", "name": change.order, "cat": "order", "ts": when, "args": args}


def _span(begin: float, end: float) -> Event:
    """Return a slice's place; both of its ends are rounded, so that the next one begins where it ends."""
    return {"ts": round(begin, 3), "dur": round(round(end, 3) - round(begin, 3), 3)}
