"""Lookups in eddies: whatever is asked in whatever order, the rows are DuckDB's; no key is asked twice."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self
from unittest.mock import AsyncMock, Mock

import pyarrow as pa
import pytest
from hypothesis import example, given, settings, strategies as st

from millrace.engine.eddy.run import Run
from millrace.errors import ExecutionError, PriceError
from millrace.limits.client import Client
from millrace.limits.clock import WallClock
from millrace.limits.coordinator import Coordinator
from millrace.limits.fetcher import Connect, Fetcher
from millrace.limits.lookup_session import LookupSession
from millrace.limits.registration import Registration
from millrace.limits.secrets import Secrets
from millrace.lookups import scan as scan_module
from millrace.lookups.index import LookupIndex
from millrace.lookups.loop import Loop
from millrace.lookups.scan import LookupScan
from millrace.lookups.source import Refused
from millrace.lookups.table import IndexSpec, OnError
from millrace.lookups.terms import Terms
from millrace.options import Options
from tests.engine.eddy.access_cases import any_options, plans
from tests.engine.eddy.blocks import block
from tests.engine.eddy.oracle import Case, cases, multiset
from tests.limits.test_server import PATIENCE

R = pa.table({"key": range(60), "a": [n * 7 % 25 for n in range(60)]})
S = pa.table({"x": range(100), "y": range(100)})
Key = tuple[Any, ...]


@dataclass(eq=False)
class TableSource:
    """Answers from a table.

    Args:
        table: What it knows.
        terms: On which it may be asked.
        refuse: Returns what to raise for an attempt: it gets the key and how often it was asked before.
        generous: It returns all rows whatever it is asked for.
        before: Awaited before each answer, with the keys that were asked for; none for a batch of a scan.
        chunk: Rows in a batch of a scan.
        breaks: After so many batches the first scan fails, the second, and so on; later ones are whole.
    """

    table: pa.Table
    terms: Terms = field(default_factory=Terms)
    refuse: Callable[[Key, int], Refused | None] = lambda key, before: None
    generous: bool = False
    before: Callable[[list[Key]], Any] | None = None
    chunk: int = 3
    breaks: list[int] = field(default_factory=list)
    secrets = ()

    def __post_init__(self) -> None:
        self.asked: Counter[Key] = Counter()
        self.requests: list[list[Key]] = []
        self.open_sessions = self.scans = 0
        batches = self.table.combine_chunks().to_batches()
        self._rows = batches[0] if batches else pa.RecordBatch.from_pylist([], self.table.schema)

    def describe(self) -> str:
        return "a table"

    def open(self, *_: object) -> TableSource:
        """Open a session, which is the source itself."""
        self.open_sessions += 1
        return self

    async def close(self) -> None:
        self.open_sessions -= 1

    async def fetch(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        wanted: list[Key] = list(zip(*(c.to_pylist() for c in keys.columns), strict=True))
        before = [self.asked[key] for key in wanted]
        self.asked.update(wanted)
        self.requests.append(wanted)
        if self.before is not None:
            await self.before(wanted)
        for key, times in zip(wanted, before, strict=True):
            refused = self.refuse(key, times)
            if refused is not None:
                raise refused
        mine = zip(*(self._rows.column(name).to_pylist() for name in keys.schema.names), strict=True)
        return self._rows.filter(pa.array([self.generous or key in wanted for key in mine], pa.bool_()))

    async def scan(self) -> AsyncIterator[pa.RecordBatch]:
        self.scans += 1
        end = self.breaks.pop(0) if self.breaks else None
        for number, low in enumerate(range(0, self._rows.num_rows, self.chunk)):
            if number == end:
                raise Refused("broken", "the connection is gone", again=True)
            if self.before is not None:
                await self.before([])
            yield self._rows.slice(low, self.chunk)


class Lookups:
    """Makes access modules that share an event loop; an index's room is that of its name."""

    def __enter__(self) -> Self:
        self.loop = Loop()
        self.rooms: dict[str, LookupSession] = {}
        return self

    def __exit__(self, *_: object) -> None:
        for room in self.rooms.values():
            self.loop.call(room.close)
        self.loop.close()

    def index(self, name: str, columns, source: TableSource, on_error: OnError = "fail") -> LookupIndex:
        return self.of(IndexSpec(name, columns, source.table.schema, source, on_error))

    def of(self, spec: IndexSpec) -> LookupIndex:
        connect = self._connect(spec.name, spec.registration(Secrets()))
        return LookupIndex(spec, lambda rows: rows, self.loop, connect, WallClock())

    def scan(self, name: str, source: TableSource, *, again: bool = False) -> LookupScan:
        schema = source.table.schema
        connect = self._connect(f"scan of {name}", Registration(name))
        clock = WallClock()
        return LookupScan(name, source, schema, lambda rows: rows, self.loop, connect, clock, again=again)

    def _connect(self, room: str, registration: Registration) -> Connect:
        async def connect() -> Client:
            if room not in self.rooms:
                self.rooms[room] = LookupSession(registration)
            return Client.local(self.rooms[room])

        return connect


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    """A source that is busy or down is waited for, but not for long."""
    monkeypatch.setattr("millrace.limits.policy.FIRST_WAIT", 0.0)
    monkeypatch.setattr("millrace.limits.limiter.FIRST_PROBE_PAUSE", 0.001)


