"""The direct scan sees what Spark sees, reads no row group it can rule out, and names what is wrong."""

from __future__ import annotations

import datetime as dt
import decimal
import os
import pickle
import re
import shutil
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.engine.plan.expressions import Compare, InList, IsNull, Like, Literal, Not, Or
from millrace.errors import ExecutionError, InputError
from millrace.parquet import footers, reading
from millrace.parquet.discovery import open_table
from millrace.parquet.reading import read_splits
from millrace.parquet.tables import splits
from millrace.spark.types import spark_schema
from tests.engine.test_expressions import column
from tests.gate import sampled
from tests.session import changed

DAY = dt.date(2024, 2, 29)
MOMENT = dt.datetime(2024, 2, 29, 12, 30, 15, 123000)  # noqa: DTZ001  # of either kind of column


def compare(name: str, op: str, value: object, kind: pa.DataType) -> Compare:
    return Compare(op, column(name), Literal(value, kind), kind)


def written(path: Path, columns: dict[str, Any] | pa.Table, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, **options)
    return path


def scanned(path: Path, columns=None, filters=(), batch_size=65_536) -> pa.Table:
    """What the scan reads, in the types that it has told before."""
    table = open_table(path)
    assert table.unsupported is None
    schema = pa.schema([table.schema.field(name) for name in columns or table.schema.names])
    batches = read_splits(splits(table, filters, schema.names), tuple(schema.names), filters, batch_size)
    return pa.Table.from_batches(batches, schema)


def bag(table: pa.Table) -> Counter[str]:
    """The rows, in any order; not a number is one, and zeros have signs."""
    return Counter(map(repr, table.to_pylist()))


def fields(schema) -> list[tuple]:
    return [(field.name, field.dataType) for field in schema]


def check_as_spark_reads(spark: Any, path: Path) -> None:
    frame, found = spark.read.parquet(str(path)), scanned(path)
    assert fields(spark_schema(open_table(path).schema)) == fields(frame.schema)
    assert bag(found) == bag(frame.toArrow().cast(found.schema))


def nasty() -> pa.Table:
    nan, inf = float("nan"), float("inf")
    n = 6
    return pa.table(
        {
            "flag": pa.array([True, False, None, True, None, False]),
            "u8": pa.array([0, 255, None, 1, 2, 3], pa.uint8()),
            "u16": pa.array([0, 65535, None, 1, 2, 3], pa.uint16()),
            "u32": pa.array([0, 2**32 - 1, None, 1, 2, 3], pa.uint32()),
            "u64": pa.array([0, 2**64 - 1, None, 1, 2, 3], pa.uint64()),
            "i8": pa.array([-128, 127, None, 1, 2, 3], pa.int8()),
            "i16": pa.array([-32768, 32767, None, 1, 2, 3], pa.int16()),
            "f32": pa.array([nan, -0.0, None, 1.5, inf, -inf], pa.float32()),
            "f64": pa.array([nan, -0.0, None, 0.0, inf, -inf]),
            "small": pa.array([decimal.Decimal("9.95"), None] * 3, pa.decimal128(5, 2)),
            "wide": pa.array([decimal.Decimal("12345678901234567890.123"), None] * 3, pa.decimal128(30, 3)),
            "text": pa.array(["", "ü", None, "a%b", "z" * 300, "\U0001f600"]),
            "view": pa.array(["a", "b", None, "long enough not to be inlined", "", "e"], pa.string_view()),
            "large": pa.array(["a", None] * 3, pa.large_string()),
            "encoded": pa.array(["x", "y", None, "x", "y", "x"]).dictionary_encode(),
            "raw": pa.array([b"", b"\x00\xff", None, b"a", b"b", b"c"]),
            "fixed": pa.array([b"abcd", None] * 3, pa.binary(4)),
            "day": pa.array([DAY, None] * 3),
            "utc": pa.array([MOMENT, None] * 3, pa.timestamp("us", tz="Europe/Madrid")),
            "plain": pa.array([MOMENT, None] * 3, pa.timestamp("ms")),
            "items": pa.array([[1, None], [], None] * 2, pa.list_(pa.int32())),
            "place": pa.array([{"x": 1, "y": "a"}, None] * 3),
            "with.dot": pa.array(range(n), pa.int64()),
        }
    )


