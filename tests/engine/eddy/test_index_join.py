"""Index joins: DuckDB's rows, each binding asked for once, and everything behind a lookup waits for it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from millrace.engine.arrivals.access_modules import Index, IndexAM, Scan
from millrace.engine.graph import QueryGraph
from millrace.engine.runs.run_of import run_of
from millrace.engine.spec import Window
from millrace.engine.trees import edges_of, spanning_tree, spanning_trees
from millrace.errors import ExecutionError, InputError
from millrace.limits.clock import VirtualClock, WallClock
from millrace.options import Options
from tests.engine.eddy.access_cases import IndexPlan, Plan, Ran, ScanPlan, asked, run
from tests.engine.eddy.blocks import block
from tests.engine.eddy.oracle import Case, Rows, multiset

ARCHITECTURES = ["joins", "stairs", "static"]


def lookups(found: Ran) -> tuple[int, int, int]:
    """Return what the index join of ``r`` and ``s`` looked up: tuples in, tuples returned, bindings."""
    (one,) = (m for m in found.run.figures().modules if m.action == "lookup")
    assert one.name == "IndexJoin(r.a = s.x)"
    return one.tuples_in, one.tuples_out, one.calls


def r_and_s() -> tuple[Case, dict[str, Plan]]:
    """Return R with 40 tuples of 15 values, 10 of them in S, whose index takes a second for each."""
    r = pa.table({"key": range(40), "a": [n * 7 % 15 for n in range(40)]})
    s = pa.table({"x": range(10), "y": range(10)})
    return block({"r": r, "s": s}, ["r.a = s.x"]), {"s": asked("x", delay=1.0, in_flight=1)}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("batch_size", [1, 4, 1000])
def test_requests_are_the_distinct_bindings(architecture: str, batch_size: int) -> None:
    """40 tuples bind 15 values: 15 lookups, 25 hits in the cache; the index returns all ten of S."""
    case, made = r_and_s()
    found = run(case, made, Options(architecture=architecture, batch_size=batch_size), chunk=7)
    assert found.rows == case.expected()
    assert len(found.indexes[0].bindings) == len(set(found.indexes[0].bindings)) == 15
    assert lookups(found) == (40, 10, 15)
    assert found.clock.now() == 15.0
    joins = [
        m for m in found.run.figures().modules if m.name == "IndexJoin(r.a = s.x)" and m.action == "join"
    ]
    assert [(m.tuples_in, m.tuples_out) for m in joins] == [(40, found.rows.total())]
    assert {s.name: s.tuples for s in found.run.figures().state}.get("STAIR(r.a)", 0) == 0


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_hits_wait_behind_lookups(architecture: str) -> None:
    """Head-of-line blocking: a result comes when everything before its tuple has been answered, not before.

    Tuples of value 0, the first to be asked for, follow each new one. SteMs return them all at once when 0
    is answered; here each of them waits for the lookup of the tuple ahead of it.
    """
    new = list(range(1, 10))
    r = pa.table({"a": [0, *(v for n in new for v in (n, 0))]})
    s = pa.table({"x": range(10)})
    case = block({"r": r, "s": s}, ["r.a = s.x"])
    made = {"s": asked("x", delay=1.0)}
    chosen = Options(architecture=architecture, policy="greedy", batch_size=1, online=True)
    found = run(case, made, chosen, chunk=1)
    assert found.rows == case.expected()
    seconds = [when for when, batch in found.results for _ in range(batch.num_rows)]
    # Tuple number 2k - 1 is the k-th new one after the first, and number 2k is a hit behind it.
    answered = [1.0, *(second for n in new for second in (n + 1.0, n + 1.0))]
    assert len(seconds) == len(answered)
    assert all(got >= due for got, due in zip(seconds, answered, strict=True))
    assert found.clock.now() == 10.0
    stems = run(case, made, replace(chosen, architecture="stems"), chunk=1)
    assert stems.rows == found.rows
    assert stems.clock.now() == 1.0  # all lookups are under way at the same time


@pytest.mark.parametrize("architecture", ["joins", "stairs"])
def test_the_index_that_an_edge_binds_is_asked(architecture: str) -> None:
    """Of two indexes, one needs values of two relations; the other's column comes from one alone."""
    r = pa.table({"a": [0, 1, 2, 1], "c": [5, 6, 7, 8]})
    t = pa.table({"c": [5, 6, 6, 9], "b": [0, 1, 0, 1]})
    x = pa.table({"a": [0, 1, 1, 2], "b": [0, 0, 1, 1]})
    case = block({"r": r, "t": t, "x": x}, ["r.c = t.c", "r.a = x.a", "t.b = x.b"])
    made = {"x": Plan(source=False, indexes=(IndexPlan(("a", "b")), IndexPlan(("b",))))}
    found = run(case, made, Options(architecture=architecture))
    assert found.rows == case.expected()
    assert [len(index.bindings) for index in found.indexes] == [0, 2]
    with pytest.raises(InputError, match=r"'x'.*\['r', 't'\]"):
        run(case, {"x": asked("a", "b")}, Options(architecture=architecture))


