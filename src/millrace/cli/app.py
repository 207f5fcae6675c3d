"""The commands and their arguments; what they do stands in the modules beside this one."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from millrace import __version__
from millrace.cli import cache, console
from millrace.cli.console import Json, consoles
from millrace.cli.errors import USAGE, one_message
from millrace.errors import OptionError
from millrace.options import Options, parse_place

app = typer.Typer(
    name="millrace",
    help="Joins on Spark through eddies: tuples find their own order while the query runs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(cache.app, name="cache")


class Engine(StrEnum):
    """Who answers the query."""

    millrace = "millrace"
    spark = "spark"


Debug = Annotated[bool, typer.Option("--debug", help="Show stack traces and Spark's log.")]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A Spark setting. Repeatable.")
]
Master = Annotated[str, typer.Option(help="Spark master.")]
Remote = Annotated[
    str | None, typer.Option(metavar="URL", help="Spark Connect server: sc://host:port or local[N].")
]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"millrace {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Joins on Spark through eddies: tuples find their own order while the query runs."""


@app.command("sql")
def sql_command(
    query: Annotated[str, typer.Argument(help="A SELECT.", show_default=False)],
    table: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=PATH", help="Parquet, CSV, JSON: file, folder or glob. Repeatable."),
    ] = None,
    lookup: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE.toml",
            help="A table asked by key: a file with schema, bind and \\[http] or \\[database]. Repeatable.",
        ),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show the plan; run nothing.")] = False,
    estimate: Annotated[
        bool,
        typer.Option("--estimate", help="Show what its lookups will take, by a sample of keys; run no more."),
    ] = False,
    report: Annotated[bool, typer.Option("--report", help="Show what the eddies did.")] = False,
    page: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write what the eddies did as a page.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write what the eddies did as a trace, for ui.perfetto.dev."),
    ] = None,
    engine: Annotated[Engine, typer.Option(help="Who answers.")] = Engine.millrace,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write one file: .parquet, .csv, .json (lines) or .arrow."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what stands where --output writes.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="Rows to show.")] = 20,
    live: Annotated[
        bool, typer.Option("--live", help="Print the address of a page that shows the query while it runs.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="With --live: serve the page until Ctrl-C.")] = False,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="An option, such as policy=fixed. Repeatable."),
    ] = None,
    master: Master = "local[*]",
    remote: Remote = None,
    conf: Conf = None,
    json: Json = None,
    debug: Debug = False,
) -> None:
    """Run one query and show its rows, or write them to a file."""
    from millrace.cli import sql
    from millrace.cli.session import session

    stdout, stderr = consoles()
    with one_message(stderr, debug, USAGE):
        if wait and not live:
            raise OptionError("--wait needs --live: it is for the page that --live serves")
        request = sql.Request(
            text=query,
            tables=sql.pairs(table or (), "--table"),
            lookups=sql.pairs(lookup or (), "--lookup"),
            engine=engine.value,
            options=sql.options_of(
                sql.pairs(option or (), "--option"), report=report or page is not None or trace is not None
            ),
            explain=explain,
            estimate=estimate,
            report=report,
            page=page,
            trace=trace,
            output=output,
            overwrite=overwrite,
            json=json,
            limit=limit,
            live=live,
            wait=wait,
        )
        settings = sql.pairs(conf or (), "--conf")
    with one_message(stderr, debug):
        sql.check(request)
        with session("millrace sql", master, remote, settings, debug) as spark:
            sql.run(request, spark, stdout, stderr)


@app.command("demo")
def demo_command(
    data: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Keep the data here, not in the cache folder.")
    ] = None,
    scale: Annotated[float, typer.Option(min=0.001, max=100, help="TPC-H scale factor.")] = 0.1,
    master: Master = "local[*]",
    json: Json = None,
    debug: Debug = False,
) -> None:
    """Run a filter and two joins of TPC-H with Millrace and with Spark, and compare rows and times."""
    from millrace.cli import demo
    from millrace.cli.session import session

    stdout, stderr = consoles()
    with one_message(stderr, debug):
        console.check(json)
        shown = console.beside(json, stdout, stderr)
        files = demo.prepare(scale, data, shown)
        with session("millrace demo", master, debug=debug) as spark:
            sides = demo.run(spark, files, shown)
        console.write([vars(side) | {"report": side.report.to_dict()} for side in sides], json)
    raise typer.Exit(1 if any(side.unequal for side in sides) else 0)


@app.command("doctor")
def doctor_command(
    master: Master = "local[*]",
    remote: Remote = None,
    conf: Conf = None,
    limits_host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Under which executors reach this machine.")
    ] = None,
    coordinator: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where `millrace coordinator` runs.")
    ] = None,
    json: Json = None,
    debug: Debug = False,
) -> None:
    """Check a cluster, and say what to do.

    Exit code 0 only if all is well: versions here and on executors, the package there, sockets, a folder for
    compiled kernels, Arrow, the coordinator of jobs.
    """
    from millrace.cli import doctor, sql

    stdout, stderr = consoles()
    with one_message(stderr, debug, USAGE):
        settings = sql.pairs(conf or (), "--conf")
        options = Options(limits_host=limits_host, coordinator=coordinator)
    with one_message(stderr, debug):
        console.check(json)
        well = doctor.run(master, remote, settings, options, json, stdout, stderr, debug=debug)
    raise typer.Exit(0 if well else 1)


@app.command("coordinator")
def coordinator_command(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address of this machine; port 0 takes a free one.")
    ],
    json: Json = None,
    debug: Debug = False,
) -> None:
    """Keep limits, budgets and answers of all jobs that join, until Ctrl-C.

    Run it where planning processes and executors reach it, and name it there: the option
    coordinator="HOST:PORT". All have its secret in MILLRACE_COORDINATOR_SECRET; without one it makes one, and
    shows it, on a terminal alone.
    """
    from millrace.cli import coordinator

    stdout, stderr = consoles()
    with one_message(stderr, debug, USAGE):
        host, port = parse_place(listen)
    with one_message(stderr, debug):
        console.check(json)
        coordinator.run(host, port, json, console.beside(json, stdout, stderr))
