"""A report adds up what the cells did."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

import millrace
from millrace.engine import start_up
from millrace.engine.figures import CellFigures, ModuleFigures
from millrace.errors import InputError, OptionError, SetupError
from millrace.limits.clock import WallClock
from millrace.reports.run_report import RunReport, total
from millrace.reports.tables import TABLES
from tests.reports.pages.reports import HOSTILE, drifting, filtered, hostile

PROBE = ModuleFigures("SteM(o)", "probe", 10, 30, 2, 0.5)
MAP = CellFigures(-1, 1.0, rows_exchanged=100, blocks_exchanged=2, bytes_exchanged=1000, peak_bytes=5)
COUNTS = ("tuples_routed", "intermediate_tuples", "output_tuples", "rows_exchanged", "blocks_exchanged")


def cell(number, seconds, orders, counts, bytes_exchanged, peak_bytes):
    counts = dict(zip(COUNTS, counts, strict=True), bytes_exchanged=bytes_exchanged, peak_bytes=peak_bytes)
    return CellFigures(number, seconds, (PROBE,), orders, **counts)


FIRST = cell(0, 2.0, (("c ⋈ o", 60), ("o ⋈ c", 20)), (10, 3, 7, 70, 1), 700, 9)
SECOND = cell(1, 3.0, (("c ⋈ o", 20),), (20, 4, 8, 30, 1), 300, 8)


@pytest.fixture
def report() -> RunReport:
    return RunReport({"b": [MAP, FIRST, SECOND]})


def test_totals(report):
    """Counts add up, exchanged rows count once, memory is the highest, time is both sum and maximum."""
    sums = report.totals
    assert (sums.cells, sums.worker_seconds, sums.slowest_seconds) == (2, 6.0, 3.0)
    assert (sums.tuples_routed, sums.intermediate_tuples, sums.output_tuples) == (30, 7, 15)
    assert (sums.rows_exchanged, sums.blocks_exchanged, sums.bytes_exchanged) == (100, 2, 1000)
    assert sums.peak_bytes == 9
    # Without figures of map tasks, the cells' count is taken.
    assert total([FIRST, SECOND]).bytes_exchanged == total([MAP]).bytes_exchanged == 1000
    assert total([]).slowest_seconds == 0.0
    # Each cell has a budget of its own: the fullest tells how well it was kept.
    held = RunReport({"b": [replace(FIRST, budget_peak_ratio=0.5), replace(SECOND, budget_peak_ratio=0.87)]})
    assert held.totals.budget_peak_ratio == 0.87
    assert "most held of the memory budget: 87 %" in str(held) and "budget" not in str(report)


def test_orders_and_modules_add_up_over_cells(report):
    """The most travelled order comes first, a module is a line for each action; the text has them all."""
    assert [(o.order, o.tuples, o.share) for o in report.orders()] == [("c ⋈ o", 80, 0.8), ("o ⋈ c", 20, 0.2)]
    assert report.modules() == [("b", ModuleFigures("SteM(o)", "probe", 20, 60, 4, 1.0))]
    told = " ".join(str(report).split())
    parts = ("cells: 2", "block b", "c ⋈ o 80 80 %", "SteM(o) probe 20 60", "map task", "cell 1")
    assert all(part in told for part in parts) and "no eddy" in str(RunReport())


@pytest.fixture(scope="module")
def joined() -> RunReport:
    return RunReport({"b0": [drifting(), drifting(architecture="stairs", online=True)]})


def test_json_loses_nothing(joined, report):
    """What ``to_json`` writes, ``from_json`` reads, also with lookups, settings and traces."""
    for one in (joined, report, filtered(), hostile(), RunReport()):
        assert RunReport.from_json(one.to_json()) == one
        assert json.loads(one.to_json(indent=1)) == one.to_dict()
    for text in ("[]", "{}", "no JSON", '{"schema": 99}', '{"schema": 1, "blocks": {}}'):
        with pytest.raises(InputError, match="report"):
            RunReport.from_json(text)


def with_more(said):
    """What JSON says, with a name more in each dictionary."""
    if isinstance(said, list | tuple):
        return [with_more(each) for each in said]
    if not isinstance(said, dict):
        return said
    return {**{name: with_more(each) for name, each in said.items()}, "of_a_newer_one": [1]}


def test_what_a_newer_report_says_besides_is_left_out(joined):
    """So that a report of tomorrow's Millrace can be read today."""
    for one in (joined, filtered()):
        raw = one.to_dict()
        for part in ("lookups", "budgets", "calls"):
            raw[part] = with_more(raw.get(part, []))
        for block in raw["blocks"].values():
            block["cells"] = with_more(json.loads(json.dumps(block["cells"])))
        assert RunReport.from_json(json.dumps({**raw, "of_a_newer_one": 1})) == one


