"""A cell's results over all micro-batches are the batch answer, whatever fails and whoever works on it."""

from __future__ import annotations

import base64
import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

from millrace.engine.tuples import store
from millrace.errors import ExecutionError, ReadError, StateError
from millrace.parquet.discovery import open_table
from millrace.parquet.tables import splits
from millrace.spark.hypercube import Axis
from millrace.spark.task_inputs import Scan
from millrace.streams import block_log as logs, cell as cells
from millrace.streams.cell import Cell
from millrace.streams.task import ContinuousJoin
from tests.gate import examples
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
restarts = st.dictionaries(st.integers(0, 20), st.sampled_from(["stems", "stairs", "joins"]), max_size=2)


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


def play(given_events, tries=(), changes=None, same=None, tables=(), cyclic=False):
    """Run all micro-batches, with failures and restarts; the watermark is the latest time minus the delay."""
    leads, names = same or {}, [*NAMES, *tables]
    held = {name: pa.Table.from_batches([rows_of(TABLE, WINDOW)]) for name in tables}
    batches, whole = cut([(leads.get(name, name), *rest) for name, *rest in given_events])
    whole |= {name: whole[lead] for name, lead in leads.items()}
    cluster = Cluster(join_of(names, WINDOW, cyclic=cyclic, tables=held, same=same), WINDOW)
    for place, batch in enumerate(batches):
        if changes and place in changes:
            cluster.restart(architecture=changes[place])
        cluster.play(batch, DELAY, *(tries[place % len(tries)] if tries else ()))
    got = sorted(tuple(each[n] for n in names) for each in cluster.results)
    keys = {number: key for rows in whole.values() for key, _, number in rows}
    want = answer(whole, NAMES, WINDOW)
    for _ in tables:
        want = [(*found, number) for found in want for key, _, number in TABLE if key == keys[found[0]]]
    return cluster, got, sorted(want)


roles = st.sampled_from([None, None, {"b": "a"}, {"c": "a"}, {"b": "a", "c": "a"}])


@pytest.mark.law
@settings(max_examples=examples(40, 400))
@given(events, attempts, restarts, roles, st.sampled_from(["", "d"]), st.booleans(), st.booleans())
def test_results_are_the_batch_answer(given_events, tries, changes, same, tables, cyclic, merges):
    """Failed attempts, workers that are behind, restarts: each once.

    Streams in several roles too, which come once; with a table or without, which is read when a cell begins;
    in cyclic joins; and while small blocks of the log become large ones.
    """
    often = patch.multiple(logs, _MERGED=3, _SHARES=1) if merges else nullcontext()
    with often:
        _, got, want = play(given_events, tries, changes, same, tables, cyclic)
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
    monkeypatch.setattr(cells, "query_id", lambda: "one")
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
    old = next(iter(cluster.processes[0].values()))._run
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
    monkeypatch.setattr(logs, "_MERGED", 3)
    cluster = Cluster(join_of("ab", WINDOW), WINDOW)
    for number in range(28):
        cluster.batch({"a": [(0, 1, number)]})
    cluster.restart()
    cluster.batch({"b": [(0, 1, 99)]})
    assert sorted(each["a"] for each in cluster.results) == list(range(28))


FAILURES = [(0, None), (1, LOST), (0, 9), (1, None)]


@pytest.fixture(scope="module")
def unbroken():
    """With all rules results are right."""
    _, got, want = play(STEADY[:72], FAILURES)
    assert got == want


@pytest.mark.broken_rule
@pytest.mark.parametrize("rule", ["evicts too early", "trusts a failed attempt", "forgets what it missed"])
def test_broken_rules_are_caught(unbroken, monkeypatch, rule):
    """Each rule is needed."""
    if rule == "evicts too early":
        right = cells.Cell._expiry
        monkeypatch.setattr(cells.Cell, "_expiry", lambda self, part: right(self, part) - 9 * SECOND)
    elif rule == "trusts a failed attempt":
        monkeypatch.setattr(cells.Cell, "follows", lambda self, head: True)
    else:
        monkeypatch.setattr(cells.Cell, "_take_in", lambda self, missed: None)
    _, got, want = play(STEADY[:72], FAILURES)
    assert got != want


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


