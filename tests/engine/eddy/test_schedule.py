"""Schedules: what is read when, and which relation is left unbuilt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from millrace.engine.arrivals.schedule import Schedule
from millrace.engine.spec import JoinSpec, RelationSpec
from tests.engine.laws import examples

SCHEMA = pa.schema([("n", pa.int64())])


def spec(*rows: int | None, distinct: tuple[int, ...] = ()) -> JoinSpec:
    return JoinSpec(tuple(RelationSpec(f"r{i}", SCHEMA, i in distinct, n) for i, n in enumerate(rows)))


def batch(numbers: list[int]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(numbers, pa.int64())], schema=SCHEMA)


@st.composite
def feeds(draw: st.DrawFn) -> tuple[list[list[pa.RecordBatch]], Schedule]:
    """Draw batches for up to four relations, empty ones among them, and a schedule."""
    sizes = draw(st.lists(st.lists(st.integers(0, 7), max_size=4), min_size=1, max_size=4))
    sources = [[batch(list(range(100 * i, 100 * i + n))) for i, n in enumerate(one)] for one in sizes]
    order = tuple(draw(st.permutations(range(len(sizes)))))
    unbuilt = draw(st.sampled_from([None, order[-1]]))
    return sources, Schedule(unbuilt, draw(st.booleans()), order)


@examples(40)
@given(feeds(), st.integers(1, 8))
def test_every_tuple_arrives_once_and_then_the_end(
    feed: tuple[list[list[pa.RecordBatch]], Schedule], size: int
) -> None:
    """Per relation: all rows in their order, in batches of 1 to ``size``, then one EOT and nothing more."""
    sources, schedule = feed
    arrived: dict[int, list[Any]] = {r: [] for r in schedule.order}
    for arrivals in schedule.arrivals(dict(enumerate(sources)), size):
        assert arrivals
        for relation, piece in arrivals:
            assert arrived[relation][-1:] != [None]
            assert piece is None or 1 <= piece.num_rows <= size
            arrived[relation] += [None] if piece is None else piece.column(0).to_pylist()
    for relation, rows in arrived.items():
        assert rows == [*(n for b in sources[relation] for n in b.column(0).to_pylist()), None]


def rounds(schedule: Schedule, *sizes: int) -> list[list[tuple[int, int | None]]]:
    sources = {i: [batch(list(range(n)))] for i, n in enumerate(sizes)}
    return [[(r, None if b is None else b.num_rows) for r, b in a] for a in schedule.arrivals(sources, 2)]


def test_one_after_the_other() -> None:
    """A relation is read to its end before the next one is touched."""
    assert rounds(Schedule(1, False, (0, 1)), 3, 1) == [
        [(0, 2)],
        [(0, 1)],
        [(0, None)],
        [(1, 1)],
        [(1, None)],
    ]


def test_interleaved() -> None:
    """A round takes a batch of each open source."""
    assert rounds(Schedule(None, True, (1, 0)), 3, 1) == [
        [(1, 1), (0, 2)],
        [(1, None), (0, 1)],
        [(0, None)],
    ]


def test_sources_are_read_no_further_than_asked() -> None:
    """Nothing is fetched before the round that needs it."""
    read: list[int] = []

    def source(relation: int) -> Iterator[pa.RecordBatch]:
        for n in range(3):
            read.append(relation)
            yield batch([n])

    arrivals = Schedule(None, True, (0, 1)).arrivals({0: source(0), 1: source(1)}, 10)
    assert read == []
    next(arrivals)
    assert read == [0, 1]


def test_the_largest_relation_is_streamed_past_the_others() -> None:
    """Smaller ones are built first, the smallest foremost; an unknown size counts as small."""
    assert Schedule.of(spec(5, 900, None, 20), online=False) == Schedule(1, False, (2, 0, 3, 1))


def test_a_named_relation_is_streamed_whatever_its_size() -> None:
    """What Spark streams through a task stays unbuilt there."""
    assert Schedule.of(spec(5, 900, 20), online=False, stream="r0") == Schedule(0, False, (2, 1, 0))


def test_sets_are_built() -> None:
    """A relation with set semantics is never left unbuilt, even if that means building everything."""
    assert Schedule.of(spec(5, 900, 20, distinct=(1,)), online=False).unbuilt == 2
    assert Schedule.of(spec(5, 900, distinct=(0, 1)), online=False) == Schedule(None, True, (0, 1))


@pytest.mark.parametrize("stream", [None, "r0"])
def test_online_interleaves_and_builds_everything(stream: str | None) -> None:
    """Early results need every source in turn; one relation alone has nothing to wait for."""
    assert Schedule.of(spec(5, 900), online=True, stream=stream) == Schedule(None, True, (0, 1))
    assert Schedule.of(spec(5), online=True) == Schedule(0, False, (0,))
