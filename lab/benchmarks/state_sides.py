"""The sides of a race: a join by each kind of join state, by DuckDB, by Spark, and by Millrace on Spark.

All of them read the same files while the clock runs. In this process each takes one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import millrace
from lab.benchmarks import harness
from lab.benchmarks.state_cases import Arriving
from millrace.engine.figures import CellFigures
from millrace.engine.runs.run_of import run_of
from millrace.errors import ExecutionError
from millrace.options import Options, Order

if TYPE_CHECKING:
    import duckdb
    from pyspark.sql import SparkSession

_WARM = 4
"""Chunks of each table that a warm-up reads."""


@dataclass(frozen=True)
class Work:
    """What a run has done.

    Attributes:
        rows: Of the result.
        intermediate: Tuples made by probes that were not results yet.
        migrated: Stored tuples that were moved.
        recomputed: Tuples made by moving them.
        probes: Tuples sent to joins and into SteMs to be matched.
        peak_state: Most tuples held at a time.
    """

    rows: int
    intermediate: int = 0
    migrated: int = 0
    recomputed: int = 0
    probes: int = 0
    peak_state: int = 0

    @classmethod
    def of(cls, rows: int, cells: Sequence[CellFigures]) -> Work:
        """Add up the figures of eddies that worked for the same query."""
        return cls(
            rows,
            sum(cell.intermediate_tuples for cell in cells),
            sum(cell.migrated_tuples for cell in cells),
            sum(cell.recomputed_tuples for cell in cells),
            sum(m.tuples_in for cell in cells for m in cell.modules if m.action in ("probe", "join")),
            sum(cell.peak_state for cell in cells),
        )

    @property
    def made(self) -> int:
        """Tuples made that are no results."""
        return self.intermediate + self.recomputed


@dataclass
class Side:
    """One way to run a join.

    Attributes:
        name: Of the side.
        run: Runs it; other engines tell no more than the rows.
        warm: Runs a bit of it, or all where it cannot be cut.
        counts: Whether it tells what it has done.
        seconds: Of each run.
        works: What each run has done.
    """

    name: str
    run: Callable[[], Work]
    warm: Callable[[], object]
    counts: bool = True
    seconds: list[float] = field(default_factory=list)
    works: list[Work] = field(default_factory=list)

    def measure(self, rows: int) -> None:
        """Run it once more.

        Raises:
            ExecutionError: Its result has another number of rows.
        """
        done: list[Work] = []
        self.seconds.append(harness.timed(lambda: done.append(self.run())))
        self.works.append(done[0])
        if done[0].rows != rows:
            raise ExecutionError(
                f"{self.name} found {done[0].rows} rows, DuckDB {rows}: one of the two is wrong"
            )

    @property
    def median(self) -> float:
        """Seconds of a run."""
        return harness.median(self.seconds)

    def row(self) -> dict[str, Any]:
        """Return what to report; of runs that were different, the medians."""
        row: dict[str, Any] = {
            "side": self.name,
            "runs": len(self.seconds),
            "median_s": self.median,
            "spread": harness.spread(self.seconds),
            "rows": self.works[0].rows,
        }
        if self.counts:
            for name in ("made", "intermediate", "migrated", "recomputed", "probes", "peak_state"):
                row[name] = round(harness.median([getattr(work, name) for work in self.works]))
        return row


def by_millrace(
    name: str,
    arriving: Arriving,
    architecture: str,
    order: Order = (),
    migration: str | None = None,
) -> Side:
    """Return Millrace's side in this process.

    Args:
        name: Of the side.
        arriving: The join and its files.
        architecture: As in ``Options``.
        order: Of a static plan.
        migration: For STAIRs; None for the default policy.
    """
    options = Options(
        architecture=architecture,
        order=order,
        migration=migration,
        batch_size=arriving.case.chunk,
        reoptimize_every=arriving.case.every,
    )

    def run(most: int | None = None) -> Work:
        work = run_of(arriving.spec, arriving.sources(most), options, schedule=arriving.schedule)
        rows = sum(batch.column(0)[0].as_py() for batch in work.run())
        return Work.of(rows, [work.figures()])

    return Side(name, run, lambda: run(_WARM))


@contextmanager
def connected(paths: Mapping[str, str]) -> Iterator[duckdb.DuckDBPyConnection]:
    """Give a connection to DuckDB that reads the files as tables, in one thread."""
    import duckdb

    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        for alias, path in paths.items():
            escaped = path.replace("'", "''")
            connection.execute(f"CREATE VIEW {alias} AS SELECT * FROM read_parquet('{escaped}')")
        yield connection


def counted(connection: duckdb.DuckDBPyConnection, query: str) -> int:
    """Return the answer of a query that counts."""
    found = connection.execute(query).fetchone()
    assert found is not None
    return int(found[0])


def by_duckdb(name: str, arriving: Arriving, connection: duckdb.DuckDBPyConnection) -> Side:
    """Return DuckDB's side."""

    def run() -> Work:
        return Work(counted(connection, arriving.case.sql()))

    return Side(name, run, run, counts=False)


def by_spark(name: str, arriving: Arriving, spark: SparkSession) -> Side:
    """Return Spark SQL's side; it plans anew in each run."""
    for alias, path in arriving.paths.items():
        spark.read.parquet(path).createOrReplaceTempView(alias)

    def run() -> Work:
        return Work(int(spark.sql(arriving.case.sql()).collect()[0][0]))

    return Side(name, run, run, counts=False)


def by_millrace_on_spark(name: str, arriving: Arriving, spark: SparkSession) -> Side:
    """Return the side of Millrace's queries, with what join state it chooses; it plans anew in each run."""
    options = Options(
        online=True,  # so that the tables arrive side by side
        batch_size=arriving.case.chunk,
        reoptimize_every=arriving.case.every,
    )

    def run() -> Work:
        query = millrace.query(arriving.case.sql(), spark, arriving.paths, options)
        rows = int(query.df.collect()[0][0])
        return Work.of(rows, [cell for _, cell in query.report().cells()])

    return Side(name, run, run)