def run(case: Case, access: dict, given: Options | None = None, chunk: int = 4) -> pa.Table:
    """Run a block; relations with access modules have no other source."""
    sources = {
        r.alias: case.tables[r.alias].combine_chunks().to_batches(max_chunksize=chunk)
        for r in case.spec.relations
        if r.alias not in access
    }
    eddy = Run(case.spec, sources, given, access=access)
    return pa.Table.from_batches(list(eddy.run()), case.spec.output_schema)


def look_up(source, case: Case | None = None, on_error: OnError = "fail"):
    """Join R, or what a case has, by an index on S alone; return rows, keys that failed, and figures."""
    with Lookups() as maker:
        index = maker.index("s", ("x",), source, on_error=on_error)
        rows = run(case or joined(), {"s": [index]}, chunk=100)
        return rows, maker.rooms["s"].failed(), maker.rooms["s"].progress()


def at_once(number: int, work) -> None:
    threads = [threading.Thread(target=work, daemon=True) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)


def joined() -> Case:
    """R.a = S.x, as in the experiments of the SteMs paper."""
    return block({"r": R, "s": S}, ["r.a = s.x"])


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.data())
def test_lookups_give_the_oracles_rows(data: st.DataObject) -> None:
    """Any block, several indexes on a relation, scans beside them, batched requests, answers out of order.

    A scan that fails before it has returned anything is begun again.
    """
    case = data.draw(cases(max_relations=4))
    made = {
        alias: replace(plan, indexes=tuple(p for p in plan.indexes if not _floats(case, alias, p.columns)))
        for alias, plan in data.draw(plans(case)).items()
    }
    turns = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=5))
    with Lookups() as maker:
        indexes = []
        access: dict[str, list] = {}
        for alias, plan in made.items():
            for number, one in enumerate(plan.indexes):
                most, batch = data.draw(st.sampled_from([1, 2, 8])), data.draw(st.sampled_from([1, 2, 5]))
                how = {"generous": one.generous, "before": _shuffler(turns)}
                source = TableSource(case.tables[alias], Terms(max_in_flight=most, batch=batch), **how)
                indexes.append(source)
                access.setdefault(alias, []).append(maker.index(f"{alias}{number}", one.columns, source))
            if alias in access and (plan.source or plan.scans):
                fails = data.draw(st.sampled_from([[], [0, 0]]))
                source = TableSource(case.tables[alias], Terms(retries=2), breaks=fails)
                access[alias].append(maker.scan(alias, source))
        found = run(case, access, data.draw(any_options()), data.draw(st.sampled_from([1, 3])))
    assert multiset(found) == case.expected(), case.sql()
    for source in indexes:
        assert set(source.asked.values()) <= {1}, "a key was asked for twice"
        assert source.open_sessions == 0


