"""``millrace sql``: one query, its rows on the screen or in a file."""

from __future__ import annotations

import json
import threading
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from millrace.api.monitor import progress
from millrace.cli import console, output
from millrace.cli.errors import message_of
from millrace.cli.lookups import lookup_from
from millrace.cli.tables import Fitted
from millrace.errors import ExecutionError, InputError, OptionError, require
from millrace.options import Options
from millrace.reports.pages.files import check_target
from millrace.spark.path_tables import open_path
from millrace.spark.session import is_connect, planned

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millrace.api.query import Query
    from millrace.limits.progress import LookupProgress


@dataclass(frozen=True)
class Request:
    """What the command line asks for: the query's text, and options by their names, which say the rest."""

    text: str
    tables: Mapping[str, str]
    lookups: Mapping[str, str]
    engine: str
    options: Options
    explain: bool
    estimate: bool
    report: bool
    page: Path | None
    trace: Path | None
    output: Path | None
    overwrite: bool
    json: Path | None
    limit: int
    live: bool
    wait: bool

    @property
    def wants_figures(self) -> bool:
        """Whether the figures of a whole run are wanted."""
        return self.report or self.page is not None or self.trace is not None


def pairs(items: Sequence[str], flag: str) -> dict[str, str]:
    """Return ``name=value`` arguments as a dictionary.

    Raises:
        InputError: One of them has no ``=`` or no name, or a name stands twice.
    """
    result: dict[str, str] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name or not value:
            raise InputError(f"{flag} {item!r}: expected NAME=VALUE, for example {_EXAMPLE[flag]}")
        if name in result:
            raise InputError(f"{flag} names {name!r} twice: {result[name]!r} and {value!r}")
        result[name] = value
    return result


_EXAMPLE = {
    "--table": "--table orders=data/orders.parquet",
    "--lookup": "--lookup prices=prices.toml",
    "--option": "--option batch_size=10000",
    "--conf": "--conf spark.driver.memory=8g",
}


def options_of(settings: Mapping[str, str], report: bool) -> Options:
    """Return the options that ``--option`` names, read by the type of each.

    Raises:
        OptionError: A name is unknown or a value out of its range.
    """
    types = typing.get_type_hints(Options)
    values: dict[str, Any] = {"report": report}
    for name, text in settings.items():
        values[name] = _value(name, text, types.get(name, str))
    return Options.of(values)


def _value(name: str, text: str, kind: Any) -> Any:
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise OptionError(f"option {name} is {text!r}: expected true or false")
        return text.lower() == "true"
    if type(None) in typing.get_args(kind) and text.lower() == "none":
        return None
    for number, what in ((int, "a whole number"), (float, "a number")):
        if kind in (number, number | None):
            try:
                return number(text.replace("_", ""))
            except ValueError:
                raise OptionError(f"option {name} is {text!r}: expected {what}") from None
    if name == "storage_options":
        try:
            return json.loads(text)
        except ValueError:  # its message would show the text
            raise OptionError(
                'option storage_options is no JSON: expected an object such as {"region": "eu-west-1"}'
            ) from None
    if typing.get_origin(kind) is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return text


def check(request: Request) -> None:
    """Check where the request wants something written, before Spark starts.

    Raises:
        MillraceError: Nothing can be written there.
    """
    if request.output is not None:
        output.check_target(request.output, overwrite=request.overwrite)
    if request.page is not None:
        check_target(request.page)
        require("report", "--page", "jinja2")
    console.check(request.json)
    console.check(request.trace)
    if request.trace == console.STDOUT:
        raise InputError("--trace is -, where the result goes: expected a file's name")


def run(request: Request, spark: SparkSession, stdout: Console, stderr: Console) -> None:
    """Answer the request; errors come out as exceptions.

    On Ctrl-C the running job is cancelled before the exception goes on.
    """
    with _shown_live(request, stderr):
        _answer(request, spark, stdout, stderr)


def _answer(request: Request, spark: SparkSession, stdout: Console, stderr: Console) -> None:
    frame, query = _frame(request, spark)
    if request.estimate:
        if query is None:
            raise InputError("--estimate needs --engine millrace: Spark alone asks for nothing")
        found = query.estimate()
        if request.json is not None:
            console.write({"estimate": asdict(found)}, request.json)
        else:
            stdout.print(Text(str(found)), soft_wrap=True)
        return
    if request.explain:
        if request.json is not None:
            told = str(query.explain()) if query is not None else planned(frame, "simple")
            console.write({"explain": told}, request.json)
        elif query is not None:
            stdout.print(Text(query.explain()), soft_wrap=True)
        else:
            frame.explain()
        return
    try:
        with progress(spark):
            message, rows = _consume(frame, request)
    except KeyboardInterrupt:
        _cancel(spark)
        raise
    if request.json is not None:
        console.write(_document(frame, rows, query, request), request.json)
    elif request.output is None:
        stdout.print(Fitted(frame.columns, rows))
        stdout.print(Text(message, style="dim"))
    else:
        stderr.print(Text(message))
    if query is not None and request.lookups:
        for line in failures(query.lookups()):
            stderr.print(Text(line, style="yellow"))
    if request.page is not None or request.trace is not None or (request.report and request.json is None):
        _report(query, request, stdout, stderr)


