"""``millrace bench``: the benchmarks, their figures and targets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from millrace.benchmarks.harness import Outcome, check_rounds
from millrace.benchmarks.show import Ticker, show, ticking
from millrace.cli import json_text
from millrace.cli.console import consoles
from millrace.cli.errors import one_message
from millrace.cli.json_text import Json
from millrace.errors import InputError, OptionError


def _enough(rounds: int) -> int:
    try:
        check_rounds(rounds)
    except OptionError as error:
        raise typer.BadParameter(str(error)) from None
    return rounds


app = typer.Typer(no_args_is_help=True, help="Measure against other engines, with an A/A control.")

Check = Annotated[bool, typer.Option("--check", help="Exit with 1 where a target is missed.")]
Quick = Annotated[bool, typer.Option("--quick", help="A smaller run: a figure within a minute.")]
Rounds = Annotated[int, typer.Option(callback=_enough, help="Timed rounds, five or more.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show stack traces and Spark's log.")]
Master = Annotated[str, typer.Option(help="Spark master.")]

TpchScale = Annotated[float, typer.Option(min=0.001, max=1000, help="TPC-H scale factor.")]
Numbers = Annotated[str | None, typer.Option(metavar="3,5,10", help="Only these.")]
TpchData = Annotated[
    Path | None, typer.Option("--data", metavar="FOLDER", help="Where the data is or shall be.")
]

_QUICK_SCALE = 0.1
_QUICK_QUERIES = (3, 5, 10)
_QUICK_SHAPES = ("cte_read_three_times", "exists_beside_joins", "tiny_tables")
_QUICK_CASES = ("a", "c", "f")
_QUICK_JOINS = ("star4", "exploding2", "triangle")
_QUICK_ROWS = 2_000_000


class _Session:
    """What the commands share: consoles, errors, the JSON file and the check."""

    def __init__(self, json: Path | None, check: bool, debug: bool) -> None:
        self.json, self.check, self.debug = json, check, debug
        self.stdout, self.stderr = consoles()

    @contextmanager
    def errors(self) -> Iterator[None]:
        with one_message(self.stderr, self.debug):
            json_text.check(self.json)
            yield

    def finish(self, total: int, bench: Callable[[Ticker], Outcome]) -> None:
        with ticking(self.stderr, total) as ticker:
            outcome = bench(ticker)
        show(outcome, json_text.beside(self.json, self.stdout, self.stderr))
        json_text.write(outcome.to_dict(), self.json)
        missed = outcome.missed()
        for sentence in missed:
            self.stderr.print(f"missed: {sentence}", style="bold red" if self.check else "yellow")
        if self.check and missed:
            raise typer.Exit(1)


def _check_rival(against: str) -> None:
    if against != "spark":
        raise InputError(f"--against {against!r}: this benchmark compares with 'spark'")


@app.command("tpch")
def tpch_command(
    scale: TpchScale = 1.0,
    against: Annotated[str, typer.Option(help="The other engine: spark.")] = "spark",
    queries: Numbers = None,
    data: TpchData = None,
    rounds: Rounds = 5,
    master: Master = "local[*]",
    json: Json = None,
    check: Check = False,
    quick: Quick = False,
    frames: Annotated[bool, typer.Option("--frames", help="Also with DataFrames as inputs.")] = False,
    debug: Debug = False,
) -> None:
    """All 22 queries of TPC-H, with Millrace and with Spark SQL."""
    from millrace.benchmarks import side_by_side, tpch, tpch_data
    from millrace.cli.session import session

    frame = _Session(json, check, debug)
    with frame.errors():
        _check_rival(against)
        numbers = _QUICK_QUERIES if quick and queries is None else tpch.parse_queries(queries)
        scale = min(scale, _QUICK_SCALE) if quick else scale
        tables = tpch_data.ensure(scale, data)
        with session("millrace bench tpch", master, debug=debug) as spark:
            frame.finish(
                side_by_side.runs(len(numbers), rounds, frames=frames),
                lambda ticker: tpch.bench(spark, tables, scale, numbers, rounds, ticker, frames=frames),
            )


@app.command("growth")
def growth_command(
    scale: TpchScale = 1.0,
    queries: Numbers = None,
    rounds: Rounds = 5,
    master: Master = "local[*]",
    json: Json = None,
    check: Check = False,
    quick: Quick = False,
    debug: Debug = False,
) -> None:
    """Queries of TPC-H at a scale and at ten times that, with Millrace and with Spark SQL."""
    from millrace.benchmarks import growth, tpch, tpch_data
    from millrace.cli.session import session

    frame = _Session(json, check, debug)
    with frame.errors():
        numbers = growth.QUERIES if queries is None else tpch.parse_queries(queries)
        scale = min(scale, _QUICK_SCALE) if quick else scale
        tables, larger = (tpch_data.ensure(each) for each in (scale, growth.TIMES * scale))
        with session("millrace bench growth", master, debug=debug) as spark:
            frame.finish(
                growth.runs(len(numbers), rounds),
                lambda ticker: growth.bench(spark, tables, larger, scale, numbers, rounds, ticker),
            )


@app.command("shapes")
def shapes_command(
    scale: TpchScale = 1.0,
    queries: Annotated[str | None, typer.Option(metavar="NAME,NAME", help="Only these.")] = None,
    data: TpchData = None,
    rounds: Rounds = 5,
    master: Master = "local[*]",
    json: Json = None,
    check: Check = False,
    quick: Quick = False,
    debug: Debug = False,
) -> None:
    """Queries of several small blocks, and of what stands beside joins, with Millrace and with Spark SQL."""
    from millrace.benchmarks import shapes, side_by_side, tpch_data
    from millrace.cli.session import session

    frame = _Session(json, check, debug)
    with frame.errors():
        names = _QUICK_SHAPES if quick and queries is None else shapes.parse_shapes(queries)
        scale = min(scale, _QUICK_SCALE) if quick else scale
        tables = tpch_data.ensure(scale, data)
        with session("millrace bench shapes", master, debug=debug) as spark:
            frame.finish(
                side_by_side.runs(len(names), rounds),
                lambda ticker: shapes.bench(spark, tables, scale, names, rounds, ticker),
            )


@app.command("kernel")
def kernel_command(
    against: Annotated[str, typer.Option(metavar="duckdb,polars", help="The others.")] = "duckdb,polars",
    rounds: Rounds = 5,
    json: Json = None,
    check: Check = False,
    quick: Quick = False,
    debug: Debug = False,
) -> None:
    """The symmetric hash join on the kernel, one thread, against other engines' joins."""
    from millrace.benchmarks import kernel

    frame = _Session(json, check, debug)
    with frame.errors():
        rivals = kernel.parse_rivals(against)
        sizes = ("1m",) if quick else tuple(kernel.CASES)
        total = len(sizes) * rounds * (len(rivals) + 2)
        frame.finish(total, lambda ticker: kernel.bench(rivals, sizes, rounds, ticker))


