"""``millrace demo``: a filter and two joins with Millrace and with Spark on local Spark, side by side.

The filter reads logs whose second half is unlike the first: what one of its two functions rejects changes
half-way. The eddy turns their order there; any order that is planned before is wrong for half of the lines.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

import millrace
from millrace.cli.tables import Fitted
from millrace.errors import ExecutionError, InputError, MissingExtra, require
from millrace.reports.run_report import RunReport

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

    Ask = Callable[[], DataFrame]

TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")
FILTER = "filter"
QUERIES = {
    FILTER: "errors of European users, by two Python functions",
    "stairs": "customers of one nation with their orders and items, by date",
    "q05": "TPC-H Q5: revenue by nation, six tables",
}
TEXTS = Path(__file__).with_name("demo_queries")
_FILES, _LINES = 2, 100_000
"""Log files, and lines in each."""

_RUNS = 2
_LONG_SECONDS = 3.0
"""From where one run beside the one that is compared is enough: it is long beside what differs by chance."""

_RELATIVE = 1e-9
"""By which sums of floats may differ that were added in another order."""


@dataclass(frozen=True)
class Side:
    """One query on both engines: best times in seconds, rows, how they differ, and what the eddies did."""

    name: str
    rows: int
    millrace_seconds: float
    spark_seconds: float
    unequal: str | None
    report: RunReport


def cache_folder(name: str) -> Path:
    """Return where a data set is kept by default."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "millrace" / name