def test_tables_add_up_to_the_text(joined, monkeypatch):
    """Frames have the documented columns, and their sums are those that the text shows."""
    for name, (schema, _) in TABLES.items():
        frame = joined.to_pandas(name)
        assert list(frame.columns) == schema.names
        assert joined.to_polars(name).columns == schema.names
    text = str(joined)
    told = " ".join(text.split())
    modules = joined.to_pandas("modules").groupby(["module", "action"]).sum(numeric_only=True)
    for (module, action), row in modules.iterrows():
        assert f"{module} {action} {row.tuples_in:,.0f} {row.tuples_out:,.0f}" in told
    cells = joined.to_pandas("cells").sum(numeric_only=True)
    assert f"tuples routed: {cells.tuples_routed:,.0f}" in text
    assert f"intermediate tuples: {cells.intermediate_tuples:,.0f}" in text
    assert joined.to_pandas("orders").share.sum() == pytest.approx(1.0)
    with pytest.raises(OptionError, match="did you mean 'modules'"):
        joined.to_pandas("module")
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(SetupError, match="pip install polars"):
        joined.to_polars()


def test_a_trace_has_work_and_decisions(joined):
    """A thread's slices nest; a module's are the time that it took; each change of order is an instant."""
    events = json.loads(joined.to_trace())["traceEvents"]
    assert any(each["ph"] == "i" for each in events)
    for thread, (_, cell) in enumerate(joined.cells(), 1):
        own = [each for each in events if each.get("tid") == thread and each["ph"] != "M"]
        work = [each for each in own if each["ph"] == "X" and each["cat"] != "cell"]
        (whole,) = (each for each in own if each["cat"] == "cell")
        ends = [0.0, *(each["ts"] + each["dur"] for each in work)]
        assert [each["ts"] for each in work] == pytest.approx(ends[:-1], abs=0.01)
        assert whole["ts"] == 0 and whole["dur"] >= ends[-1] - 0.01 and len(work) > 10
        for reading in cell.readings:
            name, took = (reading.module, reading.action), 1e6 * reading.points[-1][3]
            spent = sum(each["dur"] for each in work if (each["name"], each["cat"]) == name)
            assert spent == pytest.approx(took, abs=1), name
        changes = [change.order for trace in cell.traces for change in trace.changes[1:]]
        decided = [each for each in own if each["ph"] == "i"]
        assert [each["name"] for each in decided] == changes
        assert all(0 < each["ts"] <= ends[-1] for each in decided)


def test_start_up_is_in_no_modules_time(report, monkeypatch):
    """A line of its own tells of it; a worker's own start is its first task's."""
    loaded = [1.0]
    monkeypatch.setattr(start_up, "load_seconds", lambda: loaded[0])
    monkeypatch.setattr(start_up.time, "process_time", lambda: 2.0)
    monkeypatch.setattr(WallClock, "now", lambda self: 10.0 + loaded[0])
    for name in ("_started", "_before", "_imported"):
        monkeypatch.setattr(start_up, name, 0.0)
    start_up.begin_task()
    before = start_up.work_time(WallClock())
    loaded[0] = 5.0
    assert (start_up.work_time(WallClock()), start_up.start_seconds()) == (before, 7.0)
    told = RunReport({"b": [replace(FIRST, start_seconds=start_up.start_seconds()), SECOND]})
    start_up.begin_task()
    assert start_up.start_seconds() == 0 and "start-up: 7 s" in str(told) and "start-up" not in str(report)


def test_what_spark_did_in_a_worker_before_is_no_start_up():
    """Of a worker that is used again; loading Millrace is, and what was forked has been loaded elsewhere."""
    worker = """
import os, sys, time
sum(range(10**7))  # a task of Spark's own
before = time.process_time()
from millrace.spark import tasks
from millrace.engine.start_up import begin_task, start_seconds
child = os.fork()
began = time.process_time()
begin_task()
print(start_seconds(), began - before, flush=True)
os._exit(0) if child == 0 else os.waitpid(child, 0)
"""
    told = subprocess.run([sys.executable, "-c", worker], capture_output=True, text=True, check=True)
    forked, (started, loading) = sorted([*map(float, line.split())] for line in told.stdout.splitlines())
    assert forked[0] == 0 and 0.5 * loading < started < loading + 0.01


def test_runs_are_compared(report):
    """Each figure of both, and what it became; what only one has counts as 0 in the other."""
    same = millrace.monitor.compare(report, report)
    assert str(same) == "no figure differs"
    less = millrace.monitor.compare(report, RunReport({"b": [MAP, FIRST]}))
    found = {(each.what, each.figure): (each.first, each.second, each.ratio) for each in less.differences}
    assert found["total", "tuples_routed"] == (30, 10, 1 / 3)
    assert found["SteM(o) probe", "tuples_in"] == (20, 10, 0.5)
    assert found["c ⋈ o", "tuples"] == (80, 60, 0.75)
    assert "30" in str(less)
    assert len(less.to_pandas()) == len(less.differences)
    other = millrace.monitor.compare(RunReport(), RunReport({HOSTILE: [FIRST]}))
    assert all(each.ratio is None for each in other.differences)
    assert HOSTILE not in other._repr_html_()
    assert json.loads(other.to_json()) == other.to_dict()
