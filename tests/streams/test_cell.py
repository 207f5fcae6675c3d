"""A cell's results over all micro-batches are the batch answer, whatever fails and whoever works on it."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

from millrace.errors import ReadError, SetupError, StateError
from millrace.parquet.discovery import open_table
from millrace.spark.block import ParquetInput
from millrace.spark.hypercube import Axis
from millrace.spark.task_inputs import WatchedTable
from millrace.streams import cell as cells, preserving
from millrace.streams.block_log import Head
from millrace.streams.cell import Cell
from millrace.streams.retention import retention
from millrace.streams.task import ContinuousJoin, Stream
from tests.gate import examples
from tests.streams import cluster as cluster_module
from tests.streams.cluster import LOST, SCHEMA, SECOND, Cluster, answer, join_of, rows_of

NAMES = "abc"
WINDOW, DELAY = 5, 4

events = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.integers(0, 2),  # key
        st.integers(0, DELAY),  # how far out of order
        st.booleans(),  # whether a micro-batch ends behind it
    ),
    min_size=1,
    max_size=60,
)
attempts = st.lists(
    st.tuples(st.integers(0, 1), st.one_of(st.none(), st.integers(0, 12), st.just(LOST))), max_size=40
)
options = [
    *({"architecture": name} for name in ("stems", "stairs", "joins")),
    {"policy": "lottery"},
    {"memory_budget": 1},
]
restarts = st.dictionaries(st.integers(0, 20), st.sampled_from(options), max_size=2)


def cut(given_events, names=NAMES):
    """Micro-batches of events whose times advance by one each, but for the disorder; and all events."""
    batches, whole = [{n: [] for n in names}], {n: [] for n in names}
    for number, (name, key, disorder, ends) in enumerate(given_events):
        row = (key, max(1, number + 1 - disorder), number)
        batches[-1][name].append(row)
        whole[name].append(row)
        if ends:
            batches.append({n: [] for n in names})
    return batches, whole


TABLE = [(0, 1, 7000), (1, 2, 7001), (1, 3, 7002)]
"""Rows of ``d``, by key."""


def play(given_events, tries=(), changes=None, tables=(), cyclic=False, anew=256):
    """Run all micro-batches, with failures and restarts; the watermark is the latest time minus the delay."""
    names = [*NAMES, *tables]
    held = {name: pa.Table.from_batches([rows_of(TABLE, WINDOW)]) for name in tables}
    batches, whole = cut(given_events)
    cluster = Cluster(join_of(names, WINDOW, cyclic=cyclic, tables=held), WINDOW, anew)
    for place, batch in enumerate(batches):
        if changes and place in changes:
            cluster.restart(**changes[place])
        before = len(cluster.results)
        cluster.play(batch, DELAY, *(tries[place % len(tries)] if tries else ()))
        came = {number for rows in batch.values() for _, _, number in rows}
        assert all(came & {*each.values()} for each in cluster.results[before:])  # with their last row
    got = sorted(tuple(each[n] for n in names) for each in cluster.results)
    keys = {number: key for rows in whole.values() for key, _, number in rows}
    want = answer(whole, NAMES, WINDOW)
    for _ in tables:
        want = [(*found, number) for found in want for key, _, number in TABLE if key == keys[found[0]]]
    return cluster, got, sorted(want)


@pytest.mark.law
@settings(max_examples=examples(40, 400))
@given(
    events, attempts, restarts, st.sampled_from(["", "d"]), st.booleans(), st.sampled_from([2, 3, 256]),
    st.sampled_from([1500, 1 << 22]), st.sampled_from([9, 1 << 30]),
)  # fmt: skip
def test_results_are_the_batch_answer(given_events, tries, changes, tables, cyclic, anew, large, most_rows):
    """Failed attempts, workers that are behind, restarts: each once.

    With a table or without, which is read when a cell begins; in cyclic joins; while small blocks of the log
    become large ones; and where eddies soon run out of row numbers, and are made anew.
    """
    with patch.multiple(cells, _LARGE=large, _MOST_ROWS=most_rows):
        _, got, want = play(given_events, tries, changes, tables, cyclic, anew)
    assert got == want


STEADY = [(NAMES[i % 3], i % 2, i % (DELAY + 1), i % 2 == 0) for i in range(160)]


def test_state_is_bounded_by_the_windows():
    """What no tuple to come can meet is neither in the log nor in memory, and silent cells are woken."""
    cluster, got, want = play(STEADY, [(0, None), (1, None)])
    assert got == want and len(want) > 20
    held = [each["held"] for each in cluster.rows]
    assert max(held) <= 3 * (WINDOW * 2 + DELAY + 4)
    assert max(held[-20:]) <= max(held[10:40]) + 4
    assert len(cluster.state.blocks()) <= 30
    (timer,) = cluster.state.timers[0]
    cluster.batch({}, watermark=None)
    cluster.watermark = timer + 60_000
    cluster.batch({})
    assert cluster.rows[-1]["held"] == 0 and not cluster.state.blocks()
    assert len(cluster.state.timers[0]) == 1


def test_row_numbers_are_given_back(monkeypatch):
    """An eddy that has seen many tuples is made anew, so a cell goes on for ever."""
    monkeypatch.setattr(cells, "_MOST_ROWS", 20)
    cluster, got, want = play(STEADY)
    (cell,) = cluster.processes[0].values()
    assert got == want and max(cell.run.rows(name) for name in NAMES) < 40


def test_a_row_of_the_far_future_holds_nothing_back(monkeypatch):
    """What came after it and has expired leaves memory all the same."""
    monkeypatch.setattr(cells, "_STUCK", 256)
    cluster = Cluster(join_of(NAMES, 0), 0)
    numbers = cluster.play_future()
    assert sorted(tuple(each[n] for n in NAMES) for each in cluster.results) == [(n,) * 3 for n in numbers]
    assert max(each["held"] for each in cluster.rows) < 800
    assert sum(each["rebuilt"] for each in cluster.rows) < 10


def test_a_worker_that_is_behind_reads_what_it_missed():
    """It does not read what it has; after a restart everything is read once."""
    cluster, _, _ = play(STEADY[:40], [(0, None), (1, None)])
    restored = [each["restored"] for each in cluster.rows]
    arrived = [each["rows"] for each in cluster.rows]
    assert all(restored[i] <= arrived[i - 1] for i in range(2, len(restored)))
    before = cluster.rows[-1]["held"]
    cluster.restart()
    cluster.batch({"a": [(1, 41, 999)]})
    assert cluster.rows[-1]["restored"] == before > 0


def test_a_cell_above_the_budget_is_kept_and_others_go():
    """It is not made anew with each micro-batch; cells that were used before it make room."""
    cluster = Cluster(join_of(NAMES, WINDOW), WINDOW)
    cluster.restart(memory_budget=1)
    cluster.processes[0]["other", "plan", 0] = Cell(cluster.task)
    for batch in cut(STEADY[:40])[0]:
        cluster.batch(batch)
    assert [each["rebuilt"] for each in cluster.rows] == [0] * len(cluster.rows)
    assert [query for query, _, _ in cluster.processes[0]] == [""]


def test_cells_of_earlier_starts_of_a_query_go(monkeypatch):
    """Those of other queries stay."""
    monkeypatch.setattr(cells, "task_property", lambda name: "one")
    cluster = Cluster(join_of(NAMES, WINDOW), WINDOW)
    kept = cluster.processes[0]
    kept.update({("one", cluster.task.name, 3): Cell(cluster.task), ("two", "plan", 0): Cell(cluster.task)})
    cluster.batch({"a": [(0, 1, 1)]})
    assert len(kept) == 3
    cluster.restart()
    cluster.processes[0] = kept
    cluster.batch({"b": [(0, 1, 2)], "c": [(0, 1, 3)]})
    assert [*kept] == [("two", "plan", 0), ("one", cluster.task.name, 0)]
    assert len(cluster.results) == 1


def test_what_was_learned_survives_a_restart(monkeypatch):
    """The eddies of a new process begin with it."""
    cluster, _, _ = play(STEADY[:40], [(0, None)])
    old = next(iter(cluster.processes[0].values())).run
    begun = beginnings(monkeypatch, [old])
    cluster.restart()
    cluster.batch({"a": [(0, 41, 999)]})
    assert recent_tuples(old, [old]) and begun == [recent_tuples(old, [old])]


def beginnings(monkeypatch, olds):
    """Return a list that gets, for each run to come, the tuples that its decisions begin with."""
    begun, run = [], ContinuousJoin.run

    def noted(*given):
        made = run(*given)
        begun.append(recent_tuples(made, olds))
        return made

    monkeypatch.setattr(ContinuousJoin, "run", noted)
    return begun


def recent_tuples(run, olds):
    """Return the tuples that decisions of a run look back on, by account; of accounts that old runs have."""
    keys = [key for old in olds for key, _ in old._statistics.accounts.items()]
    recent = {repr(key): run._statistics.accounts.get(key).recent_in for key in keys}
    return {key: tuples for key, tuples in recent.items() if tuples}


def test_blocks_that_end_at_the_same_time_stay_apart(monkeypatch):
    """A block that is merged while another of that time is new does not take its place."""
    monkeypatch.setattr(cells, "_LARGE", 1000)
    cluster = Cluster(join_of("ab", WINDOW), WINDOW, anew=3)
    for number in range(28):
        cluster.batch({"a": [(0, 1, number)]})
    cluster.restart()
    cluster.batch({"b": [(0, 1, 99)]})
    assert sorted(each["a"] for each in cluster.results) == list(range(28))


FAILURES = [(0, None), (1, LOST), (0, 9), (1, None)]


@pytest.fixture(scope="module")
def unbroken():
    """With all rules results are right."""
    _, got, want = play(STEADY[:72], FAILURES, anew=3)
    assert got == want


expires, follow = Stream.expires, Head.follow
BROKEN = {
    "evicts too early": (Stream, "expires", lambda self, newest: expires(self, newest) - 9 * SECOND),
    "trusts a failed attempt": (Cell, "follows", lambda self, head: True),
    "forgets what it missed": (Cell, "_restore", lambda self, arrived: [0 for _ in arrived]),
    "keeps old names of blocks": (Head, "follow", lambda self, token, **_: follow(self, token)),
}


@pytest.mark.broken_rule
@pytest.mark.parametrize("rule", BROKEN)
def test_broken_rules_are_caught(unbroken, monkeypatch, rule):
    """Each rule is needed."""
    monkeypatch.setattr(*BROKEN[rule])
    _, got, want = play(STEADY[:72], FAILURES, anew=3)
    assert got != want


def play_left(given_events, tries=(), changes=None, anew=256):
    """Run ``a LEFT JOIN b``; return what came in each micro-batch, and what should have."""
    batches, _ = cut(given_events, "ab")
    batches += [{"a": [(9, 1000, -1)], "b": []}, {"a": [], "b": []}]  # the watermark passes all else
    cluster = Cluster(join_of("ab", WINDOW, preserved="a"), WINDOW, anew)
    got, watermarks = [], []
    for place, batch in enumerate(batches):
        if changes and place in changes:
            cluster.restart(**changes[place])
        before = len(cluster.results)
        watermarks.append(cluster.watermark * 1000)
        cluster.play(batch, DELAY, *(tries[place % len(tries)] if tries else ()))
        got.append({(each["a"], each["b"]) for each in cluster.results[before:]})
        assert len(got[-1]) == len(cluster.results) - before
    want, came = [set() for _ in batches], {n: [] for n in "ab"}
    for place, batch in enumerate(batches):
        for name, rows in batch.items():
            came[name] += [(place, *row) for row in rows]
    for place, key, time, number in came["a"]:
        ends = time + WINDOW
        matches = [b for b in came["b"] if key is not None and b[1] == key and time <= b[2] <= ends]
        for match in matches:
            want[max(place, match[0])].add((number, match[3]))
        due = [n for n, passed in enumerate(watermarks) if n >= place and passed > ends * SECOND]
        if due and not matches:
            want[due[0]].add((number, None))
    return got, want


@pytest.mark.law
@settings(max_examples=examples(40, 400))
@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"), st.sampled_from([0, 1, None]), st.integers(0, DELAY), st.booleans()
        ),
        min_size=1,
        max_size=60,
    ),
    attempts, restarts, st.sampled_from([2, 3, 256]), st.sampled_from([1500, 1 << 22]),
    st.sampled_from([9, 1 << 30]),
)  # fmt: skip
def test_a_left_join_adds_nulls_once_and_when_no_match_may_come(
    given_events, tries, changes, anew, large, most_rows
):
    """Failed attempts, workers that are behind, restarts, null keys; cells that the watermark wakes."""
    with patch.multiple(cells, _LARGE=large, _MOST_ROWS=most_rows):
        got, want = play_left(given_events, tries, changes, anew)
    assert got == want


LEFT = [
    ("aab"[i % 3], (0, 1, None, 2)[i * i % 11 % 4], (0, 0, DELAY)[i % 3], i % 7 in (0, 2, 3))
    for i in range(120)
]


give_up = preserving.PreservingCell.give_up
BROKEN_LEFT = {
    "nulls come early": (
        preserving.PreservingCell,
        "give_up",
        lambda self, watermark: give_up(self, watermark and watermark + 3 * SECOND),
    ),
    "matches are forgotten": (preserving.PreservingCell, "_restore", Cell._restore),
    "matched rows leave the log": (cluster_module, "retention", lambda s, b, _: retention(s, b)),
    "nulls come again": (preserving.PreservingCell, "catch_up", Cell.catch_up),
}


@pytest.mark.broken_rule
@pytest.mark.parametrize("rule", BROKEN_LEFT)
def test_broken_rules_of_left_joins_are_caught(monkeypatch, rule):
    """Each rule is needed."""
    restarts = {place: {} for place in range(3, 60, 3)}
    got, want = play_left(LEFT, FAILURES, restarts, anew=3)
    assert got == want and sum(None in row for rows in want for row in rows) > 20
    monkeypatch.setattr(*BROKEN_LEFT[rule])
    got, want = play_left(LEFT, FAILURES, restarts, anew=3)
    assert got != want


def test_rows_with_a_null_key_that_wait_for_no_match_leave_memory():
    """Although one of the far future, which came before them, waits on."""
    cluster = Cluster(join_of("ab", 0, preserved="a"), 0)
    cluster.batch({"a": [(None, 10**9, 0)]})
    for second in range(1, 30):
        cluster.batch({"a": [(None, second, second)] * 40}, watermark=second)
    assert sum(each["b"] is None for each in cluster.results) == len(cluster.results) == 28 * 40 - 40
    (cell,) = cluster.processes[0].values()
    assert cell.nbytes - cell.run.nbytes < 10_000


def test_a_row_at_the_end_of_time_waits_for_its_match():
    """Spark's timestamps end where 64 bits of microseconds do, and its retention goes beyond."""
    last = ((1 << 63) - 1) // SECOND
    cluster = Cluster(join_of("ab", WINDOW, preserved="a"), 0)
    for arrived in ({"a": [(0, last, 1)]}, {"b": [(0, 3, 2)]}, {"b": [(0, last, 3)]}):
        cluster.batch(arrived, watermark=1)
    assert [(each["a"], each["b"]) for each in cluster.results] == [(1, 3)]


