"""A coordinator elsewhere, by ``millrace coordinator``, as a planning process that joins it sees it."""

from __future__ import annotations

import os
import ssl
import time
from contextlib import suppress
from itertools import count
from typing import Any, ClassVar, Self

from millrace.errors import ExecutionError, InputError
from millrace.limits import codec
from millrace.limits.connection import CONNECT_SECONDS, refused
from millrace.limits.drivers import DRIVERS, SECRET, call_of, result_of
from millrace.limits.messages import JoinDriver, Lost, MethodResult, Welcome
from millrace.limits.process import Call, RemoteCoordinator
from millrace.limits.tls import address_of, dial


class JoinedCoordinator(RemoteCoordinator):
    """One connection to it; see :class:`~millrace.limits.shared.Shared`, of which it takes host and port.

    Tasks reach it by the same address. What this process has registered there is released when the
    connection ends.

    Raises:
        ExecutionError: It is not reached.
        InputError: There is no secret in the environment, or it is not the one of the coordinator.
    """

    purpose: ClassVar[str] = "limits"
    where: ClassVar[str] = "the coordinator"

    def __init__(self, host: str = "127.0.0.1", port: int = 0, bind: str | None = None) -> None:
        self.name = f"the coordinator at {host}:{port}"
        secret = os.environ.get(SECRET, "")
        if not secret:
            raise InputError(f"{self.name} lets nobody in without its secret: set {SECRET} to what it told")
        self.address = address_of(host, port, secret)
        address = self.address.of(DRIVERS)
        try:
            self._connection, welcome = dial(address, JoinDriver(address.token), CONNECT_SECONDS)
        except ssl.SSLCertVerificationError as error:
            raise InputError(f"{self.name} has another secret than {SECRET} has here") from error
        except (OSError, EOFError, ValueError) as error:
            raise ExecutionError(
                f"{self.name} is not reached ({type(error).__name__}: {error}): does `millrace coordinator` "
                "run there, and does the network let this machine connect to it?"
            ) from error
        if not isinstance(welcome, Welcome):
            self._connection.close()
            raise refused(self.address, "limits", welcome)
        self._connection.settimeout(None)
        self._ahead = welcome.now - time.monotonic()
        self._numbers = count()
        super().__init__()

    @classmethod
    def started(cls, host: str = "127.0.0.1", port: int = 0, bind: str | None = None) -> Self:
        """Return this process's connection, or a new one if it has ended; see :meth:`Shared.started`."""
        found = super().started(host, port, bind)
        try:
            found.spent("")  # of no run: only to see whether it is there
        except ExecutionError:
            found.close()
            found = super().started(host, port, bind)
        return found

    @property
    def running(self) -> bool:
        return super().running and self._connection.fileno() >= 0

    def close(self) -> None:
        """Leave, so that the runs of this process are released there; does not wait."""
        with suppress(ExecutionError):
            self._put(Call("close", (), None))

    def _exchanged(self, call: Call) -> Any:
        if call.method == "close":
            return self._connection.close()
        arguments = call.arguments
        if call.method == "stop":  # times by this machine's clock
            arguments = ({run: since + self._ahead for run, since in arguments[0].items()},)
        try:
            codec.send(self._connection, call_of(next(self._numbers), call.method, arguments))
            answer = codec.receive(self._connection)
        except (OSError, EOFError, ValueError) as error:
            self._connection.close()
            raise ExecutionError(
                f"the connection to {self.name} was lost ({type(error).__name__}), and perhaps with it "
                "limits and answers of the jobs that used it: run them again"
            ) from error
        if isinstance(answer, MethodResult):
            return result_of(call.method, answer)
        self._connection.close()
        why = answer.why if isinstance(answer, Lost) else f"it says {type(answer).__name__}"
        raise ExecutionError(f"{self.name} has ended: {why}")
