"""``millrace sql`` on a running Spark: its rows, in whatever form, from tables, files and lookups."""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
from contextlib import closing

import httpx
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

from millrace.api import live
from millrace.api.monitor import lookup_line
from millrace.cli.lookups import lookup_from
from millrace.cli.sql import failures
from millrace.errors import MillraceError
from millrace.limits.progress import LookupProgress
from tests.cli.conftest import ANSWER, JOIN
from tests.gate import sampled

STACKS = ("Traceback", "\tat ", "JVM stacktrace", "WARN")


@pytest.mark.parametrize(
    ("options", "shown", "hidden"),
    [
        ("--engine millrace", ["ann", "bob", "NULL", "3 rows"], "tuples"),
        ("--engine spark", ["ann", "bob", "NULL", "3 rows"], "tuples"),
        ("--limit 1", ["ann", "the first 1 rows"], "bob"),
        ("--explain", ["c.k = o.customer"], "ann"),
        ("--report", ["3 rows", "tuples routed", "block b0\n  Modules", "largest worker"], "Traceback"),
    ],
)
def test_what_is_asked_for_is_shown(run, tables, options, shown, hidden):
    """Rows, NULL included, up to the limit; what is taken; what the eddies did; and nothing else."""
    done = run("sql", JOIN, *tables, *options.split())
    assert (done.exit_code, done.stderr) == (0, "")
    assert all(text in done.stdout for text in shown)
    assert hidden not in done.stdout


def test_live_page_is_served_while_the_command_runs(well, tables, monkeypatch):
    """Its address is told; with ``--wait`` it is there after the rows."""
    seen = []

    def look(stderr) -> None:
        (query, *_) = httpx.get(live._live.url + "figures.json").json()["queries"]
        seen.append((query["state"], query["title"], query["rows_out"]))

    monkeypatch.setattr("millrace.cli.sql._wait", look)
    done = well("sql", JOIN, *tables, "--live", "--option", "take_all=true")
    assert re.fullmatch(r"live: http://127\.0\.0\.1:\d+/[\w-]{32}/\n", done.stderr)
    assert seen == []
    well("sql", JOIN, *tables, "--report", "--live", "--wait", "--option", "take_all=true")
    assert seen == [("done", JOIN, 3)]


@pytest.mark.parametrize("engine", ["millrace", "spark"])
def test_output_is_one_parquet_file(run, well, tables, tmp_path, engine):
    """It holds the rows in order; a run that is refused or fails leaves an older one, and nothing else."""
    target = tmp_path / "out.parquet"
    target.write_text("an older file")
    output = ("--output", str(target), "--engine", engine)
    refused = run("sql", JOIN, *tables, *output)
    assert "the file exists; --overwrite replaces it" in refused.stderr
    failing = "select assert_true(c.k < 3), c.k from c join o on c.k = o.customer"
    failed = run("sql", failing, *tables, *output, "--overwrite")
    assert failed.stderr.startswith("error: ") and not [each for each in STACKS if each in failed.stderr]
    assert (refused.exit_code, failed.exit_code, target.read_text()) == (1, 1, "an older file")
    assert list(tmp_path.iterdir()) == [target]
    assert "3 rows written" in well("sql", JOIN, *tables, *output, "--overwrite").stderr
    assert pq.read_table(target).to_pydict() == ANSWER
    assert list(tmp_path.iterdir()) == [target]


MISTAKEN = "select c.nam from c join o on c.k = o.customer"


@pytest.mark.parametrize(
    ("query", "extra", "expected"),
    [
        ("select * from gone", ["--table", "gone=/no/such/file.parquet"], "/no/such/file.parquet"),
        (MISTAKEN, [], f"\n== SQL ==\n{MISTAKEN}\n-------^^^\n"),
        ("select 1 from c join unknown u on c.k = u.customer", [], "unknown"),
        ("drop table c", [], "SELECT"),
        ("select 1 1 1", [], "yntax"),
        ("select array(1) a", ["--output", "out.csv"], "CSV has no place"),
        ("select 1 a, 2 a", ["--output", "out.json"], "two columns are named 'a'"),
        ("select 1 a, 2 a", ["--output", "out.parquet"], "readers of .parquet do not tell apart"),
        ("select * from gone", ["--table", "gone=/no/such/file.csv"], "there is no /no/such/file.csv"),
        ("select 1 from u x join u y on x.k = y.k", ["--table", "u={}/ü gly'[1].parquet"], "gly'"),
        ("select 1", ["--lookup", "p=p.toml", "--engine", "spark"], "--lookup needs --engine millrace"),
        ("select 1", ["--lookup", "c=c.toml"], "--table and --lookup both name 'c'"),
    ],
)
def test_bad_input_is_one_message(run, tables, tmp_path, query, extra, expected):
    (tmp_path / "ü gly'[1].parquet").write_bytes(b"PAR1 is not all that it takes" * 9)
    done = run("sql", query, *tables, *(each.format(tmp_path) for each in extra))
    assert done.exit_code == 1
    assert done.stderr.startswith("error: ")
    assert expected in done.stderr
    assert not [stack for stack in STACKS if stack in done.stderr]
    assert done.stdout == ""


