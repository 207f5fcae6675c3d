"""Results as they come: tasks send them to this process while they run.

Spark gives out a partition when it is done, and hands rows from one Python stage to the next in pieces of
thousands. Who waits for the first rows gets them here from the tasks themselves
(:mod:`millrace.spark.results`), each exactly once, whatever Spark runs again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
from pyspark import InheritableThread, TaskContext
from pyspark.sql import DataFrame, SparkSession

from millrace import limits
from millrace.errors import InputError
from millrace.options import Options
from millrace.spark.session import internal_query, is_connect
from millrace.spark.types import normalise
from millrace.spark.worker import worker_task

if TYPE_CHECKING:
    from millrace.engine.eddy.context import Given, RunContext
    from millrace.engine.eddy.dataflow import EddyDataflow
    from millrace.engine.plan.expressions import Predicate
    from millrace.limits.registration import Address
    from millrace.spark.results import DriverServer, ResultsSink, Stream


@dataclass(frozen=True)
class Target:
    """Where tasks send results: the process that wants them, and the stream there; travels to them."""

    address: Address
    stream: str

    def send(self, results: Iterator[pa.RecordBatch], preference: TaskPreference | None = None) -> None:
        """Send all that a task results in; nothing is computed for a partition that is there already."""
        from millrace.spark.results import ResultsSink  # what most tasks do not need

        context = TaskContext.get()
        partition, attempt = (0, 0) if context is None else (context.partitionId(), context.attemptNumber())
        with ResultsSink(self.address, self.stream, partition, attempt) as sink:
            if preference is not None:
                preference.sink = sink
            if sink.wanted:
                for batch in results:
                    sink.send(batch)
                sink.commit()


@dataclass
class TaskPreference:
    """What the reader of a task's results wants first: at the beginning, and as it says through a sink.

    Rows that lack ``missing`` relations are shown to it.
    """

    first: tuple[Predicate, ...]
    missing: tuple[str, ...] = ()
    sink: ResultsSink | None = None

    def latest(self) -> tuple[Predicate, ...]:
        said = None if self.sink is None else self.sink.preferred
        return self.first if said is None else said

    def make_dataflow(self, context: RunContext, given: Given) -> EddyDataflow:
        """Return an eddy that does what is wanted first."""
        if self.missing:
            from millrace.engine.eddy.partial import PartialDataflow  # here, for few tasks need it

            return PartialDataflow(context, given, self.latest, self.missing, self._show)
        from millrace.engine.eddy.preference import PreferringDataflow

        return PreferringDataflow(context, given, self.latest)

    def _show(self, rows: pa.RecordBatch) -> None:
        from millrace.limits.messages import EarlyRows

        assert self.sink is not None
        self.sink.send(rows, EarlyRows)


@dataclass(eq=False)
class ReaderPreference:
    """What the reader of results wants first, the most wanted first. It may change while tasks run.

    Rows that lack ``missing`` relations are shown to it before they are complete.
    """

    wanted: tuple[Predicate, ...]
    missing: tuple[str, ...] = ()
    stream: Stream | None = None

    def change(self, wanted: tuple[Predicate, ...]) -> None:
        self.wanted = wanted
        if self.stream is not None:
            self.stream.prefer(wanted)


@dataclass(frozen=True)
class _Send:
    """Runs above a DataFrame whose rows are wanted as they come."""

    target: Target
    schema: pa.Schema

    @worker_task
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        self.target.send(normalise(batch, self.schema) for batch in batches)
        yield from ()


def sender_of(frame: DataFrame, schema: pa.Schema) -> Callable[[Target], DataFrame]:
    """Return what makes, for a target, a DataFrame without rows that sends it all of this one's."""
    return lambda target: frame.mapInArrow(_Send(target, schema), frame.schema)


def refuse_endless(_: ReaderPreference | None = None) -> NoReturn:
    """Refuse to hand out a result that never ends."""
    raise InputError(
        "a query of streams has no end to wait for: start it with df.writeStream, and read what it writes"
    )


def driver_server(spark: SparkSession, options: Options) -> DriverServer:
    """Return where tasks send rows and figures to; starts it if need be."""
    # What tasks that send results do not need.
    from millrace.spark.coordinator import host_of
    from millrace.spark.results import DriverServer

    port = options.limits_port + 1 if options.limits_port else 0  # the coordinator has the first
    return DriverServer.get_or_start(host_of(spark, options), port, options.limits_bind)


def stream_of(
    spark: SparkSession,
    options: Options,
    schema: pa.Schema,
    frame_of: Callable[[Target], DataFrame],
    preference: ReaderPreference | None = None,
) -> Iterator[pa.RecordBatch]:
    """Run a job and yield what its tasks send, as it comes; the job is cancelled when the iterator is closed.

    ``frame_of`` returns the DataFrame to run, without rows of its own. What the job raises is raised here.
    """
    limits.check_libraries("a result that is read as it comes")
    server = driver_server(spark, options)
    tag = f"millrace-{uuid.uuid4().hex}"
    add_tag: Callable[[str], None]
    cancel: Callable[[str], Any]
    if is_connect(spark):
        add_tag, remove_tag, cancel = spark.addTag, spark.removeTag, spark.interruptTag
    else:  # where a session cancels only what its own thread has marked
        jobs = spark.sparkContext
        add_tag, remove_tag, cancel = jobs.addJobTag, jobs.removeJobTag, jobs.cancelJobsWithTag
    with server.open(schema, idle=options.idle_timeout) as stream:
        if preference is not None:
            preference.stream = stream
        frame = frame_of(Target(stream.address, stream.id))

        def collect() -> None:
            add_tag(tag)  # tags belong to a thread
            try:
                with internal_query():  # the action is the reader's
                    frame.collect()
            finally:
                remove_tag(tag)

        class Job(InheritableThread):  # has the caller's group of jobs, pool and tags
            def run(self) -> None:
                try:
                    super().run()
                except BaseException as error:  # noqa: BLE001  # it is raised where the rows are wanted
                    stream.fail(error)
                else:
                    stream.finish()

        thread = Job(collect, session=spark, name="millrace results", daemon=True)
        thread.start()
        is_done = False
        try:
            yield from stream
            is_done = True
        finally:
            if not is_done and thread.is_alive():
                cancel(tag)
    thread.join()
