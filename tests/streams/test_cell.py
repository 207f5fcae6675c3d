"""A cell's results over all micro-batches are the batch answer, whatever fails and whoever works on it."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from millrace.errors import StateError
from millrace.streams import cell as cells, log as logs
from millrace.streams.mapped import MappedBlocks
from millrace.streams.task import ContinuousJoin
from tests.streams.cluster import LOST, SECOND, Cluster, answer, join_of, rows_of
from tests.streams.state import _Map

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


harms = st.lists(st.sampled_from(["", "lost", "cut", "flipped", "renamed"]), min_size=1, max_size=8)


def harm(folder, how):
    """Damage the files of a cell, or have those of an attempt stand for another's."""
    for number, path in enumerate(sorted(folder.glob("*"))):
        if how == "lost":
            path.unlink()
        elif how in ("cut", "flipped"):
            data, place = bytearray(path.read_bytes()), path.stat().st_size * (number % 4) // 4
            if how == "flipped" and data:
                data[place] ^= 1
            path.unlink()  # who has it mapped keeps what it has
            path.write_bytes(data if how == "flipped" else data[:place])
        elif how == "renamed":
            path.rename(path.with_name(f"{path.stem.split('-')[0]}-other.blocks"))


def play(given_events, tries=(), changes=None, folder=None, harmed=("",), same=None):
    """Run all micro-batches, with failures and restarts; the watermark is the latest time minus the delay."""
    leads = same or {}
    batches, whole = cut([(leads.get(name, name), *rest) for name, *rest in given_events])
    whole |= {name: whole[lead] for name, lead in leads.items()}
    cluster, latest = Cluster(join_of(NAMES, WINDOW, same=same), WINDOW, folder), 0
    for place, batch in enumerate(batches):
        if folder is not None:
            harm(folder, harmed[place % len(harmed)])
        if changes and place in changes:
            cluster.restart(architecture=changes[place])
        process, fail = tries[place % len(tries)] if tries else (0, None)
        if fail is not None:
            # Even if the source gave other rows in that attempt, nothing of it stays.
            other = leads.get("b", "b")
            cluster.try_batch({**batch, other: [*batch[other], (0, latest, 9999)]}, 1 - process, fail)
        latest = max([latest, *(row[1] for rows in batch.values() for row in rows)])
        cluster.batch(batch, process, watermark=latest - DELAY)
    got = sorted(tuple(each[n] for n in NAMES) for each in cluster.results)
    return cluster, got, answer(whole, NAMES, WINDOW)


roles = st.sampled_from([None, None, {"b": "a"}, {"c": "a"}, {"b": "a", "c": "a"}])


@settings(max_examples=150, deadline=None)
@given(events, attempts, restarts, harms, roles)
def test_results_are_the_batch_answer(given_events, tries, changes, harmed, same):
    """Failed attempts, workers that are behind, restarts, files that are damaged or gone: each once.

    Streams in several roles too, which come once.
    """
    with tempfile.TemporaryDirectory() as folder:
        _, got, want = play(given_events, tries, changes, Path(folder), harmed, same)
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


def test_what_was_learned_survives_a_restart(monkeypatch):
    """The eddies of a new process begin with it."""
    cluster, _, _ = play(STEADY[:40], [(0, None)])
    given, run = [], ContinuousJoin.run
    monkeypatch.setattr(ContinuousJoin, "run", lambda task, text: given.append(text) or run(task, text))
    cluster.restart()
    cluster.batch({})
    (lessons,) = given
    assert json.loads(lessons)


def test_what_a_process_missed_comes_from_files(tmp_path, monkeypatch):
    """Of the log only the list of its blocks is read, also after a restart; files go when their tuples do."""
    read = []
    get = _Map.getValue
    monkeypatch.setattr(_Map, "getValue", lambda self, key: read.append(key[0]) or get(self, key))
    cluster, got, want = play(STEADY[:80], [(0, None), (1, None), (0, 7)], {20: "stairs"}, tmp_path)
    assert got == want and set(read) <= {"head", "lessons"}
    batches = {batch for _, _, batch in cluster.state.blocks()}
    assert {int(path.name.split("-")[0]) for path in tmp_path.iterdir()} == batches
    read.clear()
    cluster, got, want = play(STEADY[:80], [(0, None), (1, None)])
    assert got == want and set(read) > {"head", "lessons"}


def test_small_blocks_become_one(monkeypatch):
    """Merging loses nothing and doubles nothing, also for a worker that has some of the parts."""
    monkeypatch.setattr(logs, "_MERGED", 3)
    monkeypatch.setattr(logs, "_SHARES", 1)
    merged = []
    merge = logs.Log.merge
    monkeypatch.setattr(logs.Log, "merge", lambda *args: merged.append(merge(*args)) or merged[-1])
    _, got, want = play(STEADY, [(0, None), (0, None), (1, None), (1, 3)], {9: "stairs", 40: "stems"})
    assert got == want and len(merged) > 5 and max(len(block.parts) for block in merged) >= 3


def test_blocks_that_end_at_the_same_time_stay_apart(monkeypatch):
    """A block that is merged while another of that time is new does not take its place."""
    monkeypatch.setattr(logs, "_MERGED", 3)
    cluster = Cluster(join_of("ab", WINDOW), WINDOW)
    for number in range(28):
        cluster.batch({"a": [(0, 1, number)]})
    cluster.restart()
    cluster.batch({"b": [(0, 1, 99)]})
    assert sorted(each["a"] for each in cluster.results) == list(range(28))


@pytest.mark.parametrize(
    "rule", ["evicts too early", "trusts a failed attempt", "trusts its files", "forgets what it missed"]
)
def test_broken_rules_are_caught(monkeypatch, tmp_path, rule):
    """Each rule is needed."""
    tries = [(0, None), (1, LOST), (0, 9), (1, None)]
    _, got, want = play(STEADY, tries, folder=tmp_path / "right")
    assert got == want
    if rule == "evicts too early":
        right = cells.Cell._expiry
        monkeypatch.setattr(cells.Cell, "_expiry", lambda self, part: right(self, part) - 9 * SECOND)
    elif rule == "trusts a failed attempt":
        monkeypatch.setattr(cells.Cell, "follows", lambda self, head: True)
    elif rule == "trusts its files":
        find = MappedBlocks.find

        def any_of(self, name, batch, token):
            names = sorted(each.stem for each in self._folder.glob(f"{batch}-*"))
            return find(self, name, batch, names[0].split("-")[1]) if names else None

        monkeypatch.setattr(MappedBlocks, "find", any_of)
        monkeypatch.setattr(MappedBlocks, "keep", lambda *_: None)
    else:
        monkeypatch.setattr(cells.Cell, "_take_in", lambda self, missed: None)
    _, got, want = play(STEADY, tries, folder=tmp_path / "broken")
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
    for state in cluster.state.data["log"].values():
        text, nothing = state["head",]
        state["head",] = (text.replace('"format":2', '"format":7'), nothing)
    with pytest.raises(StateError, match=r"has format 7.*reads format 2"):
        cluster.batch({"a": [(1, 3, 3)]})
