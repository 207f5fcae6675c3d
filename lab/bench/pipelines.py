"""Pipelines of DataFrames as scripts have them, in an enabled session and without.

Shapes of public scripts over the tables of TPC-H: joins with computed, dropped and renamed columns between
them, LEFT joins, windows, duplicates, functions of Python, and rows from CSV and JSON files. Each side makes
the pipeline anew and collects its rows, or writes them as Parquet. Where joins are left to Spark that could
be taken, a third side takes them all: it shows whether they would have paid.
"""

from __future__ import annotations

import hashlib
import io
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Window, functions as sf

import millrace
from lab.bench.harness import Bench, Ran, Run, Target, geomean
from lab.bench.tpch_data import ensure
from millrace.cli.demo import difference

ENABLED, SPARK, FORCED = "enabled", "spark", "forced"

CLEARLY_FASTER = 0.95
"""Joins pay that take less than this part of Spark's time when they are forced into blocks."""

Frames = Mapping[str, DataFrame]


def _taxi(t: Frames) -> DataFrame:
    joined = t["lineitem"].join(t["supplier"], sf.col("l_suppkey") == sf.col("s_suppkey"))
    joined = joined.join(t["part"], sf.col("l_partkey") == sf.col("p_partkey"))
    return joined.groupBy("s_nationkey", "p_brand").count()


def _steps(t: Frames) -> DataFrame:
    priced = t["lineitem"].withColumn("price", sf.col("l_extendedprice") * (1 - sf.col("l_discount")))
    orders = t["orders"].withColumnRenamed("o_orderkey", "l_orderkey").drop("o_comment")
    joined = priced.join(orders, "l_orderkey").drop("l_comment").withColumn("year", sf.year("o_orderdate"))
    customers = t["customer"].select("c_custkey", "c_nationkey", "c_mktsegment")
    joined = joined.join(customers, sf.col("o_custkey") == sf.col("c_custkey"))
    joined = joined.withColumn("segment", sf.lower("c_mktsegment"))
    joined = joined.join(t["nation"], sf.col("c_nationkey") == sf.col("n_nationkey"))
    joined = joined.join(t["region"].drop("r_comment"), sf.col("n_regionkey") == sf.col("r_regionkey"))
    return joined.groupBy("segment", "r_name", "year").agg(sf.sum("price").alias("price"))


def _star(t: Frames) -> DataFrame:
    made = t["lineitem"]
    for table, left, right in (
        ("orders", "l_orderkey", "o_orderkey"), ("customer", "o_custkey", "c_custkey"),
        ("supplier", "l_suppkey", "s_suppkey"), ("part", "l_partkey", "p_partkey"),
        ("nation", "s_nationkey", "n_nationkey"), ("region", "n_regionkey", "r_regionkey"),
    ):  # fmt: skip
        made = made.join(t[table], sf.col(left) == sf.col(right), "left")
    return made


def _grouped_star(t: Frames) -> DataFrame:
    return _star(t).groupBy("r_name", "c_mktsegment", "p_mfgr").agg(sf.sum("l_quantity"), sf.count("*"))


def _of_text_files(table: str) -> Callable[[Frames], DataFrame]:
    def pipeline(t: Frames) -> DataFrame:
        joined = t[table].join(t["customer"], sf.col("o_custkey") == sf.col("c_custkey"))
        return joined.groupBy("c_mktsegment", "o_orderpriority").agg(sf.sum("o_totalprice"))

    return pipeline


def _latest(t: Frames) -> DataFrame:
    newest = Window.partitionBy("o_custkey").orderBy(sf.desc("o_orderdate"), "o_orderkey")
    ranked = t["orders"].withColumn("rank", sf.row_number().over(newest)).filter("rank = 1")
    joined = ranked.join(t["customer"], sf.col("o_custkey") == sf.col("c_custkey"))
    return joined.join(t["nation"], sf.col("c_nationkey") == sf.col("n_nationkey")).groupBy("n_name").count()


def _cleaned(t: Frames) -> DataFrame:
    items = t["lineitem"].dropDuplicates(["l_orderkey", "l_partkey"]).fillna({"l_comment": ""})
    joined = items.join(t["part"], sf.col("l_partkey") == sf.col("p_partkey"))
    return joined.groupBy("p_brand").agg(sf.sum("l_quantity"))


def _united(t: Frames) -> DataFrame:
    joined = t["orders"].join(t["customer"], sf.col("o_custkey") == sf.col("c_custkey"))
    old, new = joined.filter("o_orderdate < '1995-01-01'"), joined.filter("o_orderdate >= '1995-01-01'")
    return old.union(new).groupBy("c_nationkey").agg(sf.sum("o_totalprice"))


def _unmatched(t: Frames) -> DataFrame:
    late = t["lineitem"].filter("l_receiptdate > l_commitdate")
    kept = t["orders"].join(late, sf.col("o_orderkey") == sf.col("l_orderkey"), "semi")
    kept = kept.join(
        t["customer"].filter("c_acctbal < 0"), sf.col("o_custkey") == sf.col("c_custkey"), "anti"
    )
    return kept.groupBy("o_orderpriority").count()


def _slow(modulus: int) -> Callable[[int], bool]:
    def kept(key: int) -> bool:
        digest = hashlib.sha256(str(key).encode())
        for _ in range(20):
            digest = hashlib.sha256(digest.digest())
        return digest.digest()[0] % modulus == 0

    return kept


