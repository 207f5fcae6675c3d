"""Preferred tuples: their results come first, and the work stays the same."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from millrace.engine.expressions import Call, Column, ColumnRef, Compare, Literal, Predicate
from millrace.errors import InputError
from millrace.options import Options
from millrace.predicates import PredicateSpec
from tests.engine.eddy.access_cases import IndexPlan, Plan, ScanPlan, run
from tests.engine.eddy.blocks import block, star


def wants(alias: str, column: str, low: int) -> Predicate:
    """Return ``alias.column >= low``."""
    return Compare(">=", Column(ColumnRef(alias, column)), Literal(low, pa.int64()), pa.int64())


@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_preferred_results_come_first_for_the_same_work(batch_size: int) -> None:
    """Of what arrives together, preferred tuples are followed to their end before others move."""
    keys = [0, 1, 2] * 7
    case = star({name: [0, 1, 2] for name in "xyz"}, dict.fromkeys("xyz", keys))
    tables = {**case.tables, "u": case.tables["u"].append_column("n", pa.array(range(21), pa.int64()))}
    case = block(tables, [f"u.{name} = {name}.k" for name in "xyz"])
    settings_of = Options(policy="fixed", order=("x", "y", "z"), batch_size=batch_size)
    plain = run(case, {}, settings_of, stream="u", chunk=21)
    ran = run(case, {}, settings_of, stream="u", chunk=21, prefer=wants("u", "n", 14))
    assert ran.rows == plain.rows == case.expected()
    order = [n for _, batch in ran.results for n in batch.column("u_n").to_pylist()]
    for low in range(0, 21, batch_size):  # a round brings so many tuples of u
        part = order[low : low + batch_size]
        wanted = [n >= 14 for n in part]
        assert wanted == sorted(wanted, reverse=True)
    work = [
        {(m.name, m.action): (m.tuples_in, m.tuples_out) for m in r.eddy.figures().modules}
        for r in (plain, ran)
    ]
    assert work[0] == work[1]
    assert ran.eddy.figures().tuples_routed == plain.eddy.figures().tuples_routed


def test_preferred_tuples_ask_the_index_ahead_of_the_scan() -> None:
    """Section 4.1: a SteM with an index bounces them back, so that matches come ahead of the scan."""
    n = 40
    tables = {"r": pa.table({"key": range(n)}), "t": pa.table({"key": range(n)})}
    case = block(tables, ["r.key = t.key"])
    made = {
        "t": Plan(source=False, indexes=(IndexPlan(("key",), 0.5),), scans=(ScanPlan(every=10.0),)),
    }
    for policy in ("greedy", "rank", "fixed"):
        ran = run(case, made, Options(policy=policy, batch_size=1), chunk=1, prefer=wants("r", "key", 35))
        assert ran.rows == case.expected()
        assert {b[-1] for b in ran.indexes[0].bindings} >= {str(k) for k in range(35, 40)}
        when = {k: at for at, batch in ran.results for k in batch.column("r_key").to_pylist()}
        assert max(when[k] for k in range(35, 40)) < 10.0


def test_a_preference_must_be_about_one_relation() -> None:
    """What cannot be told from a base tuple alone, or names what is not there, is refused."""
    case = star({"x": [1]}, {"x": [1]})
    k = Column(ColumnRef("x", "k"))
    with pytest.raises(InputError, match="one relation"):
        run(case, {}, prefer=Compare("=", k, Column(ColumnRef("u", "x")), pa.int64()))
    with pytest.raises(InputError, match="one relation"):
        run(case, {}, prefer=Compare("=", Literal(1, pa.int64()), Literal(1, pa.int64()), pa.int64()))
    with pytest.raises(InputError, match="one relation"):
        run(case, {}, prefer=Call(PredicateSpec("p", bool, "row"), (k,)))
    with pytest.raises(InputError, match="unknown relation"):
        run(case, {}, prefer=wants("nope", "k", 1))
    with pytest.raises(InputError, match="no column"):
        run(case, {}, prefer=wants("x", "nope", 1))


def test_the_most_wanted_come_first_and_what_is_wanted_may_change() -> None:
    """SteMs paper, section 1.2: interests change; what waits for an index is sorted again."""
    n = 40
    tables = {"r": pa.table({"key": range(n)}), "t": pa.table({"key": range(n)})}
    case = block(tables, ["r.key = t.key"])
    made = {"t": Plan(source=False, indexes=(IndexPlan(("key",), 0.5, 1),), scans=(ScanPlan(every=10.0),))}
    options_ = Options(policy="interactive", batch_size=100)
    wanted = (wants("r", "key", 35), wants("r", "key", 30))
    ran = run(case, made, options_, chunk=n, prefer=wanted)
    asked = [int(b[-1]) for b in ran.indexes[0].bindings]
    assert ran.rows == case.expected()
    assert set(asked[:5]) == set(range(35, 40)) and set(asked[5:10]) == set(range(30, 35))

    changed = run(
        case,
        made,
        options_,
        chunk=n,
        prefer=wanted,
        later=(
            wants("r", "key", 40),
            Compare("<", Column(ColumnRef("r", "key")), Literal(30, pa.int64()), pa.int64()),
        ),
    )
    assert changed.rows == case.expected()
    changed_asked = [int(b[-1]) for b in changed.indexes[0].bindings]
    assert changed_asked[:2] == asked[:2] and set(changed_asked[4:15]) <= set(range(30))


@pytest.mark.parametrize("wanted", [(), (wants("r", "key", 30),)])
def test_what_is_wanted_may_change_while_an_index_finishes_a_scan(wanted: tuple[Predicate, ...]) -> None:
    """Of a scan that is silent for ever: also keys whose match it returned have to be asked for."""
    n = 40
    tables = {"r": pa.table({"key": range(n)}), "t": pa.table({"key": range(n)})}
    case = block(tables, ["r.key = t.key"])
    scan = ScanPlan(every=0.01, stall=(5, math.inf))
    made = {"t": Plan(source=False, indexes=(IndexPlan(("key",), 0.5, 1),), scans=(scan,))}
    settings_of = Options(policy="interactive", batch_size=100)
    ran = run(case, made, settings_of, later=wanted, changes_at=6)
    assert ran.rows == case.expected()
    if wanted:
        asked = [int(b[-1]) for b in ran.indexes[0].bindings]
        assert set(asked[4:12]) <= set(range(30, n))