@pytest.mark.parametrize(
    ("version", "compression"), sampled(product(["1.0", "2.6"], ["none", "snappy", "zstd", "gzip"]), every=3)
)
def test_odd_types_read_as_spark_reads_them(spark, tmp_path, compression, version):
    """Schema and values equal Spark's for every type that Spark reads, whatever the file's encoding."""
    table = nasty() if version == "2.6" else nasty().drop_columns(["u32"])
    options = {"compression": compression, "version": version, "row_group_size": 4}
    path = written(tmp_path / "nasty.parquet", table, **options)
    check_as_spark_reads(spark, path)


FILTERS = {
    "f64 > 1d": (compare("f64", ">", 1.0, pa.float64()),),
    "f64 = 0d": (compare("f64", "=", 0.0, pa.float64()),),
    "f64 = double('NaN')": (compare("f64", "=", float("nan"), pa.float64()),),
    "not u8 = 1": (Not(compare("u8", "=", 1, pa.int16())),),
    "encoded in ('x', null)": (InList(column("encoded"), ("x", None), pa.string()),),
    r"encoded is null or text like r'a\%%'": (
        Or((IsNull(column("encoded")), Like(column("text"), "a\\%%"))),
    ),
    "day >= date'2024-02-29' and flag is not null": (
        compare("day", ">=", DAY, pa.date32()),
        Not(IsNull(column("flag"))),
    ),
    "wide <> 1": (compare("wide", "<>", decimal.Decimal(1), pa.decimal128(38, 3)),),
    "small in (9.95d)": (InList(column("small"), (9.95,), pa.float64()),),  # it is cast to a bit more
    "i8 <=> null": (compare("i8", "<=>", None, pa.int8()),),
}


@pytest.mark.parametrize("text", FILTERS)
def test_filters_keep_what_spark_keeps(spark, tmp_path, text):
    """Pruning and filtering together keep exactly Spark's rows, NaN and nulls among them.

    Spark's own row-group pruning is off here: it loses NaN, which it orders above every number.
    """
    path = written(tmp_path / "nasty.parquet", nasty(), row_group_size=2)
    with changed(spark, {"spark.sql.parquet.filterPushdown": "false"}):
        frame = spark.read.parquet(str(path)).where(text)
        rows = frame.select("`with.dot`", "encoded").toArrow()
    assert bag(scanned(path, ("with.dot", "encoded"), FILTERS[text])) == bag(rows)
    batches = read_splits(splits(open_table(path), FILTERS[text]), (), FILTERS[text])
    assert sum(batch.num_rows for batch in batches) == rows.num_rows


def test_sparks_own_timestamps_are_read(spark, tmp_path):
    """Spark writes INT96 timestamps: the same instants come out, also beyond what nanoseconds hold."""
    path = str(tmp_path / "t")
    frame = spark.sql(
        "select * from values (timestamp'0001-01-01 00:00:00Z'), (timestamp'9999-12-31 23:59:59.999999Z'), "
        "(timestamp'2024-02-29 12:30:15.5Z'), (null) as t(at)"
    )
    frame.coalesce(1).write.parquet(path)
    expected = [row[0] for row in frame.selectExpr("unix_micros(at)").collect()]
    found = scanned(path)["at"]
    assert found.type == pa.timestamp("us", tz="UTC")
    assert Counter(found.cast(pa.int64()).to_pylist()) == Counter(expected)


def test_batches_have_the_rows_and_columns_that_are_asked_for(tmp_path):
    """What is left of many row groups comes in batches of about the size, also where no column is needed.

    Columns are found whatever the letter case, and named as asked for.
    """
    path = written(tmp_path / "t.parquet", {"a": range(10_000)}, row_group_size=100)
    table = open_table(path)
    assert [b.num_rows for b in read_splits(splits(table), ("a",), (), 1000)] == [1000] * 10
    assert [b.num_rows for b in read_splits(splits(table)[:1], ("A",), (), 30)] == [25] * 4
    assert sum(b.num_rows for b in read_splits(splits(table), (), ())) == 10_000
    filters = (compare("a", "<", 250, pa.int64()),)
    assert sum(b.num_rows for b in read_splits(splits(table, filters), (), filters)) == 250
    assert table.resolve("A") == "a"
    assert next(read_splits(splits(table), ("A",))).schema.names == ["A"]


