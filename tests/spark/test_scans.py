"""DataFrames that are scans of Parquet files are read by the tasks, and then give just Spark's rows."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as sf

from millrace import query
from millrace.parquet.discovery import open_table
from millrace.parquet.partitions import Doubtful
from millrace.parquet.reading import read_splits
from millrace.parquet.tables import splits
from millrace.spark.path_tables import files_at
from millrace.spark.scan_detection import scan_of
from millrace.spark.task_inputs import Scan
from tests.session import changed
from tests.sql.compare import bag_of


def rows_of(frame):
    """What the tasks read of a frame's files."""
    table = scan_of(frame, dict(frame.sparkSession.conf.getAll))
    names = tuple(frame.columns)
    batches = list(read_splits(splits(table, (), names), names))
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def check(frame):
    """The tasks read what Spark reads."""
    expected = [tuple(row) for row in frame.collect()]
    assert bag_of(rows_of(frame)) == bag_of(expected)
    assert expected


def left(frame) -> str:
    with pytest.raises(Doubtful) as found:
        scan_of(frame, dict(frame.sparkSession.conf.getAll))
    return str(found.value)


@pytest.fixture
def schema(spark, tmp_path):
    spark.sql(f"CREATE DATABASE scans LOCATION '{tmp_path}/scans'")
    yield "scans"
    spark.sql("DROP DATABASE scans CASCADE")


@pytest.fixture(scope="module")
def folder(spark, tmp_path_factory) -> str:
    """Nine rows in folders by ``p``, in a column of text and a number."""
    path = str(tmp_path_factory.mktemp("scans") / "by p")
    rows = "id", "CAST(id AS STRING) AS s", "IF(id % 3 = 0, NULL, id % 3) AS p"
    spark.range(9).selectExpr(*rows).write.partitionBy("p").parquet(path)
    return path


def test_frames_over_files(spark, folder):
    frame = spark.read.parquet(folder)
    check(frame)
    check(frame.select("p", "S"))
    check(frame.select("p"))
    check(frame.drop("p"))
    frame.createOrReplaceTempView("scanned")
    check(spark.table("scanned"))
    check(spark.sql(f"SELECT s, id FROM parquet.`{folder}`"))
    check(spark.read.option("basePath", folder).parquet(f"{folder}/p=1"))
    check(spark.read.parquet(f"{folder}/p=1"))
    check(spark.read.schema("p STRING, id BIGINT, more INT").parquet(folder))
    check(spark.read.schema("s STRING, p BIGINT").parquet(f"{folder}/p=1", f"{folder}/p=2"))


def test_what_is_more_than_a_scan_stays_with_spark(spark, folder):
    frame = spark.read.parquet(folder)
    for other in (
        frame.where("id > 3"),
        frame.where("p = 1"),
        frame.select((sf.col("id") + 1).alias("id")),
        frame.select(sf.col("s").alias("p")),
        frame.select("*", "_metadata"),
        frame.select("_metadata.file_name"),
        frame.distinct(),
        frame.limit(3),
        frame.union(frame),
        frame.sample(0.5, seed=1),
        frame.selectExpr("id", "id AS ID"),
        spark.range(3),
        spark.read.text(folder),
    ):
        left(other)
    assert "twice" in left(spark.read.parquet(f"{folder}/p=1", f"{folder}/p=1"))
    kept = spark.read.parquet(folder).cache()
    left(kept)
    kept.unpersist()
    check(kept)


def test_settings_that_change_reading(spark, folder, tmp_path):
    """Some only where a table has columns of a type, at whatever depth, or folders that are columns."""
    frame = spark.read.parquet(folder)
    bytes_in_lists = str(tmp_path / "bytes")
    spark.sql("SELECT array(X'00') AS b").write.parquet(bytes_in_lists)
    for key in ("spark.sql.files.ignoreCorruptFiles", "spark.sql.caseSensitive"):
        with changed(spark, {key: "true"}):
            assert key in left(frame)
    assert not files_at(spark, folder).unsupported
    assert not files_at(spark, bytes_in_lists).unsupported
    with changed(spark, {"spark.sql.parquet.binaryAsString": "true"}):
        assert not files_at(spark, folder).unsupported
        assert files_at(spark, bytes_in_lists).unsupported
    with changed(spark, {"spark.sql.sources.partitionColumnTypeInference.enabled": "false"}):
        assert files_at(spark, folder).unsupported