def test_a_table_that_was_written_again_stops_the_query(tmp_path):
    """A cell that is made anew would join other rows; a new start goes on with the table as it is."""
    path = tmp_path / "d.parquet"

    def scan(*rows):
        pq.write_table(pa.Table.from_batches([rows_of(rows, WINDOW)]), path)
        parts = (splits(open_table(path), (), tuple(SCHEMA.names)),)
        return {"d": Scan.of(SCHEMA, (), parts)}

    task = join_of("abd", WINDOW, tables={"d": pa.Table.from_batches([rows_of(TABLE, WINDOW)])})
    cluster = Cluster(replace(task, tables=scan((1, 1, 70))), WINDOW)
    cluster.batch({"a": [(1, 1, 1)]})
    other = scan((1, 1, 71), (1, 1, 72))
    cluster.restart()
    with pytest.raises(ReadError, match=r"d\.parquet.*start it again from its checkpoint"):
        cluster.batch({"b": [(1, 2, 2)]})
    cluster.task = replace(cluster.task, tables=other)
    cluster.batch({"b": [(1, 2, 2)]})
    assert sorted(each["d"] for each in cluster.results) == [71, 72]


def test_errors_that_are_not_of_reading_stay_as_they_are(monkeypatch):
    """A table that is too large is no file that was written again."""
    monkeypatch.setattr(store, "MAX_ROWS", 2)
    task = join_of("abd", WINDOW, tables={"d": pa.Table.from_batches([rows_of(TABLE, WINDOW)])})
    with pytest.raises(ExecutionError, match=r"more than 2 rows.*smaller$"):
        task.run()


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
        state["head",] = (text.replace('"format":3', '"format":7'), nothing)
    with pytest.raises(StateError, match=r"has format 7.*reads formats 2 and 3"):
        cluster.batch({"a": [(1, 3, 3)]})


def test_a_checkpoint_of_format_2_is_gone_on_with():
    """One that was recorded; from then on its fingerprint is of data."""
    recorded = json.loads((Path(__file__).parent / "format_2.json").read_text())
    cluster = Cluster(join_of("ab", WINDOW), WINDOW)
    cluster.state.data["log"] = {
        int(cell): {(name,): (text, base64.b64decode(block)) for name, (text, block) in own.items()}
        for cell, own in recorded["log"].items()
    }
    cluster.state.timers = {int(cell): set(timers) for cell, timers in recorded["timers"].items()}
    other = Cluster(replace(join_of("ab", WINDOW), cells=2), WINDOW)
    other.state = cluster.state.copy()
    with pytest.raises(StateError, match=r"of another join"):
        other.batch({"b": [(0, 10, 4)]})
    cluster.watermark = 6000
    cluster.batch({"b": [(0, 10, 4), (1, 11, 5)]}, watermark=7)
    assert [(each["a"], each["b"]) for each in cluster.results] == [(1, 4), (2, 5)]
    cluster.task = replace(cluster.task, dealt="another wording")
    cluster.batch({"b": [(1, 12, 6)]}, watermark=30)
    cluster.batch({})
    assert not cluster.state.blocks() and len(cluster.state.timers[0]) == 1


def test_fingerprints_are_of_data():
    """Of names and types, also inner ones, and of how tuples are dealt; not of words."""
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
    others.append(replace(task, axes=(replace(axis, share=3),)))
    assert len({each.fingerprint for each in (task, *others)}) == len(others) + 1
    assert replace(task, dealt="other words").fingerprint == task.fingerprint
    named = pa.list_(pa.field("element", pa.int64(), nullable=False))
    assert with_type(named).fingerprint == with_type(pa.list_(pa.field("element", pa.int64()))).fingerprint