def _asked(t: Frames) -> DataFrame:
    seldom, often = (sf.udf(_slow(modulus), "boolean") for modulus in (16, 2))
    kept = t["orders"].filter(often("o_custkey") & seldom("o_orderkey"))
    return kept.join(t["customer"], sf.col("o_custkey") == sf.col("c_custkey")).groupBy("c_nationkey").count()


PIPELINES: dict[str, Callable[[Frames], DataFrame]] = {
    "taxi": _taxi,
    "steps": _steps,
    "star": _grouped_star,
    "written_star": lambda t: _star(t).drop("o_comment", "c_comment", "s_comment", "p_comment", "n_comment"),
    "csv": _of_text_files("csv"),
    "json": _of_text_files("json"),
    "latest": _latest,
    "cleaned": _cleaned,
    "united": _united,
    "unmatched": _unmatched,
    "asked": _asked,
}


def measure(run: Run) -> None:
    """Run the benchmark."""
    paths = ensure(run.scale)
    frames = {name: run.spark.read.parquet(path) for name, path in paths.items()}
    of_tpch = Path(paths["orders"]).parent
    folder = of_tpch.with_name(f"{of_tpch.name}-text")
    for kind in {"csv", "json"} & {*run.names}:
        if not (folder / kind / "_SUCCESS").exists():
            frames["orders"].write.mode("overwrite").format(kind).option("header", True).save(
                str(folder / kind)
            )
        schema = frames["orders"].schema
        frames[kind] = (
            run.spark.read.schema(schema).option("header", True).format(kind).load(str(folder / kind))
        )
    with tempfile.TemporaryDirectory() as written:
        measured = [_measured(run, name, frames, Path(written)) for name in run.names]
    rows = [row for row, _, _ in measured]
    taken = [row["ratio"] for row in rows if row["taken"]]
    run.figures |= {
        "pipelines_geomean_ratio": geomean(taken),
        "pipelines_worst_ratio": max(row["ratio"] for row in rows),
        "pipelines_equal": sum(row["equal"] for row in rows),
        "pipelines_taken": len(taken),
    }
    if paying := sum(joins for _, _, joins in measured):
        run.figures["pipelines_blocked_share"] = sum(joins for _, joins, _ in measured) / paying
    run.targets["pipelines_equal"] = Target(len(rows), len(rows))
    run.rows += rows


def _measured(run: Run, name: str, frames: Frames, folder: Path) -> tuple[dict[str, Any], int, int]:
    """Return a row, how many joins are in blocks, and how many would be if all that pay were."""
    made = PIPELINES[name]
    found: dict[str, Any] = {}
    unequal: list[str] = []

    def check(side: str, rows: Any, _: Any) -> None:
        found[side] = rows
        for other in found.keys() - {SPARK} if SPARK in found else ():
            unequal.extend(filter(None, [difference(found[other], found[SPARK])]))

    def run_plain() -> Any:
        df = made(frames)
        if not name.startswith("written"):
            return df.collect()
        begun = time.perf_counter()
        df.write.mode("overwrite").parquet(str(folder / name))
        seconds = time.perf_counter() - begun
        again = run.spark.read.parquet(str(folder / name))
        whole = sf.sum(sf.xxhash64(*again.columns).cast("decimal(38, 0)"))
        return Ran(again.select(sf.count("*"), whole).collect(), seconds=seconds)

    def run_enabled(options: dict[str, Any] | None = None) -> Any:
        with millrace.enable(run.spark, options):
            return run_plain()

    def find_left(options: dict[str, Any] | None = None) -> tuple[bool, int]:
        """Return whether something is taken, and how many joins are Spark's."""
        found = millrace.optimize(df := made(frames), options)
        return found is not df, _count_joins(found)

    (is_taken, left), (_, least) = find_left(), find_left({"take_all": True})
    sides = {ENABLED: run_enabled, SPARK: run_plain}
    if least < left:
        sides[FORCED] = lambda: run_enabled({"take_all": True})
    times = run.race(name, sides, control=SPARK, check=check, few=(FORCED,))
    run.notes += [f"{name} differs: {unequal[0]}"] if unequal else []
    spark, joins = times.median(SPARK), _count_joins(made(frames))
    forced = times.median(FORCED) / spark if FORCED in sides else None
    pays = forced is not None and forced < CLEARLY_FASTER
    row = {
        "pipeline": name,
        "taken": is_taken,
        "enabled_s": times.median(ENABLED),
        "spark_s": spark,
        "ratio": times.median(ENABLED) / spark,
        "forced": forced,
        "control": times.control(SPARK),
        "in blocks": f"{joins - left} of {joins}",
        "equal": not unequal,
    }
    return row, joins - left, joins - (least if pays else left)


def _count_joins(df: DataFrame) -> int:
    """Return how many joins a DataFrame's plan has for Spark, before Spark's own changes."""
    with redirect_stdout(text := io.StringIO()):
        df.explain("extended")
    analyzed = text.getvalue().split("== Analyzed Logical Plan ==")[1].split("== Optimized")[0]
    return sum(line.lstrip(" :+-").startswith("Join ") for line in analyzed.splitlines())


BENCH = Bench(
    measure,
    tuple(PIPELINES),
    {
        "pipelines_geomean_ratio": Target(high=0.5),
        "pipelines_worst_ratio": Target(high=1.05),
        "pipelines_blocked_share": Target(low=0.9),
    },
    quick=("taxi", "asked"),
)
