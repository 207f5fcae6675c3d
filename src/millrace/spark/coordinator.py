"""How tasks find the coordinator of their limits and lookups, and what holds where they do not reach it.

Lookups are registered where the query is planned, and opened where its tasks run. What asks is imported where
it is used: tasks without lookups do not need it.
"""

from __future__ import annotations

import ipaddress
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from millrace import limits
from millrace.engine.plan.evaluation import evaluate
from millrace.engine.plan.expressions import Call, Predicate, and_all, columns_of
from millrace.engine.plan.spec import JoinSpec
from millrace.errors import ExecutionError, OptionError
from millrace.limits.budget import Spent
from millrace.limits.clock import WallClock
from millrace.limits.registration import PREFLIGHT, STREAM, Registration
from millrace.options import Options, parse_place
from millrace.predicates import Caller, PredicateSpec
from millrace.predicates.callers import caller_of
from millrace.predicates.spec import registration_of
from millrace.spark.frames import Carried, End, watch
from millrace.spark.session import default_parallelism, facts_of, own_address, try_in_task

if TYPE_CHECKING:
    from millrace.limits.client import Client
    from millrace.limits.process import RemoteCoordinator
    from millrace.limits.progress import FailedKey, LookupProgress
    from millrace.limits.registration import Address
    from millrace.lookups.index import LookupIndex
    from millrace.lookups.scan import LookupScan
    from millrace.lookups.source import Source
    from millrace.lookups.table import IndexSpec
    from millrace.spark.block import LookupInput

DIAL_SECONDS = 2.0
"""For a task to reach the coordinator; with Spark's own work, a session that is warm knows within three."""

_PREFLIGHT_SECONDS = 30.0
"""What a session's first query with limits waits at most for that task: executors may have to start."""

_ADVICE = (
    "set the option limits_host (and limits_port, limits_bind) to where they do, or coordinator, see "
    "docs/guides/clusters.md"
)

_under_way: dict[str, list[float]] = {}
"""When the actions began that each run is in now: by the clock that the processes of a machine share."""

_kept: list[Registered] = []
"""Of streams, until this process ends."""

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
        own, cap, everywhere = self.registration(whole), whole.max_in_flight, f"in each of {self.tasks} tasks"
        parts = []
        if cap is not None and cap < self.tasks:
            parts.append(f"up to {self.tasks} calls at once, one {everywhere}, instead of {cap}")
        elif cap is not None:
            parts.append(f"{own.max_in_flight} calls at once {everywhere}")
        rates = ((own.per_second, "calls a second"), (own.tokens_per_minute, "tokens a minute"))
        parts += [f"{share:g} {what} {everywhere}" for share, what in rates if share is not None]
        if whole.group is not None:
            parts.append(f"nothing shared with limit_group {whole.group!r}")
        parts.append("answers shared within a task only")
        return f"{whole.name}: {', '.join(parts)}, because {self.why}"


def stream_key(context: TaskContext | None) -> str | None:
    """Return the key of a task's stream at the coordinator, restarts of it included; None if it has none."""
    query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
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


def coordinator_of(spark: SparkSession, options: Options) -> RemoteCoordinator | NoCoordinator:
    """Return the coordinator, started if need be, or why tasks have to do without.

    ExecutionError if it cannot listen, or is not reached with the option ``without_coordinator="fail"``;
    InputError if one elsewhere has another secret.
    """
    limits.check_libraries("a coordinator")
    # Here, for they load asyncio and ciphers: tasks without limits do without.
    from millrace.limits.process import CoordinatorProcess, JoinedCoordinator

    watch(_on_action)
    place, joined, host = options.coordinator, None, ""
    try:
        if place is not None:
            joined = JoinedCoordinator.get_or_start(*parse_place(place))
        else:
            host = host_of(spark, options)
    except (ExecutionError, OptionError) as error:
        why = str(error)
    else:
        coordinator: RemoteCoordinator = joined or CoordinatorProcess.get_or_start(
            host, options.limits_port, options.limits_bind
        )
        why = _why_unreached(spark, coordinator)
        if not why:
            return coordinator
    if options.without_coordinator == "fail":
        raise ExecutionError(f"{why} (option without_coordinator='fail')")
    return NoCoordinator(default_parallelism(spark), why)


