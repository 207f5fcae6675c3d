"""Each query of a hub has the rows of the query alone, whatever comes, goes and fails."""

from __future__ import annotations

import functools
import math
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

from millrace.engine.lineage import rows_by_slot
from millrace.engine.plan.expressions import Column, ColumnRef, Compare, InList, Literal, Or
from millrace.options import StorageOptions
from millrace.streams import cell as streams_cell
from millrace.streams.hub import cell as cells
from millrace.streams.hub.cell import CHANGES, HubProcessor
from millrace.streams.hub.delivery import SinkFiles
from millrace.streams.hub.query import ENVELOPE, Change, Registry, StandingQuery, decode, encode, to_text
from tests.gate import examples
from tests.streams.cluster import LOST, SECOND, Cluster, answer, join_of
from tests.streams.test_cell import DELAY, NAMES, WINDOW, attempts, beginnings, cut, events, recent_tuples

whole = pa.int64()
SCHEMA = pa.schema([(name, whole) for name in NAMES])


def query_of(number, drawn):
    """A query, and the same as a function of rows by alias: key, time and number."""
    kind, alias, low, since = drawn
    beside = NAMES[-1] if alias == NAMES[0] else NAMES[0]
    n, k, other = (Column(ColumnRef(*each)) for each in ((alias, "n"), (alias, "k"), (beside, "n")))

    def holds(op, value, column=n):
        return Compare(op, column, Literal(value, whole), whole)

    condition, passes = {
        "all": ((), lambda rows: True),
        "range": (
            (holds(">=", low), holds("<", low + 20)),
            lambda rows: low <= rows[alias][2] < low + 20,
        ),
        "key": ((holds("=", low % 3, k),), lambda rows: rows[alias][0] == low % 3),
        "either": (
            (Or((holds("=", 1, k), holds(">", low))),),
            lambda rows: rows[alias][0] == 1 or rows[alias][2] > low,
        ),
        "list": (
            (InList(n, tuple(range(low, 60, 3)), whole),),
            lambda rows: rows[alias][2] in range(low, 60, 3),
        ),
        "pair": ((Compare("<", n, other, whole),), lambda rows: rows[alias][2] < rows[beside][2]),
    }[kind]
    columns = tuple(ColumnRef(name, "n") for name in NAMES)
    made = StandingQuery(
        number, f"q{number}", "*", None, since,
        conditions=condition, columns=columns, schema=SCHEMA,
    )  # fmt: skip
    return made, passes


drawn = st.tuples(
    st.sampled_from(["all", "range", "key", "either", "list", "pair"]),
    st.sampled_from(NAMES),
    st.integers(0, 50),
    st.sampled_from(["now", "window"]),
)
# By the micro-batch: queries that come, and which of those that stand goes.
steps = st.dictionaries(
    st.integers(0, 20),
    st.tuples(st.lists(drawn, max_size=3), st.one_of(st.none(), st.integers(0, 3))),
    max_size=6,
)


class HubCluster(Cluster):
    processor = staticmethod(
        functools.partial(HubProcessor, make=functools.partial(SinkFiles, storage=StorageOptions()))
    )

    def read(self, block):
        """Rows by query, and changes that are made with the queries that run since."""
        found = []
        for query, _, rows, _, made in zip(*pa.ipc.read_record_batch(block, ENVELOPE).columns, strict=True):
            if made.is_valid:
                found.append(("made", *made.as_py()))
            if not rows.is_valid:
                continue
            batch = pa.ipc.read_record_batch(rows.as_buffer(), SCHEMA)
            found += [(query.as_py(), *row.values()) for row in batch.to_pylist()]
        return found


