"""``millrace.monitor.live``: a page on this machine that shows what runs, and what ran last."""

from __future__ import annotations

import html
import json
import threading
import weakref
import webbrowser
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from typing import Any

from pyspark.sql import SparkSession

from millrace.errors import InputError, require
from millrace.reports.board.board import Board
from millrace.reports.board.page_server import PageServer
from millrace.reports.board.query import RunningQuery, RunningStream
from millrace.reports.micro_batch import PREFIX
from millrace.reports.pages import live as drawn
from millrace.reports.pages.live import Part
from millrace.reports.run_report import RunReport
from millrace.spark.frames import Carried, End, Planned, unwatch, watch, watch_planning
from millrace.spark.reports import ended_tasks, live_board, set_live_board
from millrace.spark.session import keep
from millrace.streams.reporting import StreamWatch

EVERY = 1.0
"""Seconds between two looks of the page."""

SCHEMA = 1
"""Of :meth:`Live.figures`; it grows when a name in it gets another meaning."""

_live: Live | None = None
_lock = threading.Lock()


class Live(AbstractContextManager["Live"]):
    """A live page; see :func:`millrace.monitor.live`. It is a context manager, which closes it at its end.

    Args:
        port: TCP port on this machine; 0 takes a free one.
        board: What it shows; by default what is reported from now on.

    Attributes:
        url: Its address. Whoever has it may look.
        closed: Whether it has been closed.

    Raises:
        SetupError: The port is taken.
        MissingExtra: The libraries that draw it are not installed.
    """

    def __init__(self, port: int = 0, board: Board | None = None) -> None:
        require("report", "a live page", "jinja2")
        self._board = board or Board(finished=ended_tasks)
        self._watches: weakref.WeakKeyDictionary[SparkSession, StreamWatch] = weakref.WeakKeyDictionary()
        self._attaching = threading.Lock()
        self._drawn: dict[int, Part] = {}
        self.closed = False
        self._server = PageServer(
            {
                "": ("text/html", lambda _: drawn.shell(EVERY)),
                "live.js": ("text/javascript", lambda _: drawn.script()),
                "parts.json": ("application/json", self._parts),
                "figures.json": ("application/json", lambda _: _json(self.figures())),
            },
            port,
        )
        self.url = self._server.url
        set_live_board(self._board)  # and the one before nothing more
        watch_planning(self._planned)
        watch(self._on_action)

    def figures(self) -> dict[str, Any]:
        """Return what is shown as dictionaries, lists, strings and numbers (docs/guides/reports.md)."""
        whole = {
            "schema": SCHEMA,
            "queries": [_query(each) for each in self._board.queries()],
            "streams": [_stream(each) for each in self._board.streams()],
        }
        made: dict[str, Any] = json.loads(_json(whole))
        return made

    def show(self) -> bool:
        """Open it in the browser; returns whether there is one."""
        return webbrowser.open(self.url)

    def close(self) -> None:
        """Serve it no longer; once is enough."""
        global _live
        with _lock:
            if _live is self:
                _live = None
        self.closed = True
        unwatch(self._on_action)
        if self._is_current():
            watch_planning(None)
            set_live_board(None)
        self._server.close()
        for each in list(self._watches.values()):
            with suppress(Exception):  # its session may have been stopped
                each.stop()
        self._watches.clear()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Live: {'closed' if self.closed else self.url}>"

    def _repr_html_(self) -> str:
        """Return what notebooks show: a link."""
        if self.closed:
            return html.escape(repr(self))
        return f'<a href="{self.url}" target="_blank" rel="noreferrer">Millrace live</a>'

    def _is_current(self) -> bool:
        return live_board()[0] is self._board

    def _planned(self, planned: Planned) -> None:
        """Show a query, and listen to its session's streams, once there are some."""
        reference, title, runs = planned
        query = reference()

        def status() -> RunReport | None:
            handle = reference()
            return None if handle is None else handle.status()

        self._board.known(title, runs, status, {} if query is None else query.tasks)
        if query is None:
            return
        spark = query.df.sparkSession
        with self._attaching:
            if spark not in self._watches and any(run.startswith(PREFIX) for run in runs):
                self._watches[spark] = StreamWatch(spark, self._board.batch, self._board.stream_ended)

    def _on_action(self, name: str, carried: Carried) -> End | None:
        query = self._board.begun(name, sorted(carried.runs)) if self._is_current() else None
        if query is None:
            return None
        return lambda error: self._board.end(query, None if isinstance(error, GeneratorExit) else error)

    def _parts(self, arguments: Mapping[str, str]) -> str:
        """Return what is drawn, but for the parts that the page has already."""
        drawn_ids = set(arguments.get("known", "").split(","))
        parts = [self._part(view, drawn.query_part) for view in self._board.queries()]
        streams = self._board.streams()
        parts += [self._part(view, drawn.stream_part) for view in streams]
        parts.sort(key=lambda part: part.state != "running")
        return _json(
            {
                "said": drawn.said(parts),
                "parts": [
                    {
                        "id": part.id,
                        "state": part.state,
                        "stamp": part.stamp,
                        "html": None if f"{part.id}.{part.stamp}" in drawn_ids else part.html,
                    }
                    for part in parts
                ],
            }
        )

    def _part(self, view: Any, draw: Callable[[Any], Part]) -> Part:
        """Draw a query, what has ended once."""
        if view.state == "running":
            return draw(view)
        return self._drawn.get(view.number) or keep(self._drawn, view.number, draw(view))