def _on_action(_name: str, carried: Carried) -> End:
    """Close the taps of an action's runs when it ends early; Spark lets their tasks go on for seconds."""
    with _counting:
        for run in carried.runs:
            _under_way.setdefault(run, []).append(time.monotonic())

    def end(error: BaseException | None) -> None:
        from millrace.limits.process import RemoteCoordinator

        with _counting:
            over: dict[str, float] = {}
            for run in carried.runs:
                times = _under_way[run]
                since = times.pop()  # whichever action ends first, the earliest time stays to the end
                if not times:
                    over[run] = since
                    _under_way.pop(run, None)
        if error is not None and over:
            RemoteCoordinator.stop({**over, **{predicates_of(run): since for run, since in over.items()}})

    return end


def predicates_of(run: str) -> str:
    """Return the scope of a run's predicates; that of its lookups is the run's name."""
    return f"{run}-predicates"


def host_of(spark: SparkSession, options: Options) -> str:
    """Return the address under which executors reach this process.

    On classic Spark that is the driver's, which they reach anyway; on Spark Connect this machine's
    own on the way to Spark's. OptionError if it cannot be found out.
    """
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


def _why_unreached(spark: SparkSession, coordinator: RemoteCoordinator) -> str:
    """Return why tasks do not reach the coordinator; empty where they do. Tried once a session.

    While no task has come nobody knows, and then nothing may be promised. What it says counts when it has.
    """
    address = coordinator.address
    master = str(spark.conf.get("spark.master", ""))
    if address.host == "127.0.0.1" and master.startswith("local") and "cluster" not in master:
        return ""  # tasks run on this machine
    known, place = facts_of(spark).coordinators, (address.host, address.port)
    where = f"{coordinator.where} at {address.host}:{address.port}"

    def run() -> None:
        why: str | None = "its job failed"
        try:
            why = try_in_task(spark, partial(_why, address.of(PREFLIGHT)))
        finally:
            known[place] = f"tasks do not reach {where} ({why}): {_ADVICE}" if why else ""
            coordinator.release(PREFLIGHT)

    if place not in known:
        coordinator.register(PREFLIGHT, [Registration(PREFLIGHT)])
        job = threading.Thread(target=run, name="millrace preflight", daemon=True)
        job.start()
        job.join(_PREFLIGHT_SECONDS)
    late = f"no task has tried within {_PREFLIGHT_SECONDS:g} s whether it reaches {where}"
    return known.get(place, f"{late}: run the query again when executors have started")


