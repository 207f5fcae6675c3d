"""A hub on Spark: each query has the rows of the query alone by DuckDB, with a restart in between."""

from __future__ import annotations

import contextlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException

import millrace
from millrace.api import hub as api
from millrace.errors import InputError, StateError
from millrace.options import StorageOptions
from millrace.streams.hub.cell import HubProcessor
from millrace.streams.hub.folder import Folder
from millrace.streams.hub.query import Change
from tests.streams.feed import Feed, plain

pytestmark = pytest.mark.spark

TWO = "orders o JOIN payments p ON o.k = p.k AND p.t BETWEEN o.t AND o.t + INTERVAL 20 SECONDS"
ON = """orders o JOIN payments p ON o.k = p.k AND p.t BETWEEN o.t AND o.t + INTERVAL 20 SECONDS
    JOIN shipments s ON s.k = p.k AND s.t >= p.t - INTERVAL 5 SECONDS AND s.t <= p.t + INTERVAL 10 SECONDS"""
QUERIES = {
    "all": ("o.*, p.t AS paid, p.v AS price, p.g AS kind, s.t AS sent", None),
    "large": ("o.k, p.v AS paid", "o.v > 0.5 AND p.v <= 0.75"),
    "odd": ("s.t, p.g AS kind", "p.g = 'odd' AND o.k IN (3, 5, 7, 11)"),
    "pairs": ("o.k, o.v, s.v AS sent", "(o.v < s.v OR p.g IS NULL) AND s.v < 0.4"),
    "late": (
        "o.t, s.t AS sent, p.k",
        "s.t >= TIMESTAMP'2020-09-13 12:27:00' AND NOT p.v BETWEEN 0.2 AND 0.6",
    ),
}


def alone(feed, name, files=slice(None)):
    """The rows of a query over all files, or over some, by DuckDB."""
    select, where = QUERIES[name]
    text = f"SELECT {select} FROM {ON}" + (f" WHERE {where}" if where else "")
    return feed.answer(text, files)


def test_queries_come_and_go_over_a_restart(streaming, tmp_path):
    """Rows of each query are those of the query alone: over all data, or over what came since.

    Spark takes the brackets of the folder for a glob, and finds no change in it.
    """
    feed = Feed(streaming, tmp_path, ("orders", "payments", "shipments"))
    given = []

    def made(**more):
        return millrace.Session(streaming, feed.tables()).hub(ON, tmp_path / "hub [1]{2}", **more)

    def sink(rows, batch):
        given.append((batch, rows))

    hub = made()
    for name in ("all", "large", "pairs"):
        hub.add(name, *QUERIES[name], sink=tmp_path / name)
    hub.add("odd", *QUERIES["odd"], sink=sink)
    feed.put(90, 0, 0)
    hub.start(availableNow=True).awaitTermination()
    assert [each.state for each in hub.list()] == ["running"] * 4
    assert len(alone(feed, "late")) > 10, "what the window has for it already"
    hub.remove("large")
    before = feed.rows("large")
    with pytest.raises(InputError, match=r"'odd' gives its rows to a function.*sinks=\{'odd'"):
        made().start(availableNow=True)
    hub = made(sinks={"odd": sink}, options={"architecture": "stairs"})
    hub.add("late", *QUERIES["late"], sink=tmp_path / "late", since="window")
    hub.add("large", *QUERIES["large"], sink=tmp_path / "new")
    feed.put(90)
    hub.start(availableNow=True).awaitTermination()
    assert feed.rows("all") == alone(feed, "all") != []
    assert feed.rows("pairs") == alone(feed, "pairs") != []
    assert feed.rows("late") == alone(feed, "late") != []
    odd = [plain(tuple(row.values())) for _, rows in given for row in rows.to_pylist()]
    assert sorted(odd, key=repr) == alone(feed, "odd") != []
    assert feed.rows("large") == before == alone(feed, "large", slice(2)) != []
    assert feed.rows("new") == alone(feed, "large", slice(2, None)) != []
    assert {each.name: each.state for each in hub.list()} == dict.fromkeys(
        ("all", "pairs", "odd", "late", "large"), "running"
    )


