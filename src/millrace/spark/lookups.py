"""The lookups of a block: registered where the query is planned, opened where its tasks run.

What asks is imported where it is used: tasks without lookups do not need it.
"""

from __future__ import annotations

import atexit
import tempfile
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache as once
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from millrace.engine.arrivals.access_methods import Access
from millrace.engine.evaluation import evaluate
from millrace.engine.expressions import Predicate, and_all, columns_of
from millrace.engine.figures import ModuleFigures
from millrace.engine.spec import JoinSpec
from millrace.limits.clock import WallClock
from millrace.options import Options
from millrace.spark.coordinating import Alone, coordinator_at, coordinator_of, execution_of

if TYPE_CHECKING:
    from millrace.limits.budget import Spent
    from millrace.limits.progress import FailedKey, LookupProgress
    from millrace.limits.registration import Address, Registration
    from millrace.limits.secrets import Secrets
    from millrace.lookups.asking import Connect
    from millrace.lookups.index import LookupIndex
    from millrace.lookups.index_spec import IndexSpec
    from millrace.lookups.scan import LookupScan
    from millrace.lookups.source import Source
    from millrace.spark.block import LookupInput


@dataclass(frozen=True)
class Lookup:
    """The access modules of one relation of a block that is looked up.

    Attributes:
        alias: Of the relation.
        schema: All columns of the lookup table.
        filters: Applied to what its sources return.
        indexes: With the number that the coordinator knows each by.
        scans: The same for sources that return all rows.
    """

    alias: str
    schema: pa.Schema
    filters: tuple[Predicate, ...]
    indexes: tuple[tuple[int, IndexSpec], ...]
    scans: tuple[tuple[int, Source], ...]


@dataclass(frozen=True)
class Opened:
    """The access modules of one task."""

    access: Access
    modules: Sequence[LookupIndex | LookupScan]

    def figures(self) -> tuple[ModuleFigures, ...]:
        """Return what was asked for."""
        return tuple(module.figures() for module in self.modules)


