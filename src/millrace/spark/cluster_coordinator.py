"""The coordinator on an executor, as the planning process sees it, which executors do not reach.

Whatever is said to it goes through Spark, as a job of one task: some hundredths of a second, and as long as
the cluster has no slot free.
"""

from __future__ import annotations

import json
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from pyspark.sql import SparkSession

from millrace.errors import ExecutionError, OptionError, first_line
from millrace.limits.detached import IDLE_SECONDS, Call, Seal, call, start
from millrace.limits.process import RemoteCoordinator
from millrace.options import EXECUTOR
from millrace.spark.session import Reply, call_in_task, facts_of, internal_query, own_address
from millrace.spark.worker import is_sparks, translated

if TYPE_CHECKING:
    from millrace.limits.registration import Registration

_FRESH_SECONDS = 30.0
"""So long after a reply it is taken for granted that the coordinator is there."""

_starting = threading.Lock()


class ClusterCoordinator(RemoteCoordinator):
    """A coordinator in a process of its own beside an executor, started by a task.

    Tasks find it at ``port``, calls at the next one; 0 takes free ones. ``bind`` is the address to listen on
    there, None for the executor's own. ExecutionError if it cannot be started.
    """

    where: ClassVar[str] = "a coordinator on an executor"

    def __init__(self, spark: SparkSession, port: int = 0, bind: str | None = None) -> None:
        self._spark = weakref.ref(spark)
        self._numbers = count()
        self._released: deque[str] = deque()
        own = X25519PrivateKey.generate()
        driver = str(spark.conf.get("spark.driver.host", "127.0.0.1"))
        reply, why = _run(spark, partial(_start, own.public_key().public_bytes_raw(), driver, port, bind))
        if reply is None:
            raise ExecutionError(why)
        host, port, public, sealed = json.loads(reply)
        self._place = host, port
        try:
            self._seal = Seal(own, bytes.fromhex(public))
            self.address = self._seal.open(bytes.fromhex(sealed), "address")
        except ValueError as error:
            raise ExecutionError(f"a coordinator was started on an executor, but {error}") from error
        self._heard = time.monotonic()

    @classmethod
    def started(cls, spark: SparkSession, port: int = 0, bind: str | None = None) -> ClusterCoordinator:
        """Return the session's coordinator, starting one if there is none, or not any more."""
        with _starting:
            coordinators = facts_of(spark).cluster_coordinators
            coordinator = coordinators.get((port, bind))
            if coordinator is None or not coordinator.running:
                coordinator = coordinators[port, bind] = cls(spark, port, bind)
            return coordinator

    @property
    def running(self) -> bool:
        """Whether it is there; asks, unless that is known."""
        if time.monotonic() - self._heard < _FRESH_SECONDS:
            return True
        try:
            self._call("ping")
        except ExecutionError:
            return False
        return True

    def register(self, run: str, lookups: Sequence[Registration]) -> None:
        """Register the lookups of a run; OptionError if one keeps answers, lost with the executor."""
        for registration in lookups:
            if registration.cache is not None:
                raise OptionError(
                    f"{registration.name!r} has answers that outlive the job (answers, cache), and "
                    f"limits_host={EXECUTOR!r} would keep them on an executor's disk: leave them out, or set "
                    "limits_host to an address of this process that executors reach"
                )
        super().register(run, lookups)

    def release(self, run: str) -> None:
        """Take note that nothing refers to a run's query any more; the next call says so."""
        self._released.append(run)

    def close(self) -> None:
        self._call("close")

    def _call(self, method: str, *arguments: Any) -> Any:
        spark = self._spark()
        if spark is None:
            raise ExecutionError("the Spark session of this query has ended, and with it its coordinator")
        methods = [("release", (self._released.popleft(),)) for _ in range(len(self._released))]
        request = Call(next(self._numbers), (*methods, (method, arguments)))
        sealed = self._seal.seal(request, "call")
        reply, why = _run(spark, partial(_ask, *self._place, sealed))
        if reply is None:
            self._heard = float("-inf")
            raise ExecutionError(
                f"{why}, and with it limits and answers of the jobs that used it: its executor may be "
                "gone; run the query again"
            )
        self._heard = time.monotonic()
        error, result = self._seal.open(reply, f"reply {request.number}")
        if error is not None:
            raise error
        return result


def _run(spark: SparkSession, function: Callable[[], Reply]) -> Reply:
    try:
        with internal_query():
            return call_in_task(spark, function)
    except Exception as error:
        if not is_sparks(error):
            raise
        first = first_line(translated(error))
        raise ExecutionError(f"the job of the coordinator on an executor failed: {first}") from error


def _start(public: bytes, driver: str, port: int, bind: str | None) -> Reply:
    """Start a coordinator; runs in a task."""
    try:
        there = start(public, own_address(driver), port, bind, IDLE_SECONDS)
    except (ExecutionError, OSError) as error:
        return None, str(error)
    return json.dumps([there.host, there.port, there.public.hex(), there.sealed.hex()]).encode(), None


def _ask(host: str, port: int, sealed: bytes) -> Reply:
    """Take a call to the coordinator; runs in a task."""
    try:
        return call(host, port, sealed), None
    except ExecutionError as error:
        return None, str(error)