@pytest.mark.nightly
def test_a_name_that_comes_again_has_its_own_function(streaming, tmp_path):
    """Rows of a query that has gone never reach the function of another query of that name."""
    feed = Feed(streaming, tmp_path, ("orders", "payments"))
    given = {"one": [], "two": [], "three": []}

    def sink(name):
        def give(rows, batch):
            given[name].append((batch, rows.column_names))
            if name != "three" and len(given[name]) == 1:
                raise ValueError("the sink is full")

        return give

    hub = millrace.Session(streaming, feed.tables()).hub(TWO, tmp_path / "hub")
    for name, before in (("one", None), ("two", "one"), ("three", "two")):
        feed.put(60)
        if before is not None:
            hub.remove("north")
        if name == "three":  # no restart remembers a function, and the name is another query's by now
            hub.add("north", f"p.k AS {name}", sink=lambda rows, batch: None)
            hub = millrace.Session(streaming, feed.tables()).hub(
                TWO, tmp_path / "hub", sinks={"north": sink(name)}
            )
        else:
            hub.add("north", f"p.k AS {name}", sink=sink(name))
        try:
            hub.start(availableNow=True).awaitTermination()
        except StreamingQueryException:
            assert name != "three"
    assert given["one"] == [(0, ["one"]), (0, ["one"])], "its function has its rows again"
    assert given["two"] == [(1, ["two"])], "and this one's are left out: there is no function for them"
    assert given["three"] == [(2, ["three"])]


def test_functions_that_threads_add_at_once_do_not_mix(streaming, tmp_path, monkeypatch):
    """Each query has its own, also where both want the same number; and one folder is of one query."""
    tables = Feed(streaming, tmp_path, ("orders", "payments")).tables()
    hub = millrace.Session(streaming, tables).hub(TWO, tmp_path / "hub")
    both, write = threading.Barrier(2), Folder.write

    def meet(*given):
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(timeout=1)
        return write(*given)

    monkeypatch.setattr(Folder, "write", meet)
    given = {"one": print, "two": repr}
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda name: hub.add(name, "o.k", sink=given[name]), given))
    assert {each.name: hub._functions[each.id] for each in hub.list()} == given
    sinks = [tmp_path / "out", f"file:{tmp_path}/orders/../out"]
    with ThreadPoolExecutor(2) as pool:
        adding = [pool.submit(hub.add, f"files {i}", "o.k", sink=sink) for i, sink in enumerate(sinks)]
    (refused,) = filter(None, (each.exception() for each in adding))
    assert isinstance(refused, InputError) and "is the sink of query 'files" in str(refused)
    other, listed = Folder(tmp_path / "hub", StorageOptions.of(None)), Folder.queries

    def change_between(folder):
        found = listed(folder)
        if other.next() == len(folder.read()):
            other.write(Change(other.next(), other.read()[-1].stand))
        return found

    monkeypatch.setattr(Folder, "queries", change_between)
    with pytest.raises(StateError, match="another process has changed the queries"):
        hub.add("three", "o.k", sink=print)
    with pytest.raises(StateError, match="another process has changed the queries"):
        hub.remove("one")


CRASHES = ("rows", "file", "sink")


@pytest.mark.nightly
def test_crashes_lose_and_double_nothing_while_queries_come_and_go(streaming, tmp_path, monkeypatch):
    """A worker ends behind results, and before a file has its name; a sink raises."""
    feed = Feed(streaming, tmp_path, ("orders", "payments", "shipments"))
    names, died, given = ["odd", "large", "pairs", "late", "all"], [], {}

    def sink(rows, batch):
        if batch == number and (crashes / "sink").exists():
            (crashes / "sink").unlink()
            raise ValueError("the sink is full")
        given[batch] = rows.to_pylist()

    for number, point in enumerate((None, *CRASHES, None)):
        feed.put(80)
        crashes = tmp_path / f"crashes_{number}"
        crashes.mkdir()
        if point is not None:
            (crashes / point).touch()
        monkeypatch.setattr(api, "HubProcessor", crashing(str(crashes), number))
        hub = millrace.Session(streaming, feed.tables()).hub(ON, tmp_path / "hub", sinks={"first": sink})
        if number == 0:
            hub.add("first", *QUERIES["all"], sink=sink)
        elif number > 2:
            hub.remove(f"q{number - 2}")
        name = names[number]
        hub.add(f"q{number}", *QUERIES[name], sink=tmp_path / f"q{number}")
        try:
            hub.start(availableNow=True).awaitTermination()
        except StreamingQueryException:
            died.append(point)
        assert not any(crashes.iterdir()), "it ended there"
    assert died == [*CRASHES]
    rows = [plain(tuple(row.values())) for batch in given.values() for row in batch]
    assert sorted(rows, key=repr) == alone(feed, "all") != []
    for number, name in enumerate(names):
        files = slice(number, number + 2 if number in (1, 2) else None)
        assert feed.rows(f"q{number}") == alone(feed, name, files) != []
        parts = (tmp_path / f"q{number}").glob(".*.part")
        assert not any(parts), "what processes that died have left"


