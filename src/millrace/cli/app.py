"""The commands and their arguments; what they do stands in the modules beside this one."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from millrace import __version__
from millrace.cli import answers, bench, experiment, hub, json_text
from millrace.cli.console import consoles
from millrace.cli.errors import one_message
from millrace.cli.json_text import Json
from millrace.cli.report_option import WithReport
from millrace.options import POLICY_NAMES

app = typer.Typer(
    name="millrace",
    help="Joins on Spark through eddies: tuples find their own order while the query runs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(answers.app, name="answers")
app.add_typer(bench.app, name="bench")
app.add_typer(experiment.app, name="experiment")
app.add_typer(hub.app, name="hub")


class Engine(StrEnum):
    """Who answers the query."""

    millrace = "millrace"
    spark = "spark"


Debug = Annotated[bool, typer.Option("--debug", help="Show stack traces and Spark's log.")]
Conf = Annotated[list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A Spark setting.")]


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


@app.command("sql", cls=WithReport)
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
    report: Annotated[
        bool,
        typer.Option(
            "--report", help="Show what the eddies did; with FILE.html behind it, write that as a page."
        ),
    ] = False,
    report_page: Annotated[Path | None, typer.Option("--report-page", hidden=True)] = None,
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
    live_wait: Annotated[
        bool, typer.Option("--live-wait", help="The same, and serve the page until Ctrl-C.")
    ] = False,
    policy: Annotated[str | None, typer.Option(help=f"Routing policy: {', '.join(POLICY_NAMES)}.")] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Any other option. Repeatable.")
    ] = None,
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[*]",
    remote: Annotated[
        str | None, typer.Option(metavar="URL", help="Spark Connect server: sc://host:port or local[N].")
    ] = None,
    conf: Conf = None,
    json: Json = None,
    debug: Debug = False,
) -> None:
    """Run one query and show its rows, or write them to a file."""
    from millrace.cli import sql
    from millrace.cli.session import session

    stdout, stderr = consoles()
    wanted = report or report_page is not None
    with one_message(stderr, debug):
        request = sql.Request(
            text=query,
            tables=sql.pairs(table or (), "--table"),
            lookups=sql.pairs(lookup or (), "--lookup"),
            engine=engine.value,
            options=sql.options_of(sql.pairs(option or (), "--option"), policy, wanted),
            explain=explain,
            estimate=estimate,
            report=report,
            page=report_page,
            output=output,
            overwrite=overwrite,
            json=json,
            limit=limit,
            live=live or live_wait,
            wait=live_wait,
        )
        settings = sql.pairs(conf or (), "--conf")
        with session("millrace sql", master, remote, settings, debug) as spark:
            sql.run(request, spark, stdout, stderr)


@app.command("demo")
def demo_command(
    data: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Keep the data here, not in the cache folder.")
    ] = None,
    scale: Annotated[float, typer.Option(min=0.001, max=100, help="TPC-H scale factor.")] = 0.1,
    stream: Annotated[
        bool, typer.Option("--stream", help="Join three made-up streams live instead; Ctrl-C ends it.")
    ] = False,
    seconds: Annotated[float, typer.Option(min=1, help="With --stream: how long.")] = 60,
    rate: Annotated[
        float, typer.Option(min=1, max=1_000_000, help="With --stream: rows a second of each stream.")
    ] = 1000,
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[*]",
    json: Json = None,
    debug: Debug = False,
) -> None:
    """Run four joins of TPC-H with Millrace and with Spark SQL, and compare rows and times."""
    from millrace.cli.session import session

    stdout, stderr = consoles()
    with one_message(stderr, debug):
        json_text.check(json)
        shown = json_text.beside(json, stdout, stderr)
        if stream:
            from millrace.cli import demo_stream  # without what the other demo needs
            from millrace.streams.plan import SETTINGS

            with session("millrace demo", master, conf=SETTINGS, debug=debug) as spark:
                report = demo_stream.run(spark, shown, seconds, rate)
            json_text.write(report.to_dict(), json)
            raise typer.Exit
        from millrace.cli import demo

        files = demo.prepare(scale, data, shown)
        with session("millrace demo", master, debug=debug) as spark:
            sides = demo.run(spark, files, shown)
        json_text.write([vars(side) | {"report": side.report.to_dict()} for side in sides], json)
    raise typer.Exit(1 if any(side.unequal for side in sides) else 0)


@app.command("doctor")
def doctor_command(
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[*]",
    remote: Annotated[
        str | None, typer.Option(metavar="URL", help="Spark Connect server: sc://host:port or local[N].")
    ] = None,
    conf: Conf = None,
    limits_host: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Under which executors reach this machine, or 'executor'."),
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
    with one_message(stderr, debug):
        json_text.check(json)
        settings = sql.pairs(conf or (), "--conf")
        well = doctor.run(master, remote, settings, limits_host, json, stdout, stderr, debug=debug)
    raise typer.Exit(0 if well else 1)


def main() -> None:
    """Run the command line."""
    app()