def test_a_static_plan_asks_with_what_is_below() -> None:
    """Values of two relations together, and of one that was asked for itself: what no tree of leaves has."""
    r = pa.table({"a": [0, 1, 2, 1], "c": [5, 6, 7, 8]})
    t = pa.table({"c": [5, 6, 6, 9], "b": [0, 1, 0, 1]})
    x = pa.table({"a": [0, 1, 1, 2], "b": [0, 0, 1, 1], "d": [3, 4, 5, 6]})
    y = pa.table({"d": [3, 4, 4, 5], "e": [1, 2, 3, 4]})
    case = block({"r": r, "t": t, "x": x, "y": y}, ["r.c = t.c", "r.a = x.a", "t.b = x.b", "x.d = y.d"])
    made = {"x": asked("a", "b", delay=1.0), "y": asked("d", delay=1.0)}
    for order in ((), ("r", "t", "x", "y"), ("x", ("t", "r"), "y")):
        found = run(case, made, Options(architecture="static", order=order, batch_size=2))
        assert found.rows == case.expected()
    for wrong in (("r", "x", "t", "y"), (("x", "y"), ("r", "t"))):
        with pytest.raises(InputError, match=r"order.*'[xy]'"):
            run(case, made, Options(architecture="static", order=wrong))
    with pytest.raises(InputError, match="'x'"):
        run(case, made, Options(architecture="joins"))


def test_a_relation_may_be_scanned_behind_one_that_is_asked() -> None:
    """In the chain r – x – s only x is asked: a static plan hashes what r finds there, an eddy cannot."""
    r, x, s = pa.table({"a": [0, 1, 1]}), pa.table({"a": [0, 1], "b": [4, 5]}), pa.table({"b": [4, 4, 5]})
    case = block({"r": r, "x": x, "s": s}, ["r.a = x.a", "x.b = s.b"])
    found = run(case, {"x": asked("a")}, Options(architecture="static", order=("r", "x", "s"), online=True))
    assert found.rows == case.expected()
    # An eddy pairs r and s by a cross product, and asks with the values of r.
    assert run(case, {"x": asked("a")}, Options(architecture="joins")).rows == case.expected()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_access_methods_that_compete_are_refused(architecture: str) -> None:
    """Only SteMs have a scan beside an index, or two scans; the message says so."""
    case, _ = r_and_s()
    chosen = Options(architecture=architecture)
    both = {"s": Plan(indexes=(IndexPlan(("x",)),))}
    with pytest.raises(InputError, match=r"'s'.*index"):
        run(case, both, chosen)
    with pytest.raises(InputError, match=r"'s'.*scans"):
        run(case, {"s": Plan(scans=(ScanPlan(),))}, chosen)
    found = run(case, {"r": Plan(source=False, scans=(ScanPlan(every=1.0),))}, chosen)
    assert found.rows == case.expected()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_self_joins_do_not_share_access_modules(architecture: str) -> None:
    """Two relations of the same data, which only an index gives: SteMs share it, joins do not."""
    x = pa.table({"a": [0, 1, 1]})
    case = block({"r": pa.table({"a": [0, 1]}), "x": x, "y": x}, ["r.a = x.a", "r.a = y.a"])
    relations = tuple(replace(s, same_as="x" if s.alias == "y" else None) for s in case.spec.relations)
    spec = replace(case.spec, relations=relations)
    clock = VirtualClock()
    access = {"x": [Index("x", ["a"], x, clock)]}
    sources = {"r": case.tables["r"].to_batches()}
    with pytest.raises(InputError, match="'x' and 'y'"):
        run_of(spec, sources, Options(architecture=architecture), clock=clock, access=access)


class Silent(Index):
    """An index that takes bindings and never answers."""

    def poll(self) -> list[Any]:
        return []

    def due(self) -> float:
        return math.inf


class Unknowing(Index):
    """An index that cannot say when its next answer comes."""

    def due(self) -> None:  # type: ignore[override]
        return None


