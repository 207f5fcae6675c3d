"""``millrace sql`` on a running Spark."""

from __future__ import annotations

import re

import httpx
import pyarrow.parquet as pq
import pytest

from millrace.api import live
from tests.cli.conftest import ANSWER, JOIN

STACKS = ("Traceback", "\tat ", "JVM stacktrace", "WARN")


@pytest.mark.parametrize(
    ("options", "shown", "hidden"),
    [
        ("--engine millrace", ["ann", "bob", "NULL", "3 rows"], "tuples"),
        ("--engine spark", ["ann", "bob", "NULL", "3 rows"], "tuples"),
        ("--limit 1", ["ann", "the first 1 rows"], "bob"),
        ("--explain", ["c.k = o.customer"], "ann"),
        ("--report", ["3 rows", "tuples routed", "orders\n  b0: ", "peak memory"], "Traceback"),
    ],
)
def test_what_is_asked_for_is_shown(run, tables, options, shown, hidden):
    """Rows, NULL included, up to the limit; what is taken; what the eddies did; and nothing else."""
    done = run("sql", JOIN, *tables, *options.split())
    assert (done.exit_code, done.stderr) == (0, "")
    assert all(text in done.stdout for text in shown)
    assert hidden not in done.stdout


def test_live_page_is_served_while_the_command_runs(run, tables, monkeypatch):
    """Its address is told; with ``--wait`` it is there after the rows."""
    seen = []

    def look(stderr) -> None:
        (query, *_) = httpx.get(live._live.url + "figures.json").json()["queries"]
        seen.append((query["state"], query["title"], query["rows_out"]))

    monkeypatch.setattr("millrace.cli.sql._wait", look)
    done = run("sql", JOIN, *tables, "--live", "--option", "take_all=true")
    assert done.exit_code == 0, done.stderr
    assert re.fullmatch(r"live: http://127\.0\.0\.1:\d+/[\w-]{32}/\n", done.stderr)
    assert seen == []
    done = run("sql", JOIN, *tables, "--report", "--live", "--wait", "--option", "take_all=true")
    assert done.exit_code == 0, done.stderr
    assert seen == [("done", JOIN, 3)]


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


@pytest.mark.parametrize(
    ("query", "extra", "expected"),
    [
        ("select * from gone", ["--table", "gone=/no/such/file.parquet"], "/no/such/file.parquet"),
        ("select c.nam from c join o on c.k = o.customer", [], "nam"),
        ("select 1 from c join unknown u on c.k = u.customer", [], "unknown"),
        ("drop table c", [], "SELECT"),
        ("select 1 1 1", [], "yntax"),
        ("select array(1) a", ["--output", "out.csv"], "CSV has no place"),
        ("select 1 a, 2 a", ["--output", "out.json"], "two columns are named 'a'"),
        ("select * from gone", ["--table", "gone=/no/such/file.csv"], "there is no /no/such/file.csv"),
        ("select 1 from u x join u y on x.k = y.k", ["--table", "u={}/ü gly'[1].parquet"], "gly'"),
    ],
)
def test_bad_input_is_one_message(run, tables, tmp_path, query, extra, expected):
    """Exit code 1 and a message that names what is wrong, without a stack."""
    (tmp_path / "ü gly'[1].parquet").write_bytes(b"PAR1 is not all that it takes" * 9)
    done = run("sql", query, *tables, *(each.format(tmp_path) for each in extra))
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
