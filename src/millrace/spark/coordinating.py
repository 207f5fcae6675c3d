"""Where a session's tasks reach a coordinator, and what holds where they do not."""

from __future__ import annotations

import asyncio
import ipaddress
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql import SparkSession

from millrace import limits
from millrace.errors import ExecutionError, OptionError
from millrace.options import EXECUTOR, Options
from millrace.spark.frames import Carried, End, watch
from millrace.spark.session import default_parallelism, facts_of, own_address, try_in_task

if TYPE_CHECKING:
    from millrace.limits.process import CoordinatorProcess
    from millrace.limits.registration import Address, Registration
    from millrace.spark.cluster_coordinator import ClusterCoordinator

DIAL_SECONDS = 2.0
"""For a task to reach the coordinator; with Spark's own work, a session that is warm knows within three."""

_PREFLIGHT_SECONDS = 30.0
"""What a session's first query with limits waits at most for that task: executors may have to start."""

_SCOPE = "preflight"

_under_way: Counter[str] = Counter()
"""How many actions each run is in now."""

_since: dict[str, float] = {}
"""When the first of them began: by the clock that the processes of a machine share."""

_counting = threading.RLock()  # a finalizer may end an action while this thread has it


@dataclass(frozen=True)
class Alone:
    """What tasks go by that do not reach a coordinator; travels to them.

    Attributes:
        tasks: That run at once, as far as is known; limits are split over so many.
        why: No coordinator is reached, and what would help.
    """

    tasks: int
    why: str

    def registration(self, whole: Registration) -> Registration:
        """Return a lookup's or a predicate's registration as one task keeps it for itself.

        Raises:
            OptionError: It asks for what nobody can promise without a coordinator.
        """
        for asked, what in (
            (bool(whole.budget), "a budget (max_requests, max_cost)"),
            (whole.cache is not None, "answers that outlive the job (answers, cache)"),
            (bool(whole.secrets), f"secrets ({', '.join(whole.secrets)})"),
        ):
            if asked:
                raise OptionError(f"{whole.name!r} has {what}, which needs the coordinator, but {self.why}")
        cap, rate, tokens = whole.max_in_flight, whole.per_second, whole.tokens_per_minute
        return replace(
            whole,
            max_in_flight=None if cap is None else max(1, cap // self.tasks),
            per_second=None if rate is None else rate / self.tasks,
            tokens_per_minute=None if tokens is None else tokens / self.tasks,
            group=None,
        )

    def told(self, whole: Registration) -> str:
        """Return which promises are weaker, as a sentence."""
        parts = []
        cap, tasks = whole.max_in_flight, self.tasks
        if cap is not None and cap < tasks:
            parts.append(f"up to {tasks} calls at once, one in each of {tasks} tasks, instead of {cap}")
        elif cap is not None:
            parts.append(f"{cap // tasks} calls at once in each of {tasks} tasks")
        if whole.per_second is not None:
            parts.append(f"{whole.per_second / tasks:g} calls a second in each of {tasks} tasks")
        if whole.tokens_per_minute is not None:
            parts.append(f"{whole.tokens_per_minute / tasks:g} tokens a minute in each of {tasks} tasks")
        if whole.group is not None:
            parts.append(f"nothing shared with limit_group {whole.group!r}")
        parts.append("answers shared within a task only")
        return f"{whole.name}: {', '.join(parts)}, because {self.why}"


def stream_of(context: TaskContext) -> str | None:
    """Return what the coordinator knows a task's stream by, restarts of it included; None if it has none."""
    from millrace.limits.registration import STREAM

    query = context.getLocalProperty("sql.streaming.queryId")
    return None if query is None else f"{STREAM}{query}"


def execution_of(context: TaskContext | None) -> str:
    """Return what is the same for all tasks of one action, and of no other: keys are asked for once in it.

    An action may compute a stage more than once, to sample it before it sorts, say. Without Spark's own
    number of the action, the stage has to do. A micro-batch is an action of its stream.
    """
    if context is None:
        return "0"
    action = context.getLocalProperty("spark.sql.execution.id")
    own = f"stage {context.stageId()}" if action is None else action
    stream = stream_of(context)
    return own if stream is None else f"{stream}/{own}"


def coordinator_of(spark: SparkSession, options: Options) -> CoordinatorProcess | ClusterCoordinator | Alone:
    """Return the coordinator, started if need be, or why tasks have to do without.

    Raises:
        ExecutionError: It cannot listen, or is not reached and the option ``without_coordinator`` is
            ``"fail"``.
    """
    watch(_begun)
    found = _started(spark, options)
    why = found if isinstance(found, str) else _unreached(spark, found)
    if not isinstance(found, str) and not why:
        return found
    if options.without_coordinator == "fail":
        raise ExecutionError(f"{why} (option without_coordinator='fail')")
    return Alone(default_parallelism(spark), why)


def _begun(_name: str, carried: Carried) -> End:
    """Close the taps of an action's runs when it ends early; Spark lets their tasks go on for seconds."""
    with _counting:
        _under_way.update(carried.runs)
        for run in carried.runs:
            _since.setdefault(run, time.monotonic())

    def end(error: BaseException | None) -> None:
        from millrace.limits.process import CoordinatorProcess

        with _counting:
            _under_way.subtract(carried.runs)
            over = {run: _since.pop(run) for run in carried.runs if _under_way[run] <= 0}
            for run in over:
                del _under_way[run]
        if error is not None and over:
            CoordinatorProcess.stop({**over, **{predicates_of(run): since for run, since in over.items()}})

    return end


def predicates_of(run: str) -> str:
    """Return what the sessions of a run's predicates are known by, beside those of its lookups."""
    return f"{run}-predicates"


def _started(spark: SparkSession, options: Options) -> CoordinatorProcess | ClusterCoordinator | str:
    """Return the coordinator where the options want it, or why there can be none."""
    limits.check_libraries("a coordinator")
    # Here, for they load asyncio and ciphers: tasks without limits do without.
    from millrace.limits.process import CoordinatorProcess
    from millrace.spark.cluster_coordinator import ClusterCoordinator

    if options.limits_host == EXECUTOR:
        try:
            return ClusterCoordinator.started(spark, options.limits_port, options.limits_bind)
        except ExecutionError as error:
            return str(error)
    try:
        host = host_of(spark, options)
    except OptionError as error:
        return str(error)
    return CoordinatorProcess.started(host, options.limits_port, options.limits_bind)


def coordinator_at(address: Address) -> CoordinatorProcess | ClusterCoordinator:
    """Return the coordinator with an address, in the process that planned a query with it.

    Raises:
        ExecutionError: There is none, or not any more.
    """
    from millrace.limits.process import CoordinatorProcess
    from millrace.spark.cluster_coordinator import ClusterCoordinator

    return ClusterCoordinator.at(address) or CoordinatorProcess.at(address)


def host_of(spark: SparkSession, options: Options) -> str:
    """Return the address under which executors reach this process.

    On classic Spark that is the driver's, which they reach anyway; on Spark Connect this machine's
    own on the way to Spark's.

    Raises:
        OptionError: It cannot be found out, or they are not supposed to.
    """
    if options.limits_host == EXECUTOR:
        raise OptionError(
            f"limits_host={EXECUTOR!r} is for limits alone: rows and figures that come while a job runs need "
            "executors to reach this process; set limits_host to an address of it that they reach"
        )
    if options.limits_host is not None:
        return options.limits_host
    driver = str(spark.conf.get("spark.driver.host", "127.0.0.1"))
    try:
        own = own_address(driver)
    except OSError as error:
        raise OptionError(
            f"cannot find out how executors reach this process (Spark's driver is at {driver!r}: {error}): "
            "set the option limits_host"
        ) from None
    return "127.0.0.1" if ipaddress.ip_address(own).is_loopback else own


def _unreached(spark: SparkSession, coordinator: CoordinatorProcess | ClusterCoordinator) -> str:
    """Return why tasks do not reach the coordinator; empty where they do. Tried once a session."""
    address = coordinator.address
    master = str(spark.conf.get("spark.master", ""))
    if address.host == "127.0.0.1" and master.startswith("local") and "cluster" not in master:
        return ""  # tasks run on this machine
    known = facts_of(spark).coordinators
    place = (address.host, address.port)
    if place not in known:
        why = _tried(spark, coordinator.address_of(_SCOPE))
        if why is None:
            return ""  # nobody knows yet
        known[place] = why and (
            f"tasks do not reach {coordinator.where} at {address.host}:{address.port} ({why}): set the "
            "option limits_host (and limits_port, limits_bind) to where they do, see docs/guides/clusters.md"
        )
    return known[place]


def _tried(spark: SparkSession, address: Address) -> str | None:
    """Return what a task says that tries; None if none has come to it within so long."""
    found: list[str | None] = []

    def run() -> None:
        found.append(try_in_task(spark, partial(_why, address)))

    job = threading.Thread(target=run, name="millrace preflight", daemon=True)
    job.start()
    job.join(_PREFLIGHT_SECONDS)
    return found[0] if found else None


def _why(address: Address) -> str:
    """Return why the coordinator is not reached, nothing where it is: joins a session of no consequence."""
    return asyncio.run(_dialled(address))


async def _dialled(address: Address) -> str:
    from millrace.limits.client import Client
    from millrace.limits.registration import Settings

    try:
        async with asyncio.timeout(DIAL_SECONDS):
            await (await Client.limited(address, f"{_SCOPE}/0/0", Settings())).close()
    except TimeoutError:
        return f"no answer within {DIAL_SECONDS:g} s"
    except ExecutionError as error:
        cause = error.__cause__
        return str(error) if cause is None else f"{type(cause).__name__}: {cause}"
    return ""