def _over(index: IndexAM, clock: Any) -> Rows:
    case, _ = r_and_s()
    sources = {"r": case.tables["r"].to_batches()}
    run = run_of(case.spec, sources, Options(architecture="joins"), clock=clock, access={"s": [index]})
    return multiset(pa.Table.from_batches(list(run.run()), case.spec.output_schema))


def test_an_index_that_never_answers_is_an_error() -> None:
    """Nothing else can come while its tuples wait."""
    case, _ = r_and_s()
    clock = VirtualClock()
    with pytest.raises(ExecutionError, match="'silent'"):
        _over(Silent("silent", ["x"], case.tables["s"], clock), clock)


def test_an_index_that_returns_other_columns_is_an_error() -> None:
    """The same check as for SteMs."""
    clock = VirtualClock()
    wrong = pa.RecordBatch.from_pylist([{"x": 1}])
    with pytest.raises(ExecutionError, match=r"'odd'.*\['x'\].*\['x', 'y'\]"):
        _over(Index("odd", ["x"], lambda _: wrong, clock), clock)


@pytest.mark.parametrize("kind", [Index, Unknowing])
def test_on_the_wall_clock_it_waits_for_real(kind: type[Index]) -> None:
    """Answers come a moment later, whether the index says when or not."""
    case, _ = r_and_s()
    clock = WallClock()
    assert _over(kind("slow", ["x"], case.tables["s"], clock, delay=0.003), clock) == case.expected()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_windows_of_outer_relations_expire(architecture: str) -> None:
    """A relation that is only asked holds up no watermark: what has expired is evicted."""
    n = 400
    r = pa.table({"t": range(n), "k": [i % 7 for i in range(n)], "a": [i % 11 for i in range(n)]})
    u = pa.table({"t": range(n), "k": [i % 5 for i in range(n)]})
    x = pa.table({"a": range(9)})
    case = block({"r": r, "u": u, "x": x}, ["r.k = u.k", "r.a = x.a"])
    window = Window("t", 10)
    relations = tuple(replace(s, window=None if s.alias == "x" else window) for s in case.spec.relations)
    case = replace(case, spec=replace(case.spec, relations=relations))
    found = run(case, {"x": asked("a", delay=1.0)}, Options(architecture=architecture, batch_size=8))
    assert found.rows == case.expected()
    assert len(found.indexes[0].bindings) == 11
    evicted = {s.name: s.evicted for s in found.run.figures().state if s.name.startswith("SteM(")}
    assert evicted["SteM(r)"] > n / 2
    assert evicted["SteM(u)"] > n / 2
    assert evicted["SteM(x)"] == 0


def test_leaves_of_trees() -> None:
    """Of a triangle with a tail, trees in which b and d hang on one edge each, by hand."""
    tables = {alias: pa.table({name: [1] for name in "xyz"}) for alias in "abcd"}
    case = block(tables, ["a.x = b.x", "b.y = c.y", "a.z = c.z", "d.x = c.x"])
    graph = QueryGraph.of(case.spec)
    number = {tuple("abcd"[end] for end in e.ends): e.number for e in edges_of(graph)}
    leaves = 0b1010

    def ends(tree: Any) -> set[str]:
        return {"".join("abcd"[end] for end in edge.ends) for edge in tree.edges}

    found = [ends(tree) for tree in spanning_trees(graph, leaves=leaves)]
    assert sorted(map(sorted, found)) == [["ab", "ac", "cd"], ["ac", "bc", "cd"]]
    assert ends(spanning_tree(graph, [1, 1, 1, 1], leaves)) in found
    barred = [number["a", "b"]]
    assert [ends(t) for t in spanning_trees(graph, leaves=leaves, barred=barred)] == [{"ac", "bc", "cd"}]
    assert ends(spanning_tree(graph, [1, 1, 1, 1], leaves, barred)) == {"ac", "bc", "cd"}
    with pytest.raises(InputError, match="relation number 3"):
        spanning_tree(graph, [1, 1, 1, 1], 0b1100)
    with pytest.raises(InputError, match="relation number 3"):
        list(spanning_trees(graph, leaves=leaves, barred=[number["c", "d"]]))


def test_a_scan_that_breaks_off_is_an_error_of_a_static_plan_too() -> None:
    """Scans as access modules work in static plans, with the same checks."""
    case, _ = r_and_s()
    clock = VirtualClock()
    scan = Scan("r", case.tables["r"].to_batches(), clock, breaks=True)
    sources = {"s": case.tables["s"].to_batches()}
    run = run_of(case.spec, sources, Options(architecture="static"), clock=clock, access={"r": [scan]})
    with pytest.raises(ExecutionError, match="'r'"):
        list(run.run())