@app.command("start")
def start_command(rounds: Rounds = 5, json: Json = None, check: Check = False, debug: Debug = False) -> None:
    """The first batch of a fresh worker process, of a filter and of a join."""
    from millrace.benchmarks import start

    frame = _Session(json, check, debug)
    with frame.errors():
        total = len(start.KINDS) * (rounds + 1)
        frame.finish(total, lambda ticker: start.bench(rounds, ticker))


@app.command("live")
def live_command(
    scale: Annotated[float, typer.Option(min=0.001, max=100, help="Multiplies the number of rows.")] = 1.0,
    rounds: Rounds = 5,
    master: Master = "local[*]",
    json: Json = None,
    check: Check = False,
    quick: Quick = False,
    debug: Debug = False,
) -> None:
    """What it costs that tasks tell their figures while they work, and that somebody looks at them."""
    from millrace.benchmarks import live
    from millrace.cli.session import session

    frame = _Session(json, check, debug)
    with frame.errors(), session("millrace bench live", master, debug=debug) as spark:
        size = min(scale, _QUICK_SCALE) if quick else scale
        frame.finish(live.runs(rounds), lambda ticker: live.bench(spark, size, rounds, ticker))


@app.command("coordination")
def coordination_command(
    rounds: Rounds = 5, json: Json = None, check: Check = False, quick: Quick = False, debug: Debug = False
) -> None:
    """What tasks share: permits a second, their latency and memory, with 2,000 tasks on 500 connections."""
    from millrace.benchmarks import coordination

    frame = _Session(json, check, debug)
    with frame.errors():
        tasks, connections, seconds = (
            (40, 20, 0.4) if quick else (coordination.TASKS, coordination.CONNECTIONS, 5.0)
        )
        frame.finish(rounds, lambda ticker: coordination.bench(tasks, connections, seconds, rounds, ticker))


