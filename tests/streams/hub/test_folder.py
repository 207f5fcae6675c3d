"""A hub's folder, on a disk and in an object store: whoever reads it, and whatever was damaged in it."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st
from pyarrow import fs

from millrace.engine.plan.expressions import ColumnRef
from millrace.errors import InputError, StateError
from millrace.options import StorageOptions
from millrace.parquet import store as stores
from millrace.streams.hub.delivery import SinkFiles, deliver
from millrace.streams.hub.folder import Folder, locate_writable
from millrace.streams.hub.query import ENVELOPE, Change, StandingQuery
from tests.spark.test_object_stores import Server

DISKS = StorageOptions()
JOIN = "a JOIN b"
SCHEMA = pa.schema([("n", pa.int64())])


def came(number: int, stand=None, **more) -> Change:
    parts = {"conditions": (), "columns": (ColumnRef("a", "n"),), "schema": SCHEMA}
    query = StandingQuery(number, f"q{number}", "n", None, "now", **parts, **more)
    return Change(number, tuple(range(1, number + 1)) if stand is None else stand, query)


def rows_of(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(numbers, pa.int64())})


def begun(path, storage=DISKS) -> Folder:
    folder = Folder(path, storage)
    folder.begin(JOIN)
    return folder


@pytest.mark.parametrize("left", ["", '{"is": "Ch'])
def test_a_damaged_change_is_none(tmp_path, left):
    """A power failure left it so; the hub goes on without it, and so do its cells.

    Nobody takes a query for running that does not: neither who has read the file before, nor who cannot.
    """
    folder = before = begun(tmp_path)
    folder.write(came(1))
    folder.write(came(2))
    before.read()
    (tmp_path / "changes" / "00000002.json").write_text(left)
    folder = begun(tmp_path)
    assert folder.next() == 3
    folder.write(came(3))
    assert [each.name for each in folder.queries()] == ["q1", "q3"]
    folder.note_made(3, 1, 3)
    assert [each.state for each in before.queries()] == ["running", "waiting", "running"]
    (tmp_path / "made.json").write_text(left)
    assert [each.state for each in folder.queries()] == ["waiting"] * 2
    (tmp_path / "made.json").write_text('{"newest": 3}')  # of an earlier version
    assert [each.state for each in begun(tmp_path).queries()] == ["running"] * 2
    folder.write(Change(4, (3,)))
    folder.note_made(4, 3)
    (tmp_path / "changes" / "00000004.json").write_text(left)
    assert {each.name: each.state for each in begun(tmp_path).queries()} == {"q1": "waiting", "q3": "running"}


@pytest.mark.parametrize("damage", ["damaged", "missing"])
def test_a_folder_that_has_lost_its_join_is_refused(tmp_path, damage):
    """Or any join would go on with its queries."""
    begun(tmp_path).write(came(1))
    (tmp_path / "hub.json").write_text("{") if damage == "damaged" else (tmp_path / "hub.json").unlink()
    with pytest.raises(StateError, match=rf"hub\.json is {damage}: expected .*restore it, or begin"):
        begun(tmp_path)


def test_a_change_of_another_process_stays(tmp_path, monkeypatch):
    """Who comes second is told so; a disk without links takes changes too."""
    folder, others = begun(tmp_path), begun(tmp_path)
    others.write(came(1, sink="theirs"))
    with pytest.raises(
        StateError, match=r"another process has changed the queries of the hub .* make it again"
    ):
        folder.write(came(1, sink="ours"))
    assert [each.sink for each in folder.queries()] == ["theirs"]
    with monkeypatch.context() as no_links:
        no_links.setattr(os, "link", lambda *_: os.listdir(tmp_path / "none"))  # noqa: PTH208
        folder.write(came(2))
    assert folder.next() == 3 and not [*tmp_path.rglob(".*")]


def test_a_folder_that_has_lost_changes_is_refused(tmp_path):
    """Cells have read them, so others would never come under their numbers."""
    folder = begun(tmp_path)
    folder.write(came(1))
    folder.note_made(1, 1)
    (tmp_path / "changes" / "00000001.json").unlink()
    with pytest.raises(StateError, match=r"00000001\.json is missing: .* up to 1, .*restore it"):
        begun(tmp_path).queries()


def test_spark_finds_the_folder_where_this_process_does(tmp_path, monkeypatch):
    """Its own file system need not be this machine's disks."""
    monkeypatch.setattr(stores, "_DBFS", str(tmp_path))
    for path in (tmp_path, f"file://{tmp_path}"):
        assert Folder(path, DISKS).uri == f"file:{tmp_path}"
    assert Folder("dbfs:/hub", DISKS).uri == "dbfs:/hub"


