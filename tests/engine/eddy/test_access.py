"""Access modules: any mix of scans and indexes gives DuckDB's rows, and nothing is asked for twice."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from lab.access import Index
from lab.queues import Backpressure
from millrace.engine.access.hybrid import IndexOrScan
from millrace.engine.access.modules import Answer, MeasuredIndex
from millrace.engine.eddy.preference import PreferringDataflow, prefer
from millrace.engine.eddy.run import Run
from millrace.engine.plan.expressions import Call, Column, ColumnRef
from millrace.engine.plan.spec import JoinSpec, RelationSpec
from millrace.engine.stems.bindings import bound
from millrace.engine.stems.stem import SteM
from millrace.errors import BudgetError, ExecutionError, InputError
from millrace.limits.clock import VirtualClock
from millrace.options import MIGRATIONS, Options
from millrace.predicates import PredicateSpec
from tests.engine.eddy.access_cases import IndexPlan, Plan, Ran, ScanPlan, any_options, asked, plans, run
from tests.engine.eddy.blocks import chain, star
from tests.engine.eddy.oracle import block, cases, compare, having, with_self_joins, with_windows

INT = pa.int64()
ONE_A_SECOND = asked("x", delay=1.0, in_flight=1)


def test_an_answer_concerns_only_those_that_wait_for_it() -> None:
    """With 200 answers, one after the other, each of 600 waiting tuples is looked at a few times."""
    r = pa.table({"key": range(600), "a": [n * 7 % 200 for n in range(600)]})
    case = block({"r": r, "s": pa.table({"x": range(0, 400, 2), "y": range(200)})}, ["r.a = s.x"])
    with mock.patch.object(SteM, "missing", autospec=True, side_effect=SteM.missing) as looked:
        ran = run(case, {"s": ONE_A_SECOND}, Options(batch_size=50), stream="r", chunk=50)
    assert (ran.rows, ran.clock.now()) == (case.expected(), 200.0)
    assert sum(call.args[1].size for call in looked.call_args_list) <= 5 * 600


@pytest.mark.parametrize("delay", [0.0, 1.0])
def test_a_binding_ends_once_all_of_its_tuples_are_built(delay: float) -> None:
    """What an index answered may wait for the turn of a predicate, and what asked for it waits as long."""
    case = block({"r": pa.table({"a": range(3)}), "s": pa.table({"x": range(3)})}, ["r.a = s.x"])
    case = having(case, compare("<=", "s.x", "s.x", INT))
    options, queues = Options(policy="naive", batch_size=1), Backpressure(None, 3)
    ran = run(case, {"s": asked("x", delay=delay)}, options, stream="r", eddy=queues)
    assert ran.rows == case.expected()


def test_a_full_index_holds_the_sources_back() -> None:
    """No more is read while an index has as many bindings pending as it takes."""
    clock, pending = VirtualClock(), []

    def source() -> object:
        for n in range(50):
            pending.append(index.pending)
            yield pa.record_batch({"k": pa.array([n], INT)})

    case = block({alias: pa.table({"k": range(50)}) for alias in "rs"}, ["r.k = s.k"])
    index = Index("s", ["k"], case.tables["s"], clock, 1.0, in_flight=1, capacity=5)
    ran = run(case, {}, Options(online=True), clock=clock, own={"s": index}, sources={"r": source()})
    assert ran.rows.total() == len(pending) == 50
    assert max(pending) == 4


@pytest.mark.parametrize("wide", ["rows", "answers"])
def test_what_is_wide_holds_the_sources_back(monkeypatch: pytest.MonkeyPatch, wide: str) -> None:
    """However few bindings: a hundred rows or answers of a kilobyte for one key, of which ten may wait."""
    monkeypatch.setattr("millrace.engine.eddy.context.MOST_WAITING", 10 * 1024)
    clock, read = VirtualClock(), []
    key = {"k": pa.array([1], INT)}
    large = {**key, "text": pa.array(["x" * 1024])}
    rows = pa.record_batch(large if wide == "rows" else key)
    found = pa.table(large if wide == "answers" else key)

    def source() -> object:
        for _ in range(100):
            read.append(clock.now())
            yield rows

    case = block({"r": pa.table(rows), "s": found}, ["r.k = s.k"])
    made = {"s": asked("k", delay=1.0)}
    ran = run(case, made, Options(batch_size=2), clock=clock, sources={"r": source()})
    assert ran.rows.total() == 100
    assert 5 <= sum(when < 1.0 for when in read) <= 12


# What cannot be answered


ARCHITECTURES = ("joins", "stairs", "static")
BY_K = Plan(indexes=(IndexPlan(("k",)),))


@pytest.mark.parametrize(
    ("architecture", "plans", "named"),
    [
        # Section 2.2: columns that no join binds.
        ("stems", {"b": asked("id"), "c": asked("j")}, r"'b'.*\(b.id\).*'c'.*\(c.j\)"),
        (
            "stems",
            {"b": Plan(False, (IndexPlan(("k", "id")), IndexPlan(("id",))))},
            r"\(b.k, b.id\) or \(b.id\).*here \['a', 'c'\]",
        ),
        ("stems", {"b": Plan(False)}, "'b'"),
        ("stems", {"b": Plan(indexes=(IndexPlan(("x",)),))}, "'x'"),
        # Only eddies have a scan beside an index, or two scans.
        ("static", {"b": BY_K}, r"'b'.*index"),
        ("static", {"b": Plan(scans=(ScanPlan(),))}, r"'b'.*scans"),
    ],
)
def test_what_cannot_be_answered_is_refused_before_it_starts(architecture, plans, named):
    with pytest.raises(InputError, match=named):
        run(chain(1), plans, Options(architecture=architecture))


def test_access_modules_are_checked() -> None:
    case, clock = chain(1), VirtualClock()
    shared = replace(case.spec.relations[0], alias="d", same_as="a")
    spec = replace(case.spec, relations=(*case.spec.relations, shared))
    for own, named in (("bb", "'bb'"), ("d", "'a'")):
        with pytest.raises(InputError, match=named):
            Run(spec, {}, access={own: []})
    with pytest.raises(InputError, match="is a scan"):
        Index("i", [], case.tables["b"], clock)
    wrong = Index("i", ["k"], lambda _: pa.record_batch({"k": [1]}), clock)
    with pytest.raises(ExecutionError, match="'i'"):
        run(case, {}, clock=clock, own={"b": wrong})


BROKEN = Plan(False, scans=(ScanPlan(rows=1),))


@pytest.mark.parametrize(
    ("architecture", "plans"),
    [
        ("stems", {"b": Plan(False, scans=(ScanPlan(rows=1), ScanPlan(rows=2)))}),
        ("stems", {"b": Plan(False, scans=(ScanPlan(stall=(0, math.inf)),))}),
        ("static", {"b": BROKEN}),
        # Nothing else can come while tuples wait for an index that never answers.
        ("joins", {"b": asked("k", delay=math.inf)}),
        # The index of b is bound by c, which breaks off as well.
        ("stems", {"b": replace(BROKEN, indexes=(IndexPlan(("j",)),)), "c": BROKEN}),
    ],
    ids=str,
)
def test_a_relation_without_an_end_is_an_error(architecture: str, plans: dict[str, Plan]) -> None:
    """Scans that all break off, or stall for ever, with nothing beside them that can finish."""
    with pytest.raises(ExecutionError, match=r"['\"][bc]\b|: b"):
        run(chain(1), plans, Options(architecture=architecture))


@pytest.mark.parametrize("architecture", ["stems", "joins"])
def test_an_answer_to_bindings_of_other_types_is_refused(architecture: str) -> None:
    """The error names the index, the types that it answered, and those that it was asked for."""

    class Retyping(Index):
        def poll(self) -> list[Answer]:
            narrow = pa.schema([("k", pa.int32())])
            return [Answer(each.bindings.cast(narrow), each.rows) for each in super().poll()]

    case = block({alias: pa.table({"k": range(5)}) for alias in "rs"}, ["r.k = s.k"])
    clock = VirtualClock()
    index = Retyping("mine", ["k"], case.tables["s"], clock)
    with pytest.raises(ExecutionError, match=r"'mine'.*int32.*int64"):
        run(case, {}, Options(architecture=architecture), clock=clock, own={"s": index})


# Index and scan together: what is asked for and when, by what was measured; answers never depend on it.


def both(
    n=100, *, every=0.1, delay=0.5, in_flight: int | None = 1, budget=None, architecture="stems", **scan: Any
) -> Ran:
    """Join R and T, which has an index and a scan, by a key that is unique; R comes at once.

    The scan returns a tuple every tenth of a second, the index answers one lookup after the other, in half a
    second each.
    """
    keys = {"r": range(n), "t": np.random.default_rng(0).permutation(n)}
    case = block(
        {alias: pa.table({"key": pa.array(own, INT)}) for alias, own in keys.items()}, ["r.key = t.key"]
    )
    index, scans = IndexPlan(("key",), delay, in_flight, budget=budget), (ScanPlan(every, **scan),)
    options = Options(batch_size=1, policy="greedy", architecture=architecture)
    ran = run(case, {"t": Plan(False, (index,), scans)}, options, chunk=1)
    assert ran.rows == case.expected()
    return ran


@pytest.mark.parametrize(
    ("in_flight", "architecture"), [(1, "stems"), (4, "stems"), (4, "joins"), (4, "stairs")]
)
def test_results_come_no_later_than_by_index_or_scan_alone(in_flight: int, architecture: str) -> None:
    """At every share of the results; and what is submitted is what the index works on, and as much again."""
    ran = both(in_flight=in_flight, architecture=architecture)
    assert all(when <= 0.1 * (place + 1) + 1e-9 for place, when in enumerate(ran.when))
    assert ran.index.highest == 2 * in_flight


def test_a_scan_that_is_faster_than_any_lookup_leaves_the_index_alone() -> None:
    """A tuple or two are tried while nothing is known; nothing else is asked for."""
    ran = both(every=0.001, delay=5.0)
    assert len(ran.index.bindings) <= 2
    assert ran.clock.now() < 0.2


@pytest.mark.parametrize(
    "scan",
    [{"rows": 20}, {"stall": (20, math.inf)}, {"every": 5.0}],
    ids=["breaks off", "never goes on", "is slow"],
)
def test_an_index_finishes_what_a_scan_leaves(scan: dict[str, Any]) -> None:
    """When every tuple of R has its answer, T is complete: nobody waits for what the scan still has."""
    ran = both(40, **scan)
    # All of R has to be asked for now, but for what was asked before; each once.
    assert sorted(ran.index.keys) == list(range(40))
    assert ran.clock.now() <= 0.5 * 40 + 1e-6


@pytest.mark.broken_rule
def test_without_the_cost_decision_the_claims_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above look at it: with nothing submitted, or everything, they would see it."""
    monkeypatch.setattr(IndexOrScan, "_submit_paying", lambda *_: None)
    never = both()
    assert not never.index.bindings
    assert never.when == pytest.approx([0.1 * (place + 1) for place in range(100)])
    monkeypatch.undo()
    monkeypatch.setattr(MeasuredIndex, "room", lambda *_: 1 << 20)
    assert len(both().index.bindings) == 100


