"""A cell's results over all micro-batches are the batch answer, whatever fails and whoever works on it."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from millrace.errors import StateError
from millrace.streams import cell as cells, log as logs
from tests.streams.cluster import LOST, SECOND, Cluster, answer, join_of, rows_of

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


def play(given_events, tries=(), changes=None):
    """Run all micro-batches, with failures and restarts; the watermark is the latest time minus the delay."""
    batches, whole = cut(given_events)
    cluster, latest = Cluster(join_of(NAMES, WINDOW), WINDOW), 0
    for place, batch in enumerate(batches):
        if changes and place in changes:
            cluster.restart(architecture=changes[place])
        process, fail = tries[place % len(tries)] if tries else (0, None)
        if fail is not None:
            # Even if the source gave other rows in that attempt, nothing of it stays.
            cluster.try_batch({**batch, "b": [*batch["b"], (0, latest, 9999)]}, 1 - process, fail)
        latest = max([latest, *(row[1] for rows in batch.values() for row in rows)])
        cluster.batch(batch, process, watermark=latest - DELAY)
    got = sorted(tuple(each[n] for n in NAMES) for each in cluster.results)
    return cluster, got, answer(whole, NAMES, WINDOW)


@settings(max_examples=150, deadline=None)
@given(events, attempts, restarts)
def test_results_are_the_batch_answer(given_events, tries, changes):
    """Failed attempts, workers that are behind, restarts with another architecture: each result once."""
    _, got, want = play(given_events, tries, changes)
    assert got == want


STEADY = [(NAMES[i % 3], i % 2, i % (DELAY + 1), i % 2 == 0) for i in range(160)]


def test_state_is_bounded_by_the_windows():
    """What no tuple to come can meet is neither in the log nor in memory, and silent cells are woken."""
    cluster, got, want = play(STEADY, [(0, None), (1, None)])
    assert got == want and len(want) > 20
    held = [each["held"] for each in cluster.rows]
    assert max(held) <= 3 * (WINDOW * 2 + DELAY + 4)
    assert max(held[-20:]) <= max(held[10:40]) + 4
    assert sum(len(blocks) for blocks in cluster.state.data["log"].values()) <= 30
    (timer,) = cluster.state.timers[0]
    cluster.batch({}, watermark=None)
    cluster.watermark = timer + 60_000
    cluster.batch({})
    assert cluster.rows[-1]["held"] == 0 and not any(cluster.state.data["log"].values())
    assert not cluster.state.timers[0]


def test_a_worker_that_is_behind_reads_what_it_missed():
    """It does not read what it has; after a restart everything is read once."""
    cluster, _, _ = play(STEADY[:40], [(0, None), (1, None)])
    restored = [each["restored"] for each in cluster.rows]
    arrived = [each["rows"] for each in cluster.rows]
    assert all(restored[i] <= arrived[i - 1] for i in range(2, len(restored)))
    before = cluster.rows[-1]["held"]
    cluster.restart()
    cluster.batch({})
    assert cluster.rows[-1]["restored"] == before > 0


def test_small_blocks_become_one(monkeypatch):
    """Merging loses nothing and doubles nothing, also for a worker that has some of the parts."""
    monkeypatch.setattr(logs, "_MERGED", 3)
    monkeypatch.setattr(logs, "_SHARES", 1)
    merged = []
    merge = logs.Log.merge
    monkeypatch.setattr(logs.Log, "merge", lambda *args: merged.append(merge(*args)) or merged[-1])
    _, got, want = play(STEADY, [(0, None), (0, None), (1, None), (1, 3)], {9: "stairs", 40: "stems"})
    assert got == want and len(merged) > 5 and max(len(block.parts) for block in merged) >= 3


@pytest.mark.parametrize("rule", ["evicts too early", "trusts a failed attempt", "forgets what it missed"])
def test_broken_rules_are_caught(monkeypatch, rule):
    """Each rule is needed."""
    tries = [(0, None), (1, LOST), (0, 9), (1, None)]
    _, got, want = play(STEADY, tries)
    assert got == want
    if rule == "evicts too early":
        right = cells.Cell._expiry
        monkeypatch.setattr(cells.Cell, "_expiry", lambda self, part: right(self, part) - 9 * SECOND)
    elif rule == "trusts a failed attempt":
        monkeypatch.setattr(cells.Cell, "follows", lambda self, head: True)
    else:
        monkeypatch.setattr(cells.Cell, "_take_in", lambda self, missed: None)
    _, got, want = play(STEADY, tries)
    assert got != want


def test_late_rows_are_left_out_and_counted():
    """A row behind the watermark meets nothing, although what it would meet is still here."""
    late = ("a", 0, 25, True)
    cluster, got, want = play([*((n, k, 0, e) for n, k, _, e in STEADY[:31]), late, *STEADY[31:60]])
    assert sum(each["late"] for each in cluster.rows) == 1
    assert set(got) < set(want) and len(set(got)) == len(got) and all(31 not in each for each in got)


TABLE = [(0, 1, 7000), (1, 2, 7001), (1, 3, 7002)]


@pytest.mark.parametrize("architecture", ["stems", "stairs", "joins"])
def test_tables_and_cycles(architecture):
    """A table is read when a cell begins; a cyclic join has the same results."""
    names = "abd"
    table = pa.Table.from_batches([rows_of(TABLE, WINDOW)])
    cluster = Cluster(join_of(names, WINDOW, cyclic=True, tables={"d": table}), WINDOW)
    cluster.restart(architecture=architecture)
    batches, whole = cut(
        [("ab"[i % 2], i // 2 % 2, 0, e) for i, (_, _, _, e) in enumerate(STEADY[:60])], "ab"
    )
    for place, batch in enumerate(batches):
        if place == 12:
            cluster.restart()
        cluster.batch(batch)
    keys = {row[2]: row[0] for rows in whole.values() for row in rows}
    pairs = answer(whole, "ab", WINDOW)
    want = sorted((a, b, number) for a, b in pairs for key, _, number in TABLE if key == keys[a])
    assert sorted(tuple(each[n] for n in names) for each in cluster.results) == want
    assert len(want) > 20


def test_another_join_is_refused_and_another_version():
    """Spark would find no state for other cells, and go on as if nothing had been."""
    cluster = Cluster(join_of(NAMES, WINDOW), WINDOW)
    cluster.batch({"a": [(1, 1, 1)]})
    cluster.task = replace(cluster.task, cells=2)
    with pytest.raises(StateError, match=r"of another join.*begin with an empty checkpoint folder"):
        cluster.batch({"a": [(1, 2, 2)]})
    cluster.task = join_of(NAMES, WINDOW + 1)  # how long tuples are kept may change
    cluster.batch({"a": [(1, 2, 2)]})
    for cell, (text,) in cluster.state.data["head"].items():
        cluster.state.data["head"][cell] = (text.replace('"format":1', '"format":7'),)
    with pytest.raises(StateError, match=r"has format 7.*reads format 1"):
        cluster.batch({"a": [(1, 3, 3)]})