def _floats(case: Case, alias: str, columns: tuple[str, ...]) -> bool:
    return any(pa.types.is_floating(case.spec.relation(alias).schema.field(c).type) for c in columns)


def _shuffler(turns: list[int]):
    """Return what lets other coroutines go first, now more and now fewer of them."""
    calls = iter(range(1 << 30))

    async def wait(_) -> None:
        for _ in range(turns[next(calls) % len(turns)]):
            await asyncio.sleep(0)

    return wait


@pytest.mark.parametrize(
    ("terms", "says"),
    [
        ({"max_requests": 5}, None),
        ({"max_cost": 5, "cost": 1}, None),
        ({"max_cost": 5, "cost": lambda *_: {}["price"]}, "for cost raised KeyError"),
    ],
)
def test_what_a_budget_leaves_the_scan_returns(terms: dict[str, Any], says: str | None) -> None:
    """Beside a scan a budget is what may be spent on being sooner; a cost that nobody knows is an error."""
    spent = asyncio.Event()

    async def wait(keys: list) -> None:
        if keys and len(source.requests) == 5:
            spent.set()
        elif not keys:
            await spent.wait()

    source = TableSource(S, Terms(**terms), before=wait)
    with Lookups() as maker, pytest.raises(PriceError, match=says) if says else nullcontext():
        access = {"s": [maker.index("s", ("x",), source), maker.scan("s", TableSource(S, before=wait))]}
        found = run(joined(), access)
        assert multiset(found) == joined().expected()
        assert set(source.asked.values()) == {1} and len(source.requests) == 5


def test_keys_are_batched_when_more_are_due_than_may_be_in_flight() -> None:
    """25 keys, 1 request at a time, 10 keys in each: 3 requests."""
    source = TableSource(S, Terms(max_in_flight=1, batch=10))
    assert multiset(look_up(source)[0]) == joined().expected()
    assert [len(keys) for keys in source.requests] == [10, 10, 5]


def test_a_task_claims_no_more_than_it_soon_asks() -> None:
    """One request at a time: four keys are claimed ahead, and the other twenty are free for other tasks."""
    claimed: list[int] = []

    async def look(_) -> None:
        now = maker.rooms["s"].progress()
        claimed.append(now.keys - now.done)

    source = TableSource(S, Terms(max_in_flight=1), before=look)
    with Lookups() as maker:
        found = run(joined(), {"s": [maker.index("s", ("x",), source)]}, chunk=60)
    assert multiset(found) == joined().expected()
    assert len(claimed) == 25 and 2 <= max(claimed) <= 5


def test_tasks_that_share_a_room_ask_each_key_once() -> None:
    """Four eddies at once over the same rows: each has all results, and the source is asked 25 times."""
    source = TableSource(S, Terms(max_in_flight=3), before=_shuffler([0, 2, 1]))
    found: list[pa.Table] = []
    with Lookups() as maker:
        at_once(4, lambda: found.append(run(joined(), {"s": [maker.index("s", ("x",), source)]})))
    assert [multiset(each) for each in found] == [joined().expected()] * 4
    assert set(source.asked.values()) == {1}


