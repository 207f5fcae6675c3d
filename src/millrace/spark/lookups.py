"""The lookups of a block: registered where the query is planned, opened where its tasks run.

What asks is imported where it is used: tasks without lookups do not need it.
"""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from millrace.engine.evaluation import evaluate
from millrace.engine.expressions import Predicate, and_all, columns_of
from millrace.engine.spec import JoinSpec
from millrace.limits.clock import WallClock
from millrace.limits.registration import Registration
from millrace.options import Options
from millrace.spark.coordinator import Registered, coordinator_of, execution_of

if TYPE_CHECKING:
    from millrace.limits.client import Client
    from millrace.limits.progress import FailedKey, LookupProgress
    from millrace.limits.secrets import Secrets
    from millrace.lookups.asking import Connect
    from millrace.lookups.index import LookupIndex
    from millrace.lookups.index_spec import IndexSpec
    from millrace.lookups.scan import LookupScan
    from millrace.lookups.source import Source
    from millrace.spark.block import LookupInput


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
        What was answered goes from one to the next through a cache, which is this process's where a lookup
        has none, and limits and budgets go on.
        """
        from millrace.limits.process import CoordinatorProcess
        from millrace.limits.secrets import Secrets

        registrations: list[Registration] = []
        methods: list[Access] = []
        coordinator = coordinator_of(spark, options)
        # On an executor's disk answers would be lost with it.
        is_here = isinstance(coordinator, CoordinatorProcess)
        folder = _cache_of_streams() if stream and is_here else None
        for alias, lookup in inputs.items():
            for spec in lookup.indexes:
                secrets = Secrets.of_environment(spec.source.secrets, f"lookup {spec.name!r}")
                cached = spec if folder is None or spec.cache else replace(spec, cache=folder)
                registrations.append(cached.registration(secrets))
                methods.append(Access(alias, lookup.filters, spec, spec.source, spec.schema))
            schema = lookup.indexes[0].schema if lookup.indexes else join.relation(alias).schema
            for source in lookup.sources:
                secrets = Secrets.of_environment(source.secrets, f"the scan of {alias!r}")
                registrations.append(Registration(f"scan of {alias}", secrets=secrets.values()))
                methods.append(Access(alias, lookup.filters, None, source, schema))
        limited = [number for number, method in enumerate(methods) if method.index is not None]
        return cls.register(
            coordinator, run, registrations, limited, released=not stream, methods=tuple(methods)
        )

    def progress(self) -> list[LookupProgress]:
        """Return how far the indexes are; in the process that planned the query."""
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

        loop, clock = Loop(), WallClock()
        job = f"{self.scope}/{execution_of(TaskContext.get())}"
        access: dict[str, list[LookupIndex | LookupScan]] = {}
        for number, method in enumerate(self.methods):
            alias, source = method.alias, method.source
            keep = partial(_keep, method.filters, join.relation(alias).schema)
            connect = partial(self._connect, f"{job}/{number}", number)
            secrets = partial(_secrets, connect)
            access.setdefault(alias, []).append(
                LookupScan(alias, source, method.schema, keep, loop, secrets, clock)
                if method.index is None
                else LookupIndex(method.index, keep, loop, connect, clock)
            )
        try:
            yield access
        finally:
            loop.close()

    async def _connect(self, job: str, number: int) -> Client:
        from millrace.limits.client import Client
        from millrace.limits.lookup_session import LookupSession

        if self.address is None:
            return Client.alone(LookupSession(self.own[number]))
        return await Client.connect(self.address, job)


async def _secrets(connect: Connect) -> Secrets:
    from millrace.limits.secrets import Secrets

    client = await connect()
    try:
        return Secrets(await client.secrets())
    finally:
        await client.close()


def _keep(filters: tuple[Predicate, ...], schema: pa.Schema, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Filter a lookup's rows, and choose the columns that the join needs."""
    condition = and_all(filters)
    if condition is not None and rows.num_rows:
        values = {ref: rows.column(ref.column) for ref in set(columns_of(condition))}
        rows = rows.filter(evaluate(condition, values))
    return pa.RecordBatch.from_arrays([rows.column(name) for name in schema.names], schema=schema)


@cache
def _cache_of_streams() -> Path:
    """Return the folder for answers to streams that name none; it is removed when this process ends."""
    folder = tempfile.TemporaryDirectory(prefix="millrace-streams-", ignore_cleanup_errors=True)
    atexit.register(folder.cleanup)
    return Path(folder.name)
