"""The coordinator in a process of its own, beside the one that plans queries.

There it shares no interpreter with the user's code, whose work would hold up the permits of all tasks. It
starts when the first query needs it and ends with the planning process, also when that is killed: its end of
the pipe between them then reads as closed. What it is told goes through that pipe alone: registrations with
their secrets, and questions about progress.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from abc import abstractmethod
from asyncio import sslproto
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, ClassVar, NamedTuple

from millrace.errors import ExecutionError
from millrace.limits.budget import Spent
from millrace.limits.coordinator import Coordinator
from millrace.limits.event_loop import END_SECONDS, end_within
from millrace.limits.progress import FailedKey, LookupProgress
from millrace.limits.registration import Registration
from millrace.limits.shared import Shared

CALL_SECONDS = 300.0
"""For any other call; large caches are read from end to end before their first query."""

_EXIT_SECONDS = 10.0
"""Of a process that has nothing more to do."""

_BYTES_A_CONNECTION = 1 << 16

_BEGIN = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from millrace.limits.process import serve; serve()"
)


class Call(NamedTuple):
    """Of a method of the coordinator; without an ``answer`` where nobody waits."""

    method: str
    arguments: tuple[Any, ...]
    answer: Future[Any] | None


class RemoteCoordinator(Shared):
    """A :class:`Coordinator` elsewhere, with those of its methods that planning needs.

    One thread does calls, in their order.

    Attributes:
        where: In errors, beside its address.
        look_seconds: Without a call until the thread looks whether there is something to do; None for never.
        name: In errors.
    """

    where: ClassVar[str]
    look_seconds: ClassVar[float | None] = None
    name: str

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._calls: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self._putting = threading.RLock()  # a finalizer may release a run while this thread has it
        self._closed = False
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
                self._put(Call("release", (run,), None))

    @classmethod
    def stop(cls, runs: Mapping[str, float]) -> None:
        """Let tasks of runs ask nothing more, of whichever coordinator; does not wait.

        See :meth:`Coordinator.stop`.
        """
        for each in cls.all():
            with suppress(ExecutionError):
                each._put(Call("stop", (runs,), None))  # noqa: SLF001  # of this class

    def _look(self) -> None:
        """Do what is to be done without a call; in the one thread."""

    @abstractmethod
    def _exchange(self, call: Call) -> Any:
        """Return what a method of the coordinator returns, or raise what it raises; in the one thread."""

    def _call(self, method: str, *arguments: Any) -> Any:
        answer: Future[Any] = Future()
        self._put(Call(method, arguments, answer))
        seconds = END_SECONDS if method == "close" else CALL_SECONDS
        wait([answer], seconds)
        if not answer.done():
            raise ExecutionError(
                f"{self.name} has not answered {method!r} within {seconds:g} s: is the disk of a cache, or "
                "of the folder for temporary files, or the network to it, overloaded or away?"
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
            result, error = None, None
            try:
                result = self._exchange(call)
            except Exception as raised:  # noqa: BLE001  # the caller's
                error = raised
            if call.answer is not None:
                if error is None:
                    call.answer.set_result(result)
                else:
                    call.answer.set_exception(error)
            if call.method == "close":
                return


class CoordinatorProcess(RemoteCoordinator):
    """A coordinator in a child process; see :class:`Shared`.

    Raises:
        ExecutionError: It cannot listen, or its process does not start.
    """

    purpose: ClassVar[str] = "limits"
    where: ClassVar[str] = "this process"

    def __init__(self, host: str = "127.0.0.1", port: int = 0, bind: str | None = None) -> None:
        self._pipe, theirs = Pipe()
        command = [sys.executable, "-c", _BEGIN, json.dumps(sys.path), str(theirs.fileno())]
        try:
            # A session of its own: Ctrl-C is for this process, which tells the other what to do.
            self._child = subprocess.Popen(  # noqa: S603  # ourselves
                command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True
            )
        except OSError as error:
            raise ExecutionError(f"cannot start a process for the limits of jobs ({error})") from error
        finally:
            theirs.close()
        self.pid = self._child.pid
        self.name = f"the coordinator's process {self.pid}"
        super().__init__()
        try:
            self.address = self._call("start", host, port, bind)
        except BaseException:
            self._child.kill()
            self._child.wait()
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
        with suppress(ExecutionError):
            self._call("close")
        try:
            self._child.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()  # it had its time to write
            self._child.wait()

    def _exchange(self, call: Call) -> Any:
        try:
            self._pipe.send((call.method, call.arguments))
            error, result = self._pipe.recv()
        except (OSError, EOFError) as broken:
            raise ExecutionError(
                f"{self.name} has ended (exit code {self._exit_code()}), and with it limits and answers of "
                "the jobs that used it: run them again"
            ) from broken
        if error is not None:
            raise error
        return result

    def _exit_code(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(1.0)
        return self._child.returncode


def serve() -> None:
    """Be the child: do what is asked for, until it is enough or nobody is there to ask."""
    pipe = Connection(int(sys.argv[2]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What asyncio sets aside for each connection; a quarter of a megabyte by default, for hundreds of tasks.
    sslproto.SSLProtocol.max_size = _BYTES_A_CONNECTION
    coordinator: Coordinator | None = None
    calls: queue.SimpleQueue[tuple[str, tuple[Any, ...]] | None] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(pipe, calls), name="millrace calls", daemon=True).start()
    try:
        while (call := calls.get()) is not None:
            method, arguments = call
            error: Exception | None = None
            result: Any = None
            try:
                if method == "start":
                    coordinator = Coordinator(*arguments)
                    result = coordinator.address
                elif coordinator is not None:
                    result = getattr(coordinator, method)(*arguments)
            except Exception as raised:  # noqa: BLE001  # the caller gets it
                error = raised.with_traceback(None)
            pipe.send((error, result))
            if method == "close":
                return
    except OSError:
        return  # the planning process is gone
    finally:
        if coordinator is not None:
            coordinator.close()


def _receive(pipe: Connection, calls: queue.SimpleQueue[tuple[str, tuple[Any, ...]] | None]) -> None:
    """Take calls; when nobody is there to ask, the process ends, whatever it is doing."""
    while True:
        try:
            calls.put(pipe.recv())
        except Exception:  # noqa: BLE001  # whatever it is, nobody can be understood any more
            calls.put(None)
            return end_within(END_SECONDS)