@pytest.mark.broken_rule
def test_without_its_claims_keys_are_asked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of tasks that share a room fails when a task asks for what others are asking."""
    plain = Fetcher._hear

    def hear(self, found, failed, ask) -> None:
        others, self._waiting = self._waiting, set()
        plain(self, found, failed, [*ask, *others])

    monkeypatch.setattr(Fetcher, "_hear", hear)
    with pytest.raises(AssertionError):
        test_tasks_that_share_a_room_ask_each_key_once()


def test_a_source_that_cancels_itself_ends_the_query() -> None:
    """Rather than be waited for by the task for ever."""
    with pytest.raises(ExecutionError, match="has cancelled itself"):
        look_up(TableSource(S, before=AsyncMock(side_effect=asyncio.CancelledError)))


BAD = (13,)


def _of_100(refuse=lambda *_: None, batch: int = 20, before=None, **terms) -> tuple[TableSource, Case]:
    """A source that refuses requests by their keys, and a join that asks for a hundred."""
    source = TableSource(S, Terms(batch=batch, **terms), refuse, before=before)
    return source, block({"r": pa.table({"a": range(100)}), "s": S}, ["r.a = s.x"])


@pytest.mark.parametrize("batch", [1, 20])
def test_a_key_that_fails_fails_the_query_with_its_name(batch) -> None:
    """The error says which lookup, which key, how often it was asked, what went wrong and what would work."""

    async def hang(keys: list) -> None:
        if BAD in keys:
            await asyncio.Event().wait()

    source, case = _of_100(batch=batch, before=hang, retries=1, timeout=0.01)
    says = r"key \{\"x\": 13\} could not.* attempt.*timeout: no answer within 0\.01.*skip"
    with pytest.raises(ExecutionError, match=f"'s'.*{says}"):
        look_up(source, case)
    assert batch > 1 or source.asked[BAD] == 2
    assert source.open_sessions == 0


@pytest.mark.parametrize(("on_error", "batch"), [("skip", 1), ("null", 1), ("skip", 20)])
def test_a_source_that_is_down_fails_the_query_and_is_spared(on_error: OnError, batch: int) -> None:
    """Rather than make a row of nulls of each key: few are asked, and halves of batches count as requests."""
    down = Refused("connection", "refused", again=True)
    source, case = _of_100(lambda *_: down, batch, retries=1, max_in_flight=1, circuit_breaker=8)
    with pytest.raises(ExecutionError, match="'s' does not answer: 16 requests in a row"):
        look_up(source, case, on_error)
    assert len(source.requests) == 16


def test_a_wait_that_a_source_asks_for_has_a_bound(monkeypatch) -> None:
    """All tasks wait for ``max_retry_after`` at most; the failure names both."""
    paused = []
    monkeypatch.setattr(Client, "pause", lambda client, seconds: paused.append(seconds))
    terms = Terms(retries=1, max_retry_after=0.02)
    source = TableSource(S, terms, refuse=lambda *_: Refused("HTTP 429", "busy", again=True, wait=3600.0))
    with pytest.raises(ExecutionError, match=r"asks to wait 3600 s, max_retry_after is 0.02 s"):
        look_up(source)
    assert set(paused) == {0.02}


def test_answers_do_not_wait_for_slower_ones_before_them() -> None:
    """No head-of-line blocking: while the first key hangs, the rows of all others come (section 4.1)."""
    release, case = threading.Event(), joined()

    async def wait(keys: list) -> None:
        if (0,) in keys:
            await asyncio.to_thread(release.wait)

    with Lookups() as maker:
        index = maker.index("s", ("x",), TableSource(S, Terms(max_in_flight=2), before=wait))
        eddy = Run(case.spec, {"r": R.to_batches()}, Options(online=True), access={"s": [index]})
        rows = 0
        for batch in eddy.run():
            rows += batch.num_rows
            if rows == sum(a != 0 for a in R.column("a").to_pylist()):
                release.set()
    assert rows == sum(case.expected().values())


def test_a_scan_that_is_given_up_ends_before_its_session() -> None:
    """What it holds is given back while the session has threads, its pages though that takes long."""
    ended: list[int] = []
    asked, closing = threading.Event(), threading.Event()

    class Source(TableSource):
        async def scan(self) -> AsyncIterator[pa.RecordBatch]:
            try:
                async for batch in super().scan():
                    yield batch
            finally:
                ended.append(self.open_sessions)

        async def close(self) -> None:
            closing.set()
            await asyncio.Event().wait()

    async def look(_) -> None:
        source.requests.append([])
        if len(source.requests) == 5:
            asked.set()
            await asyncio.Event().wait()

    source = Source(S, before=look)
    with Lookups() as maker:
        scan = maker.scan("s", source)
        scan.poll()
        assert asked.wait(PATIENCE)
        scan.close()
        assert closing.wait(PATIENCE)
        maker.loop.close()
        assert maker.rooms["scan of s"].empty
    assert ended == [1]


@pytest.mark.parametrize("indexed", [False, True])
def test_tasks_that_share_a_room_read_a_scan_once(indexed) -> None:
    """Four eddies at once, and one when all is over: each has all results, and equal rows are one."""
    source, index = TableSource(pa.concat_tables([S, S]), before=_shuffler([0, 2, 1])), TableSource(S)
    found: list[pa.Table] = []

    def work() -> None:
        scan = maker.scan("s", source)
        index_too = [maker.index("s", ("x",), replace(index, before=until_read))] if indexed else []
        found.append(run(joined(), {"s": [scan, *index_too]}))

    async def until_read(_) -> None:
        await asyncio.Event().wait()

    with Lookups() as maker:
        at_once(4, work)
        work()
    assert [multiset(each) for each in found] == [joined().expected()] * 5
    assert source.scans == 1


@pytest.mark.law
@settings(max_examples=20, deadline=None, derandomize=True)
@example([3, 0, 5], False)
@example([9], True)
@given(st.lists(st.integers(0, 9), max_size=3), st.booleans())
def test_whoever_stops_reading_no_row_is_lost(leaves: list[int], waits: bool) -> None:
    """Tasks leave after so many batches, and each reads the rows in another order: two that stay have all.

    Where the others wait, the first one has read its batches before any of them begins. One that comes when
    all is over gets each row once, none of a reading that was given up.
    """
    events: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    found: list[pa.Table] = []

    def source(number: int, batches: int) -> TableSource:
        first = 30 + 7 * number  # no row of the first pages has a match
        rows = pa.concat_tables([S[first:], S[:first]])
        coming = iter(range(batches))

        async def leave(_) -> None:
            if next(coming, None) is None:
                events.put(number)
                await asyncio.Event().wait()

        return TableSource(rows, before=leave, chunk=10 + number)

    whole = [source(5 + n, 1000) for n in range(2)]

    def work() -> None:
        mine = maker.scan("s", staying.pop())
        found.append(run(joined(), {"s": [mine]}))
        events.put(None)

    with Lookups() as maker:
        staying = list(whole)
        leaving = [maker.scan("s", source(number, batches)) for number, batches in enumerate(leaves)]
        for scan in leaving:
            scan.poll()
            if waits and scan is leaving[0]:
                events.put(events.get(timeout=PATIENCE))
        threads = [threading.Thread(target=work, daemon=True) for _ in whole]
        for thread in threads:
            thread.start()
        left = len(threads)
        while left:
            number = events.get(timeout=PATIENCE)
            if number is None:
                left -= 1
            else:
                leaving[number].close()
        late = maker.scan("s", source(9, 1000))
        found.append(run(joined(), {"s": [late]}))
    assert [multiset(each) for each in found] == [joined().expected()] * 3
    assert sum(each.scans for each in whole) <= 1 and late.figures().tuples_out == S.num_rows


@pytest.mark.law
@settings(max_examples=20, deadline=None, derandomize=True)
@example([4, 0], 1)
@given(st.lists(st.integers(0, 9), max_size=3), st.integers(1, 3))
def test_tasks_that_run_again_begin_a_broken_scan_anew(breaks: list[int], tasks: int) -> None:
    """However often it breaks, each has all rows in the end; no attempt begins more than one reading."""
    rows = pa.concat_tables([S[30:], S[:30]])  # no row of the first pages has a match
    source = TableSource(rows, Terms(retries=0), before=_shuffler([0, 2, 1]), chunk=10, breaks=[*breaks])
    found: list[pa.Table] = []

    def work() -> None:
        for attempt in range(len(breaks) + 1):
            scan = maker.scan("s", source, again=attempt > 0)
            with suppress(ExecutionError):
                found.append(run(joined(), {"s": [scan]}))
                return
            assert "connection is gone" in scan.why

    with Lookups() as maker:
        at_once(tasks, work)
    assert [multiset(each) for each in found] == [joined().expected()] * tasks
    assert source.scans == len(breaks) + 1


@pytest.mark.broken_rule
@pytest.mark.parametrize(
    "rule",
    ["a row may come twice", "another reading begins at the first page", "only the latest reading counts"],
)
def test_the_law_of_readings_catches(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    """Without sets rows are doubled; where a reading that was given up counts as whole, some are lost."""
    if rule == "a row may come twice":
        monkeypatch.setattr(LookupScan, "may_repeat", False)
    elif rule == "only the latest reading counts":
        monkeypatch.setattr(LookupScan, "_find_latest", AsyncMock(side_effect=lambda _, reading: reading))
    else:
        plain = scan_module._note
        monkeypatch.setattr(scan_module, "_note", lambda *_: plain())
    with pytest.raises(AssertionError):
        # Among nine batches are rows with a match, which come again in the next reading.
        test_whoever_stops_reading_no_row_is_lost.hypothesis.inner_test([9], waits=True)


@pytest.mark.broken_rule
def test_the_law_of_broken_scans_catches_one_that_counts_as_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = scan_module._note
    monkeypatch.setattr(scan_module, "_note", lambda *_: plain())
    with pytest.raises(AssertionError):
        test_tasks_that_run_again_begin_a_broken_scan_anew.hypothesis.inner_test([4], 1)


def test_a_scan_that_breaks_off_leaves_the_rest_to_the_index() -> None:
    """Half of the table comes by the scan, the other half is looked up; there is no duplicate."""
    with Lookups() as maker:
        broken = maker.scan("s", TableSource(S, Terms(retries=0), breaks=[4]))
        good = maker.scan("s again", TableSource(S, chunk=7))
        found = run(joined(), {"s": [maker.index("s", ("x",), TableSource(S)), broken, good]})
    assert multiset(found) == joined().expected()
    assert broken.state == "broken"
    assert "connection is gone" in broken.why


def test_metadata_of_a_source_is_no_note() -> None:
    with Lookups() as maker:
        scan = maker.scan("s", TableSource(S.replace_schema_metadata({"broken": "no"})))
        found = run(joined(), {"s": [scan]})
    assert multiset(found) == joined().expected()


def test_a_scan_that_cancels_itself_leaves_all_to_the_index() -> None:
    """Rather than be waited for by the task for ever."""
    with Lookups() as maker:
        broken = maker.scan("s", TableSource(S, before=AsyncMock(side_effect=asyncio.CancelledError)))
        found = run(joined(), {"s": [maker.index("s", ("x",), TableSource(S)), broken]})
    assert multiset(found) == joined().expected()
    assert (broken.state, "cancelled itself" in broken.why) == ("broken", True)


def test_a_scan_has_a_time_for_each_request() -> None:
    """All together may take longer; a single one that does breaks it."""
    terms = Terms(retries=0, timeout=0.2)
    with Lookups() as maker:
        slow = maker.scan("s", TableSource(S, terms, before=lambda _: asyncio.sleep(0.03), chunk=10))
        assert multiset(run(joined(), {"s": [slow]})) == joined().expected()
        stuck = maker.scan("stuck", TableSource(S, terms, before=lambda _: asyncio.Event().wait()))
        with pytest.raises(ExecutionError, match="every scan of it ended before"):
            run(joined(), {"s": [stuck]})
        assert stuck.why == "no answer within 0.2 s"


def test_a_loop_whose_thread_cannot_start_is_an_error_and_can_be_closed(monkeypatch):
    """Nobody waits for what never began."""
    monkeypatch.setattr("threading.Thread.start", Mock(side_effect=RuntimeError("can't start new thread")))
    loop = Loop()
    with pytest.raises(RuntimeError, match="new thread"):
        loop.call(print)
    loop.close()


@contextmanager
def _failing_task(on_error: OnError):
    """An index that has asked for a key that fails, its run's coordinator, and what wakes the task."""
    source = TableSource(S, refuse=lambda *_: Refused("HTTP 500", "no luck"))
    spec = IndexSpec("s", ("x",), S.schema, source, on_error)
    coordinator, loop, woken = Coordinator(), Loop(), threading.Event()
    coordinator.register("run", [spec.registration(Secrets())])
    connect = partial(Client.connect, coordinator.address, "run/0/0")
    index = LookupIndex(spec, lambda rows: rows, loop, connect, WallClock())
    index.wake_by(woken)
    index.submit(pa.RecordBatch.from_pydict({"x": [3]}))
    try:
        yield index, coordinator, woken
    finally:
        index.close()
        loop.close()
        coordinator.close()


