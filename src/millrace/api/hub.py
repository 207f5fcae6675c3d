"""``Session.hub``: many standing queries over one join of streams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.errors import InputError, near
from millrace.options import Options
from millrace.spark.session import is_connect
from millrace.sql.planner.standing import SharedJoin
from millrace.streams.hub.delivery import Deliver, Sink
from millrace.streams.hub.folder import Folder, Listed
from millrace.streams.hub.lineage import STEM
from millrace.streams.hub.plan import hub as planned
from millrace.streams.hub.query import Since, StandingQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class Hub:
    """Many standing queries over one join of streams; see :meth:`millrace.Session.hub`, which makes it."""

    def __init__(
        self,
        spark: SparkSession,
        streams: Mapping[str, DataFrame],
        on: str,
        checkpoint: str | Path,
        sinks: Mapping[str, Sink] | None = None,
        keep: Literal["all", "wanted"] = "all",
        options: Options | dict[str, Any] | None = None,
    ) -> None:
        if keep not in ("all", "wanted"):
            raise InputError(f"keep is {keep!r}: expected 'all' or 'wanted'")
        self._spark = spark
        self._options = Options.of(options)
        self._keeps_all = keep == "all"
        self._join = SharedJoin(spark, streams, on, self._options)
        for relation in self._join.block.join.relations:
            taken = [name for name in relation.schema.names if name.startswith(STEM)]
            if taken:
                raise InputError(
                    f"stream {relation.alias!r} has a column {taken[0]!r}: a hub needs that name"
                )
        self._folder = Folder(checkpoint)
        self._folder.begin({"on": on, "keep": keep})
        # By the query's number: a query that has gone may have had the name of one that stands.
        known = {each.name: each.id for each in self.list() if each.sink is None}
        self._functions = {known[name]: sink for name, sink in (sinks or {}).items() if name in known}
        self._query: StreamingQuery | None = None
        self._claiming = Lock()

    def add(
        self,
        name: str,
        select: str,
        where: str | None = None,
        *,
        sink: Sink | str | Path,
        since: Since = "now",
        streams: Iterable[str] | None = None,
    ) -> None:
        """Add a query; the next micro-batch begins with it, whether the hub runs or not.

        Args:
            name: Names it among those that stand.
            select: Columns of the join, as behind SELECT.
            where: Its own conditions, as behind WHERE.
            sink: A folder to write Parquet files to; or a function that is given the rows of each
                micro-batch as an Arrow table, and the micro-batch's number.
            since: ``"now"`` for results of rows that arrive from now on, ``"window"`` also of those that
                arrived before and are still kept.
            streams: The streams that it joins, by their names in the join: all by default, or some, with the
                join's conditions over these alone.

        Raises:
            InputError: There is a query of that name, or it wants what a hub does not give.
            pyspark.errors.AnalysisException: Spark refuses the query.
        """
        if since not in ("now", "window"):
            raise InputError(f"query {name!r}: since is {since!r}: expected 'now' or 'window'")
        if since == "window" and not self._keeps_all:
            raise InputError(
                f"query {name!r}: this hub keeps only rows that some query wants, so what the window had is "
                "gone: add it with since='now', or begin a hub with keep='all'"
            )
        if any(each.name == name and each.state != "leaving" for each in self.list()):
            raise InputError(f"there is a query {name!r}: remove it first, or give this one another name")
        wanted = self._join.wanted(select, where, streams)
        query = StandingQuery(0, name, **vars(wanted), since=since)
        told: dict[str, Any] = {"select": select, "where": where, "sink": None}
        if not callable(sink):
            told["sink"] = str(self._files(name, Path(sink).absolute(), wanted.schema))
            self._folder.add(query, told)
        elif self._is_active and is_connect(self._spark):
            raise InputError(
                f"query {name!r}: on Spark Connect functions are sent when the hub starts: stop() it, add "
                "the query, and start() it"
            )
        else:
            claimed: list[int] = []

            def claim(number: int) -> None:
                for lost in claimed:
                    del self._functions[lost]
                claimed[:] = [number]
                self._functions[number] = sink

            with self._claiming:  # two threads may claim the same number, and one of them gets it
                try:
                    self._folder.add(query, told, claim)
                except BaseException:  # the number may be another query's
                    for lost in claimed:
                        del self._functions[lost]
                    raise

    def _files(self, name: str, path: Path, schema: pa.Schema) -> Path:
        """Return the folder of a query's files; whoever reads it finds the columns before there are rows.

        Raises:
            InputError: Another query writes there, files cannot have such columns, or none can be written.
        """
        shared = [each.name for each in self.list() if each.sink == str(path)]
        if shared:
            raise InputError(f"query {name!r}: {path} is the sink of query {shared[0]!r}: give another")
        lower = [each.lower() for each in schema.names]
        twice = sorted({each for each in lower if lower.count(each) > 1})
        if twice:
            raise InputError(
                f"query {name!r} has several columns {', '.join(twice)}, which a file cannot have: name them "
                "apart with AS"
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
            pq.write_table(schema.empty_table(), path / "empty.parquet")
        except (OSError, pa.ArrowException) as error:
            raise InputError(
                f"query {name!r}: its files cannot be written to {path}: {error}; give a folder that the hub "
                "may make and write to"
            ) from error
        return path

    def remove(self, name: str) -> None:
        """Remove a query; the next micro-batch goes on without it. What it has written stays.

        Raises:
            InputError: There is none of that name.
        """
        standing = {each.name: each for each in self.list() if each.state != "leaving"}
        if name not in standing:
            raise InputError(f"there is no query {name!r}: {near(name, list(standing))}")
        self._folder.remove(standing[name].id)

    def list(self) -> list[Listed]:
        """Return the queries."""
        return self._folder.list()

    def start(self, **trigger: Any) -> StreamingQuery:
        """Start, or go on where the hub was stopped.

        Args:
            trigger: Spark's trigger, such as ``availableNow=True`` or ``processingTime="5 seconds"``.

        Raises:
            InputError: It runs, or a query's function is not given.
            StateError: Spark's checkpoint is missing.
            MillraceError: As :func:`millrace.sql` over streams.
        """
        if self._is_active:
            raise InputError("the hub runs already: stop() it first")
        self._folder.check_checkpoint()
        listed = self.list()
        latest = {each.name: each.id for each in listed}
        for each in listed:
            if each.sink is None and each.id not in self._functions and each.id == latest[each.name]:
                raise InputError(
                    f"query {each.name!r} gives its rows to a function, which no restart remembers: give "
                    f"hub() sinks={{{each.name!r}: function}}"
                )
            if each.sink is not None:
                for part in Path(each.sink).glob(".*.part"):
                    part.unlink(missing_ok=True)  # what processes that died have left
        frame = planned(
            self._spark,
            self._join.block,
            self._join.times,
            self._options,
            str(self._folder.changes),
            keeps_all=self._keeps_all,
        )
        retained = int(str(self._spark.conf.get("spark.sql.streaming.minBatchesToRetain", "100")))
        deliver = Deliver(Folder(self._folder.path), self._functions, retained)
        writer = frame.writeStream.foreachBatch(lambda rows, batch: deliver(rows, batch))
        writer = writer.option("checkpointLocation", str(self._folder.spark))
        self._query = (writer.trigger(**trigger) if trigger else writer).start()
        return self._query

    @property
    def _is_active(self) -> bool:
        return self._query is not None and self._query.isActive

    def stop(self) -> None:
        """Stop; the folder has all that is needed to go on."""
        if self._query is not None:
            self._query.stop()
