"""Where tasks tell their figures: a server in the process that planned the query.

======================================================  ==================================
task                                                    server
======================================================  ==================================
``live`` = run, ``task`` = name, ``token``              ``welcome``, or ``error`` = why not
``in``, ``out`` = rows, ``over``; figures as zlib       (nothing)
======================================================  ==================================
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from millrace.limits import codec
from millrace.limits.server import Server
from millrace.limits.session import Session

if TYPE_CHECKING:
    from millrace.reports.board.board import Board

_LARGEST = 1 << 20
"""Bytes of one telling, compressed."""

_MOST_CONNECTIONS = 4096


class LiveServer(Server):
    """Takes figures of any number of tasks until it is closed or the process ends.

    See :class:`~millrace.limits.shared.Shared` for where it listens.

    Attributes:
        board: What is told; of all servers of this process. Without one nobody may tell.

    Raises:
        ExecutionError: It cannot listen.
    """

    purpose: ClassVar[str] = "live figures"
    board: ClassVar[Board | None] = None
    _open = 0

    def _scope(self, hello: codec.Message) -> str:
        return str(hello.get("live"))

    def _enter(self, hello: codec.Message) -> tuple[str, Session]:
        match hello:
            case {"live": str(run), "task": str(task)} if len(task) < 1000:
                if self.board is None or self._open >= _MOST_CONNECTIONS:
                    raise ValueError("nobody looks, or too many tasks tell already")
                self._open += 1
                return run, _Told(self.board, run, task, self._gone)
            case _:
                raise ValueError("it did not introduce itself")

    def _gone(self) -> None:
        self._open -= 1


class _Told(Session):
    """One task."""

    def __init__(self, board: Board, run: str, task: str, gone: Callable[[], None]) -> None:
        super().__init__()
        self._board, self._run, self._task, self._gone = board, run, task, gone

    def handle(self, client: int, message: codec.Message) -> None:
        """Take figures; ValueError if a message says nothing that a task of ours would say."""
        match message:
            case {"in": int(rows_in), "out": int(rows_out), "over": bool(over), "attachment": bytes(packed)}:
                if len(packed) > _LARGEST or not (0 <= rows_in < codec.MOST and 0 <= rows_out < codec.MOST):
                    raise ValueError("figures of no task of ours")
                self._board.told(self._run, self._task, rows_in, rows_out, packed, over=over)
            case _:
                raise ValueError(f"no such message: {list(message)[:3]}")

    def leave(self, client: int) -> None:
        """Take note that the task tells nothing more."""
        super().leave(client)
        self._board.left(self._run, self._task)
        self._gone()
