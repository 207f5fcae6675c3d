"""What README.md shows runs as it stands there: with the rows of DuckDB, or of plain Python."""

from __future__ import annotations

import datetime as dt
import json
import re
import shlex
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.functions import udf

import millrace
from tests.cli.conftest import run
from tests.test_documents import Page, folder

__all__ = ["folder", "run"]

ORDERS = 60
WORDS = [f"{'spam ' * (n % 3 == 0)}{'nicht ' * (n % 4 == 0)}text {n}" for n in range(1000)]
BOUGHT = "orders join customer on o_custkey = c_custkey"
JOINED = f"{BOUGHT} join nation on c_nationkey = n_nationkey"


@pytest.fixture
def paths(folder) -> dict[str, str]:
    """Files of 60 orders, by 20 customers, of 4 nations."""
    first = dt.date(1995, 12, 1)
    columns = {
        "orders": {
            "id": range(ORDERS),
            "o_orderkey": range(ORDERS),
            "o_custkey": [n % 20 for n in range(ORDERS)],
            "o_comment": WORDS[:ORDERS],
            "o_orderdate": [first + dt.timedelta(days=n) for n in range(ORDERS)],
            "o_totalprice": [10 * n for n in range(ORDERS)],
            "sku": [f"sku-{n % 7}" for n in range(ORDERS)],
        },
        "customer": {
            "c_custkey": range(20),
            "c_name": [f"customer {n}" for n in range(20)],
            "c_nationkey": [n % 4 for n in range(20)],
        },
        "nation": {"n_nationkey": range(4), "n_name": ["PERU", "FRANCE", "CHINA", "KENYA"]},
    }
    for name, values in columns.items():
        pq.write_table(pa.table({key: list(each) for key, each in values.items()}), f"{name}.parquet")
    return {name: f"{folder}/{name}.parquet" for name in columns}


@pytest.fixture
def page(spark, paths) -> Page:
    """README.md with the names that it takes to be there."""
    orders, customers, nations = (spark.read.parquet(path) for path in paths.values())
    mails = spark.createDataFrame(list(enumerate(WORDS)), "size int, text string").coalesce(1)
    text = f"select n_name, c_name from {JOINED}"
    frames = {"orders": orders, "customers": customers, "nations": nations, "mails": mails}
    return Page("README.md", spark=spark, text=text, tables=paths, **frames)


def rows(answer: str) -> list[tuple]:
    """What DuckDB finds in the files."""
    with duckdb.connect() as connection:
        for name in ("orders", "customer", "nation"):
            connection.execute(f"create view {name} as from '{name}.parquet'")
        return sorted(connection.execute(answer).fetchall())


def found(df, *columns: str) -> list[tuple]:
    """The rows of a DataFrame."""
    return sorted(map(tuple, df.select(*columns or df.columns).collect()))


@contextmanager
def shop(token: str):
    """A service that has the price of every sku but one, for whoever shows the token."""

    class Prices(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.headers["Authorization"] == f"Bearer {token}"
            number = int(self.path.rpartition("-")[2])
            body = json.dumps([{"price": number + 0.25}] if number else []).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Prices) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def doing(head: str, body: str) -> dict[str, str]:
    """Give a function, whose body the page leaves out, one."""
    return {f"{head}: ...": f"{head}: {body}"}


def test_every_block_is_run():
    """None stands there that no test below has a number for."""
    numbers = re.findall(r"page\.run\(\s*(\d+)", Path(__file__).read_text())
    assert sorted(map(int, numbers)) == list(range(Page("README.md").size))