def _why(address: Address) -> str:
    """Return why the coordinator is not reached, nothing where it is: joins a session of no consequence."""
    import asyncio  # here, for tasks without limits do without

    from millrace.limits.client import Client

    async def dial() -> None:
        async with asyncio.timeout(DIAL_SECONDS):
            await (await Client.connect(address, f"{PREFLIGHT}/0/0")).close()

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
    The ``coordinator`` stays in the process that planned the query.
    """

    scope: str
    address: Address | None = None
    own: tuple[Registration, ...] = ()
    weakened_guarantees: tuple[str, ...] = ()
    coordinator: RemoteCoordinator | None = field(default=None, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "coordinator": None}

    @classmethod
    def register(
        cls,
        coordinator: RemoteCoordinator | NoCoordinator,
        scope: str,
        registrations: Sequence[Registration],
        limited: Iterable[int],
        **fields: Any,
    ) -> Self:
        """Register with a coordinator, until nothing in this process refers to the result any more.

        ``limited`` are the numbers of registrations that promise something.
        """
        if isinstance(coordinator, NoCoordinator):
            own = tuple(map(coordinator.registration, registrations))
            weakened = tuple(coordinator.weakened_guarantee(registrations[number]) for number in limited)
            return cls(scope, None, own, weakened, **fields)
        coordinator.register(scope, registrations)
        registered = cls(scope, coordinator.address.of(scope), coordinator=coordinator, **fields)
        weakref.finalize(registered, coordinator.release, scope).atexit = False
        return registered

    def keep(self) -> None:
        """Stay registered until this process ends: a stream runs on when nothing refers to its DataFrame."""
        _kept.append(self)

    async def connect(self, job: str, number: int) -> Client:
        """Join the limits of a lookup or predicate, in a task; all tasks of a job share answers."""
        from millrace.limits.client import Client
        from millrace.limits.lookup_session import LookupSession

        if self.address is None:
            return Client.alone(LookupSession(self.own[number]))
        return await Client.connect(self.address, f"{self.scope}/{job}/{number}")

    def spent(self) -> list[Spent]:
        """Return what was spent of budgets; in the process that planned the query."""
        return [] if self.coordinator is None else self.coordinator.spent(self.scope)

    def progress(self) -> list[LookupProgress]:
        """Return what calls have come to, by number; in the process that planned the query."""
        return [] if self.coordinator is None else self.coordinator.progress(self.scope)


@dataclass(frozen=True)
class Limits(Registered):
    """The limits of a run's predicates."""

    @classmethod
    def of(
        cls,
        spark: SparkSession,
        run: str,
        specs: Mapping[int, PredicateSpec],
        options: Options,
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
        return [progress for progress in super().progress() if progress.requests]

    def caller(self, number: int, call: Call) -> Caller:
        """Return what calls a predicate in this task, under the limits of the job that the task is of."""
        context = TaskContext.get()
        job = stream_key(context) or execution_of(context)  # what answers hold for: an action, or a stream
        connect = partial(self.connect, job, number) if self.own or self.address is not None else None
        return caller_of(call.spec, call.values, connect)


# Lookups


@dataclass(frozen=True)
class Access:
    """How a table is looked up: by an index, or by a source that returns all rows, of ``schema``.

    ``filters`` are applied to the rows. The coordinator knows it by its place among those of the block.
    """

    alias: str
    filters: tuple[Predicate, ...]
    index: IndexSpec | None
    source: Source
    schema: pa.Schema


@dataclass(frozen=True)
class Lookups(Registered):
    """All lookups of a block; travels to the tasks."""

    methods: tuple[Access, ...] = ()

    @classmethod
    def of(
        cls,
        spark: SparkSession,
        run: str,
        join: JoinSpec,
        inputs: Mapping[str, LookupInput],
        options: Options,
        *,
        stream: bool = False,
    ) -> Lookups:
        """Register the lookups with this process's coordinator.

        Each micro-batch of a stream is a job of its own: keys that failed are asked again in the next one.
        What was answered goes from one to the next through a cache, which is the coordinator's where a lookup
        has none, and limits and budgets go on.
        """
        from millrace.limits.secrets import Secrets

        registrations: list[Registration] = []
        methods: list[Access] = []
        coordinator = coordinator_of(spark, options)
        for alias, lookup in inputs.items():
            for spec in lookup.indexes:
                secrets = Secrets.of_environment(spec.source.secrets, f"lookup {spec.name!r}")
                registrations.append(spec.registration(secrets, stream=stream))
                methods.append(Access(alias, lookup.filters, spec, spec.source, spec.schema))
            schema = lookup.indexes[0].schema if lookup.indexes else join.relation(alias).schema
            for source in lookup.sources:
                secrets = Secrets.of_environment(source.secrets, f"the scan of {alias!r}")
                registrations.append(Registration(f"scan of {alias}", secrets=secrets.values()))
                methods.append(Access(alias, lookup.filters, None, source, schema))
        promised = range(len(methods))
        registered = cls.register(coordinator, run, registrations, promised, methods=tuple(methods))
        if stream:
            registered.keep()
        return registered

    def progress(self) -> list[LookupProgress]:
        methods = zip(self.methods, super().progress(), strict=False)
        return [progress for method, progress in methods if method.index is not None]

    def failed(self) -> list[FailedKey]:
        """Return the keys that could not be looked up; in the process that planned the query."""
        return [] if self.coordinator is None else self.coordinator.failed(self.scope)

    @contextmanager
    def open(self, join: JoinSpec) -> Iterator[dict[str, list[LookupIndex | LookupScan]]]:
        """Open the access modules of a task, by alias; what is under way is given up at the end."""
        from millrace.lookups.index import LookupIndex
        from millrace.lookups.loop import Loop
        from millrace.lookups.scan import LookupScan

        loop, clock, context = Loop(), WallClock(), TaskContext.get()
        job, again = execution_of(context), context is not None and context.attemptNumber() > 0
        access: dict[str, list[LookupIndex | LookupScan]] = {}
        for number, method in enumerate(self.methods):
            alias, source = method.alias, method.source
            keep = partial(_keep, method.filters, join.relation(alias).schema)
            connect = partial(self.connect, job, number)
            access.setdefault(alias, []).append(
                LookupScan(alias, source, method.schema, keep, loop, connect, clock, again=again)
                if method.index is None
                else LookupIndex(method.index, keep, loop, connect, clock)
            )
        try:
            yield access
        finally:
            loop.close()


def _keep(filters: tuple[Predicate, ...], schema: pa.Schema, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Filter a lookup's rows, and choose the columns that the join needs."""
    condition = and_all(filters)
    if condition is not None and rows.num_rows:
        values = {ref: rows.column(ref.column) for ref in set(columns_of(condition))}
        rows = rows.filter(evaluate(condition, values))
    return pa.RecordBatch.from_arrays([rows.column(name) for name in schema.names], schema=schema)
