"""MigrationEstimate counts what it cannot look at: right under skew, in bounded work and memory."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, strategies as st

from millrace.engine.migration import counts as module
from millrace.engine.migration.counts import counts, sampled
from millrace.engine.migration.estimate import FOUND, MOVED, MigrationEstimate
from millrace.engine.migration.placement import Misplaced
from millrace.engine.state.segment import Segment
from millrace.engine.state.stem import singletons
from millrace.engine.tuples import Signature
from tests.engine.laws import same_examples
from tests.engine.state.rig import EQUALITIES, Rig, Tables
from tests.engine.state.test_segment import pairs, tuples_of


def stored(codes: list[int], gone: list[int]) -> Segment:
    """Return a segment of tuples with these codes, some of them removed."""
    segment = Segment(Signature(1), 0, indexed=True)
    batch = tuples_of(1, [{0: i} for i in range(len(codes))])
    segment.append(batch, np.array(codes, np.int64))
    if gone:
        segment.remove(np.array(gone))
    return segment


@same_examples(150)
@given(st.data())
def test_few_matches_are_counted_exactly(data: st.DataObject) -> None:
    """By code and slice, with removed tuples left out: what plain enumeration says."""
    codes = data.draw(st.lists(st.sampled_from([0, 0, 0, 1, 2, 10**15]), min_size=1, max_size=60))
    gone = data.draw(st.sets(st.integers(0, len(codes) - 1), max_size=len(codes) - 1))
    asked = np.array(data.draw(st.lists(st.sampled_from([0, 0, 1, 2, 3, 10**15]), max_size=20)), np.int64)
    segment = stored(codes, sorted(gone))
    parts = np.array_split(segment.positions(), data.draw(st.integers(1, min(4, segment.live))))
    assert segment.index is not None
    found = counts(segment.index, segment, asked, np.array(codes).__getitem__, parts)
    expected = [[sum(codes[p] == code for p in part) for part in parts] for code in asked.tolist()]
    assert found.tolist() == expected if len(asked) else found.shape == (0, len(parts))
    whole = counts(segment.index, segment, asked, np.array(codes).__getitem__)
    assert whole[:, 0].tolist() == [sum(each) for each in expected]


@same_examples(40)
@given(st.integers(0, 1 << 30), st.integers(2, 2000))
def test_many_matches_are_estimated_in_bounded_work(seed: int, keys: int) -> None:
    """One key has half of the rows, every other one: it counts for half, and only so many pairs are made."""
    draw = np.random.default_rng(seed)
    codes = draw.integers(1, keys, 20_000)
    codes[::2] = 0
    segment = stored(codes.tolist(), [])
    assert segment.index is not None
    asked = draw.choice(codes, 500)
    slices = np.array_split(segment.positions(), 4)
    with mock.patch.object(module, "MATCHES", 2000), pairs() as looked:
        found = counts(segment.index, segment, asked, codes.__getitem__, slices)
    assert sum(looked) < 2 * 2000
    truth = Counter(codes.tolist())
    whole = sum(truth[code] for code in asked.tolist())
    assert found.sum() == pytest.approx(whole, rel=0.1)
    assert found.sum(axis=0) == pytest.approx([whole / 4] * 4, rel=0.2)


@same_examples(60)
@given(st.integers(0, 5000), st.integers(1, 300))
def test_samples_are_spread_and_each_once(size: int, most: int) -> None:
    """One out of each of as many even parts, so that all ages are there."""
    positions = np.arange(size) * 3
    some = sampled(positions, most)
    assert len(some) == min(size, most) == len(np.unique(some))
    assert set(some.tolist()) <= set(positions.tolist())
    assert np.all(np.diff(some) <= 3 * 2 * max(1, -(-size // most)))


def test_what_recurs_is_not_taken_for_all_or_nothing() -> None:
    """Every second tuple is hot: a sample at even distances would see hot ones only, or none."""
    hot = sampled(np.arange(1 << 14), 1024) % 2
    assert 0.4 < hot.mean() < 0.6


def estimated(rig: Rig, relations: str, pair: str, place: str) -> list[MigrationEstimate]:
    """Appraise moving what ``s`` holds in one join to another."""
    state = rig.state_of_eddy
    edge, owner = rig.edge(pair), rig.aliases.index("s")
    signature = rig.signature(relations)
    live = state.stairs.joins[edge].stairs[owner].segments[signature].live
    wrong = Misplaced(edge, owner, signature, live, signature.span, rig.edge(place))
    return state._estimator.estimate(wrong)


def numbered(alias: str, count: int, first: int = 1) -> str:
    return " ".join(f"{alias}{i + first}" for i in range(count))


def unchecked(tables: Tables, equalities: list[str]) -> Rig:
    """Return STAIRs too large for the checker of invariants, which enumerates."""
    rig = Rig(tables, equalities)
    rig._invariants.check = lambda: None  # type: ignore[method-assign]
    return rig


def test_a_cross_product_is_estimated_in_the_memory_of_what_is_stored() -> None:
    """Everything that comes meets everything stored: that is a number, not a list of pairs."""
    n, m = 4000, 1000
    tables: Tables = {"r": {"x": [1] * m}, "s": {"b": [1] * n}, "t": {"b": [1] * 2 * n}}
    rig = unchecked(tables, ["s.b = t.b"])
    (product,) = (edge.number for edge in rig.stairs.tree.edges if not edge.classes)
    assert product == rig.edge("rs")
    arrive_only(rig, "r")
    arrive_only(rig, "s")
    tracemalloc.start()
    try:
        slices = estimated(rig, "s", "rs", "st")
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert held < 64 * n + (1 << 20)
    assert sum(len(each.positions) for each in slices) == n


def arrive_only(rig: Rig, alias: str) -> None:
    """Let all base tuples of a relation arrive, and be inserted where others look for them, not probe."""
    relation = rig.aliases.index(alias)
    (rows,) = rig._tables[alias].combine_chunks().to_batches()
    state = rig.state_of_eddy
    batch = state.build(relation, singletons(state.stems[relation], rows, alias, built=False))
    for edge in rig.stairs.tree.border(1 << relation):
        rig.stairs.joins[edge].stairs[relation].insert(batch)


@pytest.mark.parametrize("hot", [1, 300, 2000])
@pytest.mark.parametrize("far", ["r", "t"])
def test_cost_and_saving_grow_with_a_hot_key(far: str, hot: int) -> None:
    """One key has up to half of the rows of ``s`` and of one of its neighbours: enumeration's numbers."""
    n = 4000
    keys = [0 if i % 2 and i < 2 * hot else i + 1 for i in range(n)]
    other = [i + 1 for i in range(n)]
    tables: Tables = {
        "r": {"a": keys if far == "r" else other},
        "s": {"a": keys, "b": keys},
        "t": {"b": keys if far == "t" else other},
    }
    rig = unchecked(tables, EQUALITIES)
    rig.arrive(numbered("s", n), s="rs")
    arrive_only(rig, "r")
    arrive_only(rig, "t")
    with pairs() as looked:
        slices = estimated(rig, "s", "rs", "st")
    assert sum(looked) < 3 * module.MATCHES

    def found(alias: str, column: str) -> int:
        held = Counter(tables[alias][column])
        return sum(count * held[key] for key, count in Counter(keys).items())

    # As many are still to come of each relation as have come: n. A tuple is met, or made and met elsewhere.
    met, instead = found("r", "a"), found("t", "b")
    assert sum(each.cost for each in slices) == pytest.approx(MOVED * n + FOUND * instead, rel=0.25)
    saving = sum(each.saving for each in slices)
    assert saving == pytest.approx(3 * (met - instead), abs=3 * 0.25 * (met + instead))