@pytest.mark.parametrize("on_error", ["fail", "skip", "null"])
def test_a_failed_key_is_listed_before_anybody_hears_of_it(monkeypatch, on_error: OnError) -> None:
    """However long the coordinator takes, a task does not go on, nor fail, before the key is in the list."""
    reached, go_on = threading.Event(), threading.Event()
    note = LookupSession._fail

    def slowly(room: LookupSession, client: int, failures: dict) -> None:
        reached.set()
        assert go_on.wait(PATIENCE)
        note(room, client, failures)

    monkeypatch.setattr(LookupSession, "_fail", slowly)
    with _failing_task(on_error) as (index, coordinator, woken):
        assert reached.wait(PATIENCE)
        # Whatever the task does at this moment in its own event loop, it does before this returns.
        for _ in range(100):
            index._loop.start(lambda: asyncio.sleep(0)).result()
        is_silent = not woken.is_set() and index.poll() == []
        go_on.set()
        assert is_silent and woken.wait(PATIENCE)
        assert [each.key for each in coordinator.failed("run")] == ['{"x": 3}']
        if on_error == "fail":
            with pytest.raises(ExecutionError, match="HTTP 500"):
                index.poll()
        else:
            assert [answer.rows.num_rows for answer in index.poll()] == [int(on_error == "null")]


