"""What tasks tell of queries is kept in bounded memory, and shown as it is to who has the address alone."""

from __future__ import annotations

import threading
import zlib
from dataclasses import replace

import httpx
import pytest
from hypothesis import given, strategies as st

import millrace
from millrace.api.live import Live
from millrace.engine.figures import CellFigures, Change, ModuleFigures, OrderTrace
from millrace.errors import InputError, SetupError
from millrace.limits.clock import VirtualClock
from millrace.limits.messages import Figures
from millrace.limits.progress import LookupProgress
from millrace.reports.board import board as live_board, query, telling
from millrace.reports.board.board import MOST_QUERIES, Board
from millrace.reports.board.page_server import PageServer
from millrace.reports.board.query import MOST_TASKS, Series, added
from millrace.reports.board.telling import Telling
from millrace.reports.micro_batch import MicroBatch, StreamFigures
from millrace.reports.pages.live import query_part
from millrace.reports.run_report import RunReport
from millrace.spark.results import DriverServer
from tests.session import wait_for

TITLE = "SELECT '<script>alert(1)</script>'"


def batch(number: int, order: str = "o → p") -> MicroBatch:
    """A micro-batch in which 10 rows came and 4 results were found."""
    stream = StreamFigures("o", 10, 1, 0, 10 * number, 800, 80, 70, 1, None)
    figures = (0.5, 10, 1, 4, 0, 10, 800, 0, 0, 0.1)
    return MicroBatch("id", "run", "joined", number, "", *figures, None, (stream,), ((order, 10),))


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
    board.told("run", task, Figures(rows, rows // 2, over, packed(rows)))


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def board(clock) -> Board:
    """A board that knows one query, which nobody has run."""
    made = Board(clock)
    lookup = LookupProgress("price", 10, 4, 0, 0, 2, 5, 0, 1.0)
    model = replace(lookup, name="model", in_flight=0, requests=3)
    made.known(TITLE, {"run": "a"}, lambda: RunReport(lookups=(lookup,), calls=(model,)))
    return made


def test_a_query_is_shown_while_it_runs_and_after(clock):
    """Rows and rate by the clock, the tasks' latest figures; another action counts from nothing."""
    ended: dict[str, bytes] = {"cell 9": packed(7)}  # of an earlier action
    board = Board(clock, lambda run: ended if run == "run" else {})
    board.known("SELECT 1", {"run": "join"}, RunReport, {"run": 40})
    assert board.begun("collect", ["another"]) is None
    query = board.begun("collect", ["run", "another"])
    assert "starts workers" in query_part(*board.queries()).html
    for second in range(1, 11):
        clock.advance(1.0)
        tell(board, "cell 0", 100 * second)
    (view,) = board.queries()
    assert (view.state, view.rows_in, view.rows_out, view.seconds) == ("running", 1000, 500, 10.0)
    assert (view.rate, view.points[-1]) == (100.0, (10.0, 1000, 500))
    assert (view.tasks, view.over, view.planned) == (1, 0, 40)
    assert "1 of 40" in query_part(view).html and "starts workers" not in query_part(view).html
    assert view.report.blocks["join"] == (figures(1000),)

    tell(board, "cell 0", 1200, over=True)
    ended["cell 1"] = packed(300)  # too short to have told anything
    clock.advance(2.0)
    board.end(query)
    clock.advance(60.0)
    (view,) = board.queries()
    assert (view.state, view.rows_in, view.tasks, view.over) == ("done", 1500, 2, 2)
    assert (view.seconds, view.rate, view.planned) == (12.0, 125.0, None)
    assert sum(cell.output_tuples for cell in view.report.blocks["join"]) == 750

    board.begun("count", ["run"])
    assert [(each.action, each.rows_in) for each in board.queries()] == [("count", 0), ("collect", 1500)]


def test_a_query_that_another_dataframe_runs_is_shown_by_its_tasks(board, clock):
    """It is taken for done when no task has been there for a while."""
    board.told("of others", "cell 0", Figures(5, 2, False, packed(5)))
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


def test_what_a_cancelled_action_leaves_is_no_query(board, clock):
    """Its tasks tell for a while yet, or begin to; those of another DataFrame began later, and are shown."""
    query = board.begun("collect", ["run"])
    tell(board, "cell 0", 5)
    tell(board, "cell 1", 5)
    board.end(query, KeyboardInterrupt())
    tell(board, "cell 0", 7)
    assert [(each.state, each.rows_in) for each in board.queries()] == [("failed", 10)]
    board.left("run", "cell 0")
    board.left("run", "cell 1")
    clock.advance(0.5)
    tell(board, "cell 2", 7)  # which began a second ago
    assert len(board.queries()) == 1
    clock.advance(1.0)
    tell(board, "cell 0", 3)
    assert [(each.state, each.rows_in) for each in board.queries()] == [("running", 3), ("failed", 10)]


def test_tasks_tell_while_figures_are_read(clock, monkeypatch):
    """Nobody waits for a page that is drawn, whether tasks or Spark brought the figures."""
    ended: dict[str, bytes] = {}
    board, heard, read = Board(clock, lambda _: ended), [], query.unpacked
    board.known(TITLE, {"run": "a"}, lambda: None)
    board.begun("count", ["run"])
    tell(board, "cell 0", 10)
    ended["cell 1"] = packed(5)

    def reading(text: bytes) -> CellFigures | None:
        task = threading.Thread(target=tell, args=(board, "cell 2", 5 + len(heard)))
        task.start()
        task.join(5)
        heard.append(not task.is_alive())
        return read(text)

    for module in (query, live_board):
        monkeypatch.setattr(module, "unpacked", reading)
    (view,) = board.queries()
    assert (view.rows_in, len(view.report.blocks["a"])) == (20, 3)
    assert heard == [True] * 3


def test_memory_is_bounded(clock):
    """Tasks beyond a number are summed up, old queries let go; no row is lost from the sums."""
    ended: dict[str, bytes] = {}
    board = Board(clock, lambda _: dict(ended))
    board.known(TITLE, {"run": "a"}, lambda: None)
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

    for _ in range(2):  # Spark brings what a task has told, and one that was too many worked on
        ended |= {f"cell {task}": packed(10) for task in range(count)}
        board.queries()
    tell(board, "cell 0", 15)
    (view,) = board.queries()
    assert (view.tasks, view.rows_in, view.rows_out) == (count, 10 * count + 5, 5 * count + 2)

    for _ in range(2 * MOST_QUERIES):
        board.end(board.begun("count", ["run"]))
    views = board.queries()
    assert len(views) == MOST_QUERIES
    assert [each.number for each in views if each.state == "running"] == [1]  # the oldest, which still runs


def test_what_is_no_figures_harms_nobody(board):
    """Rows are counted; of the rest nothing is shown."""
    board.known(TITLE, {"run": "a"}, lambda: None)  # nobody tells of lookups
    board.begun("count", ["run"])
    bomb = zlib.compress(b"0" * (1 << 26))
    for number, content in enumerate((b"", b"nonsense", zlib.compress(b"[1]"), zlib.compress(b"{}"), bomb)):
        board.told("run", f"cell {number}", Figures(3, 1, False, content))
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
        series.add(end[0] / 2, *end[1:])  # when it was last heard of, which was before it was last looked at
        assert series.points == points
        assert series.rate() == (pytest.approx((end[1] - begin[1]) / span) if span else 0)


def test_sums_of_figures_are_those_of_a_report():
    """Nothing but what happened when is lost; what an exchange has brought was read before."""
    cells = [figures(10), figures(30, "b → a"), replace(figures(8), spilled_bytes=5)]
    both, whole = RunReport({"a": [added(cells)]}), RunReport({"a": cells})
    assert both.modules() == whole.modules()
    assert both.orders() == whole.orders()
    assert replace(both.totals, cells=3, slowest_seconds=1.0) == whole.totals
    assert telling.rows_in(replace(figures(120), rows_exchanged=100)) == 20


@pytest.fixture
def page(board):
    with Live(board=board) as made:
        yield made


def refused(url: str, **headers: str) -> int:
    answer = httpx.get(url, headers=headers)
    assert TITLE not in answer.text
    return answer.status_code


def test_only_who_has_the_address_may_look(page, board):
    """Neither without the token, nor by another name of this machine, nor from another page."""
    board.begun("collect", ["run"])
    root, token = page.url.rstrip("/").rsplit("/", 1)
    host = httpx.URL(root).netloc.decode()
    for name in ("", "parts.json", "figures.json"):
        assert httpx.get(page.url + name).status_code == 200
        for wrong in ("", "x", token[:-1], token + "x", token.swapcase(), "é"):
            assert refused(f"{root}/{wrong}/{name}") == 404
        for headers in (
            {"host": "evil.example"},
            {"host": "evil.example:80"},
            {"origin": "http://evil.example"},
            {"origin": "null"},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
        ):
            assert refused(page.url + name, **headers) == 403, headers
        own = {"origin": f"http://{host}", "sec-fetch-site": "same-origin"}
        assert httpx.get(page.url + name, headers=own).status_code == 200
    followed = {"sec-fetch-site": "cross-site", "sec-fetch-dest": "document"}  # a link in a notebook
    assert httpx.get(page.url, headers=followed).status_code == 200
    assert refused(page.url + "../parts.json") == 404
    assert httpx.post(page.url).status_code == 501
    answer = httpx.get(page.url)
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
    assert answer.headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in answer.headers


def test_figures_of_a_running_query(page, board, clock):
    """As JSON, and as parts of which only those that have changed are sent."""
    board.begun("collect", ["run"])
    for rows in (100, 200, 400):
        clock.advance(1.0)
        tell(board, "mask 0", rows)
    found = httpx.get(page.url + "figures.json").json()
    assert found == page.figures()
    (query,) = found["queries"]
    assert {"title": TITLE, "seconds": 3.0, "rows_in": 400, "rate": 150.0}.items() <= query.items()
    select = query["modules"][1]
    assert (select["name"], select["selectivity"], select["evaluated"]) == ("Predicate(a)", 0.5, 400)
    assert query["orders"][0]["changes"][-1]["order"] == "a → b"
    assert (query["lookups"][0]["requests"], query["lookups"][0]["in_flight"]) == (5, 2)
    assert (query["calls"][0]["name"], query["calls"][0]["requests"]) == ("model", 3)

    (part,) = httpx.get(page.url + "parts.json").json()["parts"]
    assert all(text in part["html"] for text in ("Predicate(a)", "2 under way", "collect of SELECT", "a → b"))
    assert "<script>" not in part["html"]
    again = httpx.get(page.url + "parts.json", params={"known": f"query-1.{part['stamp']}"}).json()
    assert again["parts"] == [part | {"html": None}]


def test_a_failed_query_stays(page, board, clock):
    """With the error's first line, below those that run; others are not held up by what cannot be had."""
    failed = board.begun("count", ["run"])
    tell(board, "mask 0", 10)
    board.begun("collect", ["run"])
    clock.advance(1.0)
    board.end(failed, ValueError("\n  <b>no</b> answer\nat all"))
    found = httpx.get(page.url + "parts.json").json()
    assert found["said"] == "1 running, 1 failed"
    (running, part) = found["parts"]
    assert (running["id"], running["state"]) == ("query-2", "running")
    assert (part["id"], part["state"]) == ("query-1", "failed")
    assert "ValueError: &lt;b&gt;no&lt;/b&gt; answer</p>" in part["html"]
    (running, over) = page.figures()["queries"]
    assert (running["error"], over["error"]) == ("", "ValueError: <b>no</b> answer")
    assert (over["rows_in"], running["tasks_planned"], over["tasks_planned"]) == (10, None, None)
    board.end(board.begun("count", ["run"]), RuntimeError("x" * 10_000))
    assert max(len(each["error"]) for each in page.figures()["queries"]) == 400


def test_streams_are_shown(page, board, clock):
    """By their micro-batches, bounded; what one failed with is told."""
    for number in range(300):
        clock.advance(1.0)
        board.batch(batch(number, "o → p" if number < 250 else "o → s"))
    (stream,) = page.figures()["streams"]
    wanted = {"title": "joined", "state": "running", "rows_in": 3000, "late": 300, "rows_out": 1200}
    assert (wanted | {"seconds": 299.0}).items() <= stream.items()
    assert len(stream["batches"]) == 120
    assert stream["rate"] == pytest.approx(1200 / 119.5)
    board.stream_ended("run", "java.lang.Exception: gone\n at x")
    board.stream_ended("of others", None)
    (part,) = httpx.get(page.url + "parts.json").json()["parts"]
    assert part["state"] == "failed"
    for text in ("java.lang.Exception: gone</p>", "Rows of each micro-batch", "stream joined"):
        assert text in part["html"]


def test_ports_and_ends(page):
    """A port that is taken or none is refused; a closed page answers nobody."""
    port = httpx.URL(page.url).port
    assert port is not None
    with pytest.raises(SetupError, match=f"port {port} .*expected a free port"):
        PageServer({}, port)
    for wrong in (-1, 1 << 16, True, "80"):
        with pytest.raises(InputError, match=r"port is .*: expected 0 for a free one"):
            millrace.monitor.live(wrong)  # type: ignore[arg-type]
    first = millrace.monitor.live()
    assert millrace.monitor.live() is first
    assert first.url in first._repr_html_()
    first.close()
    first.close()
    assert repr(first) == "<Live: closed>"
    with pytest.raises(httpx.ConnectError):
        httpx.get(first.url)


def told(board, **wanted):
    """Wait until the board shows of its query what is wanted."""

    def found():
        (view,) = board.queries()
        return view if all(getattr(view, name) == value for name, value in wanted.items()) else None

    return wait_for(found, 10)


@pytest.fixture
def server(board, monkeypatch):
    monkeypatch.setattr(telling, "_unreached", {})
    monkeypatch.setattr(DriverServer, "board", board)
    board.begun("count", ["run"])
    made = DriverServer()
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

    with Telling(server.address_of("run"), "run", "cell 0", read, every=0.01):
        told(board, rows_in=10)
        now[0] = figures(30)
    view = told(board, rows_in=30, rows_out=15, tasks=1, over=1)
    assert view.report.totals.output_tuples == 15


def test_a_short_task_tells_nobody(server, board):
    """It makes no connection, and its end waits for nothing."""
    with Telling(server.address_of("run"), "run", "cell 0", lambda: figures(1), every=60.0):
        pass
    with Telling(None, "run", "cell 0", lambda: figures(1), every=0.01):
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
        task = Telling(address, "run", "cell 0", read, every=0.01)
        with task:
            if task._thread is not None:
                task._thread.join(10)
    assert opened == []
    assert board.queries()[0].tasks == 0
    telling._unreached.clear()
    server.close()
    with Telling(server.address_of("run"), "run", "cell 0", read, every=0.01) as task:
        assert task._thread is not None
        task._thread.join(10)
    assert telling._unreached
    assert opened == []