def play(given_events, changes, tries=(), *, restart=None, shuffled=False, anew=256, folder=None):
    """Run all micro-batches; returns the rows of each query, and those of each query alone.

    Queries write them to a folder if there is one.
    """
    batches, everything = cut(given_events)
    cluster = HubCluster(join_of(NAMES, WINDOW), WINDOW, anew)
    keeps = {stream.alias: stream.keeps for stream in cluster.task.streams}
    number, standing, queries, made = 0, [], {}, []
    for place, batch in enumerate(batches):
        blocks = []
        come, goes = changes.get(place, ((), None))
        if goes is not None and goes < len(standing):
            number += 1
            gone = standing.pop(goes)
            queries[gone]["until"] = place
            blocks.append(Change(number, tuple(standing)))
        for each in come:
            number += 1
            query, passes = query_of(number, each)
            query = replace(query, sink=folder and f"{folder}/{number}")
            standing.append(number)
            queries[number] = {
                "passes": passes,
                "from": place,
                "until": len(batches),
                "oldest": cluster.watermark * 1000 if query.since == "window" else math.inf,
            }
            blocks.append(Change(number, tuple(standing), query))
        blocks = [(CHANGES, to_text(each).encode()) for each in blocks]
        made += [(number, *standing)] if blocks else ()
        if shuffled:
            blocks.reverse()
        if place == restart:
            cluster.restart(architecture="stairs")
        cluster.play(batch, DELAY, *(tries[place % len(tries)] if tries else ()), blocks=blocks)
    got = Counter(row for row in cluster.results if row[0] != "made")
    for path in folder.glob("*/*") if folder else ():
        got.update((int(path.parent.name), *row.values()) for row in pq.read_table(path).to_pylist())
    assert [row[1] for row in cluster.results if row[0] == "made"] == [each[0] for each in made]
    cluster.made = made
    place_of = {
        row[2]: place for place, batch in enumerate(batches) for rows in batch.values() for row in rows
    }
    by_number = {row[2]: row for rows in everything.values() for row in rows}
    want = Counter()
    for each, query in queries.items():
        seen = {
            name: [
                row
                for row in rows
                if place_of[row[2]] >= query["from"]
                or row[1] * SECOND + max(0, keeps[name]) >= query["oldest"]
            ]
            for name, rows in everything.items()
        }
        for found in answer(seen, NAMES, WINDOW):
            rows = {name: by_number[n] for name, n in zip(NAMES, found, strict=True)}
            if query["passes"](rows) and max(place_of[n] for n in found) < query["until"]:
                want[each, *found] += 1
    return got, want, cluster


@pytest.mark.law
@settings(max_examples=examples(40, 400))
@given(
    events,
    steps,
    attempts,
    st.one_of(st.none(), st.integers(0, 20)),
    st.booleans(),
    st.sampled_from([2, 256]),
)
def test_each_query_has_its_own_rows(given_events, changes, tries, restart, shuffled, anew):
    """With queries that come and go, failed attempts, workers that are behind and restarts.

    And while small blocks of the log become large ones.
    """
    got, want, cluster = play(given_events, changes, tries, restart=restart, shuffled=shuffled, anew=anew)
    assert got == want
    assert [row[1:] for row in cluster.results if row[0] == "made"] == cluster.made


STEADY = [(NAMES[i % 3], i % 2, i % (DELAY + 1), i % 2 == 0) for i in range(120)]


def test_more_than_one_word_and_slots_that_are_used_again():
    """A hundred queries need two words, and a bit that was another's brings nothing of it along."""
    many = [("range", NAMES[i % 3], i % 50, "now") for i in range(100)]
    changes = {0: (many, None)} | {p: ([("key", "b", p, "now")], p % 5) for p in range(2, 35, 3)}
    got, want, cluster = play(STEADY[:80], changes, [(0, None), (1, None), (0, LOST)])
    assert got == want and len({row[0] for row in want}) > 60
    assert cluster.rows[-1]["held"] > 0


def test_what_no_query_wants_is_in_the_log_alone():
    """It is kept for queries to come, which may ask for what the window has."""

    def logged(cluster):
        return sum(len(data) for blocks in cluster.state.data["log"].values() for _, data in blocks.values())

    _, _, everything = play(STEADY[:60], {0: ([("all", "a", 0, "now")], None)})
    changes = {0: ([("key", "a", 1, "now"), ("key", "b", 1, "now"), ("key", "c", 1, "now")], None)}
    wanted, want, some = play(STEADY[:60], changes)
    assert wanted == want != Counter()
    none, _, empty = play(STEADY[:60], {})
    assert not none and empty.rows[-1]["held"] == 0 < max(each["held"] for each in everything.rows)
    assert logged(empty) == logged(some) == logged(everything) > 0


def test_a_row_of_the_far_future_holds_nothing_back(monkeypatch):
    """In no eddy of a cell."""
    monkeypatch.setattr(streams_cell, "_STUCK", 256)
    cluster = HubCluster(join_of(NAMES, 0), 0)
    query, _ = query_of(1, ("all", "a", 0, "now"))
    numbers = cluster.play_future([(CHANGES, to_text(Change(1, (1,), query)).encode())])
    assert sorted(row for row in cluster.results if row[0] != "made") == [(1, n, n, n) for n in numbers]
    assert max(each["held"] for each in cluster.rows) < 800