@pytest.mark.law
@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.data())
def test_indexes_beside_scans_change_no_row(data: st.DataObject) -> None:
    """Any block, indexes, scans and architecture; an index that has spent its budget is asked no more."""
    case = data.draw(cases(max_relations=4))
    options = data.draw(any_options(architecture=["stems", "joins", "stairs"]))
    if options.architecture == "stairs":
        options = replace(options, migration=data.draw(st.sampled_from(MIGRATIONS)))
    made = data.draw(plans(case))
    for alias, plan in made.items():
        if plan.source or plan.scans or options.architecture != "stems":
            spent = [replace(i, budget=data.draw(st.sampled_from([None, 1, 3]))) for i in plan.indexes]
            source = plan.source or options.architecture != "stems"
            made[alias] = replace(plan, indexes=tuple(spent), source=source)
    ran = run(case, made, options, chunk=data.draw(st.sampled_from([1, 3])))
    assert ran.rows == case.expected(), case.sql()
    assert not any(index.late for index in ran.indexes)


def test_a_budget_that_is_spent_leaves_the_rest_to_the_scan() -> None:
    """The first lookups are made, and the run ends with the scan; if that breaks off, there is no answer."""
    ran = both(budget=10)
    assert len(ran.index.bindings) <= 12
    assert ran.when[-1] == pytest.approx(10.0)
    with pytest.raises(BudgetError, match="is spent"):
        both(40, budget=5, rows=20)