def test_small_row_groups_of_wide_rows_are_not_joined_without_end(tmp_path, monkeypatch):
    """What comes at once is bounded in bytes too, not by the number of rows alone."""
    monkeypatch.setattr(reading, "_BATCH_BYTES", 10_000)
    texts = [f"{n:01000d}" for n in range(100)]
    path = written(tmp_path / "t.parquet", {"a": texts}, row_group_size=3)
    batches = list(read_splits(splits(open_table(path)), ("a",)))
    assert [text for batch in batches for text in batch["a"].to_pylist()] == texts
    assert all(batch.nbytes < 20_000 for batch in batches) and len(batches) < 12


def test_row_groups_are_ruled_out_by_statistics(tmp_path):
    """Only the row groups whose range can match are read, empty ones never."""
    path = tmp_path / "t.parquet"
    schema = pa.schema([("a", pa.int64()), ("f", pa.float64())])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, 1000, 100):
            values = list(range(start, start + 100))
            writer.write_table(pa.table([values, [float("nan"), *map(float, values[1:])]], schema=schema))
            writer.write_table(schema.empty_table())
    table = open_table(path)
    assert len(splits(table)) == 10
    assert len(splits(table, (compare("a", ">", 849, pa.int64()),))) == 2
    assert len(splits(table, (InList(column("a"), (5, 605), pa.int64()),))) == 2
    assert len(splits(table, (compare("a", "=", None, pa.int64()),))) == 0
    assert len(splits(table, (IsNull(column("a")),))) == 0
    # A NaN, greater than all, may be in any row group: the statistics do not show it.
    assert len(splits(table, (compare("f", ">", 1e9, pa.float64()),))) == 10


def _day(number: int) -> dt.date:
    return dt.date(2024, 1, 1) + dt.timedelta(number)


@pytest.mark.parametrize(
    ("filters", "within"),
    [
        ((compare("n", "<", 250, pa.int64()),), 0.01),
        ((compare("n", ">=", 250, pa.int64()), compare("n", "<", 400, pa.int64())), 0.01),
        ((compare("n", "=", 7, pa.int64()),), 0.01),
        ((compare("n", "<>", 7, pa.int64()),), 0.01),
        ((InList(column("n"), (1, 2, 30, 4000), pa.int64()),), 0.01),
        ((Compare(">", Literal(900, pa.int64()), column("n"), pa.int64()),), 0.01),
        ((Not(compare("n", "<=", 99, pa.int64())),), 0.01),
        ((IsNull(column("gap")),), 0.01),
        ((compare("gap", "<", 500, pa.int64()),), 0.01),
        ((compare("day", ">", _day(24), pa.date32()), compare("n", "<", 500, pa.int64())), 0.01),
        ((compare("price", "<=", decimal.Decimal("2.50"), pa.decimal128(9, 2)),), 0.01),
        ((Or((compare("n", "<", 250, pa.int64()), compare("day", "<=", _day(24), pa.date32()))),), 0.05),
        ((compare("text", "=", "3", pa.string()),), 0.01),  # a tenth, as is guessed
        ((compare("f", ">", 0.5, pa.float64()),), 0.2),  # a third, as is guessed
        ((Like(column("text"), "%1%"),), 0.3),
    ],
)
def test_what_filters_leave_is_estimated_by_statistics(tmp_path, filters, within):
    """Of values that are spread evenly the share is known, else guessed; an estimate is never nothing."""
    columns = {
        "n": pa.array(range(1000)),
        "gap": pa.array([n if n % 4 else None for n in range(1000)]),
        "day": pa.array([_day(n * 7 % 100) for n in range(1000)]),
        "price": pa.array([decimal.Decimal(n * 3 % 1000) / 100 for n in range(1000)], pa.decimal128(9, 2)),
        "f": pa.array([n * 11 % 1000 / 1000 for n in range(1000)]),
        "text": pa.array([str(n % 10) for n in range(1000)]),
    }
    path = written(tmp_path / "t.parquet", columns)
    rows = scanned(path, ["n"], filters).num_rows
    (split,) = splits(open_table(path), filters)
    assert 1 <= split.passing * split.rows == pytest.approx(rows, abs=1000 * within)


