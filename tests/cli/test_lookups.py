"""``millrace sql --lookup``: tables declared in files."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.api.monitor import lookup_line
from millrace.cli.lookups import lookup_from
from millrace.cli.sql import failures
from millrace.errors import MillraceError
from millrace.limits.progress import LookupProgress

QUERY = "select o.id, p.price from o left join prices p on o.sku = p.sku order by 1"


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


def test_rows_are_looked_up(run, given):
    """A query may join a table that a file declares, and ``--explain`` tells what is asked."""
    done = run("sql", QUERY, *given)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "1.5" in done.stdout and "3 rows" in done.stdout
    assert "by sku via database" in run("sql", QUERY, *given, "--explain").stdout


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        ("--engine spark", "--lookup needs --engine millrace"),
        ("--table prices=o.parquet", "--table and --lookup both name 'prices'"),
    ],
)
def test_arguments_that_do_not_go_together(run, given, extra, problem):
    """One message, before anything runs."""
    done = run("sql", QUERY, *given, *extra.split())
    assert done.exit_code == 1 and problem in done.stderr


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
    """The file, what is wrong in it, and what was expected."""
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


def test_an_estimate_asks_for_a_sample_alone(run, given, tmp_path):
    """``--estimate`` tells keys and requests; with a predicate of Spark's own there is nothing to tell."""
    query = "select o.id, p.price from o join prices p on o.sku = p.sku"
    done = run("sql", query, *given, "--estimate")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("prices: 2 distinct keys, 1 requests, 0.0 min, 0.5 rows a key")
    done = run("sql", query, *given, "--estimate", "--json", "-")
    (estimate,) = json.loads(done.stdout)["estimate"]["lookups"]
    assert (estimate["keys"], estimate["sampled"], estimate["failed"]) == ([2, 2], 2, 0)
    done = run("sql", "select count(*) from o", *given[:2], "--estimate")
    assert done.exit_code == 1 and "no lookup and calls no predicate" in done.stderr
    done = run("sql", query, *given[:2], "--engine", "spark", "--estimate")
    assert done.exit_code == 1
