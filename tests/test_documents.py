"""The code of documents that are no guides runs as it stands there, on small data."""

from __future__ import annotations

import datetime as dt
import re
import webbrowser
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millrace
from millrace.reports.run_report import RunReport
from tests.sql.conftest import files

__all__ = ["files"]

ROOT = Path(__file__).parents[1]
SECOND = dt.timedelta(seconds=1)
NOON = dt.datetime(2025, 1, 1, 12, tzinfo=dt.UTC)


class Page:
    """The blocks of Python of a document, which share their names as on one page.

    Args:
        name: Of the file, from the root.
        names: What the page takes to be there.
    """

    def __init__(self, name: str, **names: object) -> None:
        self.text = (ROOT / name).read_text()
        self._blocks = re.findall(r"^```python\n(.*?)^```", self.text, re.MULTILINE | re.DOTALL)
        self.names: dict[str, object] = {"millrace": millrace, **names}
        self.size = len(self._blocks)

    def run(self, number: int, **changes: str) -> None:
        """Run a block; ``changes`` are texts by the texts that they stand for, which have to be there."""
        block = self._blocks[number]
        for there, instead in changes.items():
            assert there in block, f"{there!r} is not in the document any more"
            block = block.replace(there, instead)
        exec(compile(block, f"block {number}", "exec"), self.names)  # the project's own code


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder in which documents write."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_reports(spark, files, folder, monkeypatch, capsys):
    """Text, page, tables, JSON and a comparison."""
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or True)
    text = "select a.id from a join b on a.id = b.id"
    runs = [
        millrace.query(text, spark=spark, tables=files),
        millrace.query(f"{text} where a.k > 3", spark=spark, tables=files),
    ]
    rows = [len(query.df.collect()) for query in runs]
    page = Page("docs/report.md", query=runs[1], before=runs[0].report())
    page.run(0)
    assert page.size == 1
    assert "1 block(s)" in capsys.readouterr().out and len(opened) == 1
    read = RunReport.from_json(page.names["report"].to_json())
    assert read.totals.output_tuples == rows[1] < rows[0]
    assert "Millrace report" in (folder / "report.html").read_text()


def test_the_live_page(spark, files, folder):
    """It is served, has the query that ran, and is closed."""
    page = Page("docs/live.md", spark=spark, text="select a.id from a join b on a.id = b.id", tables=files)
    page.run(0, **{"page.figures()": "figures = page.figures()", '"joined"': repr(f"{folder}/joined")})
    assert page.size == 1 and page.names["page"].closed
    (query,) = page.names["figures"]["queries"]
    assert (query["action"], query["state"]) == ("parquet", "done")
    assert query["rows_out"] == pq.read_table(folder / "joined").num_rows > 0


def put(folder: Path) -> None:
    """Write a file of each stream: order n comes n seconds after noon, its payment and shipment later."""
    n = range(40)
    bought = {"total": [500.0 * each for each in n], "region": ["n", "s"] * 20, "sku": ["a", "b"] * 20}
    paid = {"amount": [1.0 * each for each in n], "kind": ["card", "card", "cash", "cash"] * 10}
    for name, delay, columns in (
        ("orders", 0, bought),
        ("payments", 9, paid),
        ("shipments", 20, {"carrier": ["c"] * 40}),
    ):
        (folder / "landing" / name).mkdir(parents=True)
        times = pa.array([NOON + SECOND * (each + delay) for each in n], pa.timestamp("us", "UTC"))
        table = {"id": list(n), "t": times, "note": ["fraud", "", "", ""] * 10, **columns}
        pq.write_table(pa.table(table), folder / "landing" / name / "0.parquet")


def test_streams(streaming, folder, capsys):
    """A join of three, its report and lines, lookups, predicates, a hub: with the rows that there are."""
    put(folder)
    schemas = {path.name: streaming.read.parquet(str(path)).schema for path in (folder / "landing").iterdir()}
    is_fraud = millrace.predicate(lambda note: note == "fraud", name="is_fraud")
    page = Page("docs/streams.md", spark=streaming, schemas=schemas, is_fraud=is_fraud)
    kept = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
    try:
        # Spark's driver is in another folder.
        there = {f'"{name}"': f'"{folder}/{name}"' for name in ("joined", "checkpoint")}
        page.run(0, **there, **{'"8"': '"2"', "landing/": f"{folder}/landing/"})
        query = page.names["query"]
        query.processAllAvailable()
        page.run(1)
        assert "120 rows in time, 0 late, 40 results" in capsys.readouterr().out
        query.stop()
        assert sorted(pq.read_table(folder / "joined")["id"].to_pylist()) == list(range(40))
        page.run(2)  # of a query that has ended there is nothing to tell
        via = 'millrace.http("https://shop.example/{sku}", per_second=50, max_in_flight=8)'
        page.run(3, **{via: "millrace.function(lambda sku: {'price': 3.0 if sku == 'a' else 4.0})"})
        priced = page.names["priced"].writeStream.format("memory").queryName("priced")
        priced.option("checkpointLocation", f"{folder}/priced").trigger(
            availableNow=True
        ).start().awaitTermination()
        found = streaming.table("priced").collect()
        assert sorted(map(tuple, found)) == [(n, 3.0) for n in range(0, 40, 4)]
        page.names["settled"] = lambda: streaming.streams.active[0].processAllAvailable()
        page.run(4, **{'"hub"': f'"{folder}/hub"', "hub.list()": "settled(); listed = hub.list()"})
        assert [(each.name, each.state) for each in page.names["listed"]] == [("north", "running")]
        assert "pyarrow.Table" in capsys.readouterr().out  # what its function was given
        assert page.size == 5
    finally:
        for query in streaming.streams.active:
            query.stop()
        streaming.conf.unset(kept)
