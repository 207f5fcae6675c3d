"""Tasks tell their figures while they work, and nothing that goes wrong with that is their failure."""

from __future__ import annotations

from dataclasses import replace
from functools import partialmethod

import pyarrow as pa
import pytest

from millrace.engine.figures import CellFigures
from millrace.reports.board import telling
from millrace.reports.board.board import Board
from millrace.reports.board.server import LiveServer
from millrace.reports.board.telling import Telling
from millrace.spark.exchange import Cut
from millrace.spark.hypercube import Axis, Cube
from millrace.spark.reports import Sink
from millrace.spark.tasks import CutTask
from tests.reports.board.test_board import figures
from tests.session import wait_for


@pytest.fixture
def board():
    made = Board()
    made.known("one", {"run": "join"}, lambda: None)
    made.begun("count", ["run"])
    return made


def told(board, **wanted):
    """Wait until the board shows of its query what is wanted."""

    def found():
        (view,) = board.queries()
        return view if wanted.items() <= vars(view).items() else None

    return wait_for(found, 10)


@pytest.fixture
def server(board, monkeypatch):
    monkeypatch.setattr(telling, "_unreached", {})
    monkeypatch.setattr(LiveServer, "board", board)
    made = LiveServer()
    yield made
    made.close()


def test_a_task_tells_while_it_works_and_at_its_end(server, board):
    """What is read while the task changes it is read again."""
    now = [figures(10)]
    trouble = [RuntimeError("dictionary changed size during iteration")]

    def read() -> CellFigures:
        if trouble:
            raise trouble.pop()
        return now[0]

    with Telling(server.address_of("run"), "run", "cell 0", read, every=0.0):
        told(board, rows_in=10)
        now[0] = figures(30)
    view = told(board, rows_in=30, rows_out=15, tasks=1, over=1)
    assert view.report.totals.output_tuples == 15


def test_a_short_task_tells_nobody(server, board):
    """It makes no connection, and its end waits for nothing."""
    with Telling(server.address_of("run"), "run", "cell 0", lambda: figures(1), every=60.0):
        pass
    with Telling(None, "run", "cell 0", lambda: figures(1), every=0.0):
        pass
    assert board.queries()[0].tasks == 0
    assert server._connections == {}


def test_who_may_not_tell_or_is_not_heard_works_on(server, board):
    """The token opens one run; after a refusal no further task of the process tries for a while."""
    opened = []

    def read() -> CellFigures:
        opened.append(1)
        return figures(1)

    for address in (server.address_of("another"), server.address_of("run")):
        task = Telling(address, "run", "cell 0", read, every=0.0)
        with task:
            if task._thread is not None:
                task._thread.join(10)
    assert opened == []
    assert board.queries()[0].tasks == 0
    telling._unreached.clear()
    server.close()
    with Telling(server.address_of("run"), "run", "cell 0", read, every=0.0) as task:
        assert task._thread is not None
        task._thread.join(10)
    assert telling._unreached
    assert opened == []


def test_map_tasks_of_an_exchange_tell_too(server, board, monkeypatch):
    """What they have read so far; what they have sent to an eddy's task is not read once more there."""
    monkeypatch.setattr(Telling, "__init__", partialmethod(Telling.__init__, every=0.0))
    schema = pa.schema([("k", pa.int64())])
    cut = Cut(0, Cube((Axis(2, pa.int64(), ((0, "k"),)),)), 1 << 20)
    sink = Sink("run", None, hidden=True, live=server.address_of("run"))

    def rows():
        yield pa.record_batch([range(100)], schema=schema)
        told(board, rows_in=100)  # of what came before, while more is to come
        yield pa.record_batch([range(20)], schema=schema)

    sent = list(CutTask("r", schema, cut, sink)(rows()))
    view = told(board, rows_in=120, tasks=1, over=1)
    (read,) = [one.tuples_in for _, one in view.report.modules() if one.name == "Cut(r)"]
    assert read == 120
    assert CellFigures.from_json(sent[-1].column("block")[0].as_py().decode()).rows_exchanged == 120
    assert telling.rows_in(replace(figures(120), rows_exchanged=100)) == 20
