"""A coordinator elsewhere, by ``millrace coordinator``, as a planning process that joins it sees it."""

from __future__ import annotations

import os
import socket
import ssl
import time
from contextlib import suppress
from itertools import count
from typing import Any, ClassVar, Self
from uuid import uuid4

from millrace.errors import ExecutionError, InputError, MillraceError
from millrace.limits import codec, process
from millrace.limits.clock import Clock, WallClock
from millrace.limits.connection import CONNECT_SECONDS
from millrace.limits.drivers import DRIVERS, SECRET, decode_result, encode_call
from millrace.limits.messages import JoinDriver, Lost, MethodResult
from millrace.limits.process import Call, RemoteCoordinator
from millrace.limits.registration import Registration
from millrace.limits.tls import address_of, dial


class JoinedCoordinator(RemoteCoordinator):
    """A connection to it; see :class:`~millrace.limits.shared.Shared`, of which it takes host and port.

    Tasks reach it by the same address. The first call connects. A connection that breaks is made again, by a
    call or within a second, with all runs registered anew: the coordinator may have been started again. Runs
    that were let go meanwhile are released then. It waits for that, see
    :mod:`millrace.limits.coordinator`. ``clock`` tells how long it was not reached.

    Raises:
        InputError: There is no secret in the environment, or a short one.
    """

    purpose: ClassVar[str] = "limits"
    where: ClassVar[str] = "the coordinator"
    look_seconds: ClassVar[float | None] = 1.0

    def __init__(
        self, host: str = "127.0.0.1", port: int = 0, bind: str | None = None, *, clock: Clock | None = None
    ) -> None:
        self.name = f"the coordinator at {host}:{port}"
        secret = os.environ.get(SECRET, "")
        if not secret:
            raise InputError(f"{self.name} lets nobody in without its secret: set {SECRET} to what it told")
        self.address = address_of(host, port, secret)
        self._clock = clock or WallClock()
        self._driver = uuid4().hex
        self._connection: ssl.SSLSocket | None = None
        self._ahead = 0.0
        self._runs: dict[str, tuple[Registration, ...]] = {}  # that queries refer to
        self._let_go: set[str] = set()  # that none refers to, which it has not heard yet
        self._unreached: tuple[float, MillraceError] | None = None  # until when nobody tries again, and why
        self._numbers = count()
        super().__init__()

    @classmethod
    def started(cls, host: str = "127.0.0.1", port: int = 0, bind: str | None = None) -> Self:
        """Return this process's, connected; see :meth:`Shared.started`.

        Raises:
            ExecutionError: It is not reached.
            InputError: There is no secret in the environment, or it is not the one of the coordinator.
        """
        found = super().started(host, port, bind)
        try:
            found.spent("")  # of no run: only to see whether it is there; others need not wait for that
        except InputError:
            found.close()  # the next one has the secret that is in the environment then
            raise
        return found

    def close(self) -> None:
        """Leave, whatever is under way; after a while what this process has registered is forgotten there."""
        try:
            self._put(Call("close", (), None))
        except ExecutionError:
            return  # it is closed, or another process's: this one is a fork
        connection = self._connection
        if connection is not None:
            with suppress(OSError):  # the thread may be faster
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def _look(self) -> None:
        """Connect again where the connection has broken: tasks need what is registered."""
        has_to_say = bool(self._runs or self._let_go)
        if has_to_say and (self._connection is None or codec.has_spoken(self._connection)):
            with suppress(Exception):  # the next call says it
                self._exchange(Call("spent", ("",), None))

    def _exchange(self, call: Call) -> Any:
        if call.method == "close":
            self._cut()
            return None
        if call.method == "release":
            self._runs.pop(call.arguments[0], None)
        if call.method in ("register", "release"):  # one whose registration is not answered is let go too
            self._let_go.add(call.arguments[0])
        if self._connection is not None:
            try:
                return self._call_there(call)
            except ExecutionError as error:
                is_answer = self._connection is not None
                if is_answer or self._closed or isinstance(error.__cause__, TimeoutError):
                    raise
        self._connect()
        return self._call_there(call)

    def _connect(self) -> None:
        """Connect, register what this process has, and release what it has let go meanwhile.

        What goes wrong holds for as long as it took: calls do not queue up behind a network that swallows it.
        """
        began = self._clock.now()
        if self._unreached is not None and began < self._unreached[0]:
            raise self._unreached[1]
        try:
            self._connection = self._dial()
        except MillraceError as error:
            now = self._clock.now()
            self._unreached = now + (now - began), error
            raise
        for run, lookups in list(self._runs.items()):
            with suppress(MillraceError, ValueError):  # its tasks hear that it is not known
                self._call_there(Call("register", (run, lookups), None))
        for run in list(self._let_go):  # one that is not known any more is no error
            with suppress(MillraceError):
                self._call_there(Call("release", (run,), None))

    def _dial(self) -> ssl.SSLSocket:
        address = self.address.of(DRIVERS)
        hello = JoinDriver(address.token, self._driver)
        try:
            connection, welcome = dial(address, hello, "limits", CONNECT_SECONDS, may_stall=False)
        except ssl.SSLCertVerificationError as error:
            raise InputError(f"{self.name} has another secret than {SECRET} has here") from error
        except (OSError, EOFError, ValueError) as error:
            raise ExecutionError(
                f"{self.name} is not reached ({type(error).__name__}: {error}): does `millrace coordinator` "
                "run there, and does the network let this machine connect to it?"
            ) from error
        connection.settimeout(process.CALL_SECONDS)
        self._ahead = welcome.now - time.monotonic()
        return connection

    def _call_there(self, call: Call) -> Any:
        """Return what a call returns, or raise what it raises; without a connection where that has ended."""
        if self._connection is None:
            raise ExecutionError(f"{self.name} is not reached")
        arguments = call.arguments
        if call.method == "stop":  # times by this machine's clock
            arguments = ({run: since + self._ahead for run, since in arguments[0].items()},)
        try:
            codec.send(self._connection, encode_call(next(self._numbers), call.method, arguments))
            answer = codec.receive(self._connection)
        except (OSError, EOFError, ValueError) as error:
            self._cut()
            raise ExecutionError(
                f"the connection to {self.name} was lost ({type(error).__name__}), and perhaps with it "
                "limits and answers of the jobs that used it: run them again"
            ) from error
        if not isinstance(answer, MethodResult):
            self._cut()
            why = answer.why if isinstance(answer, Lost) else f"it says {type(answer).__name__}"
            raise ExecutionError(f"{self.name} has ended: {why}")
        result = decode_result(call.method, answer)
        if call.method in ("register", "release"):
            self._let_go.discard(arguments[0])
        if call.method == "register":
            self._runs[arguments[0]] = arguments[1]
        return result

    def _cut(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