@app.command("stream")
def stream_command(
    cases: Annotated[str | None, typer.Option(metavar="NAME,NAME", help="Only these.")] = None,
    size: Annotated[
        float, typer.Option(min=0.0001, max=100, help="Of micro-batches: 1 for 100,000 rows in most cases.")
    ] = 1.0,
    rounds: Rounds = 12,
    master: Master = "local[2]",
    json: Json = None,
    check: Check = False,
    quick: Quick = False,
    debug: Debug = False,
) -> None:
    """Joins of streams, micro-batch by micro-batch, against Spark's chained joins."""
    from millrace.benchmarks import stream
    from millrace.benchmarks.harness import parse_names
    from millrace.cli.session import session

    frame = _Session(json, check, debug)
    with frame.errors():
        names = stream.NAMES if cases is None else parse_names("--cases", cases, stream.NAMES)
        names = names[:1] if quick and cases is None else names
        size = min(size, _QUICK_SCALE) if quick else size
        conf = {**stream.SETTINGS, "spark.sql.shuffle.partitions": "2"}
        with session("millrace bench stream", master, conf=conf, debug=debug) as spark:
            frame.finish(
                stream.runs(names, rounds), lambda ticker: stream.bench(spark, names, size, rounds, ticker)
            )


@app.command("robust")
def robust_command(
    cases: Annotated[str | None, typer.Option(metavar="NAME,NAME", help="Only these.")] = None,
    size: Annotated[
        float, typer.Option(min=0.001, max=100, help="Of the tables: 1 for a largest one of 1M rows.")
    ] = 1.0,
    rounds: Rounds = 5,
    master: Master = "local[1]",
    json: Json = None,
    check: Check = False,
    quick: Quick = False,
    debug: Debug = False,
) -> None:
    """Joins in 20 random orders that do not change, with the default policy, and by other engines."""
    from millrace.benchmarks import robust
    from millrace.cli.session import session

    frame = _Session(json, check, debug)
    with frame.errors():
        names = _QUICK_JOINS if quick and cases is None else robust.parse_cases(cases)
        size = min(size, _QUICK_SCALE) if quick else size
        with session("millrace bench robust", master, debug=debug) as spark:
            frame.finish(
                robust.runs(names, rounds), lambda ticker: robust.bench(spark, names, size, rounds, ticker)
            )


@app.command("exchange")
def exchange_command(
    rows: Annotated[int, typer.Option(min=1000, help="Rows of two int64 columns.")] = 10_000_000,
    rounds: Rounds = 5,
    master: Master = "local[*]",
    json: Json = None,
    check: Check = False,
    quick: Quick = False,
    debug: Debug = False,
) -> None:
    """The block exchange against Spark's exchange of rows into Python."""
    from millrace.benchmarks import exchange
    from millrace.cli.session import session

    frame = _Session(json, check, debug)
    with frame.errors(), session("millrace bench exchange", master, debug=debug) as spark:
        count = min(rows, _QUICK_ROWS) if quick else rows
        frame.finish(
            rounds * len(exchange.SIDES), lambda ticker: exchange.bench(spark, count, rounds, ticker)
        )


