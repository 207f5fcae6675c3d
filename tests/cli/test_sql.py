"""``millrace sql`` on a running Spark."""

from __future__ import annotations

import re

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

JOIN = "select c.name, o.total from c join o on c.k = o.customer where o.total > 1 order by 2"
ANSWER = {"name": ["ann", "bob", None], "total": [2, 3, 4]}
STACKS = ("Traceback", "\tat ", "JVM stacktrace", "WARN")


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> list[str]:
    """The ``--table`` arguments of two small tables that join."""
    folder = tmp_path_factory.mktemp("tables")
    pq.write_table(pa.table({"k": [1, 2, 3], "name": ["ann", "bob", None]}), folder / "c.parquet")
    pq.write_table(pa.table({"customer": [1, 1, 2, 3, 9], "total": [1, 2, 3, 4, 5]}), folder / "o.parquet")
    return [part for name in ("c", "o") for part in ("--table", f"{name}={folder / name}.parquet")]


@pytest.mark.parametrize("engine", ["millrace", "spark"])
def test_rows_are_shown(run, tables, engine):
    """Both engines show the same rows, NULL included, and nothing else."""
    done = run("sql", JOIN, *tables, "--engine", engine)
    assert done.exit_code == 0, done.stderr
    for text in ("ann", "bob", "NULL", "3 rows"):
        assert text in done.stdout
    assert done.stderr == ""


def test_more_rows_than_the_limit(run, tables):
    """The limit is kept, and the user told so."""
    done = run("sql", JOIN, *tables, "--limit", "1")
    assert "bob" not in done.stdout
    assert "the first 1 rows" in done.stdout


def test_explain_names_the_join_and_runs_nothing(run, tables):
    """``--explain`` shows what is taken and no row."""
    done = run("sql", JOIN, *tables, "--explain")
    assert done.exit_code == 0, done.stderr
    assert "c.k = o.customer" in done.stdout
    assert "ann" not in done.stdout


def test_live_page_is_served_while_the_command_runs(run, tables, monkeypatch):
    """Its address is told; with ``--wait`` it is there after the rows."""
    seen = []

    def look(stderr) -> None:
        (query, *_) = httpx.get(seen_url() + "figures.json").json()["queries"]
        seen.append((query["state"], query["title"], query["rows_out"]))

    def seen_url() -> str:
        from millrace.api import live

        assert live._live is not None
        return live._live.url

    monkeypatch.setattr("millrace.cli.sql._wait", look)
    done = run("sql", JOIN, *tables, "--live", "--option", "take_all=true")
    assert done.exit_code == 0, done.stderr
    assert re.fullmatch(r"live: http://127\.0\.0\.1:\d+/[\w-]{32}/\n", done.stderr)
    assert seen == []
    done = run("sql", JOIN, *tables, "--report", "--live", "--wait", "--option", "take_all=true")
    assert done.exit_code == 0, done.stderr
    assert seen == [("done", JOIN, 3)]


def test_report_shows_totals_and_orders(run, tables):
    """``--report`` shows the rows and what the eddies did."""
    done = run("sql", JOIN, *tables, "--report")
    assert done.exit_code == 0, done.stderr
    for text in ("3 rows", "tuples routed", "orders\n  b0: ", "peak memory"):
        assert text in done.stdout


@pytest.mark.parametrize("engine", ["millrace", "spark"])
def test_output_is_one_parquet_file(run, tables, tmp_path, engine):
    """The file holds the rows in order, and nothing else is left beside it."""
    target = tmp_path / "out.parquet"
    target.write_text("an older file")
    refused = run("sql", JOIN, *tables, "--output", str(target), "--engine", engine)
    assert (refused.exit_code, target.read_text()) == (1, "an older file")
    assert "the file exists; --overwrite replaces it" in refused.stderr
    done = run("sql", JOIN, *tables, "--output", str(target), "--engine", engine, "--overwrite")
    assert done.exit_code == 0, done.stderr
    assert "3 rows written" in done.stderr
    assert pq.read_table(target).to_pydict() == ANSWER
    assert list(tmp_path.iterdir()) == [target]


def test_output_keeps_types(run, tmp_path):
    """Values of every usual type, nested ones too, come back as they are, far timestamps included."""
    query = """
        select cast(1 as tinyint) a, 2.50 b, cast('nan' as double) c, date '2024-02-29' d,
               timestamp '9999-12-31 23:59:59 UTC' e, timestamp_ntz '0001-01-01 00:00:00' f,
               x'00ff' g, array(1, null) h, named_struct('x', 'y') i, true j, cast(null as string) k
    """
    target = tmp_path / "out.parquet"
    done = run("sql", query, "--engine", "spark", "--output", str(target))
    assert done.exit_code == 0, done.stderr
    (row,) = pq.read_table(target).to_pylist()
    shown = {name: str(value) for name, value in row.items()}
    assert shown == {
        "a": "1",
        "b": "2.50",
        "c": "nan",
        "d": "2024-02-29",
        "e": "9999-12-31 23:59:59+00:00",
        "f": "0001-01-01 00:00:00",
        "g": "b'\\x00\\xff'",
        "h": "[1, None]",
        "i": "{'x': 'y'}",
        "j": "True",
        "k": "None",
    }


