"""How the tasks' figures come back to the user.

Classic Spark has accumulators: a task adds its figures, the driver has them when the task has
ended, and reading them never waits. Spark Connect has none, so there the task appends one last
row with its figures in a hidden column; an observation collects these as the rows pass, and a
filter removes them. (An observation costs about 60 ns a row, so it is not used where accumulators
are; and on Connect, unlike on classic Spark, reading it does not wait for a run.)

What a task has learned goes to the tasks after it on the same machine by :class:`FileWarmStart`.
"""

from __future__ import annotations

import tempfile
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import SparkContext, SparkFiles, TaskContext
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation, SparkSession, functions as sf, types as st

from millrace.engine.arrays import array_of, zeros
from millrace.engine.figures import CellFigures
from millrace.errors import ExecutionError, MillraceError, MissingExtra
from millrace.options import Options
from millrace.spark.coordinator import execution_of
from millrace.spark.session import is_connect
from millrace.spark.streaming import driver_server

if TYPE_CHECKING:
    from millrace.limits.registration import Address
    from millrace.reports.board.board import Board
    from millrace.reports.board.telling import Telling

REPORT = "__millrace_report"
_KEPT = 20_000

Entries = dict[tuple[str, str], tuple[int | None, bytes]]
"""By run and task: of which execution, and its figures, compressed. A session keeps thousands of tasks."""


class _Latest(AccumulatorParam[Entries]):
    """Keeps each task's latest figures: a later attempt or execution replaces the one before."""

    def zero(self, value: Entries) -> Entries:  # Spark's signature
        return {}

    def addInPlace(self, value1: Entries, value2: Entries) -> Entries:  # noqa: N802  # Spark's name
        for key, (execution, packed) in value2.items():
            latest = value1.get(key, (None, b""))[0]
            # Of executions under way at once, the later one's figures stay.
            if execution is None or latest is None or execution >= latest:
                value1.pop(key, None)
                value1[key] = execution, packed
        while len(value1) > _KEPT:
            value1.pop(next(iter(value1)), None)
        return value1


_ACCUMULATORS: dict[SparkContext, Accumulator[Entries]] = {}

_board: Board | None = None
_boards = 0


def set_live_board(board: Board | None) -> None:
    """Let tasks of queries that are planned from now on send a board their figures while they work."""
    global _board, _boards
    from millrace.spark.results import DriverServer

    DriverServer.board = _board = board
    _boards += board is not None


def live_board() -> tuple[Board | None, int]:
    """Return the board that tasks send figures to now, and its number: 0 for none."""
    return _board, 0 if _board is None else _boards


def _address_of(spark: SparkSession, run: str, options: Options) -> Address | None:
    """Return where tasks report figures, None if nobody looks; whether they reach it is for them to see."""
    if _board is None:
        return None
    try:
        return driver_server(spark, options).address_of(run)
    except MillraceError:
        return None


