"""``millrace bench``: the benchmarks, with their options and the size of a quick run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lab.benchmarks.harness import parse_names
from millrace.cli.measuring import Run, app, command
from millrace.errors import InputError

__all__ = ["app"]

TpchScale = Annotated[float, typer.Option(min=0.001, max=1000, help="TPC-H scale factor.")]
Numbers = Annotated[str | None, typer.Option(metavar="3,5,10", help="Only these.")]
Names = Annotated[str | None, typer.Option(metavar="NAME,NAME", help="Only these.")]
TpchData = Annotated[
    Path | None, typer.Option("--data", metavar="FOLDER", help="Where the data is or shall be.")
]
Rival = Annotated[str, typer.Option(help="The other engine: spark.")]

_QUICK_QUERIES = (3, 5, 10)
_QUICK_SHAPES = ("cte_read_three_times", "exists_beside_joins", "tiny_tables")
_QUICK_CASES = ("a", "c", "f")
_QUICK_JOINS = ("star4", "exploding2", "triangle")
_QUICK_ROWS = 2_000_000


def _check_rival(against: str) -> None:
    if against != "spark":
        raise InputError(f"--against {against!r}: this benchmark compares with 'spark'")


@command()
def tpch(
    *,
    scale: TpchScale = 1.0,
    against: Rival = "spark",
    queries: Numbers = None,
    data: TpchData = None,
    run: Run,
    frames: Annotated[bool, typer.Option("--frames", help="Also with DataFrames as inputs.")] = False,
) -> None:
    """All 22 queries of TPC-H, with Millrace and with Spark SQL."""
    from lab.benchmarks import side_by_side, tpch, tpch_data

    _check_rival(against)
    numbers = _QUICK_QUERIES if run.quick and queries is None else tpch.parse_queries(queries)
    scale = run.smaller(scale)
    tables = tpch_data.ensure(scale, data)
    run.on_spark(
        side_by_side.runs(len(numbers), run.rounds, frames=frames),
        tpch.bench,
        tables,
        scale,
        numbers,
        frames=frames,
    )


@command()
def growth(*, scale: TpchScale = 1.0, queries: Numbers = None, run: Run) -> None:
    """Queries of TPC-H at a scale and at ten times that, with Millrace and with Spark SQL."""
    from lab.benchmarks import growth, tpch, tpch_data

    numbers = growth.QUERIES if queries is None else tpch.parse_queries(queries)
    scale = run.smaller(scale)
    tables, larger = (tpch_data.ensure(each) for each in (scale, growth.TIMES * scale))
    run.on_spark(growth.runs(len(numbers), run.rounds), growth.bench, tables, larger, scale, numbers)


@command()
def shapes(*, scale: TpchScale = 1.0, queries: Names = None, data: TpchData = None, run: Run) -> None:
    """Queries of several small blocks, and of what stands beside joins, with Millrace and with Spark SQL."""
    from lab.benchmarks import shapes, side_by_side, tpch_data

    names = _QUICK_SHAPES if run.quick and queries is None else shapes.parse_shapes(queries)
    scale = run.smaller(scale)
    tables = tpch_data.ensure(scale, data)
    run.on_spark(side_by_side.runs(len(names), run.rounds), shapes.bench, tables, scale, names)


@command("master")
def kernel(
    *,
    against: Annotated[str, typer.Option(metavar="duckdb,polars", help="The others.")] = "duckdb,polars",
    run: Run,
) -> None:
    """The symmetric hash join on the kernel, one thread, against other engines' joins."""
    from lab.benchmarks import kernel

    rivals = kernel.parse_rivals(against)
    sizes = ("1m",) if run.quick else tuple(kernel.CASES)
    total = len(sizes) * run.rounds * (len(rivals) + 2)
    run.alone(total, kernel.bench, rivals, sizes)


@command("master", "quick")
def start(*, run: Run) -> None:
    """The first batch of a fresh worker process, of a filter and of a join."""
    from lab.benchmarks import start

    run.alone(len(start.KINDS) * (run.rounds + 1), start.bench)


@command()
def live(
    *,
    scale: Annotated[float, typer.Option(min=0.001, max=100, help="Multiplies the number of rows.")] = 1.0,
    run: Run,
) -> None:
    """What it costs that tasks tell their figures while they work, and that somebody looks at them."""
    from lab.benchmarks import live

    run.on_spark(live.runs(run.rounds), live.bench, run.smaller(scale))