def test_what_is_late_is_so_in_a_cell_that_was_silent():
    """Late is what the micro-batch before had the watermark of, or earlier, whoever had tuples in it.

    It meets nothing, although what it would meet is still here.
    """
    cluster = Cluster(join_of("ab", 100), 100)
    cluster.batch({"a": [(0, 5, 1)]}, watermark=20)
    cluster.batch({}, watermark=30)  # other cells had tuples, and nothing expires in this one
    cluster.batch({"b": [(0, 20, 2), (0, 21, 3)]}, watermark=30)
    cluster.batch({"b": [(0, 25, 7)]})  # all of it is late
    cluster.batch({"b": [(0, 30, 4), (0, 31, 5), (0, 40, 6)]})
    assert [(each["a"], each["b"]) for each in cluster.results] == [(1, 3), (1, 5), (1, 6)]
    assert sum(each["late"] for each in cluster.rows) == 3


def test_a_table_that_is_written_anew_is_read_anew(tmp_path):
    """At the next micro-batch; a cell that has the old one keeps it while it is gone or half written."""

    def put(*rows, name="d.parquet"):
        pq.write_table(pa.Table.from_batches([rows_of(rows, WINDOW)]), tmp_path / name)

    put((1, 1, 70))
    source = ParquetInput(open_table(tmp_path), tuple(SCHEMA.names))
    task = join_of("abd", WINDOW, tables={"d": pa.Table.from_batches([rows_of(TABLE, WINDOW)])})
    cluster = Cluster(replace(task, tables={"d": WatchedTable.beside_stream("d", source, SCHEMA)}), WINDOW)
    cluster.batch({"a": [(1, 1, 1)], "b": [(1, 1, 2)]})
    put((1, 1, 71), (1, 1, 72))
    (tmp_path / "_temporary").mkdir()  # Spark writes there first
    cluster.batch({"b": [(1, 2, 3)]})
    (tmp_path / "_temporary").rmdir()
    cluster.batch({"b": [(1, 2, 4)]})
    (tmp_path / "d.parquet").unlink()
    cluster.batch({"b": [(1, 2, 5)]})
    put((1, 1, 73), name="other.parquet")
    cluster.batch({"b": [(1, 2, 6)]})
    found = sorted((each["b"], each["d"]) for each in cluster.results)
    assert found == [(2, 70), (3, 70), (4, 71), (4, 72), (5, 71), (5, 72), (6, 73)]
    assert [each["rebuilt"] for each in cluster.rows] == [0, 0, 1, 0, 1]
    (tmp_path / "_temporary").mkdir()
    cluster.restart()
    with pytest.raises(ReadError, match="it is being written"):
        cluster.batch({"b": [(1, 2, 7)]})
    (tmp_path / "_temporary").rmdir()
    cluster.batch({"b": [(1, 2, 7)]})  # the task that Spark runs again
    assert [(each["b"], each["d"]) for each in cluster.results[len(found) :]] == [(7, 73)]
    pq.write_table(pa.table({"k": ["text"]}), tmp_path / "other.parquet")
    cluster.restart()
    with pytest.raises(ReadError, match=r"'d', which .*column 'end' is missing.*start the query again from"):
        cluster.batch({"b": [(1, 2, 8)]})
    put((1, 1, 74))
    with pytest.raises(SetupError, match=r"cannot read anew: .*different schemas"):
        WatchedTable.beside_stream("d", source, SCHEMA)
    put((1, 1, 75), name="other.parquet")
    with pytest.raises(SetupError, match=r"'d' has files that .* alone does not name.*the path of a file"):
        WatchedTable.beside_stream("d", source, SCHEMA)