def test_tables_of_the_catalog(spark, schema):
    spark.sql(f"CREATE TABLE {schema}.plain (Id INT, s STRING, d DATE) USING parquet")
    spark.sql(f"INSERT INTO {schema}.plain VALUES (1, 'x', DATE'2020-01-01'), (2, NULL, NULL)")
    check(spark.table(f"{schema}.plain"))
    spark.sql(f"INSERT INTO {schema}.plain VALUES (3, 'y', NULL)")
    spark.sql(f"ALTER TABLE {schema}.plain ADD COLUMNS (more BIGINT)")
    spark.sql(f"INSERT INTO {schema}.plain VALUES (4, 'z', NULL, 7)")
    check(spark.table(f"{schema}.plain"))
    check(spark.sql(f"SELECT MORE, id FROM {schema}.plain"))
    spark.sql(
        f"CREATE TABLE {schema}.deal (a INT, c CHAR(3), n INT NOT NULL DEFAULT 5) USING parquet "
        "CLUSTERED BY (a) INTO 2 BUCKETS"
    )
    spark.sql(f"INSERT INTO {schema}.deal VALUES (1, 'x', 1), (2, 'y', 2)")
    check(spark.sql(f"SELECT a FROM {schema}.deal"))
    assert "CHAR" in left(spark.sql(f"SELECT a, c FROM {schema}.deal"))
    assert "DEFAULT" in left(spark.sql(f"SELECT n FROM {schema}.deal"))
    spark.sql(f"CREATE TABLE {schema}.none (a INT) USING parquet")
    assert "no files" in left(spark.table(f"{schema}.none"))


def test_partitions_of_the_catalog(spark, schema, tmp_path):
    """Values are those of the catalog, which may have fewer partitions than there are folders, or others."""
    spark.sql(
        f"CREATE TABLE {schema}.parts (id INT, p STRING, q SMALLINT, d DATE) USING parquet "
        f"PARTITIONED BY (p, q, d) LOCATION '{tmp_path}/parts'"
    )
    spark.sql(
        f"INSERT INTO {schema}.parts VALUES (1, 'x y/z=%41', 1, DATE'2020-01-01'), (2, NULL, 2, NULL), "
        "(3, '007', -3, DATE'2020-01-01'), (4, 'é', NULL, DATE'1999-12-31')"
    )
    check(spark.table(f"{schema}.parts"))
    check(spark.sql(f"SELECT q, id FROM {schema}.parts"))
    spark.sql(f"ALTER TABLE {schema}.parts DROP PARTITION (p = '007', q = -3, d = '2020-01-01')")
    assert len(list((tmp_path / "parts").glob("p=*"))) == 4
    check(spark.table(f"{schema}.parts"))

    spark.sql(
        f"CREATE TABLE {schema}.moved (id INT, p INT) USING parquet PARTITIONED BY (p) "
        f"LOCATION '{tmp_path}/moved'"
    )
    spark.sql(f"INSERT INTO {schema}.moved VALUES (1, 1), (2, 2), (3, 3)")
    check(spark.table(f"{schema}.moved"))
    for old, new in ((1, 9), (2, 1), (9, 2)):  # their folders stay, in an external table
        spark.sql(f"ALTER TABLE {schema}.moved PARTITION (p = {old}) RENAME TO PARTITION (p = {new})")
        assert "otherwise" in left(spark.table(f"{schema}.moved"))
    check(spark.sql(f"SELECT id FROM {schema}.moved"))
    spark.sql(f"CREATE TABLE {schema}.nulls (id INT, p INT) USING parquet PARTITIONED BY (p)")
    null = tmp_path / "nulls" / "p=__HIVE_DEFAULT_PARTITION__"
    spark.sql(f"ALTER TABLE {schema}.nulls ADD PARTITION (p = 5) LOCATION '{null}'")
    spark.sql(f"INSERT INTO {schema}.nulls PARTITION (p = 5) VALUES (1)")
    assert "otherwise" in left(spark.table(f"{schema}.nulls"))


def _write(path: Path, table: pa.Table, **options) -> str:
    path.parent.mkdir(exist_ok=True)
    pq.write_table(table, path, **options)
    return str(path)


def test_partition_columns_that_files_have_too(spark, tmp_path):
    for p in (1, 2):
        _write(tmp_path / f"p={p}" / "t.parquet", pa.table({"p": pa.array([7], pa.int32()), "k": [p]}))
    frame = spark.read.parquet(str(tmp_path))
    assert sorted(row.p for row in frame.collect()) == [1, 2]
    check(frame)
    check(frame.select("k", "p"))


def test_files_that_differ(spark, tmp_path):
    """Files may lack columns or spell them in another case; other types are Spark's to read or refuse."""
    _write(tmp_path / "t" / "1.parquet", pa.table({"A": pa.array([1, 2], pa.int32()), "b": ["x", "y"]}))
    _write(tmp_path / "t" / "2.parquet", pa.table({"a": pa.array([3], pa.int32()), "c": [1.5]}))
    path = str(tmp_path / "t")
    check(spark.read.schema("a INT, b STRING, c DOUBLE, st STRUCT<x: INT>").parquet(path))
    check(spark.read.option("mergeSchema", "true").parquet(path))
    check(spark.read.parquet(path))
    assert "is int64 to Spark and int32" in left(spark.read.schema("a BIGINT").parquet(path))
    assert "is binary to Spark" in left(spark.read.schema("b BINARY").parquet(path))
    _write(tmp_path / "t" / "3.parquet", pa.table({"a": pa.array([1]), "A": pa.array([2])}))
    assert "differ only in case" in left(spark.read.schema("a INT").parquet(path))