AWKWARD = """
    select * from values
      (1, 'a,b', 1.50, timestamp '2024-02-29 12:00:00', true, 0.1d),
      (2, 'say "no"\\nand', null, null, null, double('nan')),
      (3, 'ü', 0.01, timestamp '1999-01-01 00:00:00', false, -0.0d),
      (4, null, -7.00, timestamp '9999-12-31 23:59:59', true, null) t(k, text, price, at, ok, x)
"""


@pytest.mark.parametrize("suffix", sampled(["csv", "json", "jsonl", "arrow"], 3))
def test_output_is_told_by_its_name(well, spark, tmp_path, suffix):
    """Spark's readers, and Arrow's, get back the rows, awkward texts and nulls included."""
    target = tmp_path / f"out.{suffix}"
    done = well("sql", AWKWARD + " order by k", "--engine", "spark", "--output", str(target))
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


def test_parquet_has_the_types_of_spark(run, well, spark, tmp_path):
    """Nested values, far timestamps and lengths of time come back as they are; months have no place."""
    query = """
        select cast(1 as tinyint) a, 2.50 b, cast('nan' as double) c, date '2024-02-29' d,
               timestamp '9999-12-31 23:59:59 UTC' e, timestamp_ntz '0001-01-01 00:00:00' f,
               x'00ff' g, array(1, null) h, named_struct('x', 'y') i, true j, cast(null as string) k,
               interval '2 03:00:00.5' day to second as `b c`
    """
    target = tmp_path / "out.parquet"
    well("sql", query, "--engine", "spark", "--output", str(target))
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
def test_an_empty_result_is_a_file_too(well, tmp_path, suffix):
    """No rows: Parquet and CSV have its columns, JSON no line."""
    target = tmp_path / f"out.{suffix}"
    well("sql", "select 1 a, 2 `b,c` where false", "--output", str(target))
    if suffix == "parquet":
        table = pq.read_table(target)
        assert (table.column_names, table.num_rows) == (["a", "b,c"], 0)
    else:
        assert target.read_text() == {"csv": 'a,"b,c"\n', "json": ""}[suffix]


@pytest.mark.parametrize("engine", ["millrace", "spark"])
def test_csv_and_json_are_tables(well, tmp_path, engine):
    """A CSV file, one that is packed, tabs, JSON lines, a JSON array and a folder of Spark's join by name."""
    (tmp_path / "a.csv").write_text('k,name\n1,ann\n2,"bo""b\n"\n')
    (tmp_path / "b.tsv").write_text("k\tprice\n2\t2.5\n")
    (tmp_path / "c.jsonl").write_text(
        '\n{"k": 1}\n{"k": \n{"k": 2, "tags": ["x"]}\n'
    )  # one line is cut short
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
    found = json.loads(well("sql", query, *tables, "--engine", engine, "--json", "-").stdout)
    assert [each["name"] for each in found["columns"]] == ["k", "name", "total", "tag"]
    assert found["rows"] == [[2, 'bo"b\n', 9.5, "x"]]


def test_json_has_rows_and_report_and_a_page_the_report_alone(run, tables, tmp_path):
    """``--json FILE`` writes rows, and with ``--report`` the figures; no table is shown, unless of a page."""
    target, page, trace = (tmp_path / name for name in ("found.json", "report.html", "trace.json"))
    values = "k, 1.5 d, date '2024-01-01' t, x'ff' b, named_struct('y', array(k)) s, double('nan') n"
    query = f"select {values} from c join o on c.k = o.customer and o.total = 3"
    done = run("sql", query, *tables, "--report", "--json", str(target))
    assert (done.exit_code, done.stdout) == (0, ""), done.stderr
    found = json.loads(target.read_text())
    assert found["rows"] == [[2, "1.5", "2024-01-01", "/w==", {"y": [2]}, None]]
    assert found["report"]["totals"]["output_tuples"] == 1
    done = run("sql", "--page", str(page), "--trace", str(trace), JOIN, *tables)
    assert "3 rows" in done.stdout and "tuples routed" not in done.stdout
    assert f"report page: {page}" in done.stderr
    assert "Block b0" in page.read_text() and "ann" not in page.read_text()
    assert json.loads(trace.read_text())["traceEvents"]