PARTITIONS = [
    (["year=2023", "year=2024"], None),
    (["n=1", "n=3000000000"], None),
    (["n=1", "n=x"], None),
    (["day=2024-01-01", "day=__HIVE_DEFAULT_PARTITION__"], None),
    (["x=1.5", "x=-2.25"], None),
    (["name=a%20b%2Fc", "name=ü", "name=%C3%A9", "name=x%zz"], None),
    (["a=1/b=x", "a=2/b=y"], None),
    (["_k=1", "_k=2"], None),
    (["n=1", "n=1.5"], "mixes"),
    (["t=2024-01-01 10%3A00%3A00"], "uncertain"),
    (["n=__HIVE_DEFAULT_PARTITION__"], "null"),
    (["n=1", "m=2"], "partition folders"),
    (["v=1"], "name of another column"),
    (["sub"], "a folder within"),
]


@pytest.mark.parametrize(("folders", "doubt"), PARTITIONS)
def test_partitioned_folders_read_as_spark_reads_them(spark, tmp_path, folders, doubt):
    """Partition columns have Spark's types and values, or the table is left to Spark."""
    for number, folder in enumerate(folders):
        path = written(tmp_path / "t" / folder / "part.parquet", {"v": [number, None]})
        (path.parent / "_SUCCESS").touch()
        (path.parent / ".hidden").write_text("no data")
    table = open_table(tmp_path / "t")
    if doubt is not None:
        assert doubt in (table.unsupported or "")
    else:
        check_as_spark_reads(spark, tmp_path / "t")


def test_what_else_lies_in_a_folder(spark, tmp_path):
    """A file named like a log is none, and a link that leads nowhere is no file."""
    folder = written(tmp_path / "t" / "part.parquet", {"v": [1, None]}).parent
    (folder / "_delta_log").touch()
    shutil.copy(folder / "part.parquet", folder / "b.parquet._COPYING_")  # by hdfs dfs -put
    (folder / "link.parquet").symlink_to(folder / "nowhere.parquet")
    check_as_spark_reads(spark, folder)
    for path in ("/", "//"):
        assert "a folder within" in (open_table(path).unsupported or "")
    Path(os.fsdecode(os.fsencode(folder) + b"/.\xff.crc")).touch()
    with pytest.raises(InputError, match=r"cannot read .*utf-8"):
        open_table(folder)


def test_partitions_are_pruned(tmp_path):
    """A filter on a partition column leaves out files without opening them again."""
    for year in (2022, 2023, 2024):
        written(tmp_path / f"y={year}" / "f.parquet", {"v": [year]})
    filters = (compare("y", ">=", 2023, pa.int32()),)
    assert len(splits(open_table(tmp_path), filters)) == 2
    assert sorted(scanned(tmp_path, ("v",), filters)["v"].to_pylist()) == [2023, 2024]


def test_several_files_and_globs(tmp_path):
    """A folder and a glob over it are the same table; files come in the order of their paths."""
    for number in (2, 1):
        written(tmp_path / f"{number}.parquet", {"v": [number]})
    for path in (tmp_path, tmp_path / "*.parquet"):
        assert scanned(path)["v"].to_pylist() == [1, 2]
    table = open_table(tmp_path)
    assert table.rows == 2
    assert pickle.loads(pickle.dumps(table)) == table


def test_globs_that_find_hidden_folders(spark, tmp_path):
    """Spark reads what a glob finds, but for hidden files; so such a table is left to Spark."""
    for folder in ("x", ".stage", "_old"):
        written(tmp_path / folder / "f.parquet", {"v": [1]})
    (tmp_path / "_SUCCESS").touch()
    for path in (tmp_path / "*" / "f.parquet", tmp_path / "*"):
        assert spark.read.parquet(str(path)).count() == 3
        assert "hidden folders" in (open_table(path).unsupported or "")
    assert scanned(tmp_path / "_old" / "*.parquet")["v"].to_pylist() == [1]