def test_a_coordinator_that_goes_while_a_failure_is_told_is_an_error(monkeypatch) -> None:
    """The task hears that the coordinator is gone, rather than wait for its word for ever."""
    monkeypatch.setattr(LookupSession, "_fail", lambda room, client, failures: room._later(room.close))
    with _failing_task("skip") as (index, _, woken):
        assert woken.wait(PATIENCE)
        with pytest.raises(ExecutionError, match="run of lookup 's' is over"):
            index.poll()


BUSY = Refused("HTTP 503", "no", again=True, wait=0.0)
FAULTS = [
    Refused("HTTP 400", "bad key"),
    Refused("unfit answer", "a text in a column of numbers"),
    Refused("malformed answer", "no JSON", again=True),
    Refused("connection", "dropped", again=True),
    Refused("timeout", "no answer", again=True),
    ZeroDivisionError("a source's own mistake"),
]


@settings(max_examples=8, deadline=None, derandomize=True)
@example({13: FAULTS[0]}, set(), 20, "skip")
@example(dict.fromkeys(range(99), FAULTS[0]), set(), 20, "skip")
@given(
    st.dictionaries(st.integers(0, 99), st.sampled_from(FAULTS)),
    st.sets(st.integers(0, 99)),
    st.sampled_from([1, 5, 20]),
    st.sampled_from(["skip", "null"]),
)
def test_keys_at_fault_fail_alone(faults, busy, batch: int, on_error: OnError) -> None:
    """Their batches are asked by halves, and what may pass is repeated: the other keys have their rows."""
    refuse = lambda key, before: faults.get(key[0]) or (BUSY if key[0] in busy and before < 2 else None)  # noqa: E731
    source, case = _of_100(refuse, batch, retries=2, max_in_flight=2, circuit_breaker=None)
    found, failed, progress = look_up(source, case, on_error)
    nulls = {(key, key, None): 1 for key in faults} if on_error == "null" else {}
    assert multiset(found) == {row: n for row, n in case.expected().items() if row[0] not in faults} | nulls
    kinds = {key: getattr(fault, "kind", type(fault).__name__) for key, fault in faults.items()}
    told = {each.key: (each.name, each.kind, each.attempts) for each in failed}
    assert told == {f'{{"x": {key}}}': ("s", kind, source.asked[key,]) for key, kind in kinds.items()}
    figures = progress.keys, progress.done, progress.failed, progress.requests
    assert figures == (100, 100 - len(faults), len(faults), len(source.requests))
    if batch == 1:
        assert progress.retried == len(source.requests) - 100 and set(source.asked.values()) <= {1, 3}
    elif len(faults) == 1 and not busy:
        # The batch is repeated twice, then by halves of 10, 5, 2 or 3, and so on to the key alone.
        assert len(source.requests) <= 100 / batch + 2 + 2 * 5 + 2