class Hdfs:
    """Local files that are there from their creation, as those of HDFS and Azure are."""

    def __init__(self):
        self.files, self.created = fs.LocalFileSystem(), []

    def open_output_stream(self, path):
        self.created.append(path.rpartition("/")[2])
        return self.files.open_output_stream(path)

    def __getattr__(self, name):
        return getattr(self.files, name)


def test_a_store_that_shows_files_early_shows_none_cut_off(tmp_path, monkeypatch):
    """They are written beside, and one that cannot rename is refused."""
    store, system = stores.Store("hdfs://h"), Hdfs()
    monkeypatch.setitem(stores._SYSTEMS, store, system)
    path = f"hdfs://h{tmp_path}/rows"
    with store.writing(path) as file:
        file.write(b"whole")
    with pytest.raises(OSError, match=r"^of Spark$"), store.writing(path):
        raise OSError("of Spark")
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"whole"]
    assert len(system.created) == 1 and system.created[0].startswith(".rows.")
    (tmp_path / system.created[0]).touch()
    store.clean(f"hdfs://h{tmp_path}")
    system.move = lambda *_: (_ for _ in ()).throw(pa.ArrowNotImplementedError("flat"))
    with pytest.raises(InputError, match=r"cannot rename files.*hierarchical"), store.writing(path):
        pass
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"whole"]


def test_an_error_of_what_is_written_is_not_the_disks(tmp_path):
    """And a part that a process has left is removed."""
    with pytest.raises(OSError, match=r"^of Spark$"), stores.DISKS.writing(f"{tmp_path}/rows"):
        raise OSError("of Spark")
    (tmp_path / ".rows.1.part").touch()
    stores.DISKS.clean(str(tmp_path))
    assert not [*tmp_path.iterdir()]


def test_a_folder_of_another_join_or_version_is_refused(tmp_path):
    """It says which, and what to do."""
    begun(tmp_path)
    with pytest.raises(StateError, match=r"is of another join: it was begun with a JOIN b, and is given b"):
        Folder(tmp_path, DISKS).begin("b JOIN a")
    (tmp_path / "hub.json").write_text('{"format": 1, "on": "a JOIN b", "keep": "all"}')
    with pytest.raises(StateError, match=r"found format 1, .* reads 3: go on with the version that wrote it"):
        begun(tmp_path)


steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "remove", "make"]),
        st.integers(0, 2),  # who does it: they see what the others did late, or never
        st.integers(0, 5),
    ),
    min_size=1,
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(steps)
def test_who_reads_late_sees_the_same_queries(tmp_path_factory, given_steps):
    """Numbers are never given twice."""
    path = tmp_path_factory.mktemp("hub")
    everyone = [begun(path) for _ in range(3)]
    states, number = {}, 0
    for what, who, which in given_steps:
        folder = everyone[who]
        if what == "make":
            states = {each: "running" for each, state in states.items() if state != "leaving"}
            folder.note_made(number, *states)
            continue
        number += 1
        assert folder.next() == number
        stand = [each for each, state in states.items() if state != "leaving"]
        if what == "remove" and stand:
            gone = stand.pop(which % len(stand))
            change = Change(number, tuple(stand))
            states[gone] = "leaving"
        else:
            change = came(number, (*stand, number))
            states[number] = "waiting"
        folder.write(change)
    for folder in (*everyone, begun(path)):
        assert {each.id: each.state for each in folder.queries()} == states


