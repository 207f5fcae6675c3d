"""``millrace demo``: joins of TPC-H with Millrace and with Spark SQL on local Spark, side by side."""

from __future__ import annotations

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

TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")
QUERIES = {
    "stairs": "customers of one nation with their orders and items, by date",
    "q03": "TPC-H Q3: the ten unshipped orders worth most",
    "q05": "TPC-H Q5: revenue by nation, six tables",
    "q10": "TPC-H Q10: customers who returned items",
}
TEXTS = Path(__file__).with_name("demo_queries")
_RUNS = 3
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
        raise MissingExtra("the demo's data needs tpchgen-cli: pip install 'millrace[demo]'")
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
    for name, words in QUERIES.items():
        with console.status(f"{name}: {words}"):
            sides.append(_compare(name, spark, tables))
    _print(sides, console)
    for side in sides:
        if side.unequal:
            console.print(Text(f"{side.name} differs: {side.unequal}", style="bold red"))
    longest = max(sides, key=lambda side: side.spark_seconds)
    folder = Path(tempfile.mkdtemp(prefix="millrace-demo-"))
    page = longest.report.save(folder / f"{longest.name}.html").as_uri()
    console.print(
        Text.assemble(f"What the eddies did in {longest.name}: ", (page, f"link {page}")), soft_wrap=True
    )
    return sides


def _compare(name: str, spark: SparkSession, tables: Mapping[str, str]) -> Side:
    text = (TEXTS / f"{name}.sql").read_text(encoding="utf-8")
    query = millrace.query(text, spark=spark, tables=tables)
    unequal = difference(query.df.collect(), expected := spark.sql(text).collect())
    frames: dict[str, Callable[[], DataFrame]] = {
        "millrace": lambda: millrace.query(text, spark=spark, tables=tables).df,
        "spark": lambda: spark.sql(text),
    }
    best = dict.fromkeys(frames, math.inf)
    for _ in range(_RUNS):
        for engine, frame in frames.items():
            start = time.perf_counter()
            frame().collect()
            best[engine] = min(best[engine], time.perf_counter() - start)
    return Side(name, len(expected), best["millrace"], best["spark"], unequal, query.report())


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
    told = f"Times are the best of {_RUNS} runs after a warm-up, planning included."
    console.print(Text(f"{told} Below a ratio of 1 Millrace was faster.", style="dim"))
