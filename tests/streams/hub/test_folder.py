"""A hub's folder, on a disk and in an object store: whoever reads it, and whatever was damaged in it."""

from __future__ import annotations

import os
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
from millrace.streams.hub.delivery import Deliver, Write
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


def begun(path, storage=DISKS) -> Folder:
    folder = Folder(path, storage)
    folder.begin(JOIN)
    return folder


@pytest.mark.parametrize("left", ["", '{"is": "Ch'])
def test_a_damaged_change_is_none(tmp_path, left):
    """A power failure left it so; the hub goes on without it, and so do its cells."""
    folder = begun(tmp_path)
    folder.write(came(1))
    folder.write(came(2))
    (tmp_path / "changes" / "00000002.json").write_text(left)
    folder = begun(tmp_path)
    assert folder.next() == 3
    folder.write(came(3))
    assert [each.name for each in folder.queries()] == ["q1", "q3"]
    folder.note_made(3)
    (tmp_path / "made.json").write_text(left)
    assert [each.state for each in folder.queries()] == ["waiting"] * 2
    folder.note_made(3)
    assert [each.state for each in begun(tmp_path).queries()] == ["running"] * 2


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
    folder.note_made(1)
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
            folder.note_made(number)
            states = {each: "running" for each, state in states.items() if state != "leaving"}
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
    """The results of a micro-batch, without Spark."""

    schema = None

    def __init__(self, *batches):
        self.batches = batches

    def mapInArrow(self, function, schema):  # Spark's name
        return Rows(*function(iter(self.batches)))

    def toArrow(self):
        return pa.Table.from_batches(self.batches, ENVELOPE)


def test_a_query_whose_sink_fails_can_leave(tmp_path, caplog):
    """Its last rows are lost, and the others go on; while it stands, its sink ends the hub."""
    (tmp_path / "file").touch()
    folder = begun(tmp_path / "hub")
    folder.write(came(1, sink=f"{tmp_path}/file/out"))
    folder.write(came(2))
    folder.write(came(3, sink=f"{tmp_path}/out"))
    block = pa.record_batch({"n": pa.array([7])}).serialize().to_pybytes()
    rows = Rows(pa.RecordBatch.from_pylist([{"query": n, "block": block} for n in (1, 2, 3)], ENVELOPE))
    given = []

    def sink(table, batch):
        given.append(table.to_pylist())
        raise ValueError("the sink is full")

    deliver = Deliver(folder, {2: sink})
    with pytest.raises(InputError, match=r"cannot write .*file"):
        deliver(rows, 0)
    folder.write(Change(4, (2, 3)))
    with pytest.raises(ValueError, match=r"^the sink is full$"):
        deliver(rows, 0)
    folder.write(Change(5, (3,)))
    deliver(rows, 0)
    assert given == [[{"n": 7}]] * 2 and pq.read_table(tmp_path / "out")["n"].to_pylist() == [7]
    assert [record.args for record in caplog.records] == [("q1",), ("q1",), ("q2",)]


def test_an_object_store_has_all_of_it():
    """The queries, and the files of their rows, which are there whole or not at all."""
    with Server() as server:
        server.files.create_dir("shop")
        storage = StorageOptions(server.options)
        folder = begun("s3://shop/hubs/one", storage)
        folder.write(came(1, sink="s3://shop/out"))
        folder.write(Change(folder.next()))
        folder.note_made(1)
        query = replace(came(1, sink="s3://shop/out").query, state="leaving")
        assert folder.queries() == begun("s3://shop/hubs/one", storage).queries() == [query]
        files = {1: query}

        def rows(*numbers):
            block = pa.record_batch({"n": pa.array(numbers, pa.int64())}).serialize().to_pybytes()
            return pa.RecordBatch.from_pylist([{"query": 1, "block": block}, {"query": 2}], ENVELOPE)

        def cut():
            yield rows(4)
            raise RuntimeError

        others = list(Write(files, storage, 7)(iter([rows(1, 2), rows(3)])))
        assert [each.column("query").to_pylist() for each in others] == [[2], [2]]
        with pytest.raises(RuntimeError):
            list(Write(files, storage, 8)(cut()))
        table = pq.read_table("shop/out", filesystem=server.files)
        assert table["n"].to_pylist() == [1, 2, 3]
        with pytest.raises(InputError, match=r"cannot write s3://none/hub.*no bucket 'none'"):
            begun("s3://none/hub", storage)
    with pytest.raises(InputError, match=r"^wasb:.* is where only Spark can write"):
        locate_writable("wasb://c/out", storage)