class Rows:
    """What cells give out in a micro-batch, without Spark."""

    def __init__(self, *rows):
        block = pa.RecordBatch.from_pylist(rows, ENVELOPE).serialize().to_pybytes()
        self.table = pa.table({"block": pa.array([block, None]), "cells": [None, "{}"]})

    def toArrow(self):  # Spark's name
        return self.table


def test_a_query_whose_function_fails_can_leave(tmp_path, caplog):
    """Its last rows are lost, and the others go on; while it stands, its function ends the hub."""
    folder = begun(tmp_path)
    for number in (1, 2, 3):
        folder.write(came(number))
    blocks = [{"query": n, "rows": 1, "block": rows_of(n).serialize().to_pybytes()} for n in (3, 2)]
    rows, given = Rows({"made": [3, 1, 2, 3]}, {"query": 1, "lost": "the disk is full"}, *blocks), []

    def fail(table, batch):
        given.append(table.to_pylist())
        raise ValueError("the sink is full")

    functions = {2: fail, 3: lambda table, batch: given.append(table.to_pylist())}
    with pytest.raises(ValueError, match=r"^the sink is full$"):
        deliver(rows, 0, folder, functions)
    assert [each.state for each in folder.queries()] == ["running"] * 3
    folder.write(Change(4, (3,)))
    deliver(rows, 0, folder, functions)
    assert given == [[{"n": 2}], [{"n": 2}], [{"n": 3}]]
    lost = ("q1", "the disk is full")
    assert [record.args for record in caplog.records] == [lost, lost, ("q2", "the sink is full")]


@pytest.mark.parametrize("sink", ["file/out", "taken"])
def test_a_query_whose_folder_fails_can_leave(tmp_path, sink):
    """Its last rows are lost, and the others have theirs; while it stands, its folder ends the hub."""
    (tmp_path / "file").touch()
    (tmp_path / "taken" / "7.parquet").mkdir(parents=True)  # so the file gets no name
    failing, other = (came(n, sink=f"{tmp_path}/{name}").query for n, name in ((1, sink), (2, "out")))

    def write(*leaving):
        with SinkFiles("7.parquet", DISKS, leaving) as files:
            for query in (other, failing, other, failing):
                files.write(query, rows_of(7))
            files.finish()
        return files.lost

    with pytest.raises(InputError, match=r"cannot write .*(file|taken)"):
        write()
    (lost,) = write(1).items()
    assert lost[0] == 1 and lost[1].startswith("cannot write")
    assert pq.read_table(tmp_path / "out")["n"].to_pylist() == [7, 7]
    assert not [*tmp_path.rglob(".*")]


def test_an_object_store_has_all_of_it():
    """The queries, and the files of their rows, which are there whole or not at all."""
    with Server() as server:
        server.files.create_dir("shop")
        storage = StorageOptions(server.options)
        folder = begun("s3://shop/hubs/one", storage)
        folder.write(came(1, sink="s3://shop/out"))
        folder.write(Change(folder.next()))
        folder.note_made(1, 1)
        query = replace(came(1, sink="s3://shop/out").query, state="leaving")
        assert folder.queries() == begun("s3://shop/hubs/one", storage).queries() == [query]
        with SinkFiles("7.parquet", storage) as files:
            files.write(query, rows_of(1, 2))
            files.write(query, rows_of(3))
        with suppress(RuntimeError), SinkFiles("8.parquet", storage) as files:
            files.write(query, rows_of(4))
            raise RuntimeError
        table = pq.read_table("shop/out", filesystem=server.files)
        assert table["n"].to_pylist() == [1, 2, 3]
        with pytest.raises(InputError, match=r"cannot write s3://none/hub.*no bucket 'none'"):
            begun("s3://none/hub", storage)
    with pytest.raises(InputError, match=r"^wasb:.* is where only Spark can write"):
        locate_writable("wasb://c/out", storage)
