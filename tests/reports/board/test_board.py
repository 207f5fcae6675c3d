"""What is told of queries is kept in bounded memory and shown as it is, also when tasks are many or fail."""

from __future__ import annotations

import zlib
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from millrace.engine.figures import CellFigures, Change, ModuleFigures, OrderTrace
from millrace.limits.clock import VirtualClock
from millrace.reports.board.board import MOST_QUERIES, Board
from millrace.reports.board.query import MOST_TASKS, Series, added
from millrace.reports.pages.live import query_part
from millrace.reports.run_report import RunReport


def figures(rows: int, order: str = "a → b") -> CellFigures:
    """A task that has read some rows and kept half of them."""
    return CellFigures(
        0,
        1.0,
        (
            ModuleFigures("Scan(rows)", "scan", rows, rows, 1, 0.0),
            ModuleFigures("Predicate(a)", "select", rows, rows // 2, 1, 0.5, rows),
        ),
        ((order, rows),),
        output_tuples=rows // 2,
        traces=(OrderTrace("rows", 0, rows, (Change(0, order),)),),
    )


def packed(rows: int, order: str = "a → b") -> bytes:
    return zlib.compress(figures(rows, order).to_json().encode(), 1)


def tell(board: Board, task: str, rows: int, *, over: bool = False) -> None:
    board.told("run", task, rows, rows // 2, packed(rows), over=over)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def board(clock) -> Board:
    """A board that knows one query, which nobody has run."""
    made = Board(clock)
    made.known("one", {"run": "a"}, lambda: None)
    return made


def test_a_query_is_shown_while_it_runs_and_after(clock):
    """Rows and rate by the clock, the tasks' latest figures; another action counts from nothing."""
    ended: dict[str, bytes] = {"cell 9": packed(7)}  # of an earlier action
    board = Board(clock, lambda run: ended if run == "run" else {})
    board.known("SELECT 1", {"run": "join"}, RunReport, {"run": 40})
    assert board.begun("collect", ["another"]) is None
    query = board.begun("collect", ["run", "another"])
    for second in range(1, 11):
        clock.advance(1.0)
        tell(board, "cell 0", 100 * second)
    (view,) = board.queries()
    assert (view.state, view.rows_in, view.rows_out, view.seconds) == ("running", 1000, 500, 10.0)
    assert (view.rate, view.points[-1]) == (100.0, (10.0, 1000, 500))
    assert (view.tasks, view.over, view.planned) == (1, 0, 40)
    assert "1 of 40" in query_part(view).html
    assert view.report.blocks["join"] == (figures(1000),)

    tell(board, "cell 0", 1200, over=True)
    ended["cell 1"] = packed(300)  # too short to have told anything
    clock.advance(2.0)
    board.ended(query)
    clock.advance(60.0)
    (view,) = board.queries()
    assert (view.state, view.rows_in, view.tasks, view.over) == ("done", 1500, 2, 2)
    assert (view.seconds, view.rate, view.planned) == (12.0, 125.0, None)
    assert sum(cell.output_tuples for cell in view.report.blocks["join"]) == 750

    board.begun("count", ["run"])
    assert [(each.action, each.rows_in) for each in board.queries()] == [("count", 0), ("collect", 1500)]


def test_a_query_that_another_dataframe_runs_is_shown_by_its_tasks(board, clock):
    """It is taken for done when no task has been there for a while."""
    board.told("of others", "cell 0", 5, 2, packed(5))
    assert board.queries() == []
    tell(board, "cell 0", 5)
    clock.advance(60.0)
    assert [(each.state, each.action) for each in board.queries()] == [("running", "")]
    board.left("run", "cell 0")
    clock.advance(3.0)
    (view,) = board.queries()
    assert (view.state, view.seconds, view.rows_in) == ("done", 60.0, 5)
    tell(board, "cell 0", 5, over=True)  # a late word is no new query
    assert len(board.queries()) == 1


def test_memory_is_bounded(board):
    """Tasks beyond a number are summed up, old queries let go; no row is lost from the sums."""
    board.begun("count", ["run"])
    count = 2 * MOST_TASKS + 5
    for task in range(count):
        tell(board, f"cell {task}", 10, over=True)
    (view,) = board.queries()
    assert (view.tasks, view.over, view.rows_in, view.rows_out) == (count, count, 10 * count, 5 * count)
    cells = view.report.blocks["a"]
    assert len(list(cells)) == MOST_TASKS + 1
    assert sum(cell.output_tuples for cell in cells) == 5 * count
    select = {one.name: one for _, one in view.report.modules()}["Predicate(a)"]
    assert (select.tuples_in, select.evaluated) == (10 * count, 10 * count)

    for _ in range(2 * MOST_QUERIES):
        board.ended(board.begun("count", ["run"]))
    views = board.queries()
    assert len(views) == MOST_QUERIES
    assert [each.number for each in views if each.state == "running"] == [1]  # the oldest, which still runs


def test_what_is_no_figures_harms_nobody(board):
    """Rows are counted; of the rest nothing is shown."""
    board.begun("count", ["run"])
    bomb = zlib.compress(b"0" * (1 << 26))
    for number, content in enumerate((b"", b"nonsense", zlib.compress(b"[1]"), zlib.compress(b"{}"), bomb)):
        board.told("run", f"cell {number}", 3, 1, content)
    (view,) = board.queries()
    assert (view.rows_in, view.report.blocks) == (15, {})


@given(
    st.lists(st.tuples(st.floats(0, 100), st.integers(0, 1000), st.integers(0, 1000)), max_size=300),
    st.integers(4, 30),
)
def test_a_series_is_thinned(steps, most):
    """It has its bounds and its ends, in order, and only points that were added."""
    series, seconds, rows_in, rows_out = Series(most), 0.0, 0, 0
    given_points = []
    for step, more_in, more_out in steps:
        seconds, rows_in, rows_out = seconds + step, rows_in + more_in, rows_out + more_out
        series.add(seconds, rows_in, rows_out)
        given_points.append((round(seconds, 3), rows_in, rows_out))
    points = series.points
    assert len(points) <= most
    assert set(points) <= set(given_points)
    assert list(points) == sorted(points)
    if given_points:
        assert points[-1] == given_points[-1]
        end = points[-1]
        begin = max((each for each in points if end[0] - each[0] >= 5), default=points[0])
        span = end[0] - begin[0]
        assert series.rate() == (pytest.approx((end[1] - begin[1]) / span) if span else 0)


def test_sums_of_figures_are_those_of_a_report():
    """Nothing but what happened when is lost."""
    cells = [figures(10), figures(30, "b → a"), replace(figures(8), spilled_bytes=5)]
    both, whole = RunReport({"a": [added(cells)]}), RunReport({"a": cells})
    assert both.modules() == whole.modules()
    assert both.orders() == whole.orders()
    assert replace(both.totals, cells=3, slowest_seconds=1.0) == whole.totals
