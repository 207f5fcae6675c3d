"""Index joins: DuckDB's rows, each binding asked for once, and everything behind a lookup waits for it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from millrace.engine.arrivals.access_modules import Index
from millrace.engine.spec import Window
from millrace.errors import ExecutionError, InputError
from millrace.limits.clock import Clock, VirtualClock, WallClock
from millrace.options import Options
from tests.engine.eddy.access_cases import IndexPlan, Plan, Ran, asked, run
from tests.engine.eddy.oracle import Case, block, with_self_joins

ARCHITECTURES = ["joins", "stairs", "static"]


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
    assert len(found.index.bindings) == len(set(found.index.bindings)) == 15
    assert found.clock.now() == 15.0
    figures = found.run.figures()
    mine = {m.action: m for m in figures.modules if m.name == "IndexJoin(r.a = s.x)"}
    lookup, join = mine["lookup"], mine["join"]
    assert (lookup.tuples_in, lookup.tuples_out, lookup.calls) == (40, 10, 15)
    assert (join.tuples_in, join.tuples_out) == (40, found.rows.total())
    assert {s.name: s.tuples for s in figures.state}.get("STAIR(r.a)", 0) == 0


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
    # Tuple number 2k - 1 is the k-th new one after the first, and number 2k is a hit behind it.
    answered = [1.0, *(second for n in new for second in (n + 1.0, n + 1.0))]
    assert all(got >= due for got, due in zip(found.when, answered, strict=True))
    assert found.clock.now() == 10.0
    stems = run(case, made, replace(chosen, architecture="stems"), chunk=1)
    assert stems.rows == found.rows
    assert stems.clock.now() == 1.0  # all lookups are under way at the same time


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


def _over(kind: type[Index], clock: Clock) -> tuple[Case, Ran]:
    case, _ = r_and_s()
    index = kind("slow", ["x"], case.tables["s"], clock, delay=0.003)
    return case, run(case, {}, Options(architecture="joins"), clock=clock, own={"s": index})


def test_an_index_that_never_answers_is_an_error() -> None:
    """Nothing else can come while its tuples wait."""
    with pytest.raises(ExecutionError, match="'slow'"):
        _over(Silent, VirtualClock())


@pytest.mark.parametrize("kind", [Index, Unknowing])
def test_on_the_wall_clock_it_waits_for_real(kind: type[Index]) -> None:
    """Answers come a moment later, whether the index says when or not."""
    case, found = _over(kind, WallClock())
    assert found.rows == case.expected()


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
    assert len(found.index.bindings) == 11
    evicted = {s.name: s.evicted for s in found.run.figures().state if s.name.startswith("SteM(")}
    assert evicted["SteM(r)"] > n / 2
    assert evicted["SteM(u)"] > n / 2
    assert evicted["SteM(x)"] == 0
