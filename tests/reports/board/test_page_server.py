"""The live page is for who has its address alone, and what is on it is what the board was told."""

from __future__ import annotations

import re

import httpx
import pytest

from millrace.api.live import Live
from millrace.errors import InputError, SetupError
from millrace.limits.progress import LookupProgress
from millrace.reports.board.board import Board
from millrace.reports.board.page_server import PageServer
from millrace.reports.micro_batch import MicroBatch, StreamFigures
from millrace.reports.run_report import RunReport
from tests.reports.board.test_board import clock, packed

__all__ = ["clock"]

TITLE = "SELECT '<script>alert(1)</script>'"


def batch(number: int, order: str = "o → p") -> MicroBatch:
    """A micro-batch in which 10 rows came and 4 results were found."""
    stream = StreamFigures("o", 10, 1, 0, 10 * number, 800, 80, 70, 1, None)
    figures = (0.5, 10, 1, 4, 0, 10, 800, 0, 0, 0.1)
    return MicroBatch("id", "run", "joined", number, "", *figures, None, (stream,), ((order, 10),))


@pytest.fixture
def board(clock):
    made = Board(clock)
    lookup = LookupProgress("price", 10, 4, 0, 0, 2, 5, 0, 1.0)
    made.known(TITLE, {"run": "filter"}, lambda: RunReport(lookups=(lookup,)))
    return made


@pytest.fixture
def page(board):
    with Live(board=board) as made:
        yield made


def tell(board: Board, rows: int) -> None:
    board.told("run", "mask 0", rows, rows // 2, packed(rows))


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
        tell(board, rows)
    found = httpx.get(page.url + "figures.json").json()
    assert found == page.figures()
    (query,) = found["queries"]
    wanted = {"title": TITLE, "action": "collect", "state": "running", "error": "", "seconds": 3.0}
    wanted |= {"rows_in": 400, "rate": 150.0}
    assert wanted.items() <= query.items()
    (scan, select) = query["modules"]
    assert (scan["name"], scan["selectivity"], scan["evaluated"]) == ("Scan(rows)", 1.0, 0)
    assert (select["name"], select["selectivity"], select["evaluated"]) == ("Predicate(a)", 0.5, 400)
    assert query["orders"][0]["changes"][-1]["order"] == "a → b"
    assert (query["lookups"][0]["requests"], query["lookups"][0]["in_flight"]) == (5, 2)

    parts = httpx.get(page.url + "parts.json").json()
    assert parts["said"] == "1 running"
    (part,) = parts["parts"]
    assert (part["id"], part["state"]) == ("query-1", "running")
    for text in ("Predicate(a)", "Rows over time", "2 under way", "collect of SELECT", "a → b"):
        assert text in part["html"]
    assert "<script>" not in part["html"]
    again = httpx.get(page.url + "parts.json", params={"known": f"query-1.{part['stamp']}"}).json()
    assert again["parts"] == [part | {"html": None}]


def test_a_failed_query_stays(page, board, clock):
    """With the error's first line, below those that run; others are not held up by what cannot be had."""
    failed = board.begun("count", ["run"])
    tell(board, 10)
    board.begun("collect", ["run"])
    clock.advance(1.0)
    board.ended(failed, ValueError("\n  <b>no</b> answer\nat all"))
    found = httpx.get(page.url + "parts.json").json()
    assert found["said"] == "1 running, 1 failed"
    (running, part) = found["parts"]
    assert (running["id"], running["state"]) == ("query-2", "running")
    assert (part["id"], part["state"]) == ("query-1", "failed")
    assert "ValueError: &lt;b&gt;no&lt;/b&gt; answer</p>" in part["html"]
    (running, over) = page.figures()["queries"]
    assert (running["error"], over["error"]) == ("", "ValueError: <b>no</b> answer")
    assert (over["rows_in"], running["tasks_planned"], over["tasks_planned"]) == (10, None, None)
    board.ended(board.begun("count", ["run"]), RuntimeError("x" * 10_000))
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
    for text in ("java.lang.Exception: gone</p>", "Rows of each micro-batch", "o → s 42 %", "stream joined"):
        assert text in part["html"]


def test_the_page_asks_nobody_else(page):
    """It has a script and nothing that comes from elsewhere; its parts have names that stay."""
    html = httpx.get(page.url).text
    assert re.findall(r'(?:src|href)="([^"]*)"', html) == [
        "data:,", "live.js", "#queries", "figures.json", "figures.json",
    ]  # fmt: skip
    assert set(re.findall(r' id="([^"]*)"', html)) == {"said", "pause", "connection", "queries"}
    script = httpx.get(page.url + "live.js")
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    assert "http" not in script.text


def test_ports_and_ends(page):
    """A port that is taken or none is refused; a closed page answers nobody."""
    import millrace

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
