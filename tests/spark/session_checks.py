"""What has to hold on Spark Connect and on several executor processes: ``test_sessions`` runs it on each.

A run is a pytest process of its own, for a Connect session and a classic one exclude each other. Checks
without a mark run on all. The order counts: the last ones change workers and executors for good.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
import tarfile
import time
import warnings
from collections import Counter
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from pyspark.sql import SparkSession, functions as sf

import millrace
from millrace.cli.doctor import examine
from millrace.engine.plan.expressions import Call, Column, ColumnRef
from millrace.engine.plan.spec import JoinSpec, OutputColumn, RelationSpec
from millrace.errors import ExecutionError, InputError
from millrace.limits.coordinator import Coordinator
from millrace.limits.drivers import SECRET
from millrace.options import Options
from millrace.predicates import PredicateSpec
from millrace.spark.block import Block, FrameInput
from millrace.spark.execute import execute
from millrace.spark.worker import translated
from tests.gate import sampled
from tests.session import STREAMING, changed, wait_for, write_stream
from tests.spark import pipelines
from tests.spark.pipelines import BLOCKS, COLUMNS, LEFT_ON_CONNECT, PIPELINES, blocks, mapped
from tests.sql.compare import bag
from tests.sql.small_tables import register, write
from tests.streams.feed import Feed

KIND = os.environ["MILLRACE_SESSION"]
ON_CONNECT, ON_CLUSTER = "connect" in KIND, "cluster" in KIND
TABLES = {"big": [n % 50 for n in range(2000)], "small": list(range(0, 100, 2))}
TAKE_ALL = {"take_all": True}
# Spark would notice that map tasks give other output when they run again, and do the whole join again or
# give up. Rows have to be right also where it does not.
CHECKSUMS = "spark.sql.shuffle.orderIndependentChecksum"
UNNOTICED = {f"{CHECKSUMS}.enabled": "false", f"{CHECKSUMS}.enableFullRetryOnMismatch": "false"}


@pytest.fixture(scope="module")
def spark():
    """A session of the kind; on a classic one workers run the Python of an archive that is sent with it."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    pack_environment()
    master = "local-cluster[2,1,1024]" if ON_CLUSTER else "local[2]"
    builder = SparkSession.builder.remote(master) if ON_CONNECT else SparkSession.builder.master(master)
    if ON_CLUSTER:
        builder = builder.config("spark.executor.memory", "600m").config(map=UNNOTICED)
        builder = builder.config("spark.task.maxFailures", "2")  # each starts a worker anew
    if not ON_CONNECT:
        os.environ["PYSPARK_PYTHON"] = "./environment/bin/python"
        builder = builder.config("spark.archives", "environment.tar.gz#environment")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.ui.enabled", "false")
    with warnings.catch_warnings():
        # A client starts its server with these settings, and cannot set them once more.
        warnings.filterwarnings("ignore", "Failed to set", UserWarning)
        made = builder.config("spark.log.level", "OFF").getOrCreate()
    yield made
    made.stop()


def pack_environment() -> None:
    """Pack what stands for an environment: its Python notes where it runs, and is this one."""
    script = f'#!/bin/sh\necho "$0" >> {Path.cwd()}/started\nexec {sys.executable} "$@"\n'.encode()
    with tarfile.open("environment.tar.gz", "w:gz") as archive:
        entry = tarfile.TarInfo("bin/python")
        entry.size, entry.mode = len(script), 0o755
        archive.addfile(entry, io.BytesIO(script))


@pytest.fixture(scope="module")
def paths(spark, tmp_path_factory) -> dict[str, str]:
    """Two tables as files; views of the same names are scans of them."""
    made = {name: pa.table({"k": keys, name: range(len(keys))}) for name, keys in TABLES.items()}
    return register(spark, write(tmp_path_factory.mktemp("tables"), made, 300))


def rows_of(frame) -> list[tuple]:
    return sorted(map(tuple, frame.collect()))