def test_an_empty_result_is_a_file_too(run, tables, tmp_path):
    """No rows, but the columns."""
    target = tmp_path / "out.parquet"
    query = "select c.name from c join o on c.k = o.customer where o.total > 100"
    done = run("sql", query, *tables, "--output", str(target))
    assert done.exit_code == 0, done.stderr
    table = pq.read_table(target)
    assert (table.column_names, table.num_rows) == (["name"], 0)


@pytest.mark.parametrize(
    ("query", "extra", "expected"),
    [
        ("select * from gone", ["--table", "gone=/no/such/file.parquet"], "/no/such/file.parquet"),
        ("select c.nam from c join o on c.k = o.customer", [], "nam"),
        ("select 1 from c join unknown u on c.k = u.customer", [], "unknown"),
        ("drop table c", [], "SELECT"),
        ("select 1 1 1", [], "yntax"),
        (JOIN, ["--output", "/no/such/folder/out.parquet"], "there is no folder /no/such/folder"),
        (JOIN, ["--output", "out.xls"], "tells no format; expected one that ends in .parquet, .csv, .json"),
        ("select array(1) a", ["--output", "out.csv"], "CSV has no place"),
        ("select 1 a, 2 a", ["--output", "out.json"], "two columns are named 'a'"),
        ("select * from gone", ["--table", "gone=/no/such/file.csv"], "there is no /no/such/file.csv"),
    ],
)
def test_bad_input_is_one_message(run, tables, query, extra, expected):
    """Exit code 1 and a message that names what is wrong, without a stack."""
    done = run("sql", query, *tables, *extra)
    assert done.exit_code == 1
    assert done.stderr.startswith("error: ")
    assert expected in done.stderr
    assert not [stack for stack in STACKS if stack in done.stderr]
    assert done.stdout == ""


def test_spark_says_where_a_mistake_stands(run, tables):
    """In its own words, with the query and a mark below it."""
    query = "select c.nope from c join o on c.k = o.customer"
    done = run("sql", query, *tables)
    first, *rest = done.stderr.splitlines()
    assert (done.exit_code, done.stdout) == (1, "") and first.startswith("error: [UNRESOLVED_COLUMN")
    assert rest == ["== SQL ==", query, "-------^^^"]


def test_an_ugly_file_is_one_message(run, tmp_path):
    """No Parquet in it, and a name that has to be quoted: the file is named, without a stack."""
    ugly = tmp_path / "ü gly'[1].parquet"
    ugly.write_bytes(b"PAR1 is not all that it takes" * 9)
    done = run("sql", "select count(*) from a x join a y on x.k = y.k", "--table", f"a={ugly}")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ") and "gly'" in done.stderr
    assert not [stack for stack in STACKS if stack in done.stderr]


def test_a_failing_run_leaves_nothing(run, tables, tmp_path):
    """An error in the middle of a run removes what was begun, and keeps an older file."""
    target = tmp_path / "out.parquet"
    target.write_text("an older file")
    query = "select assert_true(c.k < 3), c.k from c join o on c.k = o.customer"
    done = run("sql", query, *tables, "--output", str(target), "--overwrite")
    assert done.exit_code == 1
    assert done.stderr.startswith("error: ")
    assert target.read_text() == "an older file"
    assert list(tmp_path.iterdir()) == [target]


def test_a_page_is_written(run, tables, tmp_path):
    """``--page FILE`` writes the page beside the rows, and is checked before anything runs."""
    target = tmp_path / "report.html"
    done = run("sql", "--page", str(target), JOIN, *tables)
    assert done.exit_code == 0, done.stderr
    assert "3 rows" in done.stdout and "tuples routed" not in done.stdout
    assert f"report page: {target}" in done.stderr
    page = target.read_text()
    assert "c.k = o.customer" in page
    assert "ann" not in page
    assert list(tmp_path.iterdir()) == [target]
    other = tmp_path / "mine.html"
    other.write_text("mine")
    for path, words in ((other, "no report page"), (tmp_path / "report.txt", "ends in .html")):
        done = run("sql", JOIN, *tables, f"--page={path}")
        assert (done.exit_code, done.stdout) == (1, "")
        assert words in done.stderr
    assert other.read_text() == "mine"