GONE, WRONG = Refused("HTTP 404", "no such page"), Refused("HTTP 401", "no")


@pytest.mark.parametrize(
    ("refuse", "how", "requests", "lost"),
    [
        (lambda key, _: WRONG, {}, 5, 100),
        (lambda key, _: BUSY, {}, 10, 100),
        (lambda key, _: Refused("HTTP 429", "no", again=True), {}, 10, 100),
        # A password that has become wrong meanwhile is wrong the next time too.
        (lambda key, before: WRONG if before else GONE if key == BAD else None, {"retries": 2}, 5 + 2, 20),
        # When so many keys in a row have failed alone, it is not the keys: later batches are not split.
        (lambda key, _: GONE, {"batch": 10, "max_in_flight": 1}, 19 + 9, 100),
    ],
)
def test_what_is_no_keys_fault_is_not_asked_by_halves(monkeypatch, refuse, how, requests, lost) -> None:
    """A wrong password is as wrong for each key; what it says is of the whole request."""
    monkeypatch.setattr("millrace.limits.fetcher._IN_VAIN", 10)
    source, case = _of_100(refuse, **{"retries": 1, "circuit_breaker": None, **how})
    found, failed, _ = look_up(source, case, "skip")
    assert (len(source.requests), len(failed), found.num_rows) == (requests, lost, 100 - lost)
    assert "together with 9" in failed[-1].message or "together with 19" in failed[-1].message