def crashing(flags: str, number: int):
    """A processor that ends its process in a micro-batch: behind its results, if there is a file "rows".

    Or, if there is a file "file", before the first file has its name.
    """

    class Crashing(HubProcessor):
        def _work(self, *given):
            import pathlib

            replace = pathlib.Path.replace

            def end(point):
                try:
                    os.remove(f"{flags}/{point}")  # noqa: PTH107  # in a worker, pickled by value
                except FileNotFoundError:
                    return
                os._exit(1)

            is_there = int(TaskContext.get().getLocalProperty("streaming.sql.batchId")) == number
            if is_there and os.path.exists(f"{flags}/file"):  # noqa: PTH110
                pathlib.Path.replace = lambda *paths: end("file") or replace(*paths)
            for row in super()._work(*given):
                yield row
                if is_there:
                    end("rows")

    return Crashing


def test_a_query_whose_folder_tasks_cannot_write_can_leave(streaming, tmp_path, caplog):
    """Its last rows are lost, which is logged; the others have theirs, and nothing more is written there."""
    feed, folder = Feed(streaming, tmp_path, ("orders", "payments")), tmp_path / "full"
    feed.put(60)
    hub = millrace.Session(streaming, feed.tables()).hub(TWO, tmp_path / "hub")
    hub.add("full", "o.k", sink=folder)
    hub.add("good", "o.k, p.v", sink=tmp_path / "good")
    (folder / "empty.parquet").unlink()
    for cell in range(2):
        (folder / f"{0:010}-{cell:05}.parquet").mkdir()
    with pytest.raises(StreamingQueryException, match=r"cannot write .*full"):
        hub.start(availableNow=True).awaitTermination()
    hub.remove("full")
    hub.start(availableNow=True).awaitTermination()
    assert feed.rows("good") == feed.answer(f"SELECT o.k, p.v FROM {TWO}") != []
    assert [each.name for each in hub.list()] == ["good"]
    assert "query 'full' is removed, and its last rows are lost" in caplog.text
    assert all(each.is_dir() for each in folder.iterdir())


def test_what_a_hub_cannot_give_is_refused(streaming, tmp_path):
    """With the reason, and what would work."""
    feed = Feed(streaming, tmp_path, ("orders", "payments", "shipments"))
    tables = feed.tables()
    hub = millrace.Session(streaming, tables).hub(ON, tmp_path / "hub")
    sink = tmp_path / "out"
    for select, more, message in (
        ("o.v + 1", {}, r"selects columns of the join as they are"),
        ("count(*)", {}, r"selects columns|this is none"),
        (
            "o.k",
            {"where": "upper(p.g) = 'ODD'"},
            r"only Spark evaluates a condition on p: .*upper\(g\) = 'ODD'",
        ),
        ("o.k", {"where": "o.v + s.v > 1"}, r"only Spark evaluates .*o.v \+ s.v > 1"),
        ("o.k", {"where": "o.v + 1 > s.v"}, r"only Spark evaluates .*o.v \+ 1"),
        ("o.k", {"where": "o.v = s.v"}, r"o.v = s.v joins streams, and all queries of a hub join them alike"),
        ("o.k", {"where": "o.k IN (SELECT k FROM payments)"}, r"only Spark evaluates|this is none"),
        ("*", {"since": "then"}, r"since is 'then': expected 'now' or 'window'"),
    ):
        with pytest.raises(InputError, match=message):
            hub.add("q", select, sink=sink, **more)
    hub.add("q", "o.k", sink=sink)
    with pytest.raises(InputError, match=r"there is a query 'q': remove it first"):
        hub.add("q", "o.k", sink=sink)
    with pytest.raises(InputError, match=r"out is the sink of query 'q': give another"):
        hub.add("other", "o.k", sink=sink)
    with pytest.raises(InputError, match=r"several columns g, k, t, v, which a file cannot have"):
        hub.add("other", "*", sink=tmp_path / "other")
    with pytest.raises(InputError, match=r"there is no query 'p'.*'q'"):
        hub.remove("p")
    with pytest.raises(InputError, match=r"query 'other': cannot write .*; give a folder that the hub may"):
        hub.add("other", "o.k", sink=tmp_path / "out" / "empty.parquet")
    with pytest.raises(StateError, match=r"is of another join"):
        millrace.Session(streaming, tables).hub(TWO, tmp_path / "hub")
    wider = millrace.Session(streaming, {**tables, "n": streaming.range(3).withColumnRenamed("id", "k")})
    for join, what in (
        ("JOIN n ON n.k", "n"),
        ("LEFT JOIN n ON n.k", "n"),
        ("LEFT JOIN n ON -n.k", "a LEFT join"),
    ):
        with pytest.raises(InputError, match=rf"share a join of streams, and {what}.* is none"):
            wider.hub(f"{ON} {join} = o.k", tmp_path / "other")
    assert pq.read_table(sink).schema.names == ["k"], "who reads it finds the columns before there are rows"
