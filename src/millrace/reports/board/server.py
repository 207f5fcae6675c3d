"""Where tasks tell their figures: a server in the process that planned the query.

A task says :class:`~millrace.limits.messages.Figures` now and then, and hears nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from millrace.limits.messages import Figures, Hello, JoinBoard, Message
from millrace.limits.server import Server
from millrace.limits.session import Session

if TYPE_CHECKING:
    from millrace.reports.board.board import Board

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

    def _scope(self, hello: Hello) -> str:
        return hello.run if isinstance(hello, JoinBoard) else ""

    def _enter(self, hello: Hello) -> tuple[str, Session]:
        if not isinstance(hello, JoinBoard):
            raise ValueError("it has no figures to tell")  # noqa: TRY004  # it came in a message
        if self.board is None or self._open >= _MOST_CONNECTIONS:
            raise ValueError("nobody looks, or too many tasks tell already")
        self._open += 1
        return hello.run, _Told(self.board, hello.run, hello.task, self._gone)

    def _gone(self) -> None:
        self._open -= 1


class _Told(Session):
    """One task."""

    def __init__(self, board: Board, run: str, task: str, gone: Callable[[], None]) -> None:
        super().__init__()
        self._board, self._run, self._task, self._gone = board, run, task, gone

    def handle(self, client: int, message: Message) -> None:
        """Take figures; ValueError for any other message."""
        if not isinstance(message, Figures):
            raise ValueError("no figures of a task")  # noqa: TRY004  # it came in a message
        rows = message.rows_in, message.rows_out
        self._board.told(self._run, self._task, *rows, message.packed, over=message.over)

    def leave(self, client: int) -> None:
        """Take note that the task tells nothing more."""
        super().leave(client)
        self._board.left(self._run, self._task)
        self._gone()