@pytest.mark.law
@settings(max_examples=examples(40, 400))
@given(st.permutations(range(6)), st.lists(st.integers(0, 3), min_size=6, max_size=6))
def test_changes_commute(order, batches):
    """A change may overtake others or come again; one whose file is damaged never comes: here the fifth."""
    came = {number: query_of(number, ("all", "a", 0, "now"))[0] for number in (1, 2, 3, 6)}
    stand = {1: (1,), 2: (1, 2), 3: (1, 2, 3), 4: (1, 3), 6: (1, 3, 6), 7: (1, 3)}
    changes = [Change(number, each, came.get(number)) for number, each in stand.items()]
    registry = Registry()
    for batch in (*range(4), *range(4)):
        now = [changes[place] for place, when in zip(order, batches, strict=True) if when == batch]
        registry = decode(encode(registry.apply(now, batch, 0)))
    assert sorted((each.query for each in registry.queries), key=lambda query: query.id) == [came[1], came[3]]
    assert registry.newest.number == 7


def test_what_was_learned_survives_a_restart(monkeypatch):
    """The eddy of all queries begins with it."""
    _, _, cluster = play(STEADY[:40], {0: ([("all", "a", 0, "now")], None)})
    (cell,) = cluster.processes[0].values()
    known = [recent_tuples(cell.run, [cell.run])]
    begun = beginnings(monkeypatch, [cell.run])
    cluster.restart()
    cluster.batch({"a": [(0, 41, 999)]})
    assert all(known) and begun == known


def test_files_have_the_rows_of_their_queries(tmp_path):
    """One in each micro-batch that has some."""
    changes, want = steady()
    got, _, cluster = play(STEADY, changes, restart=15, anew=2, folder=tmp_path)
    assert got == want
    assert sum(each["results"] for each in cluster.rows) == want.total()


@pytest.mark.broken_rule
def test_files_that_take_each_others_names_are_caught(monkeypatch, tmp_path):
    """A name is of one micro-batch."""
    changes, want = steady()
    one = functools.partial(HubProcessor, make=lambda _: SinkFiles("0.parquet", StorageOptions()))
    monkeypatch.setattr(HubCluster, "processor", staticmethod(one))
    got, _, _ = play(STEADY, changes, anew=2, folder=tmp_path)
    assert got < want


RULES = {
    "a result's lineage is that of one component": lambda m: m.setattr(
        cells, "rows_by_slot", lambda rows, aliases, wanted: rows_by_slot(rows, aliases[:1], wanted)
    ),
    "old tuples pass for new ones": lambda m: m.setattr(cells, "_find_unseen", lambda *_: slice(0)),
    "new queries see nothing old": lambda m: m.setattr(cells, "_find_unseen", lambda *_: slice(None)),
    "new queries do not probe": lambda m: m.setattr(cells.HubCell, "_probe_window", lambda *_: iter(())),
    "old and new tuples are one block": lambda m: m.setattr(cells.HubCell, "_distinguish", lambda *_: 0),
    "queries do not go": lambda m: m.setattr(Registry, "apply", _without_removal),
}
_apply = Registry.apply


def _without_removal(self, changes, *given):
    stand = {*self.newest.stand}
    return _apply(self, [replace(each, stand=tuple({*stand, *each.stand})) for each in changes], *given)


@functools.cache
def steady():
    """What is right, with many changes."""
    changes = {p: ([("key", "a", p, "now")] * 2, 0) for p in range(1, 12, 3)}
    changes |= {
        0: ([("range", "a", 10, "now"), ("key", "b", 1, "now"), ("pair", "a", 0, "now")], None),
        12: ([("all", "a", 0, "now"), ("list", "c", 5, "window")], 0),
        14: ([("all", "a", 0, "now")], None),
        16: ([("key", "c", 1, "window")], None),
        20: ([("either", "b", 40, "window"), ("key", "a", 0, "now")], 1),
        30: ([("range", "c", 30, "window"), ("all", "a", 0, "window")], 0),
    }
    got, want, _ = play(STEADY, changes, anew=2)
    assert got == want and len(want) > 100
    return changes, want


@pytest.mark.broken_rule
@pytest.mark.parametrize("rule", RULES)
def test_broken_rules_are_caught(monkeypatch, rule):
    """Each rule is needed."""
    changes, want = steady()
    RULES[rule](monkeypatch)
    got, _, _ = play(STEADY, changes, anew=2)
    assert got != want


@pytest.mark.broken_rule
def test_a_bit_that_was_anothers_has_state_made_anew(monkeypatch):
    """Tuples carry the bits of queries that have gone; here the next query gets the same one at once."""
    monkeypatch.setattr(Registry, "apply", lambda self, *given: _apply(replace(self, last=-1), *given))
    changes = {p: ([("all", "a", 0, "now")], 0) for p in range(10, 50, 5)}
    got, want, _ = play(STEADY, changes)
    assert got == want and len(want) > 20
    put = cells.HubCell._set
    monkeypatch.setattr(
        cells.HubCell,
        "_set",
        lambda self, registry: put(self, registry) or setattr(self, "_used", frozenset()),
    )
    got, _, _ = play(STEADY, changes)
    assert got > want