def test_filters(page, folder, capsys):
    """Functions, coroutines, a cascade."""
    page.run(
        0,
        **doing("looks_like_spam(text)", "return 'spam' in text"),
        **doing("in_our_language(text)", "return 'nicht' not in text"),
        **{'"kept"': f"'{folder}/kept'"},
    )
    kept = [n for n, text in enumerate(WORDS) if "spam" in text and "nicht" not in text]
    assert pq.read_table(folder / "kept")["size"].to_pylist() == kept
    assert "looks_like_spam" in capsys.readouterr().out
    page.run(
        1,
        **doing("is_active(customer)", "return customer % 2 == 0"),
        **{"millrace.where(": "active = millrace.where("},
    )
    even = "select id from orders where o_custkey % 2 = 0 and o_comment not like '%nicht%'"
    assert found(page.names["active"], "id") == rows(even)
    page.names |= {
        "reviews": page.names["mails"],
        "score": lambda text: float(text.startswith("spam")),
        "is_complaint": millrace.predicate(lambda text: "spam" in text, name="is_complaint"),
    }
    page.run(2)
    assert page.names["complaints"].count() == sum("spam" in text for text in WORDS)


def test_lookups(page, folder, paths, monkeypatch, capsys):
    """Prices of a service, as a column and as they come."""
    monkeypatch.setenv("SHOP_TOKEN", "t0ken")
    here = {"orders.parquet": paths["orders"], '"priced"': f"'{folder}/priced'"}
    with shop("t0ken") as address:
        page.run(3, **{"https://shop.example": address}, **here)
    priced = pq.read_table(folder / "priced")
    prices = [None, *(n + 0.25 for n in range(1, 7))]
    assert sorted(priced["id"].to_pylist()) == list(range(ORDERS))
    assert all(row["price"] == prices[row["id"] % 7] for row in priced.to_pylist())
    assert "keys=7" in capsys.readouterr().out


def test_joins(page, paths, capsys):
    """SQL, a session, an enabled session, reports, options."""
    page.run(4, **{f'"{name}.parquet"': f'"{path}"' for name, path in paths.items()})
    by_nation = f"select n_name, count(*) from {JOINED} where o_orderdate >= '1996-01-01' group by all"
    assert found(page.names["orders_by_nation"]) == rows(by_nation)
    page.names |= {
        "is_active": millrace.predicate(lambda customer: customer % 2 == 0, name="is_active"),
        "looks_like_spam": udf("boolean")(lambda text: "spam" in text),
        "in_our_language": udf("boolean")(lambda text: "nicht" not in text),
    }
    named = {"shop.sql(": "sold = shop.sql(", "shop.join(": "abroad = shop.join("}
    page.run(5, **named, **{"orders.parquet": paths["orders"]})
    sold = f"select o_orderkey, c_name from {BOUGHT} where o_totalprice > 100 and c_custkey % 2 = 0"
    assert found(page.names["sold"]) == rows(sold)
    abroad = rows(f"select o_orderkey from {JOINED} where n_name <> 'FRANCE'")
    assert found(page.names["abroad"], "o_orderkey") == abroad
    capsys.readouterr()
    page.run(7)
    assert "b0: cell 0" in capsys.readouterr().out
    page.run(8, **{"millrace.sql(text": "limited = millrace.sql(text"})
    assert found(page.names["limited"]) == rows(page.names["text"])
    keys = {
        "o_custkey": "custkey",
        "c_custkey": "custkey",
        "c_nationkey": "nationkey",
        "n_nationkey": "nationkey",
    }
    for name in ("orders", "customers", "nations"):
        page.names[name] = page.names[name].withColumnsRenamed(keys)
    page.run(6)
    assert "PERU" in capsys.readouterr().out


def test_lines_of_the_shell(page, paths, run):
    """``millrace sql`` as a user types it."""
    (line,) = re.findall(r"^millrace (sql .*)", page.text.replace("\\\n", ""), re.MULTILINE)
    for name, path in paths.items():
        line = line.replace(f"={name}.parquet", f"={path}")
    done = run(*shlex.split(line))
    assert done.exit_code == 0, done.stderr
    assert "customer 0" in done.stdout and "memory of a worker" in done.stdout