def test_an_index_that_can_never_take_over_is_not_waited_for() -> None:
    """One has spent its budget, the other needs values of two relations, and the scan breaks off."""
    keys = pa.array(range(20), INT)
    tables = {
        "a": pa.table({"x": keys, "p": keys}),
        "c": pa.table({"y": keys, "p": keys}),
        "t": pa.table({"x": keys, "y": keys}),
    }
    case = block(tables, ["a.p = c.p", "a.x = t.x", "c.y = t.y"])
    indexes = IndexPlan(("x",), 0.5, 1, budget=3), IndexPlan(("x", "y"), 0.5, 1)
    with pytest.raises(BudgetError, match="has failed: "):
        run(case, {"t": Plan(False, indexes, (ScanPlan(0.3, rows=8),))}, Options(batch_size=1), chunk=1)


def test_another_index_goes_on_where_one_has_spent_its_budget() -> None:
    """What waits beside it is asked for there."""
    keys = np.random.default_rng(0).permutation(100)
    tables = {"a": pa.table({"x": pa.array(range(100), INT)}), "t": pa.table({"x": pa.array(keys, INT)})}
    case = block(tables, ["a.x = t.x"])
    for architecture in ("stems", "joins", "stairs"):
        indexes = IndexPlan(("x",), 0.2, 4, budget=10), IndexPlan(("x",), 0.6, 4)
        options = Options(batch_size=1, architecture=architecture)
        ran = run(case, {"t": Plan(False, indexes, (ScanPlan(0.1),))}, options, chunk=1)
        assert ran.rows == case.expected()
        assert len(ran.indexes[1].bindings) > 5


