"""Coordinators in other processes, as a planning process sees them: in its child, or elsewhere.

Neither shares an interpreter with the user's code, whose work would hold up the permits of all tasks. A child
starts when the first query needs it, and ends with the planning process, also when that is killed: its
standard input then reads as closed. Both are told the same over a connection, see
:mod:`millrace.limits.drivers`: registrations with their secrets, and questions about progress.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from abc import abstractmethod
from asyncio import sslproto
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any, ClassVar, NamedTuple, Self
from uuid import uuid4

import msgspec

from millrace.errors import ExecutionError, InputError, MillraceError
from millrace.limits import codec
from millrace.limits.budget import Spent
from millrace.limits.clock import Clock, WallClock
from millrace.limits.connection import CONNECT_SECONDS
from millrace.limits.coordinator import Coordinator
from millrace.limits.drivers import DRIVERS, SECRET, decode_result, describe_failure, encode_call
from millrace.limits.event_loop import END_SECONDS, end_within
from millrace.limits.messages import JoinDriver, Lost, MethodResult
from millrace.limits.progress import FailedKey, LookupProgress
from millrace.limits.registration import Address, Registration
from millrace.limits.shared import Shared
from millrace.limits.tls import address_of, dial

CALL_SECONDS = 300.0
"""For any call; large caches are read from end to end before their first query."""

_EXIT_SECONDS = 10.0
"""Of a process that has nothing more to do."""

_BYTES_A_CONNECTION = 1 << 16

_BEGIN = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from millrace.limits.process import serve; serve()"
)
_LISTENS = b"millrace coordinator "
"""Before what the child says; others may write to its output before it begins."""

_OF_ALL = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # how this machine reaches itself


class Call(NamedTuple):
    """Of a method of the coordinator; without an ``answer`` where nobody waits."""

    method: str
    arguments: tuple[Any, ...]
    answer: Future[Any] | None = None


class RemoteCoordinator(Shared):
    """A :class:`Coordinator` in another process, with those of its methods that planning needs.

    One thread does calls, in their order. The first call connects. A connection that breaks is made again, by
    a call or a look, with all runs registered anew: a coordinator elsewhere may have been started again. Runs
    that were let go meanwhile are released then. It waits for that, see :mod:`millrace.limits.coordinator`.

    Attributes:
        where: In errors, beside its address.
        look_seconds: Without a call until the thread sees to it that it is connected.
        name: In errors.
    """

    purpose: ClassVar[str] = "limits"
    where: ClassVar[str]
    look_seconds: ClassVar[float] = 1.0
    name: str

    def __init__(self, clock: Clock | None = None) -> None:
        self._owner = os.getpid()
        self._clock = clock or WallClock()
        self._calls: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self._putting = threading.RLock()  # a finalizer may release a run while this thread has it
        self._closed = False
        self._driver = uuid4().hex
        self._connection: ssl.SSLSocket | None = None
        self._ahead = 0.0  # of this machine's clock
        self._runs: dict[str, tuple[Registration, ...]] = {}  # that queries refer to
        self._let_go: set[str] = set()  # that none refers to, which it has not heard yet
        self._unreached: tuple[float, MillraceError] | None = None  # until when nobody tries again, and why
        self._numbers = count()
        threading.Thread(target=self._speak, name="millrace coordinator", daemon=True).start()

    @property
    def running(self) -> bool:
        return self._owner == os.getpid() and not self._closed

    def register(self, run: str, lookups: Sequence[Registration]) -> None:
        """Register the lookups of a run; see :meth:`Coordinator.register`, with the errors that it raises."""
        self._call("register", run, tuple(lookups))

    def progress(self, run: str) -> list[LookupProgress]:
        """Return how far each lookup of a run is, over all its executions; empty for an unknown run."""
        found: list[LookupProgress] = self._call("progress", run)
        return found

    def spent(self, run: str) -> list[Spent]:
        """Return what a run's lookups and predicates have spent of their budgets."""
        found: list[Spent] = self._call("spent", run)
        return found

    def failed(self, run: str) -> list[FailedKey]:
        """Return the keys of a run that could not be looked up; see :meth:`Coordinator.failed`."""
        found: list[FailedKey] = self._call("failed", run)
        return found

    def release(self, run: str) -> None:
        """Take note that nothing refers to a run's query any more; does not wait, wherever it is called."""
        if self.running:
            with suppress(ExecutionError):
                self._put(Call("release", (run,)))

    @classmethod
    def stop(cls, runs: Mapping[str, float]) -> None:
        """Let tasks of runs ask nothing more, of whichever coordinator; does not wait.

        See :meth:`Coordinator.stop`.
        """
        for each in cls.all():
            with suppress(ExecutionError):
                each._put(Call("stop", (runs,)))  # noqa: SLF001  # of this class

    def close(self) -> None:
        """Leave, whatever is under way; after a while what this process has registered is forgotten there."""
        try:
            self._put(Call("close", ()))
        except ExecutionError:
            return  # it is closed, or another process's: this one is a fork
        connection = self._connection
        if connection is not None:
            with suppress(OSError):  # the thread may be faster
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

    @abstractmethod
    def _place(self) -> Address:
        """Return where this process reaches it."""

    @abstractmethod
    def _unreachable(self, error: Exception) -> MillraceError:
        """Return the error where it cannot be reached, which says what to do."""

    def _call(self, method: str, *arguments: Any) -> Any:
        answer: Future[Any] = Future()
        self._put(Call(method, arguments, answer))
        wait([answer], CALL_SECONDS)
        if not answer.done():
            raise ExecutionError(
                f"{self.name} has not answered {method!r} within {CALL_SECONDS:g} s: is the disk of a cache, "
                "or of the folder for temporary files, or the network to it, overloaded or away?"
            )
        return answer.result()

    def _put(self, call: Call) -> None:
        """Put a call in the queue; none is behind the one that closes."""
        closed = ExecutionError(f"{self.name} has been closed")
        if self._owner != os.getpid():  # a forked child, which the thread that speaks is not in
            raise closed
        with self._putting:
            if self._closed:
                raise closed
            self._closed = call.method == "close"
            self._calls.put(call)

    def _speak(self) -> None:
        while True:
            try:
                call = self._calls.get(timeout=self.look_seconds)
            except queue.Empty:
                self._look()
                continue
            if call.method == "close":
                return self._cut()
            answer = call.answer or Future()
            try:
                answer.set_result(self._exchange(call))
            except Exception as error:  # noqa: BLE001  # the caller's
                answer.set_exception(error)

    def _look(self) -> None:
        """Connect again where the connection has broken: tasks need what is registered."""
        has_to_say = bool(self._runs or self._let_go)
        if has_to_say and (self._connection is None or codec.has_spoken(self._connection)):
            with suppress(Exception):  # the next call says it
                self._exchange(Call("spent", ("",)))

    def _exchange(self, call: Call) -> Any:
        """Return what a method of the coordinator returns, or raise what it raises."""
        run = call.arguments[0]
        if call.method == "release":
            self._runs.pop(run, None)
        if call.method in ("register", "release"):  # one whose registration is not answered is let go too
            self._let_go.add(run)
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
        address = self._place().of(DRIVERS)
        hello = JoinDriver(address.token, self._driver)
        try:
            connection, welcome = dial(address, hello, self.purpose, CONNECT_SECONDS, may_stall=False)
        except (OSError, EOFError, ValueError, ExecutionError) as error:
            why = error if isinstance(error, ExecutionError) else self._unreachable(error)
            now = self._clock.now()
            self._unreached = now + (now - began), why
            raise why from error
        connection.settimeout(CALL_SECONDS)
        self._connection, self._ahead = connection, welcome.now - time.monotonic()
        for run, lookups in list(self._runs.items()):
            with suppress(MillraceError, ValueError):  # its tasks hear that it is not known
                self._call_there(Call("register", (run, lookups)))
        for run in list(self._let_go):  # one that is not known any more is no error
            with suppress(MillraceError):
                self._call_there(Call("release", (run,)))

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