@pytest.fixture
def given(tmp_path):
    """A table of orders, a database of prices, and the arguments that name them."""
    pq.write_table(pa.table({"id": [1, 2, 3], "sku": ["a", "b", None]}), tmp_path / "o.parquet")
    with closing(sqlite3.connect(tmp_path / "prices.sqlite")) as database, database:
        database.execute("create table prices as select 'a' as sku, 1.5 as price")
    file = tmp_path / "prices.toml"
    file.write_text(
        'schema = "sku string, price double"\nbind = ["sku"]\n'
        f'[database]\nurl = "sqlite:///{tmp_path}/prices.sqlite"\ntable = "prices"\n'
    )
    return ["--table", f"o={tmp_path}/o.parquet", "--lookup", f"prices={file}"]


SKU = 'schema = "sku string"\n'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("schema = ", "is no TOML file"),
        ('bind = ["sku"]\n[http]\nurl = "http://x/{sku}"', "has no schema: expected for example"),
        (f'{SKU}[http]\nurl = "http://x"', "has no bind"),
        (f'{SKU}bind = ["sku"]', "has no source: expected one of"),
        (f'{SKU}bind = ["sku"]\n[http]\n[database]', r"\[http\] and \[database\]"),
        (f'{SKU}bind = ["sku"]\nhttp = 3', r"expected a section \[http\]"),
        (f'{SKU}bind = ["sku"]\n[http]', r"\[http\] has no url"),
        (f'{SKU}bind = ["sku"]\n[http]\nurl = "http://x"\nretires = 3', "did you mean 'retries'"),
        (f'{SKU}binds = ["sku"]', "unknown setting 'binds': did you mean 'bind'"),
    ],
)
def test_files_that_declare_no_lookup(tmp_path, text, problem):
    file = tmp_path / "p.toml"
    file.write_text(text)
    with pytest.raises(MillraceError, match=problem):
        lookup_from("p", str(file))
    with pytest.raises(MillraceError, match=r"p=/no/such.toml: No such file"):
        lookup_from("p", "/no/such.toml")


def test_progress_and_failures_in_words():
    """One line each; what is zero is left out."""
    one = LookupProgress("p", 1200, 7, 3, 2, 4, 9, 1, 2.0, 3.5, (("HTTP 503", 2),), "disk full")
    assert lookup_line(one) == "p: 7 of 1,200 keys, 3 cached, 2 failed, 4 in flight, 4 a second"
    assert lookup_line(LookupProgress("p", 0, 0, 0, 0, 0, 0, 0, 0.0)) == "p: 0 of 0 keys"
    assert failures([one]) == [
        "2 of 1,200 keys of p could not be looked up (HTTP 503: 2)",
        "the cache of p is not kept: disk full",
    ]


def test_rows_are_looked_up_or_estimated(run, well, given):
    """Of a table that a file declares; ``--explain`` tells what is asked, ``--estimate`` how much.

    With a predicate of Spark's own there is nothing to tell.
    """
    query = "select o.id, p.price from o left join prices p on o.sku = p.sku order by 1"
    done = run("sql", query, *given)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "1.5" in done.stdout and "3 rows" in done.stdout
    assert "by sku via database" in run("sql", query, *given, "--explain").stdout
    query = "select o.id, p.price from o join prices p on o.sku = p.sku"
    done = well("sql", query, *given, "--estimate")
    assert done.stdout.startswith("prices: 2 distinct keys, 1 requests, 0.0 min, 0.5 rows a key")
    done = run("sql", query, *given, "--estimate", "--json", "-")
    (estimate,) = json.loads(done.stdout)["estimate"]["lookups"]
    assert (estimate["keys"], estimate["sampled"], estimate["failed"]) == ([2, 2], 2, 0)
    done = run("sql", "select count(*) from o", *given[:2], "--estimate")
    assert done.exit_code == 1 and "no lookup and calls no predicate" in done.stderr
    done = run("sql", query, *given[:2], "--engine", "spark", "--estimate")
    assert done.exit_code == 1
