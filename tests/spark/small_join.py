"""Runs small joins and filters on a session of the given kind; prints what came of it."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import tarfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from column_chains import TAKEN, differing  # beside this script
from lookup_job import UNHARMED, looked_up
from pyspark.sql import SparkSession, functions as sf

ENVIRONMENT = "environment.tar.gz"
QUERIES = (
    "select count(*) from big join small on big.k = small.k",
    "select big.k, count(*) n from big join small using (k) group by 1",
    """
    select a.k from big a, small b where a.k = b.k and a.big < 9
    union all select c.small from small c, small d where c.k = d.k
    """,
    """
    with w as (select big.k, count(*) n from big join small using (k) group by 1)
    select k, n from w where n >= (select max(n) from w) union all select n, k from w where k < 9
    """,
)


def main(kind: str, folder: str) -> None:
    import pyspark

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    make_environment()
    if kind == "connect":
        builder = SparkSession.builder.remote("local[2]")
    else:
        builder = SparkSession.builder.master("local-cluster[2,1,2048]")
        builder = builder.config("spark.archives", f"{ENVIRONMENT}#environment")
        os.environ["PYSPARK_PYTHON"] = "./environment/bin/python"
    spark = (
        builder.config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    import millrace
    from millrace.engine.expressions import ColumnRef
    from millrace.engine.spec import Equality, JoinSpec, OutputColumn, RelationSpec
    from millrace.options import Options
    from millrace.parquet.parquet import open_table
    from millrace.spark.block import Block, FrameInput, ParquetInput
    from millrace.spark.execute import execute

    for name, keys in (("big", [n % 50 for n in range(2000)]), ("small", list(range(0, 100, 2)))):
        table = pa.table({"k": pa.array(keys, pa.int64()), name: pa.array(range(len(keys)), pa.int64())})
        pq.write_table(table, f"{folder}/{name}.parquet", row_group_size=300)
    tables = {name: open_table(f"{folder}/{name}.parquet") for name in ("big", "small")}
    join = JoinSpec(
        tuple(RelationSpec(name, table.schema) for name, table in tables.items()),
        (Equality(ColumnRef("big", "k"), ColumnRef("small", "k"), pa.int64()),),
        output=(OutputColumn("x", ColumnRef("big", "big")), OutputColumn("y", ColumnRef("small", "small"))),
    )
    scans = {name: ParquetInput(table, ("k", name)) for name, table in tables.items()}
    frame = FrameInput(spark.read.parquet(tables["small"].path), 1000)
    expected = sorted((n, (n % 50) // 2) for n in range(2000) if n % 2 == 0)
    outcome = {}
    for label, inputs, options in (
        ("in place", scans, Options()),
        ("hypercube", scans, Options(placement="hypercube", cells=3)),
        ("mixed", {**scans, "small": frame}, Options()),
        ("no report", scans, Options(report=False)),
    ):
        run = execute(spark, Block("b", join, inputs), options)
        rows = sorted(map(tuple, run.frame.collect()))
        found = sum(f.output_tuples for f in run.figures()) if options.report else len(rows)
        run.frame.createOrReplaceTempView("block")
        twice = spark.sql("select a.x from block a join block b on a.x = b.x")
        both = len(twice.collect())
        after = sum(f.output_tuples for f in run.figures(twice)) if options.report else len(rows)
        outcome[label] = [rows == expected, found == len(rows), both == len(rows), after == len(rows)]
    paths = {name: table.path for name, table in tables.items()}
    for text in QUERIES:
        query = millrace.query(text, spark=spark, tables=paths, options={"take_all": True})
        rows = sorted(map(tuple, query.df.collect()))
        spark.read.parquet(paths["big"]).createOrReplaceTempView("big")
        spark.read.parquet(paths["small"]).createOrReplaceTempView("small")
        figures = query.report().totals.output_tuples
        outcome[text] = [rows == sorted(map(tuple, spark.sql(text).collect())), figures > 0]
    outcome["where"] = check_where(spark)
    outcome["stream"] = check_stream(spark, folder)
    # A server's tasks are the same: once is enough.
    outcome["page"] = check_page(spark)
    outcome["live"] = check_live(spark, folder) if kind == "connect" else []
    outcome["hub"] = check_hub(spark, folder) if kind == "connect" else []
    outcome["lookups"] = [looked_up(spark, folder, dies=False) == UNHARMED] if kind == "connect" else []
    outcome["views"] = check_views(spark, folder) if kind == "connect" else []
    outcome["failure"] = check_failure(spark)
    outcome["schema"] = check_schema(spark)
    outcome["doctor"] = check_doctor(spark, executors=1 if kind == "connect" else 2)
    outcome["enable"] = check_enable(spark, paths)
    outcome["columns"] = [differing(spark, folder, TAKEN) == {}] if kind == "connect" else []
    if kind == "connect":
        send_environment(spark)
    outcome["environment"] = check_environment(spark)
    sys.stdout.write(json.dumps(outcome) + "\n")
    spark.stop()


def make_environment() -> None:
    """Pack what stands for an environment: its Python notes where it runs, and is this one."""
    script = f'#!/bin/sh\necho "$0" >> {Path.cwd()}/started\nexec {sys.executable} "$@"\n'.encode()
    with tarfile.open(ENVIRONMENT, "w:gz") as archive:
        told = tarfile.TarInfo("bin/python")
        told.size, told.mode = len(script), 0o755
        archive.addfile(told, io.BytesIO(script))


def send_environment(spark: SparkSession) -> None:
    """Do what docs/shipping.md says."""
    text = (Path(__file__).parents[2] / "docs" / "shipping.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    exec(block, {"spark": spark})  # the project's own code


def check_environment(spark: SparkSession) -> list[bool]:
    """Workers are started by the Python of the archive that was sent."""
    import millrace

    even = millrace.predicate(lambda x: x % 2 == 0, name="even")
    kept = millrace.where(spark.range(100), even("id")).count()
    return [kept == 50, "environment/bin/python" in Path("started").read_text()]


def check_where(spark: SparkSession) -> list[bool]:
    """Predicates of PySpark and of Millrace on one DataFrame: rows, their order, figures."""
    import millrace

    @sf.udf("boolean")
    def even(x):
        return x % 2 == 0

    @millrace.predicate(kind="pandas")
    def fifth(x):
        return x % 5 == 0

    frame = millrace.where(spark.range(0, 20_000, 1, 4), even("id"), fifth(sf.col("id")), "id < 15000")
    rows = [row.id for row in frame.collect()]
    report = millrace.report(frame)
    return [
        rows == list(range(0, 15_000, 10)),
        report.totals.output_tuples == len(rows),
        "kind pandas" in millrace.explain(frame),
    ]


def check_schema(spark: SparkSession) -> list[bool]:
    """Columns that have no nulls are said to have none, though figures may travel with the rows."""
    import millrace

    left = spark.range(20).selectExpr(
        "id", "string(id) s", "date '2020-01-01' d", "1.5BD n", "id > 3 b", "array(id) a", "binary('x') x"
    )
    text = "select l.*, r.id + 1 as more from l join r on l.id = r.id"
    found = millrace.query(
        text, spark=spark, tables={"l": left, "r": spark.range(5)}, options={"take_all": True}
    )
    left.createOrReplaceTempView("l")
    spark.range(5).createOrReplaceTempView("r")
    wanted = spark.sql(text)
    flat = [(a, b) for a, b in zip(found.df.schema, wanted.schema, strict=True) if a.name != "a"]
    return [
        len(found.blocks) == 1,
        all(a == b for a, b in flat),
        sorted(found.df.drop("b").collect()) == sorted(wanted.drop("b").collect()),
        found.df.select("b").where("b").count() == 1,
    ]


def check_doctor(spark: SparkSession, executors: int) -> list[bool]:
    """A session that works is found to be one, and every executor is looked at."""
    from millrace import Options
    from millrace.spark.doctor import examine

    found = {each.check: each for each in examine(spark)}
    there = [each for each in examine(spark, Options(limits_host="executor")) if "on an" in each.check]
    return [
        [each.advice for each in there] == [""],
        not [each for each in found.values() if each.advice],
        found["executors"].found.startswith(f"{executors} seen"),
        "coordinator reached by tasks" in found,
        "a join and a filter" in found,
    ]


def check_enable(spark: SparkSession, paths: dict[str, str]) -> list[bool]:
    """The session's own methods give Spark's rows through Millrace, and are its own again."""
    import millrace

    def read(name: str):
        return spark.read.parquet(paths[name])

    plain = read("big").join(read("small"), "k")
    wanted = sorted(map(tuple, plain.collect()))
    with millrace.enable(spark, options={"take_all": True}):
        found = read("big").join(read("small"), "k")
        kept = read("big").filter(sf.udf(lambda x: x % 2 == 0, "boolean")("k")).filter("big < 10")
        checks = [
            found.columns == plain.columns,
            sorted(map(tuple, found.collect())) == wanted,
            "block" in str(millrace.explain(found)),
            kept.count() == 5,
            spark.sql("select 1 one").collect()[0].one == 1,
        ]
    return [*checks, sorted(map(tuple, read("big").join(read("small"), "k").collect())) == wanted]


def check_stream(spark: SparkSession, folder: str) -> list[bool]:
    """The same on a stream."""
    import millrace

    @millrace.predicate
    def odd(x):
        return x % 2 == 1

    spark.read.parquet(f"{folder}/big.parquet").write.parquet(f"{folder}/in")
    stream = spark.readStream.schema("k long, big long").parquet(f"{folder}/in")
    query = (
        millrace.where(stream, odd("big"))
        .writeStream.format("parquet")
        .option("path", f"{folder}/out")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [spark.read.parquet(f"{folder}/out").count() == 1000]


def check_live(spark: SparkSession, folder: str) -> list[bool]:
    """A join of streams and a lookup; its report and its lines, for which Connect has other progress."""
    import millrace

    def parity(keys):
        return [{"k": key, "odd": key % 2 == 1} for key in keys]

    source = millrace.function(parity, batch=50)
    table = millrace.lookup("parity", "k bigint, odd boolean", bind=["k"], via=source)

    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    both = {
        name: millrace.streams.feed(
            spark, name, rate=100, within=2, match=1, backlog=900, rows_in_all=900, max_rows=600
        )
        for name in ("orders", "payments")
    }
    text = """
        SELECT o.order_id, n.odd FROM orders o JOIN payments p ON p.order_id = o.order_id
        JOIN n ON n.k = o.order_id WHERE p.t BETWEEN o.t AND o.t + INTERVAL 30 SECONDS
    """
    with millrace.streams.log(spark, f"{folder}/live/figures.jsonl"):
        query = (
            millrace.sql(text, spark=spark, tables={**both, "n": table})
            .writeStream.format("parquet")
            .option("path", f"{folder}/live/out")
            .option("checkpointLocation", f"{folder}/live/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    report = millrace.streams.report(query)
    lines = Path(folder, "live", "figures.jsonl").read_text().splitlines()
    return [
        spark.read.parquet(f"{folder}/live/out").count() == report.totals["results"] > 400,
        spark.read.parquet(f"{folder}/live/out").where("odd <> (order_id % 2 = 1)").count() == 0,
        report.totals["rows"] == 1800,
        [json.loads(line) for line in lines] == report.to_dict()["batches"],
        report.latest.watermark is not None,
    ]


def check_hub(spark: SparkSession, folder: str) -> list[bool]:
    """Queries of a hub on a server: functions and files, while it runs and after a restart."""
    import duckdb

    import millrace
    from millrace.errors import InputError
    from millrace.streams.feeds.rows import Feed

    on = (
        "orders o JOIN payments p ON o.order_id = p.order_id AND p.t BETWEEN o.t AND o.t + INTERVAL 9 SECONDS"
    )
    sums, found = Path(folder, "sums"), []

    def sink(rows, batch):
        with sums.open("a") as file:
            file.write(json.dumps([batch, rows.num_rows, sum(rows["order_id"].to_pylist())]) + "\n")

    def made(rows: int, **more):
        supply = {"rate": 100, "within": 2, "match": 1, "backlog": rows, "rows_in_all": rows, "max_rows": 600}
        streams = {name: millrace.streams.feed(spark, name, **supply) for name in ("orders", "payments")}
        return millrace.Session(spark, streams).hub(on, f"{folder}/hub", **more)

    def written(name: str) -> list[int]:
        rows = spark.read.parquet(f"{folder}/{name}").selectExpr("count(*)", "sum(order_id)").collect()
        return list(rows[0])

    def alone(first: int, last: int) -> list[int]:
        with duckdb.connect() as base:
            for name in ("orders", "payments"):
                feed = Feed(name, rate=100.0, within=2.0, match=1.0)
                base.register(name, pa.Table.from_batches([feed.rows(first, last)]))
            found = base.execute(f"SELECT count(*), sum(o.order_id) FROM {on}").fetchone()
            return list(map(int, found))

    hub = made(900)
    hub.add("all", "o.order_id", sink=sink)
    hub.add("files", "o.order_id, p.t", sink=f"{folder}/files")
    query = hub.start(processingTime="0 seconds")
    try:
        hub.add("more", "o.order_id", sink=sink)
    except InputError as error:
        found.append("functions are sent when the hub starts" in str(error))
    query.processAllAvailable()
    hub.add("late", "o.order_id", sink=f"{folder}/late")
    query.processAllAvailable()
    hub.stop()
    states = {each.name: each.state for each in hub.list()}
    hub = made(1200, sinks={"all": sink})
    hub.remove("files")
    hub.start(availableNow=True).awaitTermination()
    told = [json.loads(line) for line in sums.read_text().splitlines()]
    both = [sum(column) for column in zip(*told, strict=True)][1:]
    return [
        *found,
        states == dict.fromkeys(("all", "files", "late"), "running"),
        [each.name for each in hub.list()] == ["all", "late"],
        len({batch for batch, *_ in told}) == len(told) >= 2,
        written("files") == alone(0, 900) != both,
        both == alone(0, 1200),
        written("late") == alone(900, 1200),
    ]


def check_page(spark: SparkSession) -> list[bool]:
    """The live page has figures of a query's tasks, from whatever executor, and says that it is done."""
    import millrace

    def even(x):
        time.sleep(0.7 if x % 250 == 5 else 0)  # tasks that are over at once may tell nothing on Connect
        return x % 2 == 0

    with millrace.monitor.live() as page:
        kept = millrace.where(spark.range(0, 1000, 1, 4), millrace.predicate(even)("id"))
        found = kept.count()
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            (query,) = page.figures()["queries"]
            if query["state"] == "done" and query["rows_in"] == 1000:
                break
            time.sleep(0.05)
    return [
        found == 500,
        (query["state"], query["action"], query["title"]) == ("done", "count", "filter by even(id)"),
        (query["rows_in"], query["rows_out"]) == (1000, 500),
    ]