class CoordinatorProcess(RemoteCoordinator):
    """A coordinator in a child process; see :class:`Shared`.

    Raises:
        ExecutionError: It cannot listen, or its process does not start.
    """

    where: ClassVar[str] = "this process"

    def __init__(self, host: str = "127.0.0.1", port: int = 0, bind: str | None = None) -> None:
        command = [sys.executable, "-c", _BEGIN, json.dumps(sys.path)]
        try:
            # A session of its own: Ctrl-C is for this process, which tells the other what to do.
            self._child = subprocess.Popen(  # noqa: S603  # ourselves
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
        except OSError as error:
            raise ExecutionError(f"cannot start a process for the limits of jobs ({error})") from error
        self.pid = self._child.pid
        self.name = f"the coordinator's process {self.pid}"
        super().__init__()
        try:
            self.address = self._call("start", host, port, bind)
        except BaseException:
            self._child.kill()
            self.close()
            raise
        atexit.register(self.close)

    @property
    def running(self) -> bool:
        return super().running and self._child.poll() is None

    def close(self) -> None:
        """End it, when all that was said is written; clients hear that it has ended."""
        if self._owner != os.getpid():
            return
        atexit.unregister(self.close)
        super().close()
        stdin = self._child.stdin
        assert stdin is not None
        if not stdin.closed:
            with suppress(OSError), stdin:
                stdin.write(b"\n")  # forks of this process keep it open
        try:
            self._child.wait(END_SECONDS + _EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()  # it had its time to write
            self._child.wait()

    def _connect(self) -> None:
        super()._connect()
        self._ahead = 0.0  # one clock, and how long a message takes is no difference

    def _exchange(self, call: Call) -> Any:
        return self._start(*call.arguments) if call.method == "start" else super()._exchange(call)

    def _start(self, host: str, port: int, bind: str | None) -> Address:
        """Let the child listen, and return where tasks reach it."""
        theirs, said = self._child.stdin, self._child.stdout
        assert theirs is not None and said is not None
        try:
            theirs.write(json.dumps([host, port, bind]).encode() + b"\n")
            theirs.flush()
            with said:
                listens = next(line for line in said if line.startswith(_LISTENS))
        except (OSError, StopIteration) as error:
            raise self._unreachable(error) from error
        answer = msgspec.json.decode(listens.removeprefix(_LISTENS), type=MethodResult)
        address: Address = decode_result("start", answer)
        here = bind or host
        self._here = replace(address, host=_OF_ALL.get(here, here))
        return address

    def _place(self) -> Address:
        return self._here

    def _unreachable(self, error: Exception) -> MillraceError:
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(1.0)
        code, why = self._child.returncode, f"({type(error).__name__}: {error})"
        if code is None:
            return ExecutionError(f"{self.name} is not reached: run the job again {why}")
        return ExecutionError(
            f"{self.name} has ended (exit code {code}), and with it limits and answers of the jobs that used "
            f"it: run them again {why}"
        )


class JoinedCoordinator(RemoteCoordinator):
    """A coordinator elsewhere, by ``millrace coordinator``; see :class:`Shared` for host and port.

    Tasks reach it by the same address. ``clock`` tells how long it was not reached.

    Raises:
        InputError: There is no secret in the environment, or a short one.
    """

    where: ClassVar[str] = "the coordinator"

    def __init__(
        self, host: str = "127.0.0.1", port: int = 0, bind: str | None = None, *, clock: Clock | None = None
    ) -> None:
        self.name = f"the coordinator at {host}:{port}"
        secret = os.environ.get(SECRET, "")
        if not secret:
            raise InputError(f"{self.name} lets nobody in without its secret: set {SECRET} to what it told")
        self.address = address_of(host, port, secret)
        super().__init__(clock)

    @classmethod
    def get_or_start(cls, host: str = "127.0.0.1", port: int = 0, bind: str | None = None) -> Self:
        """Return this process's, connected; see :meth:`Shared.get_or_start`.

        Raises:
            ExecutionError: It is not reached.
            InputError: There is no secret in the environment, or it is not the one of the coordinator.
        """
        found = super().get_or_start(host, port, bind)
        try:
            found.spent("")  # of no run: only to see whether it is there; others need not wait for that
        except InputError:
            found.close()  # the next one has the secret that is in the environment then
            raise
        return found

    def _place(self) -> Address:
        return self.address

    def _unreachable(self, error: Exception) -> MillraceError:
        if isinstance(error, ssl.SSLCertVerificationError):
            return InputError(f"{self.name} has another secret than {SECRET} has here")
        return ExecutionError(
            f"{self.name} is not reached ({type(error).__name__}: {error}): does `millrace coordinator` run "
            "there, and does the network let this machine connect to it?"
        )


def serve() -> None:
    """Be the child: listen where it is told to, until nobody is there any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What asyncio sets aside for each connection; a quarter of a megabyte by default, for hundreds of tasks.
    sslproto.SSLProtocol.max_size = _BYTES_A_CONNECTION
    output = os.dup(1)
    os.dup2(2, 1)  # whatever else is printed here is no answer
    coordinator: Coordinator | None = None
    answer = MethodResult(0)
    try:
        coordinator = Coordinator(*json.loads(sys.stdin.buffer.readline()))
        answer.result = msgspec.json.encode(coordinator.address)
    except Exception as error:  # noqa: BLE001  # the planning process's
        answer.error = describe_failure(error)
    with suppress(OSError), os.fdopen(output, "wb") as said:
        said.write(_LISTENS + msgspec.json.encode(answer) + b"\n")
    if coordinator is not None:
        sys.stdin.buffer.readline()
        end_within(END_SECONDS)
        coordinator.close()