@contextmanager
def _shown_live(request: Request, stderr: Console) -> Iterator[None]:
    """Serve the live page while the body runs, and longer where that is asked for, also after a failure."""
    if not request.live:
        yield
        return
    from millrace.api.live import live

    with live() as page:
        stderr.print(Text(f"live: {page.url}"), soft_wrap=True)
        try:
            yield
        except Exception as error:
            if request.wait:  # what failed is on the page, and here already
                stderr.print(Text(message_of(error), style="bold red"), soft_wrap=True)
                _wait(stderr)
            raise
        if request.wait:
            _wait(stderr)


def _wait(stderr: Console) -> None:
    """Wait for Ctrl-C."""
    stderr.print("the page is served until Ctrl-C", style="dim")
    with suppress(KeyboardInterrupt):
        threading.Event().wait()


def failures(lookups: Iterable[LookupProgress]) -> list[str]:
    """Return a line for each lookup of which keys failed."""
    lines = []
    for one in lookups:
        if one.failed:
            kinds = ", ".join(f"{kind}: {count:,}" for kind, count in one.failures)
            lines.append(
                f"{one.failed:,} of {one.keys:,} keys of {one.name} could not be looked up ({kinds})"
            )
        if one.problem:
            lines.append(f"the cache of {one.name} is not kept: {one.problem}")
    return lines


def _frame(request: Request, spark: SparkSession) -> tuple[DataFrame, Query | None]:
    if request.engine == "millrace":
        from millrace.api.session import Session

        tables: dict[str, Any] = dict(request.tables)
        for name, path in request.lookups.items():
            if name in tables:
                raise InputError(f"--table and --lookup both name {name!r}: give them different names")
            tables[name] = lookup_from(name, path)
        query = Session(spark, tables, options=request.options).query(request.text)
        return query.df, query
    if request.lookups:
        raise InputError("--lookup needs --engine millrace: Spark alone cannot ask for rows by key")
    for name, path in request.tables.items():
        open_path(spark, path).frame.createOrReplaceTempView(name)
    return spark.sql(request.text), None


def _document(frame: DataFrame, rows: list[Any], query: Query | None, request: Request) -> dict[str, Any]:
    """Return what is written as JSON; the report is null where there is none."""
    made: dict[str, Any] = {
        "columns": [{"name": each.name, "type": each.dataType.simpleString()} for each in frame.schema],
        "rows": [list(row) for row in rows],
    }
    if request.report:
        try:
            made["report"] = query.report().to_dict() if query is not None else None
        except ExecutionError:
            made["report"] = None
    return made


def _report(query: Query | None, request: Request, stdout: Console, stderr: Console) -> None:
    """Show the figures, or write their page; where there are none, say so, but the result stands."""
    if query is None:
        stderr.print("no report: the query ran with Spark alone", style="dim")
        return
    try:
        report = query.report()
    except ExecutionError as error:
        stderr.print(Text(f"no report: {error}", style="dim"))
        return
    if request.report:
        stdout.print(Text(str(report)), soft_wrap=True)
    if request.page is not None:
        report.save(request.page)
        stderr.print(Text(f"report page: {request.page}"), soft_wrap=True)
    if request.trace is not None:
        console.write_text(report.to_trace(), request.trace)


def _consume(frame: DataFrame, request: Request) -> tuple[str, list[Any]]:
    """Run the query; return what to say below, and the rows to show."""
    if request.output is not None:
        count = output.write(frame, request.output, overwrite=request.overwrite)
        return f"{count:,} rows written to {request.output}", []
    if request.wants_figures:
        # The figures are those of a whole run, so every row is fetched: a partition at a time, but
        # Spark Connect hands out figures only with collected results.
        connect = is_connect(frame.sparkSession)
        shown, count = [], 0
        for row in frame.collect() if connect else frame.toLocalIterator(prefetchPartitions=True):
            count += 1
            if count <= request.limit:
                shown.append(row)
        return f"{count:,} rows" + (
            f", the first {request.limit} shown" if count > request.limit else ""
        ), shown
    rows = frame.take(request.limit + 1)
    if len(rows) > request.limit:
        return f"the first {request.limit} rows; --limit N shows more, --output FILE writes all", rows[:-1]
    return f"{len(rows):,} rows" if len(rows) != 1 else "1 row", rows


def _cancel(spark: SparkSession) -> None:
    if is_connect(spark):
        spark.interruptAll()
    else:
        spark.sparkContext.cancelAllJobs()