@dataclass(frozen=True)
class Lookups:
    """All lookups of a block; travels to the tasks.

    Attributes:
        run: Identifies the run.
        address: Of the coordinator, where keys are claimed, limits kept and secrets known; None where tasks
            do not reach it.
        relations: What is looked up.
        own: What each task keeps for itself then, by the lookups' numbers.
        weaker: Which promises are weaker then, a sentence for each lookup.
    """

    run: str
    address: Address | None
    relations: tuple[Lookup, ...] = field(default_factory=tuple)
    own: tuple[Registration, ...] = ()
    weaker: tuple[str, ...] = ()

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
        What was answered goes from one to the next through a cache, which is this process's where a lookup
        has none, and limits and budgets go on.

        Raises:
            InputError: A secret has no value in this process's environment.
            OptionError: Tasks do not reach a coordinator, and a lookup has what needs one.
            ExecutionError: The coordinator cannot listen, or is not reached and has to be.
        """
        from millrace.limits.process import CoordinatorProcess
        from millrace.limits.registration import Registration
        from millrace.limits.secrets import Secrets

        registrations: list[Registration] = []
        relations = []
        coordinator = coordinator_of(spark, options)
        # On an executor's disk answers would be lost with it.
        beside = isinstance(coordinator, CoordinatorProcess)
        cache = _cache_of_streams() if stream and beside else None
        for alias, given in inputs.items():
            indexes, scans = [], []
            for spec in given.indexes:
                secrets = Secrets.of_environment(spec.source.secrets, f"lookup {spec.name!r}")
                indexes.append((len(registrations), spec))
                kept = spec if cache is None or spec.cache else replace(spec, cache=cache)
                registrations.append(kept.registration(secrets))
            for source in given.sources:
                secrets = Secrets.of_environment(source.secrets, f"the scan of {alias!r}")
                scans.append((len(registrations), source))
                registrations.append(Registration(f"scan of {alias}", secrets=secrets.values()))
            schema = given.indexes[0].schema if given.indexes else join.relation(alias).schema
            relations.append(Lookup(alias, schema, given.filters, tuple(indexes), tuple(scans)))
        if isinstance(coordinator, Alone):
            own = tuple(map(coordinator.registration, registrations))
            asked = [number for each in relations for number, _ in each.indexes]
            told = tuple(coordinator.told(registrations[number]) for number in asked)
            return cls(run, None, tuple(relations), own, told)
        coordinator.register(run, registrations)
        found = cls(run, coordinator.address_of(run), tuple(relations))
        if not stream:  # which runs on when nothing refers to its DataFrame any more
            weakref.finalize(found, coordinator.release, run).atexit = False
        return found

    def progress(self) -> list[LookupProgress]:
        """Return how far the indexes are; in the process that planned the query."""
        if self.address is None:
            return []
        numbers = [number for relation in self.relations for number, _ in relation.indexes]
        known = coordinator_at(self.address).progress(self.run)
        return [known[number] for number in numbers]

    def spent(self) -> list[Spent]:
        """Return what was spent of budgets; in the process that planned the query."""
        return [] if self.address is None else coordinator_at(self.address).spent(self.run)

    def failed(self) -> list[FailedKey]:
        """Return the keys that could not be looked up; in the process that planned the query."""
        return [] if self.address is None else coordinator_at(self.address).failed(self.run)

    @contextmanager
    def open(self, join: JoinSpec) -> Iterator[Opened]:
        """Open the access modules in a task; what is under way is given up at the end."""
        from millrace.lookups.index import LookupIndex
        from millrace.lookups.loop import Loop
        from millrace.lookups.scan import LookupScan

        loop = Loop()
        clock = WallClock()
        job = f"{self.run}/{execution_of(TaskContext.get())}"
        modules: list[LookupIndex | LookupScan] = []
        access: dict[str, list[LookupIndex | LookupScan]] = {}
        for relation in self.relations:
            keep = _Keep(relation.alias, relation.filters, join.relation(relation.alias).schema)
            mine: list[LookupIndex | LookupScan] = [
                LookupIndex(spec, keep, loop, self._connecting(job, number), clock)
                for number, spec in relation.indexes
            ]
            for number, source in relation.scans:
                secrets = self._secrets(job, number)
                mine.append(LookupScan(relation.alias, source, relation.schema, keep, loop, secrets, clock))
            access[relation.alias] = mine
            modules += mine
        try:
            yield Opened(access, modules)
        finally:
            loop.close()

    def _connecting(self, job: str, number: int) -> Connect:
        from millrace.limits.client import Client
        from millrace.limits.lookup_session import LookupSession

        async def connected() -> Client:
            if self.address is None:
                return Client.alone(LookupSession(self.own[number]))
            return await Client.connect(self.address, f"{job}/{number}")

        return connected

    def _secrets(self, job: str, number: int) -> Callable[[], Awaitable[Secrets]]:
        from millrace.limits.secrets import Secrets

        connected = self._connecting(job, number)

        async def secrets() -> Secrets:
            client = await connected()
            try:
                return Secrets(await client.secrets())
            finally:
                await client.close()

        return secrets


@dataclass(frozen=True)
class _Keep:
    """Filters a lookup's rows, and chooses the columns that the join needs."""

    alias: str
    filters: tuple[Predicate, ...]
    schema: pa.Schema

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        condition = and_all(self.filters)
        if condition is not None and rows.num_rows:
            values = {ref: rows.column(ref.column) for ref in set(columns_of(condition))}
            rows = rows.filter(evaluate(condition, values))
        columns = [rows.column(name) for name in self.schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


@once
def _cache_of_streams() -> Path:
    """Return the folder for answers to streams that name none; it is removed when this process ends."""
    folder = tempfile.TemporaryDirectory(prefix="millrace-streams-", ignore_cleanup_errors=True)
    atexit.register(folder.cleanup)
    return Path(folder.name)