def cover_asked(self: IndexOrScan, queues: Any, driver: int) -> bool:
    """What an index was asked for counts as answered."""
    wanted = bound(self._matching, self._all(driver), queues.lookup.classes)
    return bool(queues.asked.contains(*wanted).all())


@pytest.mark.broken_rule
def test_without_heed_of_budgets_the_claims_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are lost if what was refused counts as answered; and asking goes on unless it is noted."""
    monkeypatch.setattr(IndexOrScan, "_covers", cover_asked)
    with pytest.raises(AssertionError):
        both(8, budget=7, in_flight=None)
    monkeypatch.undo()
    monkeypatch.setattr(MeasuredIndex, "spent", property(lambda _: None, lambda *_: None), raising=False)
    assert both(budget=10).index.late


@pytest.mark.broken_rule
@pytest.mark.parametrize("architecture", ["joins", "stairs"])
def test_without_set_semantics_joins_have_rows_twice(architecture, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the index and the scan both return goes into the STAIR once."""
    monkeypatch.setattr(SteM, "_fresh", lambda _, chunk, *__: np.arange(chunk.num_rows))
    with pytest.raises(AssertionError):
        both(architecture=architecture)


# Self-joins: relations that are the same data share one SteM, and the answer stays DuckDB's.


SCHEMA = pa.schema([("k", INT), ("j", INT)])


def test_a_base_tuple_is_kept_once_and_bounced_for_each_role() -> None:
    """There is one SteM with the tuples, on which every role's join column is indexed."""
    table = pa.table({"k": range(40), "j": range(1, 41)})
    case = with_self_joins(block(dict.fromkeys("abc", table), ["a.j = b.k", "b.j = c.k"]))
    eddy = run(case, {}, Options(online=True)).run
    (state,) = eddy.figures().state
    assert (state.name, state.tuples, state.inserted) == ("SteM(a)", 40, 40)
    built = [m for m in eddy.figures().modules if m.action == "build"]
    assert sum(m.tuples_in for m in built) == 40


