"""What planning and actions tell of queries while somebody looks at them; without that, nothing is done."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from millrace.errors import MillraceError
from millrace.options import Options
from millrace.spark import actions
from millrace.spark.coordinating import host_of

if TYPE_CHECKING:
    from millrace.limits.registration import Address
    from millrace.reports.board.board import Board
    from millrace.reports.run_report import RunReport

Attach = Callable[[SparkSession, Mapping[str, str]], None]
"""Takes the session of a query, and its runs."""

_board: Board | None = None
_attach: Attach | None = None
_latest: deque[tuple[weakref.ref[Any], str, Mapping[str, str]]] = deque(maxlen=64)
_looks = 0


def look(board: Board, attach: Attach) -> None:
    """Tell a board of queries from now on, also of those that are planned already.

    Args:
        board: The board; the one before is told nothing more.
        attach: Called with the session of each query.
    """
    global _board, _attach, _looks
    from millrace.reports.board.server import LiveServer

    LiveServer.board = board
    _board, _attach = board, attach
    _looks += 1
    for held, title, runs in list(_latest):
        _tell(board, attach, held, runs, title)
    actions.watch(_begun)


def look_away(board: Board) -> None:
    """Tell a board nothing more."""
    global _board, _attach
    if _board is board:
        from millrace.reports.board.server import LiveServer

        LiveServer.board = None
        _board = _attach = None
        actions.unwatch(_begun)


def known(handle: Any, runs: Mapping[str, str], title: str) -> None:
    """Note a query that was planned."""
    if runs:
        held = weakref.ref(handle)
        _latest.append((held, title, runs))
        if _board is not None and _attach is not None:
            _tell(_board, _attach, held, runs, title)


def address_of(spark: SparkSession, run: str, options: Options) -> Address | None:
    """Return where tasks of a run tell their figures; None where nobody looks, or cannot be told.

    That tasks do not reach it is found out by them, and harms nobody.
    """
    if _board is None:
        return None
    from millrace.reports.board.server import LiveServer

    try:
        port = options.limits_port + 2 if options.limits_port else 0  # coordinator and results have the first
        server = LiveServer.started(host_of(spark, options), port, options.limits_bind)
    except MillraceError:
        return None
    return server.address_of(run)


def looking() -> int:
    """Return whom tasks of queries tell that are planned now: a number, 0 for nobody."""
    return 0 if _board is None else _looks


def _tell(board: Board, attach: Attach, held: weakref.ref[Any], runs: Mapping[str, str], title: str) -> None:
    def beside() -> RunReport | None:
        there = held()
        return None if there is None else there.beside()

    handle = held()
    board.known(title, runs, beside, {} if handle is None else handle.tasks)
    if handle is not None:
        attach(handle.df.sparkSession, runs)


def _begun(name: str, carried: actions.Carried) -> actions.End | None:
    board = _board
    if board is None:
        return None
    query = board.begun(name, sorted(carried.runs))
    if query is None:
        return None
    return lambda error: board.ended(query, None if isinstance(error, GeneratorExit) else error)