@command("master")
def coordination(*, run: Run) -> None:
    """What tasks share: permits a second, their latency and memory, with 2,000 tasks on 500 connections."""
    from lab.benchmarks import coordination

    size = (40, 20, 0.4) if run.quick else (coordination.TASKS, coordination.CONNECTIONS, 5.0)
    run.alone(run.rounds, coordination.bench, *size)


@command(rounds=12, master="local[2]")
def stream(
    *,
    cases: Names = None,
    size: Annotated[
        float, typer.Option(min=0.0001, max=100, help="Of micro-batches: 1 for 100,000 rows in most cases.")
    ] = 1.0,
    run: Run,
) -> None:
    """Joins of streams, micro-batch by micro-batch, against Spark's chained joins."""
    from lab.benchmarks import stream

    names = stream.NAMES if cases is None else parse_names("--cases", cases, stream.NAMES)
    names = names[:1] if run.quick and cases is None else names
    run.on_spark(
        stream.runs(names, run.rounds),
        stream.bench,
        names,
        run.smaller(size),
        conf={**stream.SETTINGS, "spark.sql.shuffle.partitions": "2"},
    )


@command(master="local[1]")
def robust(
    *,
    cases: Names = None,
    size: Annotated[
        float, typer.Option(min=0.001, max=100, help="Of the tables: 1 for a largest one of 1M rows.")
    ] = 1.0,
    run: Run,
) -> None:
    """Joins in 20 random orders that do not change, with the default policy, and by other engines."""
    from lab.benchmarks import robust

    names = _QUICK_JOINS if run.quick and cases is None else robust.parse_cases(cases)
    run.on_spark(robust.runs(names, run.rounds), robust.bench, names, run.smaller(size))


@command()
def exchange(
    *,
    rows: Annotated[int, typer.Option(min=1000, help="Rows of two int64 columns.")] = 10_000_000,
    run: Run,
) -> None:
    """The block exchange against Spark's exchange of rows into Python."""
    from lab.benchmarks import exchange

    count = min(rows, _QUICK_ROWS) if run.quick else rows
    run.on_spark(run.rounds * len(exchange.SIDES), exchange.bench, count)


@command()
def predicates(
    *,
    against: Rival = "spark",
    cases: Annotated[str | None, typer.Option(metavar="a,c,f", help="Only these.")] = None,
    scale: Annotated[
        float,
        typer.Option(min=0.001, max=1000, help="At 1, two seconds or more of Spark a case on two cores."),
    ] = 1.0,
    run: Run,
) -> None:
    """Filters by expensive predicates: every policy, Spark's where, and the best order there is."""
    from lab.benchmarks import predicate_cases, predicates

    _check_rival(against)
    names = _QUICK_CASES if run.quick and cases is None else predicate_cases.parse_cases(cases)
    run.on_spark(
        predicates.runs(names, run.rounds, quick=run.quick),
        predicates.bench,
        names,
        run.smaller(scale),
        quick=run.quick,
    )


@command()
def state(
    *,
    cases: Annotated[str | None, typer.Option(metavar="drift_5m,fig7", help="Only these.")] = None,
    scale: Annotated[
        float,
        typer.Option(min=0.001, max=100, help="TPC-H scale factor, and size of the other tables."),
    ] = 1.0,
    run: Run,
) -> None:
    """Static plans, EddyJoins, SteMs and STAIRs on the same arrivals; DuckDB and Spark SQL beside."""
    from lab.benchmarks import state, state_cases

    names = state_cases.QUICK if run.quick and cases is None else state_cases.parse_cases(cases)
    total, size = state.runs(names, run.rounds, quick=run.quick), run.smaller(scale)
    if state_cases.needs_spark(names):
        run.on_spark(total, state.bench, names, size, quick=run.quick)
    else:
        run.alone(total, state.bench, None, names, size, quick=run.quick)


@command()
def access(
    *,
    cases: Annotated[str | None, typer.Option(metavar="limit,flow,hybrid", help="Only these.")] = None,
    scale: Annotated[float, typer.Option(min=0.01, max=100, help="Multiplies the number of keys.")] = 1.0,
    run: Run,
) -> None:
    """Lookups over HTTP and in PostgreSQL: requests, time, flow of results; pandas UDFs and JDBC beside."""
    from lab.benchmarks import access, access_database

    names = access.QUICK if run.quick and cases is None else access.parse_cases(cases)
    asks = any(name.startswith("database") for name in names)
    jar = access_database.jdbc_jar() if asks else None
    run.on_spark(
        access.runs(names, run.rounds),
        access.bench,
        names,
        scale,
        conf={} if jar is None else {"spark.driver.extraClassPath": jar},
    )
