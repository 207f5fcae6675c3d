"""Agreement between tuples and a segment is plain enumeration's, in work that a hot key does not multiply."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from millrace.engine.access.paths import Paths
from millrace.engine.kernels import Multimap, Walk
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.stairs import invariants as stairs
from millrace.engine.stairs.stair import Segment
from millrace.engine.stems import conditions as matching
from millrace.engine.stems.bindings import BindingSet
from millrace.engine.stems.join_state import held_by
from millrace.engine.stems.state import stems_of
from millrace.engine.stems.stem import SteM, singletons
from millrace.engine.tuples import KeyColumn
from millrace.engine.tuples.batch import Signature, TupleBatch
from tests.engine.eddy.oracle import block, with_self_joins
from tests.engine.laws import examples
from tests.engine.state.rig import EQUALITIES, Rig

Tuples = list[dict[int, int]]


@contextmanager
def pairs() -> Iterator[list[int]]:
    """Yield a list that gets the number of pairs of each look at an index."""
    looked: list[int] = []
    right = Walk.pairs

    def pairs(self: Walk, limit: int) -> Any:
        found = right(self, limit)
        looked.append(len(found[0]))
        return found

    with mock.patch.object(Walk, "pairs", pairs):
        yield looked


def tuples_of(span: int, tuples: Tuples) -> TupleBatch:
    """Return tuples that have no stores: row numbers are all that agreement is about."""
    relations = [r for r in range(span.bit_length()) if span >> r & 1]
    rows = {r: np.array([one[r] for one in tuples], np.int32) for r in relations}
    return TupleBatch(Signature(span), rows, {})


def drawn(data: st.DataObject, span: int, most: int) -> Tuples:
    """Draw different tuples; of half of them every component but one is 0, so that they agree on much."""
    relations = [r for r in range(span.bit_length()) if span >> r & 1]
    hot = st.builds(
        lambda own, value: {r: value if r == own else 0 for r in relations},
        st.sampled_from(relations),
        st.integers(0, 40),
    )
    any_ = st.fixed_dictionaries(dict.fromkeys(relations, st.integers(0, 3)))
    unique = lambda one: tuple(sorted(one.items()))  # noqa: E731
    return data.draw(st.lists(hot | any_, max_size=most, unique_by=unique))


@pytest.mark.parametrize("collide", [False, True])
@examples(150)
@given(data=st.data())
def test_agreement_is_that_of_plain_enumeration(collide: bool, data: st.DataObject) -> None:
    """For any spans that share the owner, whatever was removed, and whether or not hashes collide."""
    weak = mock.patch.object(matching, "combine", lambda left, right: (left ^ right) & 1)
    with weak if collide else nullcontext():
        mine, theirs = (data.draw(st.integers(0, 15).map(lambda span: span | 2)) for _ in "12")
        segment = Segment(Signature(theirs), indexed=False)
        held: Tuples = []
        gone: set[int] = set()
        for _ in range(data.draw(st.integers(1, 3))):
            more = [one for one in drawn(data, theirs, 30) if one not in held]
            if more:
                segment.append(tuples_of(theirs, more), None)
                held += more
            out = data.draw(st.sets(st.integers(0, len(held) - 1))) - gone if held else set()
            if out:
                segment.remove(np.array(sorted(out)))
                gone |= out
            batch = drawn(data, mine, 30)
            left, right = segment.agreeing(tuples_of(mine, batch)) if batch else ((), ())
            both = [
                (i, j)
                for i, one in enumerate(batch)
                for j, other in enumerate(held)
                if j not in gone and all(one[r] == other[r] for r in one.keys() & other.keys())
            ]
            assert sorted(left) == sorted({i for i, _ in both})
            assert sorted(right) == sorted({j for _, j in both})


@examples(40)
@given(st.integers(0, 2000), st.integers(0, 2000), st.booleans())
def test_no_more_pairs_are_looked_at_than_tuples(stored: int, coming: int, agree: bool) -> None:
    """All tuples have one owner: as pairs they are as many as their product, as tuples as their sum."""
    segment = Segment(Signature(0b011), indexed=False)
    segment.append(tuples_of(0b011, [{0: i, 1: 0} for i in range(stored)]), None)
    other = 0b110 if agree else 0b011
    batch = tuples_of(other, [{0: -1 - i, 1: 0, 2: i} for i in range(coming)])
    with pairs() as looked:
        left, right = segment.agreeing(batch)
    assert sum(looked) <= stored + coming
    assert (len(left), len(right)) == ((coming, stored) if agree and stored and coming else (0, 0))


def test_promoting_a_hot_tuple_takes_time_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    """One tuple with many matches, put back in pieces: each piece is compared with itself, not with all."""
    monkeypatch.setattr(stairs, "_PIECE", 50)
    n = 1000
    rig = Rig({"r": {"a": [1] * n}, "s": {"a": [1], "b": [1]}, "t": {"b": [1]}}, EQUALITIES, is_checked=False)
    rig.arrive(" ".join(f"r{i + 1}" for i in range(n)))
    rig.arrive("s1", s="st")
    with pairs() as looked:
        rig.promote("s", "st", "rs", "s1")
    assert len(rig.held("s", "st")) == n
    assert sum(looked) <= 3 * n


# What a SteM expects a tuple to find in it, against what tuples find, while it fills and when it is full.


ROWS, KEYS = 4000, 100
HALF = ROWS // 2


def stem(keys: Sequence[int], rows: int | None, **sizes: Any) -> SteM:
    """The SteM of s after some tuples of it have come; sizes are what it has been told."""
    tables = {alias: pa.table({"k": pa.array(keys, pa.int64())}) for alias in "rs"}
    spec = block(tables, ["r.k = s.k"]).spec
    spec = replace(spec, relations=tuple(replace(r, rows=rows, **sizes) for r in spec.relations))
    graph = QueryGraph.of(spec)
    made = stems_of(spec, graph, Paths(graph.everything))[1]
    for batch in tables["s"].to_batches(max_chunksize=50):
        made.build(singletons(made, batch, "s", built=False), None)
    return made


def expected(made: SteM) -> float:
    return made.expected_matches(Signature(1))


def keys_of(seed: int, keys: int = KEYS) -> list[int]:
    return np.random.default_rng(seed).integers(0, keys, ROWS).tolist()


@pytest.mark.parametrize("came", [250, 500, HALF])
def test_what_is_found_while_tuples_come_is_no_share_of_those_to_come(came: int) -> None:
    """Of keys in no order a tuple finds all that have come, whatever is told of how many still will.

    Of keys that come together most tuples find theirs not there yet; of unique ones as many as have come.
    """
    for rows in (ROWS, None, 64 * ROWS):
        assert expected(stem(keys_of(0)[:came], rows)) == pytest.approx(came / KEYS, rel=0.25)
    together = sorted(keys_of(1))
    found = np.mean([together[:came].count(key) for key in keys_of(2)])
    assert expected(stem(together[:came], ROWS)) == pytest.approx(found, rel=0.25)
    unique = np.random.default_rng(3).permutation(ROWS)[:came].tolist()
    assert expected(stem(unique, ROWS)) == pytest.approx(came / ROWS)
    assert expected(stem(unique, None)) == pytest.approx(0.5), "as many again are to come"


def test_a_filter_has_left_a_share_of_the_rows() -> None:
    """Half have passed: whatever was estimated, a tuple finds its match in one case of two."""
    for passing in (1.0, 0.5, 0.1):
        made = stem(range(HALF), round(passing * ROWS), passing=passing)
        made.complete = True
        assert expected(made) == pytest.approx(0.5)
    assert expected(stem(keys_of(0)[:1000], ROWS // 4, passing=0.25)) == pytest.approx(2.5, rel=0.25)


# What is held, in bytes.


def test_roles_that_share_tuples_hold_them_once() -> None:
    """A self-join takes no more memory than its relation."""
    table = pa.table({"k": pa.array(range(ROWS), pa.int64())})
    spec = with_self_joins(block({"r": table, "s": table}, ["r.k = s.k"])).spec
    graph = QueryGraph.of(spec)
    one, other = stems_of(spec, graph, Paths(graph.everything))
    for batch in table.to_batches():
        one.build(singletons(one, batch, "r", built=False), None)
    other.meets(other.in_role(TupleBatch(Signature(1), {0: np.arange(9, dtype=np.int32)}, {0: one.store})))
    assert one.store is other.store and one.least
    held = held_by((one, other), ())
    assert (held.nbytes, held.least) == (one.nbytes, one.least)


@pytest.mark.parametrize("scattered", [False, True])
def test_bindings_take_the_memory_of_their_index_too(scattered: bool) -> None:
    """What it takes however few bindings there are is told apart, as for other indexes."""
    keys = (KeyColumn("k", pa.int64()),)
    made = BindingSet(keys)
    assert (made.nbytes, made.least) == (0, 0)
    index = Multimap()
    values = np.arange(ROWS) * (1_000_003 if scattered else 1)
    made.add_rows(pa.record_batch({"k": values}))
    index.insert(values)
    assert made.nbytes == made.store.nbytes + index.nbytes
    assert made.least == index.least
    relation = stem([], None)
    relation.eot(keys).add_rows(pa.record_batch({"k": values}))
    assert relation.nbytes >= made.nbytes and relation.least == made.least
