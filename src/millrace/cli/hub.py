"""``millrace hub``: a hub's process, and what others ask of it through its folder."""

from __future__ import annotations

import time
from dataclasses import asdict
from enum import StrEnum
from json import dumps, loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli import json_text
from millrace.cli.console import consoles
from millrace.cli.errors import one_message
from millrace.cli.fitting import Column, Fitted
from millrace.cli.json_text import Json
from millrace.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

app = typer.Typer(
    help="Many standing queries over one join of streams: a process runs them, others add and remove them.",
    no_args_is_help=True,
)

_START = "start.json"
"""What a hub was started with."""

_WAIT = 0.2
"""Seconds between two looks at what others ask for."""

Where = Annotated[Path, typer.Argument(metavar="FOLDER", help="The hub's folder.", show_default=False)]
Debug = Annotated[bool, typer.Option("--debug", help="Show stack traces and Spark's log.")]
Patience = Annotated[float, typer.Option(min=0, help="Seconds to wait for the hub's answer.")]


class Since(StrEnum):
    """What a query begins with."""

    now = "now"
    window = "window"


class Keep(StrEnum):
    """What the log has."""

    all = "all"
    wanted = "wanted"


@app.command("start")
def start_command(
    folder: Where,
    stream: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FOLDER", help="Parquet files that come, one of them there. Repeatable."),
    ] = None,
    time_: Annotated[
        list[str] | None,
        typer.Option(
            "--time", metavar="NAME=COLUMN:DELAY", help="Event time, such as orders=t:10 minutes. Repeatable."
        ),
    ] = None,
    on: Annotated[
        str | None, typer.Option(metavar="JOIN", help="The join that all queries share, as behind FROM.")
    ] = None,
    keep: Annotated[Keep, typer.Option(help="Rows of the window that are kept.")] = Keep.all,
    every: Annotated[
        str | None, typer.Option(metavar="TIME", help="A micro-batch so often, such as '5 seconds'.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Take in what is there, and stop.")] = False,
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[*]",
    conf: Annotated[
        list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A Spark setting.")
    ] = None,
    json: Json = None,
    debug: Debug = False,
) -> None:
    """Run a hub until Ctrl-C; later starts in the same folder need no streams and no join."""
    from millrace.cli.session import session
    from millrace.cli.sql import pairs
    from millrace.streams.plan import SETTINGS

    _, stderr = consoles()
    with one_message(stderr, debug):
        json_text.check(json)
        given = {"stream": pairs(stream or (), "--stream"), "time": pairs(time_ or (), "--time"), "on": on}
        asked = _remembered(folder, given | {"keep": keep.value})
        trigger: dict[str, Any] = {"availableNow": True} if once else {}
        if every is not None and not once:
            trigger = {"processingTime": every}
        with session(
            "millrace hub", master, conf=SETTINGS | pairs(conf or (), "--conf"), debug=debug
        ) as spark:
            json_text.write(_run(spark, folder, asked, trigger, stderr), json)