def test_formats_within_files(spark, tmp_path):
    """Bytes that are annotated as texts, times in the old calendar, encrypted footers."""
    path = Path(_write(tmp_path / "e" / "e.parquet", pa.table({"e": ["x", "y"]}), store_schema=False))
    data = path.read_bytes()
    annotated = b"\x25\x00\x4c\x1c\x00\x00"  # UTF8, STRING
    assert data.count(annotated) == 1
    path.write_bytes(data.replace(annotated, b"\x25\x08\x4c\x4c\x00\x00"))
    assert files_at(spark, str(path)).unsupported
    assert spark.read.parquet(str(path)).dtypes == [("e", "string")]
    assert "ENUM" in left(spark.read.parquet(str(path)))

    for name, day, whole in (("new", "1950-01-01", True), ("old", "1500-01-01", False)):
        table = pa.table({"d": pa.array([dt.date.fromisoformat(day), None]), "k": [1, 2]})
        frame = spark.read.option("datetimeRebaseMode", "LEGACY").parquet(
            _write(tmp_path / f"{name}.parquet", table)
        )
        if whole:
            check(frame)
        else:
            assert "old calendar" in left(frame)
            check(frame.select("k"))

    (tmp_path / "secret.parquet").write_bytes(b"PARE" + bytes(40) + b"PARE")
    assert files_at(spark, str(tmp_path / "secret.parquet")).unsupported


def test_a_log_says_which_files_count(spark, tmp_path, folder):
    """A folder of Delta's is never read as if all its files were live; nor is what is on no local disk."""
    path = str(tmp_path / "delta")
    spark.range(3).write.parquet(path)
    check(spark.read.parquet(path))
    (tmp_path / "delta" / "_delta_log").mkdir()
    assert "_delta_log" in left(spark.read.parquet(path))
    parts = [path, f"{path}/*.parquet", next(Path(path).glob("*.parquet"))]
    for part in (*parts, "dbfs:/x", "hdfs:/x", "viewfs://x/y", "wasbs://a@b/x"):
        assert files_at(spark, str(part)).unsupported


def test_files_that_go_between(spark, tmp_path):
    """Spark's own list counts: files that came later are not read, and those that went are an error."""
    path = str(tmp_path / "t")
    spark.range(2).coalesce(1).write.parquet(path)
    frame = spark.read.parquet(path)
    for file in Path(path).glob("*.parquet"):
        file.rename(file.with_name("other.parquet"))
    assert "cannot read" in left(frame)
    check(spark.read.parquet(path))


def test_queries_over_scans(spark, schema, folder, tmp_path):
    """Tables, views and DataFrames join as Spark joins them; explain says who reads which, and why."""
    spark.sql(f"CREATE TABLE {schema}.sold (id BIGINT, day DATE) USING parquet PARTITIONED BY (day)")
    spark.sql(f"INSERT INTO {schema}.sold SELECT id % 7, DATE'2020-01-01' + INT(id % 2) FROM range(20)")
    spark.read.parquet(folder).select("p", "id").createOrReplaceTempView("grouped")
    plain = spark.read.schema("ID BIGINT, absent INT").parquet(folder)
    counted = spark.range(9).withColumn("n", sf.col("id") * 2)
    counted.createOrReplaceTempView("counted")
    plain.createOrReplaceTempView("plain")
    text = (
        f"SELECT s.id, s.day, g.p, x.absent, c.n FROM {schema}.sold s JOIN grouped g ON s.id = g.id "
        "JOIN plain x ON x.Id = s.id AND x.absent IS NULL JOIN counted c ON c.id = g.id "
        "WHERE s.day > DATE'2020-01-01' AND (g.p = 1 OR g.p IS NULL)"
    )
    expected = bag_of(spark.sql(text).collect())
    assert expected
    for tables in (None, {"plain": plain, "counted": counted}):
        found = query(text, spark=spark, tables=tables)
        assert bag_of(found.df.collect()) == expected
        lines = found.explain().splitlines()
        for alias in "sgx":
            (line,) = [line for line in lines if line.startswith(f"  {alias}: ")]
            assert " row groups of " in line
        (line,) = [line for line in lines if line.startswith("  c: ")]
        assert "from a DataFrame (it is no plain scan of Parquet files)" in line


def test_a_task_unpacks_its_own_row_groups_only(tmp_path):
    path = _write(tmp_path / "t.parquet", pa.table({"a": [1, 2, 3, 4]}), row_group_size=2)
    first, second = splits(open_table(path))
    schema = pa.schema([("a", pa.int64())])
    scan = Scan(schema, (), (*Scan.of(schema, (), [[first]]).parts, b"of another task"))
    assert [batch.to_pydict() for batch in scan.read(0, 10)] == [{"a": [1, 2]}]
    whole = Scan.of(schema, (), [[first, second]])
    assert [batch.to_pydict() for batch in whole.read(7, 10)] == [{"a": [1, 2, 3, 4]}]