@dataclass(frozen=True)
class Sink:
    """Where a task puts its figures; travels to the tasks."""

    run: str
    accumulator: Accumulator[Entries] | None  # on classic Spark
    hidden: bool  # whether the result has the hidden column
    live: Address | None = field(default=None, repr=False)  # where figures go while tasks work

    @property
    def active(self) -> bool:
        """Whether anybody wants the figures."""
        return self.hidden or self.accumulator is not None

    def add(self, task: str, text: str) -> bool:
        """Report a task's figures; return False if they have to travel with the data."""
        if self.accumulator is None:
            return False
        # Spark's number of the action that the task is of; RDDs' actions have none.
        action = execution_of(TaskContext.get()).rpartition("/")[2]
        execution = int(action) if action.isdecimal() else None
        self.accumulator.add({(self.run, task): (execution, zlib.compress(text.encode(), 1))})
        return True

    def report_live(
        self, task: str, figures: Callable[[], CellFigures]
    ) -> Telling | AbstractContextManager[None]:
        """Report a task's figures while the body runs, under the name that they end with."""
        if self.live is None:
            return nullcontext()
        try:
            from millrace.reports.board.telling import Telling  # what most tasks do not need
        except MissingExtra:  # on this executor: the page does without, and the query goes on
            return nullcontext()
        return Telling(self.live, self.run, task, figures)

    def schema(self, schema: st.StructType) -> st.StructType:
        """Return the schema of the tasks' output; a row of figures has zeros or nulls beside them."""
        if not self.hidden:
            return schema
        fields = []
        for f in schema.fields:
            has_zero = isinstance(f.dataType, st.AtomicType) and not isinstance(f.dataType, st.VariantType)
            fields.append(st.StructField(f.name, f.dataType, f.nullable or not has_zero, f.metadata))
        return st.StructType([*fields, st.StructField(REPORT, st.StringType())])

    def data(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch of the result as the task has to yield it."""
        return batch.append_column(REPORT, pa.nulls(batch.num_rows, pa.string())) if self.hidden else batch

    def finish(self, task: str, texts: list[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Report at the end of an eddy's task; yields the rows that carry the figures, if any."""
        if not self.hidden:
            for number, text in enumerate(texts):
                self.add(f"{task}.{number}", text)
            return
        columns = [*(zeros(f.type, len(texts)) for f in schema), array_of(texts, pa.string())]
        yield pa.RecordBatch.from_arrays(columns, names=[*schema.names, REPORT])


def ended_tasks(run: str) -> Mapping[str, bytes]:
    """Return the figures of tasks of a run's latest execution that have ended, by task; on classic Spark."""
    figures: dict[str, bytes] = {}
    for accumulator in list(_ACCUMULATORS.values()):
        figures |= _latest(accumulator, run)
    return figures


def _latest(accumulator: Accumulator[Entries], run: str) -> dict[str, bytes]:
    """Return the figures of a run's latest execution, by task.

    Spark may leave out tasks whose output is still there from an earlier execution. That output is
    part of the latest one. So the latest is found for each kind of task, such as cells and cuts.
    """
    entries = list(accumulator.value.items())
    own = [(task.rpartition(" ")[0], task, *entry) for (name, task), entry in entries if name == run]
    latest: dict[str, int | None] = {}
    for kind, _, execution, _ in own:
        before = latest.get(kind)
        latest[kind] = execution if execution is None or before is None else max(execution, before)
    return {task: packed for kind, task, execution, packed in own if execution == latest[kind]}


class Reports:
    """The driver's side: makes the sink, and reads what the tasks reported.

    ``carried`` says whether rows of the result can carry figures, which is the only way on Spark Connect.
    """

    def __init__(self, spark: SparkSession, options: Options, *, wanted: bool, carried: bool = True) -> None:
        self._observation: Observation | None = None
        self._why_none = "" if wanted else "the option report is off; run with report=True"
        accumulator: Accumulator[Entries] | None = None
        connect = is_connect(spark)
        if connect and wanted and not carried:
            self._why_none = (
                "those of filters in SQL text and on streams do not come back through Spark Connect; use "
                "millrace.where on a DataFrame, or classic Spark"
            )
        elif wanted and not connect:
            context = spark.sparkContext
            if context not in _ACCUMULATORS:
                _ACCUMULATORS.clear()  # those of a context that was stopped are of no use
                _ACCUMULATORS[context] = context.accumulator({}, _Latest())
            accumulator = _ACCUMULATORS[context]
        run = f"millrace-{uuid.uuid4().hex}"
        live = _address_of(spark, run, options)
        self.sink = Sink(run, accumulator, wanted and connect and carried, live)

    def attach(self, mapped: DataFrame) -> DataFrame:
        """Return the result's DataFrame from the one that the eddies' tasks yield."""
        if not self.sink.hidden:
            return mapped
        return self._observe(mapped, sf.col(REPORT)).where(sf.col(REPORT).isNull()).drop(REPORT)

    def attach_mask(self, masked: DataFrame, column: str) -> DataFrame:
        """Return the rows that a filter's struct column keeps, its figures observed on the way."""
        observed = self._observe(masked, sf.col(column)["report"])
        return observed.where(sf.col(column)["keep"]).drop(column)

    def _observe(self, frame: DataFrame, texts: Column) -> DataFrame:
        self._observation = Observation(self.sink.run)
        return frame.observe(self._observation, sf.collect_list(texts).alias("reports"))

    def figures(self, executed: DataFrame | None = None) -> list[CellFigures]:
        """Return the figures of the latest run; never waits.

        The DataFrame whose action ran the block is only needed on Spark Connect when the block's DataFrame
        was used inside SQL text, which hides it from Spark's client. ExecutionError if figures were not asked
        for, or no run has finished.
        """
        if self._why_none:
            raise ExecutionError(f"there are no figures: {self._why_none}")
        texts = self._reported(executed)
        if not texts:
            raise ExecutionError(
                "there are no figures yet: run an action on the DataFrame first, such as collect() or "
                "write. (A run that stops early, for example for a LIMIT, may leave none.)"
            )
        return sorted(map(CellFigures.from_json, texts), key=lambda figures: figures.cell)

    def forget(self) -> None:
        """Forget the figures so far, because another caller gets the DataFrame."""
        if (accumulator := self.sink.accumulator) is not None:
            entries = accumulator.value
            for key in list(entries):
                if key[0] == self.sink.run:
                    entries.pop(key, None)
        elif self._observation is not None:
            with suppress(PySparkException):  # what the latest run failed with
                self._observation.get.clear()

    def _reported(self, executed: DataFrame | None) -> list[str]:
        if (accumulator := self.sink.accumulator) is not None:
            own = _latest(accumulator, self.sink.run)
            return [zlib.decompress(packed).decode() for packed in own.values()]
        seen: Any = None if self._observation is None else self._observation.get.get("reports")
        if not seen and executed is not None and (info := executed.executionInfo) is not None:
            seen = dict(info.flows).get(self.sink.run, {}).get("reports")
        return list(seen or [])


@dataclass(frozen=True)
class FileWarmStart:
    """What tasks of a run on one machine tell each other, in a file that Spark removes with the executor."""

    run: str

    def read(self) -> str | None:
        """Return what the latest task that ended on this machine has learned."""
        try:
            return self._path.read_text()
        except FileNotFoundError:
            return None

    def write(self, text: str) -> None:
        """Replace it, so that a reader sees the old or the new text and never a part of one."""
        folder = self._path.parent
        with tempfile.NamedTemporaryFile("w", dir=folder, prefix="millrace-", delete=False) as file:
            file.write(text)
        Path(file.name).replace(self._path)

    @property
    def _path(self) -> Path:
        return Path(SparkFiles.getRootDirectory()) / f"{self.run}.lessons"
