"""Tables in an object store give the rows that the same files give on disk, or say clearly why not."""

from __future__ import annotations

import logging
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from pyarrow import fs
from werkzeug.serving import make_server

from millrace import Options, query
from millrace.errors import ExecutionError, InputError, OptionError
from millrace.options import StorageOptions
from millrace.parquet import store as stores
from millrace.parquet.discovery import open_files, open_table
from millrace.parquet.partitions import Doubtful
from millrace.parquet.reading import read_splits
from millrace.parquet.store import DISKS, NoConnection, Store, StoreError, locate
from millrace.parquet.tables import splits
from millrace.spark import path_tables, session
from millrace.spark.path_tables import open_path
from millrace.spark.scan_detection import _store_of
from millrace.sql.session.asking import estimate
from tests.sql.compare import bag, bags
from tests.sql.small_tables import register

JOIN = """
    SELECT o.id, o.day, o.tags, c.name FROM orders o JOIN customers c ON o.customer = c.id WHERE o.amount > 20
"""


_PATIENCE = 20
"""Seconds that a request is held at most."""


class Server:
    """moto's S3 service without buckets, in this process.

    ``options`` are the storage options that reach it; its key and secret are words that nothing else shows.
    ``cut`` is how many connections were cut lately; ``late`` is what was answered without what it waited for.
    """

    cut = _kills = 0
    _held = _until = ""

    def __enter__(self):
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._lock = threading.Lock()
        self._moto = DomainDispatcherApplication(create_backend_app)
        made = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=MotoRequestHandler)
        self._service, self._thread = made, threading.Thread(target=made.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._service.shutdown()
        self._thread.join()

    @property
    def options(self) -> dict[str, Any]:
        return {
            "access_key": "the-key-id",
            "secret_key": "the-secret",
            "endpoint_override": f"127.0.0.1:{self._service.server_port}",
            "scheme": "http",
            "region": "us-east-1",
        }

    @property
    def files(self) -> fs.S3FileSystem:
        return fs.S3FileSystem(**self.options, allow_bucket_creation=True)

    @contextmanager
    def cutting(self, kills: int) -> Iterator[None]:
        """Cut so many connections meanwhile: before an answer comes, or amid a long one."""
        self.cut, self._kills = 0, kills
        yield
        self._kills = 0

    @contextmanager
    def holding(self, path: str, until: str) -> Iterator[None]:
        """Read the files of one path meanwhile only once one of the other has been asked for."""
        self._held, self._until, self.late = path, until, []
        self._asked = threading.Event()
        yield
        self._held = self._until = ""

    def _answer(self, environ, start):
        path = environ["PATH_INFO"]
        if self._until and self._until in path and "HTTP_RANGE" in environ:
            self._asked.set()
        if self._held and self._held in path and not self._asked.wait(_PATIENCE):
            self.late.append(path)
        answer = self._moto(environ, start)
        with self._lock:
            doomed = self.cut < self._kills
            self.cut += doomed
        return _half(b"".join(answer), environ["werkzeug.socket"]) if doomed else answer


def _half(answer: bytes, connection: socket.socket) -> Iterator[bytes]:
    if len(answer) > 1000:
        yield answer[: len(answer) // 2]
    connection.shutdown(socket.SHUT_RDWR)
    raise ConnectionError


@pytest.fixture(scope="module")
def server():
    with Server() as running:
        running.files.create_dir("shop")
        yield running


@pytest.fixture(scope="module")
def local(spark, tmp_path_factory):
    """Orders in folders by day, with a column that only Spark computes with, and customers in one file.

    Views of Spark's alone have these names too.
    """
    chance, folder = random.Random(7), tmp_path_factory.mktemp("stores")
    ids = [*range(200)] * 3
    days = [day for day in ("2024-01-01", "2024-01-02", None) for _ in range(200)]
    rows = {
        "id": pa.array(ids, pa.int64()),
        "customer": pa.array([chance.randrange(40) for _ in ids], pa.int64()),
        "amount": pa.array([chance.randrange(400) / 4 for _ in ids]),
        "tags": pa.array([[str(i), None] if i % 3 else None for i in ids], pa.list_(pa.string())),
        "day": days,
    }
    how = {"partition_cols": ["day"], "basename_template": "part {i}.parquet", "row_group_size": 50}
    pq.write_to_dataset(pa.table(rows), folder / "orders", **how)
    names = pa.table({"id": pa.array(range(40), pa.int64()), "name": [f"c{n}" for n in range(40)]})
    pq.write_table(names, folder / "customers.parquet")
    paths = {"orders": str(folder / "orders"), "customers": str(folder / "customers.parquet")}
    yield register(spark, paths)
    for name in paths:
        spark.catalog.dropTempView(name)


@pytest.fixture(scope="module")
def remote(server, local) -> dict[str, str]:
    """The same files in a bucket."""
    fs.copy_files(local["orders"], "shop/data/orders", destination_filesystem=server.files)
    fs.copy_files(local["customers"], "shop/data/customers.parquet", destination_filesystem=server.files)
    return {"orders": "s3://shop/data/orders/", "customers": "s3a://shop/data/customers.parquet"}


def asked(spark, text: str, tables: dict[str, str], options: dict):
    return query(text, tables=tables, spark=spark, options={"storage_options": options})


def test_joins_are_direct_scans(spark, server, remote):
    made = asked(spark, JOIN, remote, server.options)
    assert len(made.blocks) == 1
    assert bag(made.df) == bag(spark.sql(JOIN))
    plan = made.explain()
    assert "12 row groups of s3://shop/data/orders/" in plan
    assert "tasks read it where Spark needs its rows, because storage_options are given" in plan
    assert "the-secret" not in plan + repr(made.options) + str(made.options) + repr(made.blocks)
    assert "the-key-id" not in plan + repr(made.options)


@pytest.mark.parametrize("options", [{}, {"online": True}, {"memory_budget": 1 << 24}], ids=str)
def test_a_file_that_stalls_holds_up_no_other_relation(spark, server, remote, options):
    """The smaller relation, which is read first, comes only once the other one has been asked for."""
    made = query(JOIN, tables=remote, spark=spark, options={"storage_options": server.options, **options})
    with server.holding("customers", until="orders"):
        assert bag(made.df) == bag(spark.sql(JOIN))
    assert not server.late


def test_whatever_spark_runs_reads_through_tasks(spark, server, remote):
    texts = (
        "SELECT day, count(*), sum(amount), max(tags[0]) FROM orders GROUP BY day",
        "SELECT * FROM orders",
        "SELECT count(*) FROM orders o FULL JOIN customers c ON o.id = c.id",
        "SELECT * FROM orders o JOIN customers c ON o.customer + 1 = c.id AND o.day < '2024-01-02'",
        "SELECT name FROM customers WHERE id IN (SELECT customer FROM orders WHERE amount < 1)",
    )
    here = {text: spark.sql(text) for text in texts}
    there = {text: asked(spark, text, remote, server.options).df for text in texts}
    assert [frame.schema for frame in there.values()] == [frame.schema for frame in here.values()]
    assert bags(there) == bags(here)


def test_without_options_spark_is_asked_first(spark, server, remote, monkeypatch):
    options = server.options
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{options['endpoint_override']}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", options["access_key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", options["secret_key"])
    monkeypatch.setenv("AWS_REGION", options["region"])
    # Tasks inherit the environment of this process as it was when the first of them began.
    refused = "tasks have no credentials"
    monkeypatch.setattr(session, "try_in_task", lambda *_: refused)
    with pytest.raises(InputError, match=rf"{refused}.*no file system for s3"):
        query(JOIN, tables=remote, spark=spark)
    monkeypatch.setattr(session, "try_in_task", lambda *_: None)
    session.facts_of(spark).unreached.clear()
    made = query(JOIN, tables=remote, spark=spark)
    plan = made.explain()
    assert "customers, s3a://shop/data/customers.parquet: tasks read it where Spark needs its rows" in plan
    assert "Spark has no file system for s3" in plan


def test_spark_expects_what_there_is(spark, server, remote):
    """Also of a table without rows."""
    options = StorageOptions(server.options)
    found = open_path(spark, remote["orders"], storage=options)
    assert found.files is not None
    _, size = estimate(found.frame)
    assert size == pytest.approx(found.files.decoded_bytes_of(found.files.schema.names), rel=0.2)
    empty = pa.table({"a": pa.array([], pa.int64()), "b": pa.array([], pa.string())})
    pq.write_table(empty, "shop/none.parquet", filesystem=server.files)
    frame = open_path(spark, "s3://shop/none.parquet", storage=options).frame
    assert frame.dtypes == [("a", "bigint"), ("b", "string")] and frame.count() == 0


def test_cut_connections_are_tried_again(server, remote):
    options = StorageOptions({**server.options, "request_timeout": 30})  # which nobody has used
    with server.cutting(2):
        table = open_table(remote["orders"], options)
    assert server.cut == 2
    names = tuple(table.schema.names)
    with server.cutting(2):
        assert sum(batch.num_rows for batch in read_splits(splits(table), names)) == 600
    assert server.cut == 2


def test_a_store_that_stops_answering(spark, server, remote):
    few = {"retry_strategy": fs.AwsStandardS3RetryStrategy(max_attempts=1), "request_timeout": 1}
    options = {**server.options, **few}
    made = asked(spark, JOIN, remote, options)
    with (
        server.cutting(1000),
        pytest.raises(ExecutionError, match=r"(?s)cannot read s3a?://shop/data/.*check the network"),
    ):
        made.df.collect()
    with (
        server.cutting(1000),
        pytest.raises(InputError, match=r"cannot read s3://shop/data/orders.*check the network"),
    ):
        asked(spark, JOIN, remote, options | {"region": "eu"})


def test_what_is_missing(spark, server, remote):
    def told(path: str) -> str:
        with pytest.raises(InputError) as found:
            asked(spark, "SELECT * FROM t JOIN t AS u USING (id)", {"t": path}, server.options)
        return str(found.value)

    assert "there is no bucket 'nobody'" in told("s3://nobody/data")
    assert "there is no s3://shop/nothing" in told("s3://shop/nothing")
    assert "is a glob" in told("s3://shop/data/*.parquet")
    assert "names no bucket" in told("s3:/shop/data")
    assert "s3cret" not in told("s3://me:s3cret@shop/data")
    server.files.create_dir("shop/empty")
    assert "no Parquet file" in told("s3://shop/empty")
    with server.files.open_output_stream("shop/text.parquet") as out:
        out.write(b"no Parquet at all")
    assert "not a readable Parquet file" in told("s3://shop/text.parquet")


def test_a_refusal_names_credentials_and_no_secrets():
    store = Store("s3://shop", StorageOptions({"secret_key": "hush", "region": "us-east-1"}))
    told = store.explain("s3://shop/x", OSError("AWS Error ACCESS_DENIED during GetObject: hush is wrong"))
    assert told is not None
    assert "refuses" in told
    assert "AWS_ACCESS_KEY_ID" in told
    assert "hush" not in told
    assert store.explain("s3://shop/x", OSError("Couldn't deserialize thrift")) is None


def test_a_changed_file_is_an_error(server):
    files, options = server.files, StorageOptions(server.options)
    for size in (3, 3):
        pq.write_table(pa.table({"a": list(range(size))}), "shop/changing.parquet", filesystem=files)
        planned = splits(open_table("s3://shop/changing.parquet", options))
        assert [b.num_rows for b in read_splits(planned, ("a",))] == [size]
    pq.write_table(pa.table({"a": list(range(4))}), "shop/changing.parquet", filesystem=files)
    with pytest.raises(ExecutionError, match=r"s3://shop/changing\.parquet.*not the file that was there"):
        list(read_splits(planned, ("a",)))
    files.delete_file("shop/changing.parquet")
    with pytest.raises(ExecutionError, match=r"there is no s3://shop/changing\.parquet"):
        list(read_splits(planned, ("a",)))


def test_a_query_that_is_kept_sees_changed_files(spark, server):
    """Whether its plan is used again or not."""
    for ids in ([1, 2], [1, 2, 3], [1, 2, 3]):
        rows = pa.table({"id": pa.array(ids, pa.int64())})
        pq.write_table(rows, "shop/again/t.parquet", filesystem=server.files)
        text = "SELECT count(*) AS n FROM t JOIN t AS u ON t.id = u.id"
        found = asked(spark, text, {"t": "s3://shop/again/t.parquet"}, server.options)
        assert len(found.blocks) == 1
        assert found.df.collect()[0].n == len(ids)
        del found


def test_a_store_is_asked_about_a_file_once_a_scan(server, monkeypatch):
    """However many row groups the file has; the next scan asks again."""
    files, options = server.files, StorageOptions(server.options)
    rows = pa.table({"a": list(range(40)), "b": [f"t{n % 3}" for n in range(40)]})
    for name in ("one", "two"):
        pq.write_table(rows, f"shop/{name}.parquet", filesystem=files, row_group_size=2)
    tables = [open_table(f"s3://shop/{name}.parquet", options) for name in ("one", "two")]
    planned = [split for table in tables for split in splits(table)]
    asked: list[str] = []
    state = Store.state
    monkeypatch.setattr(Store, "state", lambda self, path: (asked.append(path), state(self, path))[1])
    for _ in range(2):
        assert sum(batch.num_rows for batch in read_splits(planned, ("a", "b"))) == 80
    assert sorted(asked) == sorted(["s3://shop/one.parquet", "s3://shop/two.parquet"] * 2)


def test_logs_and_odd_folders_stay_with_spark(spark, server):
    files, options = server.files, StorageOptions(server.options)
    for path in ("shop/delta/part-0.parquet", "shop/odd/within/x.parquet", "shop/mixed/a.parquet"):
        pq.write_table(pa.table({"a": [1]}), path, filesystem=files)
    pq.write_table(pa.table({"a": ["x"]}), "shop/mixed/b.parquet", filesystem=files)
    with files.open_output_stream("shop/delta/_delta_log/0.json") as out:
        out.write(b"{}")
    for path, why in (
        ("s3://shop/delta", "_delta_log says which files count"),
        ("s3://shop/delta/part-0.parquet", "_delta_log says which files count"),
        ("s3://shop/odd", "folder within"),
        ("s3://shop/mixed", "different schemas"),
    ):
        assert why in (open_table(path, options).unsupported or "")
    with pytest.raises(InputError, match=r"_delta_log.*no file system for s3"):
        asked(spark, "SELECT * FROM t", {"t": "s3://shop/delta"}, server.options)


def test_spark_reads_what_only_it_can(spark, server, local, monkeypatch):
    """Given a connector, which there is none of here."""
    monkeypatch.setattr(path_tables, "_by_spark", lambda *_: (spark.read.parquet(local["customers"]), ""))
    text = "SELECT name, u.id FROM t JOIN t AS u USING (name)"
    made = asked(spark, text, {"t": "s3a://shop/data/*.parquet"}, server.options)
    assert made.df.count() == 40
    plan = made.explain()
    assert "from a DataFrame (s3a://shop/data/*.parquet is a glob" in plan
    assert "Spark reads it, because of this: s3a://shop/data/*.parquet is a glob" in plan


def test_tables_that_spark_describes(server, remote):
    """Their files are listed once more, by the folder that has them all."""
    options = StorageOptions(server.options)
    table = open_table(remote["orders"], options)
    paths = [path.replace("s3://", "s3a://") for path in table.paths]
    store = Store("s3a://shop", options)
    described = open_files("orders", paths, table.schema, ("day",), ("id",), store)
    assert [file.partition for file in described.files] == [file.partition for file in table.files]
    assert all(file.state is not None for file in described.files)
    names = tuple(table.schema.names)
    assert list(read_splits(splits(described), names)) == list(read_splits(splits(table), names))
    with pytest.raises(Doubtful, match="there is no"):
        open_files("orders", [*paths, "s3a://shop/data/gone.parquet"], table.schema, (), (), store)


def test_file_systems_of_other_stores(monkeypatch):
    """They are opened without a request."""
    monkeypatch.delenv("CLASSPATH", raising=False)
    assert Store("gs://b", StorageOptions({"anonymous": True})).system.type_name == "gcs"
    key = StorageOptions({"account_key": "a2V5"})
    assert Store("abfss://c@acc.dfs.core.windows.net", key).system.type_name == "abfs"
    with pytest.raises(NoConnection, match="CLASSPATH"):
        _ = Store("hdfs://host:8020").system


def test_uris(monkeypatch, tmp_path):
    assert locate("data/x") == (DISKS, "data/x")
    assert locate("file:/x/y") == locate("file:///x/y") == (DISKS, "/x/y")
    assert locate("dbfs:/x")[0] is None
    monkeypatch.setattr(stores, "_DBFS", str(tmp_path))
    assert locate("dbfs:/x") == (DISKS, f"{tmp_path}/x")
    assert locate("viewfs://x/y")[0] is None
    for uri, root, bucket in (
        ("S3A://b/x y/", "s3a://b", "b"),
        ("gs://b/x", "gs://b", "b"),
        ("abfss://c@acc.dfs.core.windows.net/x", "abfss://c@acc.dfs.core.windows.net", "c"),
        ("hdfs://host:8020/x", "hdfs://host:8020", ""),
        ("hdfs:///x", "hdfs://", ""),
    ):
        store, _ = locate(uri)
        assert store is not None and store.is_remote
        assert (store.root, store.bucket) == (root, bucket)
    assert locate("S3A://b/x y/")[1] == "s3a://b/x y"


def test_files_that_spark_names_are_reached_or_not(spark, server, remote):
    """As for DataFrames whose files are in a store; their paths come without escapes."""
    options = StorageOptions(server.options)
    path = remote["customers"]
    assert _store_of(spark, [path], options) == Store("s3a://shop", options)
    with pytest.raises(Doubtful, match="several places"):
        _store_of(spark, [path, "s3a://other/x"], options)
    with pytest.raises(Doubtful, match="no local disk"):
        _store_of(spark, ["viewfs://x/y"], options)
    assert session.try_in_task(spark, partial(session._why, Store("s3a://shop", options), path)) is None
    few = fs.AwsStandardS3RetryStrategy(max_attempts=1)
    deaf = StorageOptions(server.options | {"endpoint_override": "127.0.0.1:9", "retry_strategy": few})
    why = session.try_in_task(spark, partial(session._why, Store("s3a://shop", deaf), path))
    assert "does not answer" in (why or "")
    for _ in range(2):
        with pytest.raises(Doubtful, match="does not reach s3a://shop"):
            _store_of(spark, [path], deaf)


def test_storage_options_are_checked_and_hidden():
    assert repr(Options(storage_options={"secret_key": "hush"})).count("hush") == 0
    assert Options(storage_options={"region": "x"}) == Options(storage_options={"region": "x"})
    assert hash(Options(storage_options={"region": "x"})) == hash(Options(storage_options={"region": "x"}))
    for odd in ("s3", 5, [1], {1: 2}, {"retry_strategy": lambda: None}):
        with pytest.raises(OptionError, match="storage_options"):
            Options(storage_options=odd)
    with pytest.raises(OptionError, match=r"storage_options is \{'region': …, 'sekret': …\}.*S3FileSystem"):
        open_table("s3://shop/x", StorageOptions({"sekret": "hush", "region": "x"}))
    few = fs.AwsStandardS3RetryStrategy(max_attempts=1)
    deaf = StorageOptions({"endpoint_override": "127.0.0.1:9", "retry_strategy": few, "anonymous": True})
    with pytest.raises(StoreError, match=r"endpoint and region in storage_options"):
        open_table("s3://shop/x", deaf)