def test_rows_that_cannot_be_shared_are_told_to_whoever_waits(monkeypatch) -> None:
    """Two tasks want a key whose rows no message holds: both hear, and neither waits for ever."""
    monkeypatch.setattr("millrace.limits.codec.LARGEST_ATTACHMENT", 10)
    monkeypatch.setattr("millrace.limits.codec.USUAL_ATTACHMENT", 10)
    source = TableSource(S, Terms(max_in_flight=1), before=_shuffler([3]))
    errors: list[str] = []
    with Lookups() as maker:

        def task() -> None:
            with pytest.raises(ExecutionError) as caught:
                run(joined(), {"s": [maker.index("s", ("x",), source)]})
            errors.append(str(caught.value))

        at_once(2, task)
    assert len(errors) == 2 and all("bind more columns" in each for each in errors)


@pytest.mark.parametrize("length", [1 << 10, 1 << 15])
def test_a_scan_shares_long_rows_and_names_what_no_message_holds(monkeypatch, length: int) -> None:
    """Rows of a kilobyte among short ones are cut apart; one of more than a message is an error."""
    monkeypatch.setattr("millrace.limits.codec.USUAL_ATTACHMENT", 1 << 12)
    monkeypatch.setattr("millrace.limits.codec.LARGEST_ATTACHMENT", 1 << 14)
    texts = ["y" * (length if 9 < n < 40 else 1) for n in range(1000)]
    case = block({"r": R, "s": pa.table({"x": range(1000), "y": texts})}, ["r.a = s.x"])
    with Lookups() as maker:
        scan = maker.scan("s", TableSource(case.tables["s"], chunk=1000))
        refused = pytest.raises(ExecutionError, match=r"\(s: .*one row of its scan.*leave out the columns")
        with nullcontext() if length < 1 << 14 else refused:
            assert multiset(run(case, {"s": [scan]})) == case.expected()
