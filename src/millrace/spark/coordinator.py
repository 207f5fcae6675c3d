"""How tasks find the coordinator of their limits and lookups, and what holds where they do not reach it."""

from __future__ import annotations

import ipaddress
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from pyspark import TaskContext
from pyspark.sql import SparkSession

from millrace import limits
from millrace.engine.expressions import Call
from millrace.errors import ExecutionError, OptionError
from millrace.limits.budget import Spent
from millrace.limits.registration import STREAM, Registration
from millrace.options import EXECUTOR, Options
from millrace.predicates import Caller, PredicateSpec
from millrace.predicates.callers import caller_of
from millrace.predicates.spec import registration_of
from millrace.spark.frames import Carried, End, watch
from millrace.spark.session import default_parallelism, facts_of, own_address, try_in_task

if TYPE_CHECKING:
    from millrace.limits.process import CoordinatorProcess
    from millrace.limits.progress import LookupProgress
    from millrace.limits.registration import Address
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
class NoCoordinator:
    """Limits of tasks that do not reach a coordinator, and why; travels to them.

    Limits are split over so many ``tasks``, which run at once, as far as is known.
    """

    tasks: int
    why: str

    def registration(self, whole: Registration) -> Registration:
        """Return a lookup's or a predicate's registration as one task keeps it for itself.

        OptionError if it asks for what nobody can promise without a coordinator.
        """
        for is_promised, what in (
            (bool(whole.budget), "a budget (max_requests, max_cost)"),
            (whole.cache is not None, "answers that outlive the job (answers, cache)"),
            (bool(whole.secrets), f"secrets ({', '.join(whole.secrets)})"),
        ):
            if is_promised:
                raise OptionError(f"{whole.name!r} has {what}, which needs the coordinator, but {self.why}")
        cap, rate, tokens = whole.max_in_flight, whole.per_second, whole.tokens_per_minute
        return replace(
            whole,
            max_in_flight=cap and max(1, cap // self.tasks),
            per_second=rate and rate / self.tasks,
            tokens_per_minute=tokens and tokens / self.tasks,
            group=None,
        )

    def weakened_guarantee(self, whole: Registration) -> str:
        """Return what is promised in the place of a registration, as a sentence."""
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


def stream_key(context: TaskContext) -> str | None:
    """Return the key of a task's stream at the coordinator, restarts of it included; None if it has none."""
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
    stream = stream_key(context)
    return own if stream is None else f"{stream}/{own}"


def coordinator_of(
    spark: SparkSession, options: Options
) -> CoordinatorProcess | ClusterCoordinator | NoCoordinator:
    """Return the coordinator, started if need be, or why tasks have to do without.

    ExecutionError if it cannot listen, or is not reached with the option ``without_coordinator="fail"``.
    """
    watch(_on_action)
    coordinator = _start(spark, options)
    why = coordinator if isinstance(coordinator, str) else _why_unreached(spark, coordinator)
    if not isinstance(coordinator, str) and not why:
        return coordinator
    if options.without_coordinator == "fail":
        raise ExecutionError(f"{why} (option without_coordinator='fail')")
    return NoCoordinator(default_parallelism(spark), why)


def _on_action(_name: str, carried: Carried) -> End:
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
    """Return the scope of a run's predicates; that of its lookups is the run's name."""
    return f"{run}-predicates"


def _start(spark: SparkSession, options: Options) -> CoordinatorProcess | ClusterCoordinator | str:
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

    ExecutionError if there is none, or not any more.
    """
    from millrace.limits.process import CoordinatorProcess
    from millrace.spark.cluster_coordinator import ClusterCoordinator

    return ClusterCoordinator.at(address) or CoordinatorProcess.at(address)


def host_of(spark: SparkSession, options: Options) -> str:
    """Return the address under which executors reach this process.

    On classic Spark that is the driver's, which they reach anyway; on Spark Connect this machine's
    own on the way to Spark's. OptionError if it cannot be found out, or they are not supposed to.
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


def _why_unreached(spark: SparkSession, coordinator: CoordinatorProcess | ClusterCoordinator) -> str:
    """Return why tasks do not reach the coordinator; empty where they do. Tried once a session."""
    address = coordinator.address
    master = str(spark.conf.get("spark.master", ""))
    if address.host == "127.0.0.1" and master.startswith("local") and "cluster" not in master:
        return ""  # tasks run on this machine
    known = facts_of(spark).coordinators
    place = (address.host, address.port)
    if place not in known:
        why = _try_address(spark, coordinator.address_of(_SCOPE))
        if why is None:
            return ""  # nobody knows yet
        known[place] = why and (
            f"tasks do not reach {coordinator.where} at {address.host}:{address.port} ({why}): set the "
            "option limits_host (and limits_port, limits_bind) to where they do, see docs/guides/clusters.md"
        )
    return known[place]


def _try_address(spark: SparkSession, address: Address) -> str | None:
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
    import asyncio  # here, for tasks without limits do without

    from millrace.limits.client import Client
    from millrace.limits.registration import Settings

    async def dial() -> None:
        async with asyncio.timeout(DIAL_SECONDS):
            await (await Client.limited(address, f"{_SCOPE}/0/0", Settings())).close()

    try:
        asyncio.run(dial())
    except TimeoutError:
        return f"no answer within {DIAL_SECONDS:g} s"
    except ExecutionError as error:
        cause = error.__cause__
        return str(error) if cause is None else f"{type(cause).__name__}: {cause}"
    return ""


@dataclass(frozen=True)
class Registered:
    """The lookups or the predicates of a run, with what holds of their limits; travels to the tasks.

    ``scope`` is their name at the coordinator, where keys are claimed, limits kept and secrets known. It has
    no address where none of them needs one, or tasks do not reach it. Then each task keeps its ``own``
    registrations, by number, and a sentence says for each of which less is promised.
    """

    scope: str
    address: Address | None = None
    own: tuple[Registration, ...] = ()
    weakened_guarantees: tuple[str, ...] = ()

    @classmethod
    def register(
        cls,
        coordinator: CoordinatorProcess | ClusterCoordinator | NoCoordinator,
        scope: str,
        registrations: Sequence[Registration],
        limited: Iterable[int],
        *,
        released: bool = True,
        **fields: Any,
    ) -> Self:
        """Register with a coordinator, until nothing in this process refers to the result any more.

        ``limited`` are the numbers of registrations that promise something. A stream is not ``released``: it
        runs on when nothing refers to its DataFrame.
        """
        if isinstance(coordinator, NoCoordinator):
            own = tuple(map(coordinator.registration, registrations))
            weakened = tuple(coordinator.weakened_guarantee(registrations[number]) for number in limited)
            return cls(scope, None, own, weakened, **fields)
        coordinator.register(scope, registrations)
        registered = cls(scope, coordinator.address_of(scope), **fields)
        if released:
            weakref.finalize(registered, coordinator.release, scope).atexit = False
        return registered

    def spent(self) -> list[Spent]:
        """Return what was spent of budgets; in the process that planned the query."""
        return [] if self.address is None else coordinator_at(self.address).spent(self.scope)

    def progress(self) -> list[LookupProgress]:
        """Return what calls have come to, by number; in the process that planned the query."""
        return [] if self.address is None else coordinator_at(self.address).progress(self.scope)


@dataclass(frozen=True)
class Limits(Registered):
    """The limits of a run's predicates."""

    @classmethod
    def of(
        cls, spark: SparkSession, run: str, specs: Mapping[int, PredicateSpec], options: Options
    ) -> Limits:
        """Register predicates, by their numbers in the tasks, if limits of some hold for the whole job."""
        limited = [number for number, spec in specs.items() if spec.limited]
        if not limited:
            return cls(predicates_of(run))
        registrations = [
            registration_of(specs[number]) if number in specs else Registration("")
            for number in range(max(specs) + 1)
        ]
        return cls.register(coordinator_of(spark, options), predicates_of(run), registrations, limited)

    def progress(self) -> list[LookupProgress]:
        """Return what calls of predicates have come to; in the process that planned the query."""
        return [progress for progress in super().progress() if progress.requests]

    def caller(self, number: int, call: Call) -> Caller:
        """Return what calls a predicate in this task, under the limits of the job that the task is of."""
        spec, address = call.spec, self.address if call.spec.limited else None
        if self.own:
            own = self.own[number]
            spec = replace(
                spec,
                max_in_flight=own.max_in_flight,
                per_second=own.per_second,
                tokens_per_minute=own.tokens_per_minute,
            )
        return caller_of(spec, call.values, address, f"{self.scope}/{_job()}/{number}")


def _job() -> str:
    """Return what this task shares with those that answers hold for: its action, or its stream for ever."""
    context = TaskContext.get()
    stream = None if context is None else stream_key(context)
    return execution_of(context) if stream is None else stream