MOMENTS = pa.array([MOMENT], pa.timestamp("ns"))


@pytest.mark.parametrize(
    ("tables", "options", "reason"),
    [
        ([{"a": MOMENTS}], {}, r"timestamp\[ns\]"),
        ([{"a": MOMENTS}], {"use_deprecated_int96_timestamps": True}, "INT96"),
        ([{"a": pa.array([1], pa.time64("us"))}], {}, "time64"),
        ([{"a": [1], "A": [2]}], {}, "case"),
        ([{"a": [1]}, {"a": ["x"]}], {}, "different schemas: 'a' is int64 and string"),
        ([{"a": [1]}, None], {}, "empty file"),
    ],
)
def test_types_and_layouts_that_are_sparks_business(tmp_path, tables, options, reason):
    for number, columns in enumerate(tables):
        path = tmp_path / f"{number}.parquet"
        path.touch() if columns is None else written(path, columns, **options)
    assert re.search(reason, open_table(tmp_path).unsupported or "")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing.parquet", r"there is no .*nothing\.parquet.*expected"),
        ("*.parq", r"no file matches .*\*\.parq"),
        ("folder", "has no Parquet file"),
        ("empty.parquet", r"empty\.parquet is empty \(0 bytes\)"),
        ("bad.parquet", r"bad\.parquet is not a readable Parquet file"),
        ("good.parquet", r"no column 'kex': did you mean 'key'"),
    ],
)
def test_errors_say_what_where_and_what_would_work(tmp_path, name, message):
    """Each way in which a path can be wrong has its own message with the path in it."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.parquet").touch()
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 this is not what it says PAR1")
    written(tmp_path / "good.parquet", {"key": [1]})
    with pytest.raises(InputError, match=message):
        open_table(tmp_path / name).resolve("kex")


def test_a_damaged_file_fails_with_its_name(tmp_path):
    """Damage that the footer does not show is reported when it is met."""
    options = {"compression": "snappy", "use_dictionary": False}
    path = written(tmp_path / "t.parquet", {"a": range(100_000)}, **options)
    table = open_table(path)
    data = bytearray(path.read_bytes())
    data[200:-2000] = os.urandom(len(data) - 2200)
    path.write_bytes(bytes(data))
    with pytest.raises(ExecutionError, match=r"t\.parquet failed.*damaged"):
        list(read_splits(splits(table), ("a",)))


def test_a_file_that_is_written_anew_is_seen_anew(tmp_path):
    """Planned rows are never taken for other ones, even where no column is read."""
    path = written(tmp_path / "t.parquet", {"a": [1, 2]})
    assert scanned(path).to_pylist() == [{"a": 1}, {"a": 2}]
    planned = splits(open_table(path))
    written(path, {"a": [1, 2, 3], "b": ["x"] * 3})
    assert scanned(path).to_pylist() == [{"a": number, "b": "x"} for number in (1, 2, 3)]
    for columns in (("a",), ()):
        with pytest.raises(ExecutionError, match=r"it has 3 rows, not 2.*changed"):
            list(read_splits(planned, columns))


def test_many_footers_come_in_order_and_take_bounded_memory(tmp_path, monkeypatch):
    """They are read by several threads, and the oldest make room for new ones."""
    paths = [str(written(tmp_path / f"{n:02}.parquet", {"a": range(n + 1)})) for n in range(30)]
    one = footers._memory(footers.footer_of(paths[0]))
    kept = footers._Kept(10 * one)
    monkeypatch.setattr(footers, "_KEPT", kept)
    for _ in range(2):
        assert [footer.rows for footer in footers.footers_of(paths)] == [(n + 1,) for n in range(30)]
    held = list(kept._footers.values())
    assert 5 <= len(held) <= 10
    assert kept._held == sum(map(footers._memory, held)) <= 10 * one
    again = footers.footer_of(held[0].path)
    assert again is held[0]
