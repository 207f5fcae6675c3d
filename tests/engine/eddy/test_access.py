"""Access modules: any mix of scans and indexes gives DuckDB's rows, and nothing is asked for twice."""

from __future__ import annotations

import math
from dataclasses import replace

import pyarrow as pa
import pytest

from millrace.engine.arrivals.access_modules import Answer, Index, Scan
from millrace.engine.expressions import ColumnRef
from millrace.engine.runs.eddy_run import EddyRun
from millrace.engine.spec import Equality, JoinSpec, OutputColumn, RelationSpec
from millrace.engine.state.stem import SteM
from millrace.errors import ExecutionError, InputError
from millrace.limits.clock import VirtualClock, WallClock
from millrace.options import POLICY_NAMES, Options
from tests.engine.eddy.access_cases import IndexPlan, Plan, ScanPlan, run
from tests.engine.eddy.blocks import block, chain
from tests.engine.eddy.oracle import Case

INT = pa.int64()


@pytest.mark.parametrize("policy", POLICY_NAMES)
@pytest.mark.parametrize("batch_size", [1, 4, 1000])
def test_requests_are_the_distinct_bindings(policy: str, batch_size: int) -> None:
    """Section 4.2: R has 60 tuples with 25 values of ``a``, so the index on S is asked 25 times."""
    r = pa.table({"key": range(60), "a": [n * 7 % 25 for n in range(60)]})
    s = pa.table({"x": range(100), "y": range(100)})
    case = block({"r": r, "s": s}, ["r.a = s.x"])
    for online in (False, True):
        made = {"s": Plan(source=False, indexes=(IndexPlan(("x",), 1.0, in_flight=1),))}
        ran = run(case, made, Options(policy=policy, batch_size=batch_size, online=online), chunk=7)
        assert ran.rows == case.expected()
        assert len(ran.indexes[0].bindings) == len(set(ran.indexes[0].bindings)) == 25
        assert ran.clock.now() == 25.0


