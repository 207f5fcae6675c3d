"""Where tasks send their results: a server in the process that planned the query."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import ClassVar

import pyarrow as pa

from millrace.errors import ExecutionError
from millrace.limits import codec
from millrace.limits.server import Server
from millrace.limits.session import Session
from millrace.spark.results.session import MOST_WAITING, ResultSession
from millrace.spark.results.stream import Stream


class ResultsServer(Server):
    """Takes the results of any number of jobs until it is closed or the process ends.

    It is not the coordinator, so that rows on their way do not hold up whoever waits for a turn.

    Args:
        host: What the clients shall connect to. A loopback address keeps it to this machine.
        port: TCP port to listen on; 0 takes a free one.
        bind: Address to listen on; None for the host.

    Attributes:
        address: Where the clients find it.

    Raises:
        ExecutionError: It cannot listen.
    """

    purpose: ClassVar[str] = "results"

    def __init__(self, host: str = "127.0.0.1", port: int = 0, bind: str | None = None) -> None:
        self._streams: dict[str, ResultSession] = {}
        super().__init__(host, port, bind)

    def open(self, schema: pa.Schema, most_waiting: int = MOST_WAITING, idle: float | None = None) -> Stream:
        """Return a new stream.

        Args:
            schema: Of its rows.
            most_waiting: Bytes of batches that wait for the consumer before the tasks have to.
            idle: Seconds for which tasks wait for a consumer that takes nothing; None for ever.

        Raises:
            ExecutionError: The server has been closed.
        """
        name = secrets.token_hex(8)

        def make() -> ResultSession:
            session = self._streams[name] = ResultSession(schema, self._loop, most_waiting, idle)
            return session

        def within(action: Callable[[], None]) -> None:
            def act() -> None:
                action()
                if session.waiting.ended:
                    self._streams.pop(name, None)

            if self.running:
                self._within(act)

        session = self._within(make)
        return Stream(name, self.address_of(name), schema, session, within)

    def _scope(self, hello: codec.Message) -> str:
        return str(hello.get("results"))

    def _enter(self, hello: codec.Message) -> tuple[str, Session]:
        match hello:
            case {"results": str(name)}:
                session = self._streams.get(name)
            case _:
                raise ValueError("it did not introduce itself")
        if session is None or session.waiting.ended:
            raise ValueError(f"stream {name!r} has ended, or the reader has closed it")
        return name, session

    async def _end(self) -> None:
        for session in self._streams.values():
            session.end(ExecutionError("the server of results has been closed"))
