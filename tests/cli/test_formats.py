"""Other formats than Parquet, as tables and as ``--output``: what is written is read as what it was."""

from __future__ import annotations

import gzip
import json

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

from tests.gate import sampled

AWKWARD = """
    select * from values
      (1, 'a,b', 1.50, timestamp '2024-02-29 12:00:00', true, 0.1d),
      (2, 'say "no"\\nand', null, null, null, double('nan')),
      (3, 'ü', 0.01, timestamp '1999-01-01 00:00:00', false, -0.0d),
      (4, null, -7.00, timestamp '9999-12-31 23:59:59', true, null) t(k, text, price, at, ok, x)
"""


@pytest.mark.parametrize("suffix", sampled(["csv", "json", "jsonl", "arrow"], 3))
def test_output_is_told_by_its_name(run, spark, tmp_path, suffix):
    """Spark's readers, and Arrow's, get back the rows, awkward texts and nulls included."""
    target = tmp_path / f"out.{suffix}"
    done = run("sql", AWKWARD + " order by k", "--engine", "spark", "--output", str(target))
    assert done.exit_code == 0, done.stderr
    assert "4 rows written" in done.stderr
    assert list(tmp_path.iterdir()) == [target]
    expected = spark.sql(AWKWARD)
    if suffix == "arrow":
        found = spark.createDataFrame(pa.ipc.open_file(str(target)).read_all())
    elif suffix == "csv":
        found = spark.read.csv(str(target), header=True, schema=expected.schema, multiLine=True, escape='"')
    else:
        found = spark.read.json(str(target), schema=expected.schema)
    if suffix == "csv":
        options = pc.ParseOptions(newlines_in_values=True)
        others = pc.read_csv(target, parse_options=options).column("text").to_pylist()
        assert others[:3] == ["a,b", 'say "no"\nand', "ü"]
    got, want = (
        [[str(v) for v in row] for row in frame.orderBy("k").collect()] for frame in (found, expected)
    )
    assert got == want


def test_parquet_has_the_types_of_spark(run, spark, tmp_path):
    """Nested values, far timestamps and lengths of time come back as they are; months have no place."""
    query = """
        select cast(1 as tinyint) a, 2.50 b, cast('nan' as double) c, date '2024-02-29' d,
               timestamp '9999-12-31 23:59:59 UTC' e, timestamp_ntz '0001-01-01 00:00:00' f,
               x'00ff' g, array(1, null) h, named_struct('x', 'y') i, true j, cast(null as string) k,
               interval '2 03:00:00.5' day to second as `b c`
    """
    target = tmp_path / "out.parquet"
    done = run("sql", query, "--engine", "spark", "--output", str(target))
    assert done.exit_code == 0, done.stderr
    (row,) = pq.read_table(target).to_pylist()
    shown = ["1", "2.50", "nan", "2024-02-29", "9999-12-31 23:59:59+00:00", "0001-01-01 00:00:00"]
    shown += ["b'\\x00\\xff'", "[1, None]", "{'x': 'y'}", "True", "None"]
    assert [str(value) for value in row.values()][:-1] == shown
    found, expected = (frame.select("`b c`") for frame in (spark.read.parquet(str(target)), spark.sql(query)))
    assert found.dtypes == expected.dtypes and found.collect() == expected.collect()
    months = run("sql", "select interval 3 month as age", "--output", str(tmp_path / "months.parquet"))
    assert months.exit_code == 1
    assert "'age' is interval month" in months.stderr and ".csv" in months.stderr


@pytest.mark.parametrize("suffix", ["parquet", "csv", "json"])
def test_an_empty_result_is_a_file_too(run, tmp_path, suffix):
    """No rows: Parquet and CSV have its columns, JSON no line."""
    target = tmp_path / f"out.{suffix}"
    done = run("sql", "select 1 a, 2 `b,c` where false", "--output", str(target))
    assert done.exit_code == 0, done.stderr
    if suffix == "parquet":
        table = pq.read_table(target)
        assert (table.column_names, table.num_rows) == (["a", "b,c"], 0)
    else:
        assert target.read_text() == {"csv": 'a,"b,c"\n', "json": ""}[suffix]


@pytest.mark.parametrize("engine", ["millrace", "spark"])
def test_csv_and_json_are_tables(run, tmp_path, engine):
    """A CSV file, one that is packed, tabs, JSON lines, a JSON array and a folder of Spark's join by name."""
    (tmp_path / "a.csv").write_text('k,name\n1,ann\n2,"bo""b\n"\n')
    (tmp_path / "b.tsv").write_text("k\tprice\n2\t2.5\n")
    (tmp_path / "c.jsonl").write_text('{"k": 2, "tags": ["x"]}\n')
    (tmp_path / "d.json").write_text('[\n  {"k": 1},\n  {"k": 2}\n]\n')
    with gzip.open(tmp_path / "e.csv.gz", "wt") as file:
        file.write("k\n2\n")
    (tmp_path / "f.csv").mkdir()
    (tmp_path / "f.csv" / "part-0.csv").write_text("k,n\n2,7\n")
    pq.write_table(pa.table({"k": [2]}), tmp_path / "g.parquet")
    names = ("a.csv", "b.tsv", "c.jsonl", "d.json", "e.csv.gz", "f.csv", "g.parquet")
    tables = [part for name in names for part in ("--table", f"t{name[0]}={tmp_path / name}")]
    joins = " ".join(f"join t{name} using (k)" for name in "bcdefg")
    query = f"select k, name, price + n total, tags[0] tag from ta {joins}"
    done = run("sql", query, *tables, "--engine", engine, "--json", "-")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert [each["name"] for each in found["columns"]] == ["k", "name", "total", "tag"]
    assert found["rows"] == [[2, 'bo"b\n', 9.5, "x"]]


def test_json_has_rows_and_report(run, tables, tmp_path):
    """``--json FILE`` writes rows, and with ``--report`` the figures; no table is shown."""
    target = tmp_path / "found.json"
    values = "k, 1.5 d, date '2024-01-01' t, x'ff' b, named_struct('y', array(k)) s, double('nan') n"
    query = f"select {values} from c join o on c.k = o.customer and o.total = 3"
    done = run("sql", query, *tables, "--report", "--json", str(target))
    assert (done.exit_code, done.stdout) == (0, ""), done.stderr
    found = json.loads(target.read_text())
    assert found["rows"] == [[2, "1.5", "2024-01-01", "/w==", {"y": [2]}, None]]
    assert found["report"]["totals"]["output_tuples"] == 1
