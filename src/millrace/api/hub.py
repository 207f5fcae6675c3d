"""``Session.hub``: many standing queries over one join of streams."""

# ruff: noqa: S608  # SQL is what this module writes

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from millrace.engine.lineage import STEM
from millrace.engine.plan.expressions import columns_of, terms
from millrace.errors import InputError, MillraceError, near
from millrace.options import Options, StorageOptions
from millrace.parquet.store import StoreError, locate
from millrace.spark.block import FrameInput
from millrace.spark.session import internal_query, is_connect
from millrace.spark.types import arrow_schema
from millrace.sql.plan import BlockPlan, Plan, with_inputs
from millrace.sql.planner.planner import Planner
from millrace.sql.syntax.parse import parse
from millrace.streams.hub.cell import CHANGES, HubProcessor
from millrace.streams.hub.delivery import Sink, SinkFiles, deliver, find_function
from millrace.streams.hub.folder import WRITING, Folder, locate_writable
from millrace.streams.hub.query import Change, Since, StandingQuery
from millrace.streams.plan import deal
from millrace.streams.retention import EventTimes


class Hub:
    """Many standing queries over one join of streams; see :meth:`millrace.Session.hub`, which makes it."""

    def __init__(
        self,
        spark: SparkSession,
        streams: Mapping[str, DataFrame],
        on: str,
        checkpoint: str | Path,
        sinks: Mapping[str, Sink],
        options: Options,
    ) -> None:
        self._spark, self._streams, self._source, self._options = spark, streams, on, options
        with self._planner() as planner:
            whole = planner.plan(parse(f"SELECT * FROM {on}"))[0]
            plan = _require_block(whole)
            self._block = with_inputs(plan, planner.frames)  # all columns of its inputs
        columns = {} if plan.times is None else plan.times.columns
        tables = sorted({relation.alias for relation in plan.join.sources} - set(columns))
        if plan.times is None or tables or whole.direct is None or plan.times.preserved is not None:
            others = ", ".join(tables) or "a LEFT join"
            raise InputError(
                f"the queries of a hub share a join of streams, and {others} is none: expected "
                "streaming DataFrames with watermarks; join tables with what the queries give out"
            )
        self._times: EventTimes = plan.times
        for relation in self._block.join.relations:
            if taken := [name for name in relation.schema.names if name.startswith(STEM)]:
                raise InputError(
                    f"stream {relation.alias!r} has a column {taken[0]!r}: a hub needs that name"
                )
        self._folder = Folder(checkpoint, StorageOptions.of(options.storage_options))
        self._folder.begin(on)
        # By the query's number: a query that has gone may have had the name of one that stands.
        ids = {query.name: query.id for query in self.list() if query.sink is None}
        self._functions = {ids[name]: sink for name, sink in sinks.items() if name in ids}
        self._query: StreamingQuery | None = None

    def add(
        self,
        name: str,
        select: str,
        where: str | None = None,
        *,
        sink: Sink | str | Path,
        since: Since = "now",
    ) -> None:
        """Add a query; the next micro-batch begins with it, whether the hub runs or not.

        Args:
            name: Names it among those that stand.
            select: Columns of the join, as behind SELECT.
            where: Its own conditions, as behind WHERE.
            sink: A folder to write Parquet files to, which may be in an object store; or a function that is
                given the rows of each micro-batch as an Arrow table, and the micro-batch's number.
            since: ``"now"`` for results of rows that arrive from now on, ``"window"`` also of those that
                arrived before and are still kept.

        Raises:
            InputError: There is a query of that name, or it wants what a hub does not give.
            StateError: Another process has added or removed a query at the same time.
            pyspark.errors.AnalysisException: Spark refuses the query.
        """
        if since not in ("now", "window"):
            raise InputError(f"query {name!r}: since is {since!r}: expected 'now' or 'window'")
        query = self._make_query(name, select, where, since)
        if callable(sink) and self._is_active and is_connect(self._spark):
            raise InputError(
                f"query {name!r}: on Spark Connect functions are sent when the hub starts: stop() it, add "
                "the query, and start() it"
            )
        with WRITING:
            number = self._folder.next()  # before the list: a change between the two takes the number
            listed = self.list()
            stand = {other.id: other.name for other in listed if other.state != "leaving"}
            if name in stand.values():
                raise InputError(f"there is a query {name!r}: remove it first, or give this one another name")
            for gone in self._functions.keys() - {other.id for other in listed}:
                del self._functions[gone]
            query = replace(query, id=number)
            if callable(sink):
                self._functions[query.id] = sink  # before a micro-batch can begin with the query
            else:
                query = self._begin_files(query, sink, listed)
            try:
                self._folder.write(Change(query.id, (*stand, query.id), query))
            except MillraceError:
                self._functions.pop(query.id, None)  # the number may be another's
                raise

    def _begin_files(
        self, query: StandingQuery, sink: str | Path, others: Sequence[StandingQuery]
    ) -> StandingQuery:
        """Return a query with the folder of its files, which whoever reads it finds the columns in."""
        name, storage = query.name, self._folder.storage
        store, path = locate_writable(sink, storage)
        for other in others:
            if other.sink is None:
                continue
            own, place = locate(other.sink, storage)  # which need not be writable any more
            if own is not None and own.identity(place) == store.identity(path):
                raise InputError(f"query {name!r}: {path} is the sink of query {other.name!r}: give another")
        lower = [column.lower() for column in query.schema.names]
        twice = sorted({column for column in lower if lower.count(column) > 1})
        if twice:
            raise InputError(
                f"query {name!r} has several columns {', '.join(twice)}, which a file cannot have: name them "
                "apart with AS"
            )
        query = replace(query, sink=path)
        try:
            with SinkFiles("empty.parquet", storage) as files:
                files.write(query, pa.RecordBatch.from_pylist([], query.schema))
        except (StoreError, OSError) as error:
            raise InputError(
                f"query {name!r}: {error}; give a folder that the hub may make and write to"
            ) from error
        return query

    def remove(self, name: str) -> None:
        """Remove a query; the next micro-batch goes on without it. What it has written stays.

        A micro-batch that has failed runs again with it when the hub starts again. If its function fails
        there, or its folder cannot be written to, its rows are lost, and the error is logged: so you can
        remove a query whose sink ends the hub.

        Raises:
            InputError: There is none of that name.
            StateError: Another process has added or removed a query at the same time.
        """
        with WRITING:
            number = self._folder.next()
            ids = {query.name: query.id for query in self.list() if query.state != "leaving"}
            if name not in ids:
                raise InputError(f"there is no query {name!r}: {near(name, list(ids))}")
            del ids[name]
            self._folder.write(Change(number, tuple(ids.values())))

    def list(self) -> list[StandingQuery]:
        """Return the queries that stand, are to come, or are about to leave."""
        return self._folder.queries()

    def start(self, **trigger: Any) -> StreamingQuery:
        """Start, or go on where the hub was stopped.

        Args:
            trigger: Spark's trigger, such as ``availableNow=True`` or ``processingTime="5 seconds"``.

        Raises:
            InputError: It runs, or a query's function is not given.
            MillraceError: As :func:`millrace.sql` over streams.
        """
        if self._is_active:
            raise InputError("the hub runs already: stop() it first")
        listed = self.list()
        for query in listed:
            if query.sink is None and query.state != "leaving":
                find_function(query, self._functions)
        folder = self._folder
        sinks = [query.sink for query in listed if query.sink is not None]
        with WRITING:
            for path in (folder.path, f"{folder.path}/changes", *sinks):
                with suppress(MillraceError):  # or a query could not be removed for the sake of its sink
                    store, place = locate_writable(path, folder.storage)
                    store.clean(place)
        dealt = deal(self._spark, self._block, self._times, self._options)
        # One more source of the cells: a row, as BLOCK_SCHEMA has them, for each change and cell.
        texts = self._spark.readStream.schema("value string").option("wholetext", True)
        changes = re.sub(r"[][{}*?\\]", r"\\\g<0>", f"{folder.uri}/changes")  # or Spark takes them for a glob
        side = texts.text(changes).select(
            sf.explode(sf.array(*map(sf.lit, dealt.keys))).alias("cell"),
            sf.lit(CHANGES).alias("relation"),
            sf.col("value").cast("binary").alias("block"),
        )
        leaving = [query.id for query in listed if query.state == "leaving"]
        files = partial(SinkFiles, storage=folder.storage, leaving=leaving)
        frame = dealt.run(HubProcessor(dealt.task, dealt.keys, files), side)
        functions = self._functions
        writer = frame.writeStream.foreachBatch(lambda rows, batch: deliver(rows, batch, folder, functions))
        writer = writer.option("checkpointLocation", f"{folder.uri}/spark")
        self._query = (writer.trigger(**trigger) if trigger else writer).start()
        return self._query

    @property
    def _is_active(self) -> bool:
        return self._query is not None and self._query.isActive

    def stop(self) -> None:
        """Stop; the folder has all that is needed to go on."""
        if self._query is not None:
            self._query.stop()

    def _make_query(self, name: str, select: str, where: str | None, since: Since) -> StandingQuery:
        """Return a query without a number: columns as behind SELECT, conditions as behind WHERE."""
        text = f"SELECT {select}\nFROM {self._source}"
        with self._planner() as planner:
            whole, schema = planner.plan(parse(text if where is None else f"{text}\nWHERE (\n{where}\n)"))
        plan = _require_block(whole)
        if whole.direct is None:
            raise InputError(
                "a hub's query selects columns of the join as they are, under any names: compute in a query "
                "over what it writes, or give the stream a column with the expression"
            )
        shared = self._block.join
        other = {*plan.join.equalities} ^ {*shared.equalities}
        if other:
            more = " AND ".join(sorted(map(str, other)))
            raise InputError(
                f"{more} joins streams, and all queries of a hub join them alike: put it into the hub's "
                "join, or make another hub"
            )
        sources = {column.name: column.source for column in plan.join.output}
        columns = tuple(sources[name] for name in whole.direct.columns)
        of_join = {*terms(shared.residuals)}
        conditions = [term for term in terms(plan.join.residuals) if term not in of_join]
        for alias, rows in plan.inputs.items():
            if not isinstance(rows, FrameInput):
                raise _explain_refusal(f"a condition on {alias}")
            if rows.filters is None:
                raise _explain_refusal(f"a condition on {alias}: {' '.join(rows.where.split())}")
            conditions += rows.filters
        for ref in (*(ref for each in conditions for ref in columns_of(each)), *columns):
            if ref.column not in shared.relation(ref.relation).schema.names:
                raise _explain_refusal(ref.column)
        parts = {"conditions": tuple(conditions), "columns": columns, "schema": arrow_schema(schema)}
        return StandingQuery(0, name, select, where, since, **parts)

    @contextmanager
    def _planner(self) -> Iterator[Planner]:
        with internal_query(), closing(Planner(self._spark, self._options, self._streams, {}, {})) as planner:
            yield planner


def _require_block(plan: Plan) -> BlockPlan:
    """Return the block that a query is; refuse what is more than that, or less."""
    if len(plan.blocks) != 1 or plan.filters or plan.parts:
        why = "; ".join(plan.reasons) or "it is not one join"
        raise InputError(f"a hub's queries share one join of streams, and this is none: {why}")
    (block,) = plan.blocks
    if block.above:
        raise _explain_refusal(" and ".join(block.above))
    return block


def _explain_refusal(what: str) -> InputError:
    return InputError(
        f"only Spark evaluates {what}, and a hub's queries are told apart without it: expected comparisons "
        "of columns with each other and with constants, BETWEEN, IN, LIKE and IS NULL; or give the stream a "
        "column with the expression"
    )