@app.command("predicates")
def predicates_command(
    against: Annotated[str, typer.Option(help="The other engine: spark.")] = "spark",
    cases: Annotated[str | None, typer.Option(metavar="a,c,f", help="Only these.")] = None,
    scale: Annotated[
        float,
        typer.Option(min=0.001, max=1000, help="At 1, two seconds or more of Spark a case on two cores."),
    ] = 1.0,
    rounds: Rounds = 5,
    master: Master = "local[*]",
    json: Json = None,
    check: Check = False,
    quick: Quick = False,
    debug: Debug = False,
) -> None:
    """Filters by expensive predicates: every policy, Spark's where, and the best order there is."""
    from millrace.benchmarks import predicate_cases, predicates
    from millrace.cli.session import session

    frame = _Session(json, check, debug)
    with frame.errors():
        _check_rival(against)
        names = _QUICK_CASES if quick and cases is None else predicate_cases.parse_cases(cases)
        scale = min(scale, _QUICK_SCALE) if quick else scale
        with session("millrace bench predicates", master, debug=debug) as spark:
            frame.finish(
                predicates.runs(names, rounds, quick=quick),
                lambda ticker: predicates.bench(spark, names, scale, rounds, ticker, quick=quick),
            )


@app.command("state")
def state_command(
    cases: Annotated[str | None, typer.Option(metavar="drift_5m,fig7", help="Only these.")] = None,
    scale: Annotated[
        float,
        typer.Option(min=0.001, max=100, help="TPC-H scale factor, and size of the other tables."),
    ] = 1.0,
    rounds: Rounds = 5,
    master: Master = "local[*]",
    json: Json = None,
    check: Check = False,
    quick: Quick = False,
    debug: Debug = False,
) -> None:
    """Static plans, EddyJoins, SteMs and STAIRs on the same arrivals; DuckDB and Spark SQL beside."""
    from millrace.benchmarks import state, state_cases
    from millrace.cli.session import session

    frame = _Session(json, check, debug)
    with frame.errors():
        names = state_cases.QUICK if quick and cases is None else state_cases.parse_cases(cases)
        scale = min(scale, _QUICK_SCALE) if quick else scale
        needed = state_cases.needs_spark(names)
        with session("millrace bench state", master, debug=debug) if needed else nullcontext() as spark:
            frame.finish(
                state.runs(names, rounds, quick=quick),
                lambda ticker: state.bench(spark, names, scale, rounds, ticker, quick=quick),
            )


@app.command("access")
def access_command(
    cases: Annotated[str | None, typer.Option(metavar="limit,flow,hybrid", help="Only these.")] = None,
    scale: Annotated[float, typer.Option(min=0.01, max=100, help="Multiplies the number of keys.")] = 1.0,
    rounds: Rounds = 5,
    master: Master = "local[*]",
    json: Json = None,
    check: Check = False,
    quick: Quick = False,
    debug: Debug = False,
) -> None:
    """Lookups over HTTP and in PostgreSQL: requests, time, flow of results; pandas UDFs and JDBC beside."""
    from millrace.benchmarks import access, access_database
    from millrace.cli.session import session

    frame = _Session(json, check, debug)
    with frame.errors():
        names = access.QUICK if quick and cases is None else access.parse_cases(cases)
        asks = any(name.startswith("database") for name in names)
        jar = access_database.jdbc_jar() if asks else None
        conf = {} if jar is None else {"spark.driver.extraClassPath": jar}
        with session("millrace bench access", master, conf=conf, debug=debug) as spark:
            frame.finish(
                access.runs(names, rounds), lambda ticker: access.bench(spark, names, scale, rounds, ticker)
            )