@pytest.mark.parametrize(
    ("options", "is_frame"),
    sampled(
        [({"placement": "hypercube", "cells": 3}, False), ({}, False), ({}, True), ({"report": False}, False)]
    ),
    ids=["hypercube", "in place", "mixed", "no report"],
)
def test_blocks(spark, paths, options, is_frame):
    """Rows and figures, also where a block is read twice."""
    tables = {**paths, "small": spark.read.parquet(paths["small"]).where("k >= 0")} if is_frame else paths
    text = "select big.big x, small.small y from big join small on big.k = small.k"
    query = millrace.query(text, spark=spark, tables=tables, options={**options, **TAKE_ALL})
    assert rows_of(query.df) == sorted((n, (n % 50) // 2) for n in range(2000) if n % 2 == 0)
    if options.get("report", True):
        assert query.report().totals.output_tuples == 1000
    query.df.createOrReplaceTempView("block")
    twice = spark.sql("select a.x from block a join block b on a.x = b.x")
    assert len(twice.collect()) == 1000
    if options.get("report", True) and not ON_CONNECT:  # which loses what is observed twice in one plan
        assert millrace.report(twice).totals.output_tuples == 1000


def test_queries(spark, paths):
    """Rows are Spark's, and tasks have figures."""
    text = """
        with w as (select big.k, count(*) n from big join small using (k) group by 1)
        select k, n from w where n >= (select max(n) from w) union all select n, k from w where k < 9
        union all select a.k, c.small from big a, small b, small c where a.k = b.k and b.k = c.k and a.big < 9
    """
    query = millrace.query(text, spark=spark, tables=paths, options=TAKE_ALL)
    assert rows_of(query.df) == rows_of(spark.sql(text))
    assert query.report().totals.output_tuples > 0


def test_filters(spark):
    """Predicates of PySpark and of Millrace on one DataFrame: rows, their order, figures."""

    @sf.udf("boolean")
    def even(x):
        return x % 2 == 0

    @millrace.predicate(kind="pandas")
    def fifth(x):
        return x % 5 == 0

    frame = millrace.where(spark.range(0, 20_000, 1, 4), even("id"), fifth(sf.col("id")), "id < 15000")
    assert [row.id for row in frame.collect()] == list(range(0, 15_000, 10))
    assert millrace.report(frame).totals.output_tuples == 1500
    assert "kind pandas" in millrace.explain(frame)


def test_schemas(spark):
    """Columns that have no nulls are said to have none, though figures may travel with the rows."""
    left = spark.range(20).selectExpr(
        "id", "string(id) s", "date '2020-01-01' d", "1.5BD n", "id > 3 b", "array(id) a", "binary('x') x"
    )
    text = "select l.*, r.id + 1 as more from l join r on l.id = r.id"
    found = millrace.query(text, spark=spark, tables={"l": left, "r": spark.range(5)}, options=TAKE_ALL)
    left.createOrReplaceTempView("l")
    spark.range(5).createOrReplaceTempView("r")
    wanted = spark.sql(text)
    assert len(found.blocks) == 1
    flat = [[field for field in frame.schema if field.name != "a"] for frame in (found.df, wanted)]
    assert flat[0] == flat[1]
    assert sorted(found.df.drop("b").collect()) == sorted(wanted.drop("b").collect())
    assert found.df.select("b").where("b").count() == 1


def test_failures(spark):
    """What a predicate raises arrives as an error of Millrace's, without what else was on the stack."""

    @millrace.predicate
    def picky(x):
        return 1 / (x - 3) > 0

    frame = millrace.where(spark.range(10), picky("id"))
    with pytest.raises(ExecutionError) as first:
        frame.collect()
    with pytest.raises(ExecutionError) as derived:
        frame.select("*").collect()
    raised = derived.value.__context__
    found = translated(raised)
    assert isinstance(found, ExecutionError)
    assert str(found) == str(first.value) == str(derived.value)
    assert str(found).startswith("predicate 'picky' raised ZeroDivisionError: division by zero\n")
    assert str(found).endswith("\nZeroDivisionError: division by zero")
    assert str(raised).count("millrace/") == 1


@pytest.mark.nightly
def test_the_doctor(spark, monkeypatch):
    """A session that works is found to be one, and every executor is looked at."""
    found = {each.check: each for each in examine(spark)}
    assert [each for each in found.values() if not each.well] == []
    assert found["executors"].found.startswith(f"{2 if ON_CLUSTER else 1} seen")
    assert {"coordinator reached by tasks", "a join and a filter"} <= set(found)
    monkeypatch.setenv(SECRET, "s" * 40)
    with closing(Coordinator(secret="s" * 40)) as coordinator:
        place = f"127.0.0.1:{coordinator.address.port}"
        found = {each.check: each for each in examine(spark, Options(coordinator=place))}
    assert found["coordinator elsewhere"].well


def test_enabled_sessions(spark, paths):
    """The session's own methods give Spark's rows through Millrace, and are its own again."""

    def joined():
        return spark.read.parquet(paths["big"]).join(spark.read.parquet(paths["small"]), "k")

    plain = joined()
    with millrace.enable(spark, options=TAKE_ALL):
        found = joined()
        assert found.columns == plain.columns
        assert rows_of(found) == rows_of(plain)
        assert "block" in str(millrace.explain(found))
        odd = spark.read.parquet(paths["big"]).filter(sf.udf(lambda x: x % 2 == 0, "boolean")("k"))
        assert odd.filter("big < 10").count() == 5
        assert spark.sql("select 1 one").collect()[0].one == 1
    assert rows_of(joined()) == rows_of(plain)


def test_the_live_page(spark):
    """It has figures of a query's tasks, from whatever executor, and says that the query is done."""

    def even(x):
        time.sleep(0.7 if x % 250 == 5 else 0)  # tasks that are over at once may tell nothing on Connect
        return x % 2 == 0

    with millrace.monitor.live() as page:
        kept = millrace.where(spark.range(0, 1000, 1, 4), millrace.predicate(even)("id"))
        assert kept.count() == 500
        (query,) = wait_for(
            lambda: [q for q in page.figures()["queries"] if q["state"] == "done" and q["rows_in"] == 1000]
        )
    assert (query["state"], query["action"], query["title"]) == ("done", "count", "filter by even(id)")
    assert (query["rows_in"], query["rows_out"]) == (1000, 500)


@pytest.fixture(scope="module")
def tables(spark, tmp_path_factory) -> dict[str, list]:
    shop = [*pipelines.shop(spark, tmp_path_factory.mktemp("shop")).values()]
    abc = pipelines.abc(spark, tmp_path_factory.mktemp("abc"))
    return {name: shop if name in PIPELINES else abc for name in PIPES}


PIPES = {**{f"{name}, columns": pipe for name, pipe in COLUMNS.items()}, **PIPELINES}
SEVERAL = {f"{name}, columns": number for name, number in BLOCKS.items()}


@pytest.mark.connect
@pytest.mark.parametrize("part", sampled(range(10), every=10))
def test_pipelines(spark, tables, part):
    """They are read from the message of their DataFrame, and have Spark's rows."""
    for name in [*PIPES][part::10]:
        made = PIPES[name](*tables[name])
        found = millrace.optimize(made, TAKE_ALL)
        assert (found is made) == (name.removesuffix(", columns") in LEFT_ON_CONNECT), name
        assert found.dtypes == made.dtypes and bag(found) == bag(made), name
        assert name not in SEVERAL or blocks(found) == SEVERAL[name], name


@pytest.mark.connect
def test_what_spark_keeps_and_what_it_reads(spark, paths, tmp_path):
    """What is cached is read from there, and what is read is not overwritten unseen."""
    small = spark.read.parquet(paths["small"])
    spark.read.parquet(paths["big"]).write.parquet(f"{tmp_path}/big")
    big = spark.read.parquet(f"{tmp_path}/big")
    some = big.where("big < 100").cache()
    count = some.count()
    with millrace.enable(spark, options=TAKE_ALL):
        joined = some.join(small, "k")
        assert joined.count() == joined.toArrow().num_rows == count // 2
        assert "from a DataFrame" in millrace.explain(joined)
        kept = joined.select("k", "small").cache()
        named = kept.withColumn("o", sf.udf(lambda k: f"<{k}>")("k"))
        assert named.count() == len(named.collect()) == count // 2
        above = mapped(kept).join(small.select("k"), "k")
        assert above.count() == count // 2 and len(millrace.report(above).blocks) == 1
        kept.unpersist()
        whole = big.join(small, "k")
        whole.write.mode("overwrite").parquet(f"{tmp_path}/out")
        over = whole.select("k").write.mode("overwrite")
        for write in (
            lambda: over.parquet(f"{tmp_path}/big/"),
            lambda: whole.write.csv(str(tmp_path), "overwrite"),
        ):
            with pytest.raises(InputError, match="would replace files that the query reads"):
                write()
        assert whole.count() == spark.read.parquet(f"{tmp_path}/out").count() == 1000
    some.unpersist()


@pytest.mark.connect
@pytest.mark.parametrize(
    "text",
    sampled(
        [
            "select l.v a, r.v b, (select max(v) from lv) c from lv l join rv r on l.id = r.id",
            "select l.v a, r.v b from lv l join rv r on l.id = r.id",
            """
            select q.v a, l.v b from (select l.id, r.v from lv l join rv r on l.id = r.id) q
            full join lv l on l.id = q.id
            """,
            "select l.v a, r.m b from lv l join (select id, max(v) m from rv group by id) r using (id)",
        ],
        4,
    ),
)
def test_views_that_change_between_a_query_and_its_action(spark, tmp_path, text):
    """All are seen as they were, or all as they are."""

    def put(state: int) -> None:
        folder, table = tmp_path / f"{state}", pa.table({"id": [1, 2], "v": [state, state]})
        folder.mkdir()
        register(spark, write(folder, {"lv": table, "rv": table}))

    put(1)
    found = millrace.query(text, spark=spark, options=TAKE_ALL)
    put(2)
    for number in range(40):  # the server remembers what it has analysed lately
        spark.sql(f"select {number} n").schema  # noqa: B018
    assert len(found.blocks) == 1
    assert {value for row in found.df.collect() for value in row} in ({1}, {2})


@pytest.fixture
def stateful(spark):
    """The session with its state in RocksDB, in two partitions."""
    with changed(spark, STREAMING):
        yield


@pytest.mark.nightly
@pytest.mark.connect
def test_joins_of_streams_and_a_lookup(spark, stateful, tmp_path):
    """Rows, the report and its lines, for which Connect has other progress."""

    def parity(keys):
        return [{"k": key, "odd": key % 2 == 1} for key in keys]

    source = millrace.function(parity, batch=50)
    table = millrace.lookup("parity", "k bigint, odd boolean", bind=["k"], via=source)
    text = """
        SELECT o.k, n.odd FROM orders o JOIN payments p ON p.k = o.k
        JOIN n ON n.k = o.k WHERE p.t BETWEEN o.t AND o.t + INTERVAL 30 SECONDS
    """
    feed = Feed(spark, tmp_path, ("orders", "payments"))
    feed.put(300, 0, 0)
    with millrace.streams.log(spark, f"{tmp_path}/figures.jsonl"):
        joined = millrace.sql(text, spark=spark, tables={**feed.tables(), "n": table})
        query = write_stream(joined, tmp_path)
    report = millrace.streams.report(query)
    out = spark.read.parquet(f"{tmp_path}/out")
    assert out.count() == report.totals["results"] > 400
    assert out.where("odd <> (k % 2 = 1)").count() == 0
    (keyed,) = feed.answer("SELECT (SELECT count(k) FROM orders) + (SELECT count(k) FROM payments)")
    assert report.totals["rows"] == keyed[0]
    lines = (tmp_path / "figures.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == report.to_dict()["batches"]
    assert report.latest.watermark is not None


@pytest.mark.nightly
@pytest.mark.connect
def test_hubs(spark, stateful, tmp_path):
    """Queries of a hub on a server: functions and files, while it runs and after a restart."""
    on = "orders o JOIN payments p ON o.k = p.k AND p.t BETWEEN o.t AND o.t + INTERVAL 9 SECONDS"
    feed = Feed(spark, tmp_path, ("orders", "payments"))
    feed.put(200, 0, 0)
    (tmp_path / "all").mkdir()

    def sink(rows, batch):
        path = tmp_path / "all" / f"{batch}.parquet"
        assert not path.exists()
        pq.write_table(rows, path)

    def made(**more):
        return millrace.Session(spark, feed.tables()).hub(on, f"{tmp_path}/hub", **more)

    def alone(text: str, *files: int | None) -> list[tuple]:
        return feed.answer(f"SELECT {text} FROM {on}", slice(*files))

    hub = made()
    hub.add("all", "o.k", sink=sink)
    hub.add("files", "o.k, p.t", sink=f"{tmp_path}/files")
    query = hub.start(processingTime="0 seconds")
    with pytest.raises(InputError, match="functions are sent when the hub starts"):
        hub.add("more", "o.k", sink=sink)
    query.processAllAvailable()
    hub.add("late", "o.k", sink=f"{tmp_path}/late")
    query.processAllAvailable()
    feed.put(200)
    query.processAllAvailable()
    hub.stop()
    feed.put(200)
    hub = made(sinks={"all": sink})
    hub.remove("files")
    hub.start(availableNow=True).awaitTermination()
    assert {each.name: each.state for each in hub.list()} == dict.fromkeys(("all", "late"), "running")
    assert len([*(tmp_path / "all").iterdir()]) >= 2 and feed.rows("all") == alone("o.k", None)
    assert feed.rows("files") == alone("o.k, p.t", 3) != []
    assert feed.rows("late") == alone("o.k", 2, None) != []


def test_lookups(spark, tmp_path):
    """Each key is asked for once, then never again; a task that dies costs at most what was under way.

    On a cluster a task is killed within a request, and Spark runs it again. A second query streams its
    results, some of them first, and takes all rows from the cache.
    """
    keys, copies, dies = 40, 5, ON_CLUSTER
    asked, dead = tmp_path / "asked", tmp_path / "dead"

    def find(some):
        """Answer some keys; the first time that key 17 is among them, kill this process if it is to die."""
        with asked.open("a") as log:
            log.write("".join(f"{key}\n" for key in some))
        if dies and 17 in some and not dead.exists():
            dead.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return [{"k": key, "v": f"value {key}"} for key in some if key % 10]

    table = millrace.lookup(
        "items",
        "k bigint, v string",
        bind=["k"],
        via=millrace.function(find, batch=3, max_in_flight=1, retries=0),
        cache=f"{tmp_path}/cache",
    )
    tables = {"r": spark.range(0, keys * copies, 1, 4).selectExpr("id", f"id % {keys} AS k"), "i": table}
    text = "SELECT r.id, i.v FROM r JOIN i ON r.k = i.k"
    expected = sorted((n, f"value {n % keys}") for n in range(keys * copies) if n % keys % 10)
    query = millrace.query(text, spark=spark, tables=tables)
    assert rows_of(query.df) == expected
    assert dead.exists() == dies
    times = Counter(map(int, asked.read_text().split()))
    assert set(times) == set(range(keys))
    assert 0 <= times.total() - keys <= (3 if dies else 0)  # one request has at most three keys
    (progress,) = query.lookups()
    assert (progress.keys, progress.done, progress.failed, progress.in_flight) == (keys, keys, 0, 0)
    asked.unlink()
    streamed = millrace.query(text, spark=spark, tables=tables)
    batches = streamed.to_batches(prefer=["r.id > 100", "i.v LIKE 'value 1%'"], partial="i")
    found = []
    for batch in batches:
        *columns, missing = batch.to_pydict().values()
        found += zip(*columns, strict=True) if missing[0] is None else ()
        batches.prefer("r.id < 50")
    assert sorted(found) == expected
    assert not asked.exists()
    assert (streamed.lookups()[0].cached, streamed.lookups()[0].requests) == (keys, 0)


@pytest.mark.cluster
def test_a_scan_that_failed_succeeds_when_spark_runs_its_tasks_again(spark, tmp_path):
    broken = tmp_path / "broken"

    def read():
        if not broken.exists():
            broken.touch()
            raise ValueError("not yet")
        return [{"k": key} for key in range(9)]

    via, scan = millrace.function(lambda _: []), millrace.function(read, scan=True, retries=0)
    items = millrace.lookup("i", "k bigint", bind=["k"], via=via, scan=scan)
    tables = {"r": spark.range(0, 20, 1, 4), "i": items}
    text = "SELECT r.id, i.k FROM r JOIN i ON r.id <= i.k AND r.id >= i.k"
    assert rows_of(millrace.query(text, spark=spark, tables=tables).df) == [(n, n) for n in range(9)]


def test_workers_run_the_python_of_an_archive(spark):
    """On Connect it is sent as docs/guides/clusters.md says; to a classic session it came with its start."""
    if ON_CONNECT:
        text = (Path(__file__).parents[2] / "docs" / "guides" / "clusters.md").read_text()
        (block,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        exec(block, {"spark": spark})  # the project's own code
    even = millrace.predicate(lambda x: x % 2 == 0, name="even")
    assert millrace.where(spark.range(100), even("id")).count() == 50
    assert "environment/bin/python" in Path("started").read_text()


def kill_another(folder: Path):
    """Return a predicate that kills the other executor when the third cell runs; every row passes."""

    def passes(_: int) -> bool:
        import psutil
        from pyspark import TaskContext

        def is_executor(process: psutil.Process) -> bool:
            try:
                return any("CoarseGrainedExecutorBackend" in word for word in process.cmdline())
            except psutil.Error:  # it has ended
                return False

        (folder / f"cell {TaskContext.get().partitionId()}").touch()
        if len(list(folder.glob("cell *"))) < 3:
            return True
        try:
            (folder / "killed").touch(exist_ok=False)
        except FileExistsError:
            return True
        (own,) = filter(is_executor, psutil.Process().parents())
        others = [each for each in own.parent().children() if each != own and is_executor(each)]
        for each in others:
            each.kill()
        psutil.wait_procs(others)
        (folder / "killed").write_text(f"{len(others)}")
        return True

    return passes


@pytest.mark.cluster
def test_map_tasks_that_run_again_in_the_middle_of_a_join(spark, tmp_path):
    """A spread DataFrame whose rows come in another order the second time gives each row once.

    It comes out of a shuffle. While the third of four cells runs, the other executor is killed, with its
    share of all map output. Cells that are done by then have read what the map tasks wrote at first, and
    others read what they write the second time.
    """
    count = 20_000
    big = spark.range(0, count, 1, 6).select(sf.col("id").alias("x"), (sf.col("id") % 97).alias("k"))
    inputs = {
        "big": FrameInput(big.repartition(5), 1 << 30),
        "small": FrameInput(spark.range(1).toDF("s"), 8),
    }
    schema = pa.schema([("x", pa.int64()), ("k", pa.int64())])
    killing = Call(PredicateSpec("kill", kill_another(tmp_path)), (Column(ColumnRef("small", "s")),))
    join = JoinSpec(
        (RelationSpec("big", schema), RelationSpec("small", pa.schema([("s", pa.int64())]))),
        residuals=(killing,),
        output=tuple(OutputColumn(name, ColumnRef("big", name)) for name in schema.names),
    )
    run = execute(spark, Block("b", join, inputs), Options(placement="hypercube", cells=4))
    assert "rows of big: 4" in run.plan
    found = Counter(row.x for row in run.frame.collect())
    assert (tmp_path / "killed").read_text() == "1"
    assert found == Counter(range(count))