def _remembered(folder: Path, given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a hub: those given, or those of its first start.

    Raises:
        InputError: They are neither given nor known.
    """
    path = folder / _START
    if not given["stream"] and not given["time"] and given["on"] is None:
        if not path.exists():
            raise InputError(f"there is no hub in {folder} yet: expected --stream, --time and --on")
        found: dict[str, Any] = loads(path.read_text())
        return found
    if given["on"] is None or set(given["stream"]) != set(given["time"]) or not given["stream"]:
        raise InputError(
            "expected --on, and a --time for each --stream, such as --time 'orders=t:10 minutes'"
        )
    given["stream"] = {name: str(Path(each).absolute()) for name, each in given["stream"].items()}
    return given


def _run(
    spark: SparkSession, folder: Path, asked: dict[str, Any], trigger: dict[str, Any], stderr: Any
) -> list[dict[str, Any]]:
    """Run a hub to its end, and return its queries."""
    from millrace.api.session import Session

    if "spark.sql.shuffle.partitions" not in dict(spark.sparkContext.getConf().getAll()):
        spark.conf.set("spark.sql.shuffle.partitions", str(spark.sparkContext.defaultParallelism))
    streams = {name: _stream(spark, path, asked["time"][name]) for name, path in asked["stream"].items()}
    hub = Session(spark, streams).hub(asked["on"], folder, keep=asked["keep"])
    (folder / _START).write_text(dumps(asked))  # not before the hub says that the join is its own
    hub.answer()
    query = hub.start(**trigger)
    stderr.print(f"hub in {folder}: {len(hub.list())} queries", highlight=False)
    try:
        while not query.awaitTermination(_WAIT):  # type: ignore[arg-type]  # seconds, of any kind
            hub.answer()
    finally:
        hub.stop()
    return [asdict(each) for each in hub.list()]


def _stream(spark: SparkSession, path: str, time_of: str) -> DataFrame:
    column, _, delay = time_of.partition(":")
    if not delay:
        raise InputError(f"--time {time_of!r} has no delay: expected COLUMN:DELAY, such as 't:10 minutes'")
    schema = spark.read.parquet(path).schema
    return spark.readStream.schema(schema).parquet(path).withWatermark(column, delay)


@app.command("add")
def add_command(
    folder: Where,
    name: Annotated[str, typer.Argument(help="Its name.", show_default=False)],
    sink: Annotated[Path, typer.Option(metavar="FOLDER", help="Where its Parquet files go.")],
    select: Annotated[str, typer.Option(help="Its columns, as behind SELECT.")] = "*",
    where: Annotated[str | None, typer.Option(help="Its own conditions, as behind WHERE.")] = None,
    since: Annotated[Since, typer.Option(help="What it begins with.")] = Since.now,
    streams: Annotated[
        str | None, typer.Option(metavar="NAME,NAME", help="The streams that it joins; all by default.")
    ] = None,
    wait: Patience = 20,
    json: Json = None,
    debug: Debug = False,
) -> None:
    """Add a query to a hub, whether it runs or not."""
    asked: dict[str, Any] = {"select": select, "where": where, "since": since.value}
    asked |= {"name": name, "sink": str(sink.absolute())}
    asked["streams"] = None if streams is None else streams.split(",")
    _ask(folder, {"what": "add", **asked}, wait, json, debug)


@app.command("remove")
def remove_command(
    folder: Where,
    name: Annotated[str, typer.Argument(help="Its name.", show_default=False)],
    wait: Patience = 20,
    json: Json = None,
    debug: Debug = False,
) -> None:
    """Remove a query from a hub; what it has written stays."""
    _ask(folder, {"what": "remove", "name": name}, wait, json, debug)


def _ask(folder: Path, asked: dict[str, Any], wait: float, json: Path | None, debug: bool) -> None:
    from millrace.streams.hub.folder import Folder

    stdout, stderr = consoles()
    with one_message(stderr, debug):
        json_text.check(json)
        hub = Folder(folder)
        request = hub.request(asked)
        until = time.monotonic() + wait
        done, why_not = hub.answered(request)
        while not done and time.monotonic() < until:
            time.sleep(_WAIT)
            done, why_not = hub.answered(request)
        if why_not is not None:
            raise InputError(why_not)
        word = "done" if done else "noted: the hub does not answer, and does it when it runs"
        told = f"{asked['what']} {asked['name']}: {word}"
        json_text.beside(json, stdout, stderr).print(told, highlight=False)
        json_text.write({"what": asked["what"], "name": asked["name"], "done": done}, json)


@app.command("list")
def list_command(folder: Where, json: Json = None, debug: Debug = False) -> None:
    """Show the queries of a hub."""
    from millrace.streams.hub.folder import Folder

    stdout, stderr = consoles()
    with one_message(stderr, debug):
        json_text.check(json)
        found = Folder(folder).list()
        json_text.write([asdict(each) for each in found], json)
        if json != json_text.STDOUT:
            names = ("name", "state", "streams", "since", "select", "where", "sink")
            shown = [vars(each) | {"streams": ", ".join(each.streams)} for each in found]
            rows = [[str(each[name] or "") for name in names] for each in shown]
            stdout.print(Fitted([Column(name) for name in names], rows))