@pytest.mark.parametrize(
    ("relations", "message"),
    [
        ((("a", {}), ("b", {"same_as": "x"})), "no earlier relation"),
        ((("a", {"same_as": "b"}), ("b", {})), "no earlier relation"),
        ((("a", {}), ("b", {"same_as": "a"}), ("c", {"same_as": "b"})), "no earlier relation"),
        ((("a", {}), ("b", {"same_as": "a", "schema": pa.schema([])})), "same columns"),
        ((("a", {}), ("b", {"same_as": "a", "distinct": True})), "same columns"),
    ],
)
def test_what_cannot_be_shared_is_refused(relations: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        JoinSpec(tuple(RelationSpec(alias, **{"schema": SCHEMA, **how}) for alias, how in relations))


def test_a_preference_must_be_about_one_relation() -> None:
    """What cannot be told from a base tuple alone, or names what is not there, is refused."""
    case, k = star({"x": [1]}, {"x": [1]}), Column(ColumnRef("x", "k"))
    for wanted, named in (
        (compare("=", "x.k", "u.x", INT), "one relation"),
        (Call(PredicateSpec("p", bool, "row"), (k,)), "one relation"),
        (compare("=", "nope.k", "nope.k", INT), "'nope'"),
        (compare("=", "x.nope", "x.nope", INT), "'nope'"),
    ):
        with pytest.raises(InputError, match=named):
            prefer(Run(case.spec, case.batches(1), eddy=PreferringDataflow), wanted)


# Index joins: DuckDB's rows, each binding asked for once, and everything behind a lookup waits for it.


RTXY = {
    "r": pa.table({"a": [0, 1, 2, 1], "c": [5, 6, 7, 8]}),
    "t": pa.table({"c": [5, 6, 6, 9], "b": [0, 1, 0, 1]}),
    "x": pa.table({"a": [0, 1, 1, 2], "b": [0, 0, 1, 1], "d": [3, 4, 5, 6]}),
    "y": pa.table({"d": [3, 4, 4, 5], "e": [1, 2, 3, 4]}),
}


@pytest.mark.parametrize("architecture", ["joins", "stairs"])
def test_the_index_that_an_edge_binds_is_asked(architecture: str) -> None:
    """Of two indexes, one needs values of two relations; the other's column comes from one alone."""
    case = block({alias: RTXY[alias] for alias in "rtx"}, ["r.c = t.c", "r.a = x.a", "t.b = x.b"])
    made = {"x": Plan(source=False, indexes=(IndexPlan(("a", "b")), IndexPlan(("b",))))}
    found = run(case, made, Options(architecture=architecture))
    assert found.rows == case.expected()
    assert [len(index.bindings) for index in found.indexes] == [0, 2]
    with pytest.raises(InputError, match=r"'x'.*\['r', 't'\]"):
        run(case, {"x": asked("a", "b")}, Options(architecture=architecture))


def test_a_static_plan_asks_with_what_is_below() -> None:
    """Values of two relations together, and of one that was asked for itself: what no tree of leaves has."""
    case = block(RTXY, ["r.c = t.c", "r.a = x.a", "t.b = x.b", "x.d = y.d"])
    made = {"x": asked("a", "b", delay=1.0), "y": asked("d", delay=1.0)}
    for order in ((), ("r", "t", "x", "y"), ("x", ("t", "r"), "y")):
        found = run(case, made, Options(architecture="static", order=order, batch_size=2))
        assert found.rows == case.expected()
    for wrong in (("r", "x", "t", "y"), (("x", "y"), ("r", "t"))):
        with pytest.raises(InputError, match=r"order.*'[xy]'"):
            run(case, made, Options(architecture="static", order=wrong))
    with pytest.raises(InputError, match="'x'"):
        run(case, made, Options(architecture="joins"))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_self_joins_do_not_share_access_modules(architecture: str) -> None:
    """Two relations of the same data, which only an index gives: SteMs share it, joins do not."""
    x = pa.table({"a": [0, 1, 1]})
    case = with_self_joins(block({"r": pa.table({"a": [0, 1]}), "x": x, "y": x}, ["r.a = x.a", "r.a = y.a"]))
    with pytest.raises(InputError, match="'x' and 'y'"):
        run(case, {"x": asked("a")}, Options(architecture=architecture))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_windows_of_outer_relations_expire(architecture: str) -> None:
    """A relation that is only asked holds up no watermark: what has expired is evicted."""
    n = 400
    tables = {
        "r": pa.table({"at": range(n), "k": [i % 7 for i in range(n)], "a": [i % 11 for i in range(n)]}),
        "u": pa.table({"at": range(n), "k": [i % 5 for i in range(n)]}),
        "x": pa.table({"a": range(9)}),
    }
    case = with_windows(block(tables, ["r.k = u.k", "r.a = x.a"]), {"r": 10, "u": 10})
    found = run(case, {"x": asked("a", delay=1.0)}, Options(architecture=architecture, batch_size=8))
    assert found.rows == case.expected()
    assert len(found.index.bindings) == 11
    evicted = {s.name: s.evicted for s in found.run.figures().state if s.name.startswith("SteM(")}
    assert min(evicted["SteM(r)"], evicted["SteM(u)"]) > n / 2
    assert evicted["SteM(x)"] == 0