def test_another_join_is_refused_and_another_version():
    """Spark would find no state for other cells, and go on as if nothing had been."""
    cluster = Cluster(join_of(NAMES, WINDOW), WINDOW)
    cluster.batch({"a": [(1, 1, 1)]})
    cluster.task = replace(cluster.task, cells=2)
    with pytest.raises(StateError, match=r"of another join.*begin with an empty checkpoint folder"):
        cluster.batch({"a": [(1, 2, 2)]})
    cluster.task = join_of(NAMES, WINDOW + 1)  # how long tuples are kept may change
    cluster.batch({"a": [(1, 2, 2)]})
    for state in cluster.state.data["log"].values():
        text, nothing = state["head",]
        state["head",] = (text.replace('"format":6', '"format":5'), nothing)
    with pytest.raises(StateError, match=r"has format 5.*reads format 6: go on with the version that wrote"):
        cluster.batch({"a": [(1, 3, 3)]})


def test_fingerprints_are_of_data():
    """Of names and types, also inner ones, and of how tuples are dealt."""
    task = join_of("ab", WINDOW)
    (a, b), inner = task.join.relations, pa.struct([("x", pa.int64()), ("y", pa.list_(pa.decimal128(9, 2)))])

    def with_type(kind):
        at = a.schema.get_field_index("n")
        return replace(
            task,
            join=replace(task.join, relations=(replace(a, schema=a.schema.set(at, pa.field("n", kind))), b)),
        )

    kinds = [pa.int32(), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.decimal128(9, 2), inner]
    kinds += [pa.struct([("x", pa.int64()), ("z", inner.field(1).type)]), pa.list_(pa.decimal128(9, 3))]
    axis = Axis(2, pa.int64(), ((0, "k"), (1, "k")))
    others = [*map(with_type, kinds), replace(task, cells=2), replace(task, axes=(axis,))]
    others += [replace(task, axes=(replace(axis, share=3),)), replace(task, preserved="a")]
    assert len({each.fingerprint for each in (task, *others)}) == len(others) + 1
    named = pa.list_(pa.field("element", pa.int64(), nullable=False))
    assert with_type(named).fingerprint == with_type(pa.list_(pa.field("element", pa.int64()))).fingerprint