def prepare(scale: float, folder: Path | None, console: Console) -> dict[str, str]:
    """Return the tables' paths by name, making the data on the first run.

    Args:
        scale: TPC-H scale factor; 1 is about 350 MB of Parquet.
        folder: Where the files are or shall be; by default a folder of the user's cache.
        console: Where to say that data is made.

    Raises:
        InputError: ``folder`` holds something else.
        MissingExtra: ``tpchgen-cli`` is not installed.
        ExecutionError: It failed.
    """
    require("demo", "the demo", "jinja2")
    target = folder or cache_folder(f"tpch-{scale:g}")
    paths = {name: str(target / f"{name}.parquet") for name in TABLES}
    if all(Path(path).is_file() for path in paths.values()):
        return paths
    if target.exists() and any(target.iterdir()):
        raise InputError(f"{target} holds something else than TPC-H's tables: name an empty folder")
    near = Path(sys.executable).with_name("tpchgen-cli")
    program = str(near) if near.exists() else shutil.which("tpchgen-cli")
    if program is None:
        raise MissingExtra(
            "the demo's data needs tpchgen-cli, not installed here: pip install 'millrace[demo]', "
            "or in a clone of it pip install '.[demo]'"
        )
    console.print(f"making TPC-H data of scale {scale:g} in {target} (once)")
    target.parent.mkdir(parents=True, exist_ok=True)
    # Made beside and renamed, so that a folder with that name always holds all tables.
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder_beside:
        made = Path(folder_beside) / "made"
        command = [program, "parquet", "-s", f"{scale:g}", "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - known
        if done.returncode:
            raise ExecutionError(f"tpchgen-cli ended with exit code {done.returncode}: {done.stderr.strip()}")
        made.replace(target)
    return paths


def run(spark: SparkSession, tables: Mapping[str, str], console: Console) -> list[Side]:
    """Run the demo, print its tables and where the page of its longest query is, and return both sides."""
    for name, path in tables.items():
        spark.read.parquet(path).createOrReplaceTempView(name)
    sides = []
    with tempfile.TemporaryDirectory(prefix="millrace-demo-") as folder:
        for name, words in QUERIES.items():
            with console.status(f"{name}: {words}"):
                ours, theirs = _filter(spark, folder) if name == FILTER else _join(spark, name, tables)
                sides.append(_compare(name, ours, theirs))
    _print(sides, console)
    for side in sides:
        if side.unequal:
            console.print(Text(f"{side.name} differs: {side.unequal}", style="bold red"))
    longest = max(sides, key=lambda side: side.spark_seconds)
    pages = Path(tempfile.mkdtemp(prefix="millrace-demo-"))
    page = longest.report.save(pages / f"{longest.name}.html").as_uri()
    console.print(
        Text.assemble(f"What the eddies did in {longest.name}: ", (page, f"link {page}")), soft_wrap=True
    )
    return sides


def _join(spark: SparkSession, name: str, tables: Mapping[str, str]) -> tuple[Ask, Ask]:
    text = (TEXTS / f"{name}.sql").read_text(encoding="utf-8")
    return lambda: millrace.sql(text, spark=spark, tables=tables), lambda: spark.sql(text)


def _filter(spark: SparkSession, folder: str) -> tuple[Ask, Ask]:
    """Write the logs into ``folder``, and return the filter on both engines."""
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's users write it

    path = f"{folder}/logs"
    # In the first half 3 lines of 100 are errors and 97 are European; in the second it is the reverse.
    is_early = F.col("id") % _LINES < _LINES // 2
    error = F.pmod(F.hash("id"), F.lit(100)) < F.when(is_early, 3).otherwise(97)
    european = F.pmod(F.hash("id", F.lit(7)), F.lit(100)) < F.when(is_early, 97).otherwise(3)
    line = F.struct(
        F.col("id").alias("request"),
        F.when(error, "error").otherwise("info").alias("level"),
        F.when(european, "eu").otherwise("us").alias("region"),
    )
    lines = spark.range(0, _FILES * _LINES, 1, _FILES)
    lines.select("id", F.to_json(line).alias("line")).write.parquet(path)
    logs = spark.read.parquet(path)

    # Without type hints: Spark warns of hints that are not of batches.
    @F.udf("boolean")
    def is_european(line):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return json.loads(line)["region"] == "eu"

    @F.udf("boolean")
    def is_error(line):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return json.loads(line)["level"] == "error"

    return (
        lambda: millrace.where(logs, is_european("line"), is_error("line")),
        lambda: logs.where(is_european("line") & is_error("line")),
    )


def _compare(name: str, ours: Ask, theirs: Ask) -> Side:
    first = ours()
    unequal = difference(first.collect(), expected := theirs().collect())
    report = millrace.report(first)
    best = [math.inf, math.inf]
    for _ in range(_RUNS):
        for engine, ask in enumerate((ours, theirs)):
            start = time.perf_counter()
            ask().collect()
            best[engine] = min(best[engine], time.perf_counter() - start)
        if best[1] > _LONG_SECONDS:
            break
    return Side(name, len(expected), best[0], best[1], unequal, report)


def difference(left: Iterable[Row], right: Iterable[Row]) -> str | None:
    """Return what differs, None where rows are equal as multisets, floats within a tolerance."""
    ours, theirs = sorted(left, key=_key), sorted(right, key=_key)
    if len(ours) != len(theirs):
        return f"{len(ours)} rows, not {len(theirs)}"
    for a, b in zip(ours, theirs, strict=True):
        if not all(map(_is_close, a, b)):
            return f"{tuple(a)}, not {tuple(b)}"
    return None


def _key(row: Row) -> tuple[list[str], list[float]]:
    floats = [value for value in row if isinstance(value, float)]
    return [repr(value) for value in row if not isinstance(value, float)], floats


def _is_close(a: Any, b: Any) -> bool:
    both = isinstance(a, float) and isinstance(b, float)
    return math.isclose(a, b, rel_tol=_RELATIVE) if both else bool(a == b)


def _print(sides: list[Side], console: Console) -> None:
    rows: list[tuple[Any, ...]] = []
    orders: list[tuple[Any, ...]] = []
    for side in sides:
        ratio = side.millrace_seconds / side.spark_seconds
        rows.append(
            (
                side.name,
                QUERIES[side.name],
                side.rows,
                Text(f"{side.millrace_seconds:.2f} s"),
                Text(f"{side.spark_seconds:.2f} s"),
                Text(f"{ratio:.2f}", style="green" if ratio < 1 else ""),
                Text("NO", style="bold red") if side.unequal else Text("yes", style="green"),
            )
        )
        orders += [
            (side.name, each.order, Text(f"{each.tuples:,}"), Text(f"{each.share:.0%}"))
            for each in side.report.orders()[:3]
        ]
    names = ["query", "what it asks", "rows", "Millrace", "Spark SQL", "ratio", "same rows"]
    console.print(Fitted(names, rows, "The same queries, the same files, two engines"))
    names = ["query", "order", "tuples", "share"]
    title = "The ways that tuples went: nobody planned them, the eddies found them while running"
    console.print(Fitted(names, orders, title))
    for side in sides:
        if side.name == FILTER:
            _print_turns(side.report, console)
    words = f"Times are the best of {_RUNS} runs after a warm-up, planning included."
    console.print(Text(f"{words} Below a ratio of 1 Millrace was faster.", style="dim"))


def _print_turns(report: RunReport, console: Console) -> None:
    """Say when the filter's first task changed its order, and how many calls that left."""
    calls = sum(module.evaluated for _, module in report.modules())
    both = 2 * _FILES * _LINES
    console.print(f"The filter called its functions {calls:,} times; for every line that is {both:,} times.")
    cell = next(cell for _, cell in report.cells() if cell.traces)
    turns = "; ".join(f"{change.order} after {change.after:,}" for change in cell.traces[0].changes)
    console.print(
        f"The logs change after {_LINES // 2:,} lines. Orders of its first task: {turns}.", soft_wrap=True
    )