def test_cached_lookups_do_not_wait_for_others() -> None:
    """Section 4.2, no head-of-line blocking: a tuple whose matches are here is a result at once."""
    r = pa.table({"a": [0] + [n // 2 for n in range(40)] + [0] * 30})
    s = pa.table({"x": range(20)})
    case = block({"r": r, "s": s}, ["r.a = s.x"])
    made = {"s": Plan(source=False, indexes=(IndexPlan(("x",), 1.0, in_flight=1),))}
    ran = run(case, made, Options(batch_size=1, online=True), chunk=1)
    # Everything is read by the time that the first answer comes; each answer then finds all its tuples.
    seconds = [when for when, batch in ran.results for _ in range(batch.num_rows)]
    assert seconds.count(1.0) == 33
    assert all(seconds.count(float(n)) == 2 for n in range(2, 21))


def test_an_answer_concerns_only_those_that_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 200 answers, one after the other, each of 600 waiting tuples is looked at a few times."""
    looked: list[int] = []
    missing = SteM.missing
    monkeypatch.setattr(
        SteM, "missing", lambda self, batch: (looked.append(batch.size), missing(self, batch))[1]
    )
    r = pa.table({"key": range(600), "a": [n * 7 % 200 for n in range(600)]})
    s = pa.table({"x": range(0, 400, 2), "y": range(200)})
    case = block({"r": r, "s": s}, ["r.a = s.x"])
    made = {"s": Plan(source=False, indexes=(IndexPlan(("x",), 1.0, in_flight=1),))}
    ran = run(case, made, Options(batch_size=50), stream="r", chunk=50)
    assert ran.rows == case.expected()
    assert ran.clock.now() == 200.0
    assert sum(looked) <= 5 * 600


def test_the_first_scan_to_end_suffices() -> None:
    """Section 3.2: of competing scans one stalls for ever and one breaks off; the third ends the relation."""
    case = chain(2, rows=30)
    made = {
        "b": Plan(source=False, scans=(ScanPlan(stall=(1, math.inf)), ScanPlan(rows=2), ScanPlan(every=2.0)))
    }
    ran = run(case, made, chunk=3)
    assert ran.rows == case.expected()
    batches = math.ceil(case.tables["b"].num_rows / 3)
    assert ran.clock.now() == 2.0 * (batches + 1)
    (state,) = [s for s in ran.eddy.figures().state if s.name == "SteM(b)"]
    assert state.inserted == case.tables["b"].num_rows


@pytest.mark.parametrize("policy", [p for p in POLICY_NAMES if p not in ("fixed", "bounded")])
def test_an_index_fills_in_for_a_stalled_scan(policy: str) -> None:
    """While the scan of T stalls, tuples ask its index, and their results do not wait for the scan."""
    n = 30
    t = pa.table({"key": range(n), "v": range(n)})
    r = pa.table({"key": range(n)})
    case = block({"r": r, "t": t}, ["r.key = t.key"])
    made = {
        "r": Plan(source=False, scans=(ScanPlan(every=1.0),)),
        "t": Plan(source=False, indexes=(IndexPlan(("key",), 0.25),), scans=(ScanPlan(0.0, (0, 1000.0)),)),
    }
    ran = run(case, made, Options(policy=policy, batch_size=1, reoptimize_every=1), chunk=1)
    assert ran.rows == case.expected()
    early = sum(batch.num_rows for when, batch in ran.results if when < 100)
    assert early >= n / 4


def test_a_scan_that_flows_leaves_the_index_alone() -> None:
    """A learning policy asks nothing that a scan is about to return."""
    case = chain(5, rows=15)
    made = {"b": Plan(source=True, indexes=(IndexPlan(("k",), 1.0), IndexPlan(("j",), 1.0)))}
    for policy in ("greedy", "rank"):
        ran = run(case, made, Options(policy=policy, online=True, batch_size=1))
        assert ran.rows == case.expected()
        assert not any(index.bindings for index in ran.indexes)


def test_the_faster_of_two_indexes_is_asked_more() -> None:
    """Indexes on the same column compete; the SteM makes one cache of their answers."""
    r = pa.table({"k": range(300)})
    s = pa.table({"k": range(300)})
    case = block({"r": r, "s": s}, ["r.k = s.k"])
    slow, fast = IndexPlan(("k",), 10.0), IndexPlan(("k",), 1.0)
    made = {
        "r": Plan(source=False, scans=(ScanPlan(every=1.0),)),
        "s": Plan(source=False, indexes=(slow, fast)),
    }
    ran = run(case, made, Options(policy="greedy", batch_size=1, reoptimize_every=20), chunk=1)
    assert ran.rows == case.expected()
    asked = [len(index.bindings) for index in ran.indexes]
    assert sum(asked) == 300
    assert asked[1] > asked[0]


def typed(kind: pa.DataType, own: pa.DataType, keys: list[object], values: list[object]) -> Case:
    """Return ``r.k = s.k`` compared in a wider type than the index's own column has."""
    tables = {"r": pa.table({"k": pa.array(keys, kind)}), "s": pa.table({"k": pa.array(values, own)})}
    relations = tuple(RelationSpec(a, t.schema) for a, t in tables.items())
    columns = [ColumnRef(a, "k") for a in tables]
    output = tuple(OutputColumn(c.relation, c) for c in columns)
    return Case(JoinSpec(relations, (Equality(*columns, kind),), (), output), tables)


@pytest.mark.parametrize(
    "case",
    [
        typed(INT, pa.int8(), [1, 300, 1, None], [1, 2, None, 44]),
        typed(pa.float64(), pa.int32(), [1.0, 1.5, math.nan, -0.0], [0, 1, 2]),
        typed(pa.float64(), pa.float64(), [math.nan, -0.0, 0.0], [math.nan, 0.0, -0.0, 1.0]),
        typed(pa.string(), pa.string(), ["", "a", "a", None], ["a", "", "A", None]),
    ],
    ids=["narrow", "float", "nan", "text"],
)
def test_bindings_compare_as_the_join_does(case: Case) -> None:
    """Values beyond the index's own type match nothing, NaN is asked once, -0.0 and 0.0 are one binding."""
    made = {"s": Plan(source=False, indexes=(IndexPlan(("k",)),))}
    ran = run(case, made, Options(batch_size=1))
    assert ran.rows == case.expected()
    keys = {0.0 if k == 0 else k for k in case.tables["r"]["k"].to_pylist() if k is not None}
    assert len(ran.indexes[0].bindings) == len(keys)


def test_a_function_may_be_an_index() -> None:
    """It gets record batches of distinct bindings, and may return more than was asked for."""
    calls: list[list[int]] = []

    def squares(bindings: pa.RecordBatch) -> pa.RecordBatch:
        calls.append(bindings.column("n").to_pylist())
        rows = [{"n": n, "square": n * n} for n in calls[-1]]
        more = [] if -1 in calls[-1] else [{"n": -1, "square": 1}]
        return pa.RecordBatch.from_pylist(rows + more, schema)

    schema = pa.schema([("n", INT), ("square", INT)])
    numbers = pa.table({"n": [3, 1, 3, None, -1]})
    relations = (RelationSpec("r", numbers.schema), RelationSpec("f", schema))
    spec = JoinSpec(
        relations,
        (Equality(ColumnRef("r", "n"), ColumnRef("f", "n"), INT),),
        output=(OutputColumn("square", ColumnRef("f", "square")),),
    )
    for clock in (VirtualClock(), WallClock()):
        calls.clear()
        eddy = EddyRun(
            spec,
            {"r": numbers.to_batches()},
            clock=clock,
            access={"f": [Index("squares", ["n"], squares, clock, 0.001, in_flight=2)]},
        )
        got = pa.Table.from_batches(list(eddy.run()), spec.output_schema)["square"].to_pylist()
        assert sorted(got) == [1, 1, 9, 9]
        assert calls == [[3, 1], [-1]]


def test_a_full_index_holds_the_sources_back() -> None:
    """No more is read while an index has as many bindings pending as it takes."""
    clock = VirtualClock()
    pending: list[int] = []

    def source() -> object:
        for n in range(50):
            pending.append(index.pending)
            yield pa.record_batch({"k": pa.array([n], INT)})

    case = block({"r": pa.table({"k": range(50)}), "s": pa.table({"k": range(50)})}, ["r.k = s.k"])
    index = Index("s", ["k"], case.tables["s"], clock, 1.0, in_flight=1, capacity=5)
    eddy = EddyRun(case.spec, {"r": source()}, Options(online=True), clock=clock, access={"s": [index]})
    assert sum(batch.num_rows for batch in eddy.run()) == 50
    assert len(pending) == 50 and max(pending) == 4


def test_wide_rows_that_wait_hold_the_sources_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few bindings they have: a hundred of a kilobyte for one key, of which ten may wait."""
    monkeypatch.setattr("millrace.engine.arrivals.arrivals.MOST_WAITING", 10 * 1024)
    clock = VirtualClock()
    read: list[float] = []

    def source() -> object:
        for _ in range(100):
            read.append(clock.now())
            yield pa.record_batch({"k": pa.array([1], INT), "text": pa.array(["x" * 1024])})

    rows = pa.table({"k": pa.array([1], INT), "text": ["x" * 1024]})
    case = block({"r": rows, "s": pa.table({"k": pa.array([1], INT)})}, ["r.k = s.k"])
    index = Index("s", ["k"], case.tables["s"], clock, 1.0)
    options = Options(batch_size=2)
    eddy = EddyRun(case.spec, {"r": source()}, options, clock=clock, access={"s": [index]})
    assert sum(batch.num_rows for batch in eddy.run()) == 100
    before = sum(when < 1.0 for when in read)
    assert 5 <= before <= 12, before


# What cannot be answered


def test_a_block_that_no_join_can_bind_is_refused_before_it_starts() -> None:
    """Section 2.2: the error names the columns that are needed."""
    case = chain(1)
    made = {
        "b": Plan(source=False, indexes=(IndexPlan(("id",)),)),
        "c": Plan(source=False, indexes=(IndexPlan(("j",)),)),
    }
    with pytest.raises(InputError, match=r"'b'.*\(b.id\).*'c'.*\(c.j\)"):
        run(case, made)
    with pytest.raises(InputError, match=r"\(b.k, b.id\) or \(b.id\).*here \['a', 'c'\]"):
        run(case, {"b": Plan(source=False, indexes=(IndexPlan(("k", "id")), IndexPlan(("id",))))})
    with pytest.raises(InputError, match="'b'"):
        run(case, {"b": Plan(source=False)})


def test_access_modules_are_checked() -> None:
    """Names, columns and schemas."""
    case = chain(1)
    clock = VirtualClock()
    with pytest.raises(InputError, match="'bb'"):
        EddyRun(case.spec, {}, access={"bb": []})
    with pytest.raises(InputError, match="'x'"):
        run(case, {"b": Plan(indexes=(IndexPlan(("x",)),))})
    with pytest.raises(InputError, match="is a scan"):
        Index("i", [], case.tables["b"], clock)
    wrong = Index("i", ["k"], lambda _: pa.record_batch({"k": [1]}), clock)
    sources = {alias: case.tables[alias].to_batches() for alias in "ac"}
    with pytest.raises(ExecutionError, match="'i'"):
        list(EddyRun(case.spec, sources, clock=clock, access={"b": [wrong]}).run())
    for architecture in ("joins", "stairs"):
        with pytest.raises(InputError, match="architecture='stems'"):
            run(case, {"b": Plan(indexes=(IndexPlan(("k",)),))}, Options(architecture=architecture))
    shared = replace(case.spec.relations[0], alias="d", same_as="a")
    spec = replace(case.spec, relations=(*case.spec.relations, shared))
    with pytest.raises(InputError, match="'a'"):
        EddyRun(spec, {}, access={"d": []})


def test_a_relation_without_an_end_is_an_error() -> None:
    """Scans that all break off, or stall for ever with nothing beside them."""
    case = chain(1)
    with pytest.raises(ExecutionError, match="'b'"):
        run(case, {"b": Plan(source=False, scans=(ScanPlan(rows=1), ScanPlan(rows=2)))})
    with pytest.raises(ExecutionError, match=": b"):
        run(case, {"b": Plan(source=False, scans=(ScanPlan(stall=(0, math.inf)),))})


def test_a_closed_module_returns_nothing() -> None:
    """Closing drops what is pending and what was not yet returned."""
    clock = VirtualClock()
    table = pa.table({"k": pa.array([1, 2], INT)})
    index = Index("i", ["k"], table, clock, 1.0)
    index.submit(pa.record_batch({"k": pa.array([1], INT)}))
    index.close()
    clock.advance(2.0)
    assert (index.poll(), index.pending, index.due()) == ([], 0, math.inf)
    scan = Scan("s", table.to_batches(), clock)
    scan.close()
    assert scan.poll() is None


@pytest.mark.parametrize("architecture", ["stems", "joins"])
def test_an_answer_to_bindings_of_other_types_is_refused(architecture: str) -> None:
    """The error names the index, the types that it answered, and those that it was asked for."""

    class Retyping(Index):
        def poll(self) -> list[Answer]:
            narrow = pa.schema([("k", pa.int32())])
            return [Answer(each.bindings.cast(narrow), each.rows) for each in super().poll()]

    case = block({"r": pa.table({"k": range(5)}), "s": pa.table({"k": range(5)})}, ["r.k = s.k"])
    clock = VirtualClock()
    index = Retyping("mine", ["k"], case.tables["s"], clock)
    sources = {"r": case.tables["r"].to_batches()}
    options = Options(architecture=architecture)
    eddy = EddyRun(case.spec, sources, options, clock=clock, access={"s": [index]})
    with pytest.raises(ExecutionError, match=r"'mine'.*int32.*int64"):
        list(eddy.run())
