"""Sources that stall: what is read ahead changes when batches come, and nothing about them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings, strategies as st

from millrace.engine.eddy.run import Run
from millrace.errors import ReadError
from millrace.limits.clock import VirtualClock
from millrace.options import ARCHITECTURES, Options
from millrace.parquet.read_ahead import AheadBatches, ReadAhead
from tests.engine.eddy.access_cases import any_options
from tests.engine.eddy.blocks import chained, rows_of
from tests.engine.eddy.oracle import Case, dense_cases

LAWS = settings(max_examples=60, deadline=None, derandomize=True)


class SlowStore(ReadAhead):
    """Reads ahead in virtual time, each request for so many seconds."""

    def __init__(
        self, scans: int, clock: VirtualClock, delay: Callable[[], float], budget: int | None = None
    ):
        super().__init__(scans, budget)
        self._clock, self._delay = clock, delay

    def begin(self, read: Callable[[], pa.RecordBatch]) -> Any:
        return Answer(self._clock, self._clock.now() + self._delay(), read)

    def sources(self, case: Case, chunk: int, *, waits: bool = False) -> dict[str, Any]:
        """Return scans of a block's relations, whose row groups have so many rows."""
        return {
            alias: self.batches(
                [(piece.nbytes, partial(pa.RecordBatch.slice, piece)) for piece in pieces],
                waits=waits,
            )
            for alias, pieces in case.batches(chunk).items()
        }


class Answer:
    """What a store answers from some time on."""

    def __init__(self, clock: VirtualClock, due: float, read: Callable[[], pa.RecordBatch]) -> None:
        self._clock, self._due, self._read = clock, due, read

    def done(self) -> bool:
        return self._clock.now() >= self._due

    def exception(self) -> None:
        pass

    def result(self) -> pa.RecordBatch:
        if not self.done():
            self._clock.wait(self._due - self._clock.now())
        return self._read()


def check(data: st.DataObject) -> None:
    case, clock = data.draw(dense_cases()), VirtualClock()
    options = data.draw(any_options(architecture=ARCHITECTURES))
    delay = partial(data.draw, st.sampled_from([0.0, 0.0005, 0.003, 0.01]))
    ahead = SlowStore(len(case.tables), clock, delay, data.draw(st.sampled_from([None, 1, 2000])))
    sources = ahead.sources(case, data.draw(st.sampled_from([1, 3])), waits=data.draw(st.booleans()))
    assert rows_of(case, Run(case.spec, sources, options, clock=clock)) == case.expected()


@pytest.mark.law
@LAWS
@given(st.data())
def test_rows_do_not_depend_on_when_they_come(data):
    """A law over joins, delays, budgets and all ways to run a block; rows are DuckDB's."""
    check(data)


def end_early(own: AheadBatches) -> pa.RecordBatch:
    if (batch := FOLLOWING(own)) is None:
        raise StopIteration
    return batch


def leave_out(own: AheadBatches, **how: bool) -> None:
    GO_ON(own, **how)
    if own._begun and own._reads:
        own._reads.popleft()


FOLLOWING, GO_ON = AheadBatches.__next__, AheadBatches._go_on


@pytest.mark.broken_rule
@pytest.mark.parametrize(("rule", "broken"), [("__next__", end_early), ("_go_on", leave_out)])
def test_the_law_notices_a_broken_rule(monkeypatch, rule, broken):
    """A source that ends where it has nothing at present, and one whose batches do not all come."""
    monkeypatch.setattr(AheadBatches, rule, broken)
    law = settings(LAWS, phases=[Phase.generate], report_multiple_bugs=False)(given(st.data())(check))
    with pytest.raises(AssertionError):
        law()


@pytest.mark.parametrize(("waits", "seconds"), [(False, 2), (True, 4)])
def test_scans_wait_together(waits, seconds):
    """Eight row groups of each relation, a second each: a scan asks for four at once, and others go on."""
    case, clock = chained(lambda _, keys: {key: range(8) for key in keys}), VirtualClock()
    sources = SlowStore(3, clock, lambda: 1.0).sources(case, 1, waits=waits)
    assert rows_of(case, Run(case.spec, sources, Options(online=not waits), clock=clock)) == case.expected()
    assert seconds <= clock.now() < seconds + 0.1


def test_what_waits_is_bounded():
    """By bytes, and by four row groups; with a budget even one that is too large waits to be asked for."""
    rows = pa.record_batch({"n": range(1000)})
    for budget, read in ((None, 4), (8 * 2 * rows.nbytes, 2), (8, 0)):
        begun: list[int] = []
        clock = VirtualClock()
        ahead = SlowStore(1, clock, lambda: 0.0, budget)
        reads = [(rows.nbytes, partial(begun.append, n)) for n in range(10)]
        ahead.begin = lambda read, begin=ahead.begin: (read(), begin(lambda: rows))[1]
        batches = ahead.batches(reads, waits=False)
        assert len(begun) == (read if budget is None else 0)
        for asked in range(1, 11):
            assert next(batches) is rows
            assert len(begun) == min(10, asked + read)


def test_threads_end_with_the_task():
    """What has not begun by then is not read."""
    begun: list[int] = []

    def read(n: int) -> pa.RecordBatch:
        begun.append(n)
        return pa.record_batch({"n": [n]})

    with ReadAhead(1) as ahead:
        batches = ahead.batches([(8, partial(read, n)) for n in range(100)], waits=True)
        assert next(batches).to_pylist() == [{"n": 0}]
    assert len(begun) <= 5
    assert not [each for each in threading.enumerate() if each.name.startswith("read-ahead")]


def test_an_error_comes_in_its_place_with_its_traceback():
    def fail() -> pa.RecordBatch:
        raise ReadError("a file is gone")

    rows = pa.record_batch({"n": [1]})
    with ReadAhead(1) as ahead:
        batches = ahead.batches([(8, lambda: rows), (8, fail)], waits=True)
        assert next(batches) is rows
        with pytest.raises(ReadError, match="gone") as raised:
            next(batches)
    assert raised.traceback[-1].name == "fail"