def live(port: int = 0, *, open_browser: bool = False) -> Live:
    """Show a page of the queries and streams of this process that run, and of those that ran last.

    >>> page = millrace.monitor.live(open_browser=True)  # doctest: +SKIP
    >>> page.url  # doctest: +SKIP
    'http://127.0.0.1:40123/aZ…/'

    It is served on this machine alone, to whoever has its address, until ``close()`` of what is returned or
    the end of the process; while there is one, further calls return it. Tasks of queries that are planned
    from then on tell their figures while they work; of those that were planned before, figures come when
    tasks end.

    Args:
        port: TCP port on 127.0.0.1; 0 takes a free one.
        open_browser: Whether to open it in the browser.

    Raises:
        InputError: ``port`` is none.
        SetupError: The port is taken.
    """
    global _live
    if type(port) is not int or not 0 <= port < 1 << 16:
        raise InputError(f"port is {port!r}: expected 0 for a free one, or a number up to 65535")
    with _lock:
        page = _live
        if page is None:
            page = _live = Live(port)
    if open_browser:
        page.show()
    return page


def _json(found: object) -> str:
    return json.dumps(found, ensure_ascii=False, allow_nan=False, default=vars)


_SHARED = ("number", "title", "state", "error", "seconds", "rows_in", "rows_out", "rate")


def _listed(figures: Iterable[tuple[str, Any]]) -> list[dict[str, Any]]:
    return [asdict(each) | {"block": block} for block, each in figures]


def _query(view: RunningQuery) -> dict[str, Any]:
    report = view.report
    return {name: getattr(view, name) for name in (*_SHARED, "action", "tasks", "points")} | {
        "tasks_over": view.over,
        "tasks_planned": view.planned,
        "orders": _listed((b, each) for b, cell in report.cells() for each in cell.traces if each.changes),
        "modules": [
            one | {"selectivity": one["tuples_out"] / one["tuples_in"] if one["tuples_in"] else None}
            for one in _listed(report.modules())
        ],
        "state_held": _listed(report.state()),
        "lookups": [asdict(entry) for entry in report.lookups],
        "calls": [asdict(entry) for entry in report.calls],
        "budgets": [vars(entry) for entry in report.budgets],
    }


def _stream(view: RunningStream) -> dict[str, Any]:
    figures = {name: getattr(view, name) for name in (*_SHARED, "late")}
    return figures | {"batches": [batch.to_dict() for batch in view.batches]}