def check_views(spark: SparkSession, folder: str) -> list[bool]:
    """Views that change between a query and its action are all seen as they were, or all as they are."""
    import millrace

    def put(state: int) -> None:
        for name in ("lv", "rv"):
            path = f"{folder}/{name}{state}.parquet"
            pq.write_table(pa.table({"id": [1, 2], "v": [state, state]}), path)
            spark.read.parquet(path).createOrReplaceTempView(name)

    join = "lv l join rv r on l.id = r.id"
    checks = []
    for text in (
        f"select l.v a, r.v b from {join}",
        f"select l.v a, r.v b, (select max(v) from lv) c from {join}",
        "select l.v a, r.m b from lv l join (select id, max(v) m from rv group by id) r using (id)",
        f"select q.v a, l.v b from (select l.id, r.v from {join}) q full join lv l on l.id = q.id",
    ):
        put(1)
        found = millrace.query(text, spark=spark, options={"take_all": True})
        put(2)
        for number in range(40):  # the server remembers what it has analysed lately
            spark.sql(f"select {number} n").schema  # noqa: B018
        seen = {value for row in found.df.collect() for value in row}
        checks.append(len(found.blocks) == 1 and seen in ({1}, {2}))
    return checks


def check_failure(spark: SparkSession) -> list[bool]:
    """What a predicate raises arrives as an error of Millrace's, without what else was on the stack."""
    import millrace
    from millrace.errors import ExecutionError
    from millrace.spark.failures import translated

    @millrace.predicate
    def picky(x):
        return 1 / (x - 3) > 0

    frame = millrace.where(spark.range(10), picky("id"))
    try:
        frame.collect()
    except ExecutionError as error:
        told = str(error)
    try:
        frame.select("*").collect()
    except ExecutionError as error:
        found, text = translated(error.__context__), str(error.__context__)
        return [
            told == str(found) == str(error),
            isinstance(found, ExecutionError),
            str(found).startswith("predicate 'picky' raised ZeroDivisionError: division by zero\n"),
            str(found).endswith("\nZeroDivisionError: division by zero"),
            text.count("millrace/") == 1,
        ]
    return [False]


if __name__ == "__main__":
    main(*sys.argv[1:])
