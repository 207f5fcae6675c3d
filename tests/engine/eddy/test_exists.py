"""Semijoins and antijoins: any architecture, policy and schedule gives DuckDB's EXISTS and NOT IN."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from millrace.engine.expressions import And, Column, ColumnRef, Exists, IsNull, Not, Or
from millrace.engine.runs.run_of import run_of
from millrace.engine.spec import JoinSpec, OutputColumn, RelationSpec
from millrace.engine.spill.run_of import run_of as spilling_run_of
from millrace.errors import InputError
from millrace.limits.clock import VirtualClock
from millrace.options import Options
from tests.engine.eddy.blocks import batches
from tests.engine.eddy.oracle import Case, compare, multiset


@pytest.mark.parametrize("held", [[], [1], [None], [1, None], [5], [5, 5, 1]])
@pytest.mark.parametrize("form", ["EXISTS", "NOT EXISTS", "NOT IN"])
@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_nulls_are_sqls(held: list[int | None], form: str, kind: pa.DataType) -> None:
    """A null on either side, and a relation without a tuple or with nothing but nulls."""
    tables = {
        "a": pa.table({"k": pa.array([1, 1, 2, None], pa.int64()).cast(kind)}),
        "e0": pa.table({"k": pa.array(held, pa.int64()).cast(kind)}),
    }
    keys = (compare("=", "a.k", "e0.k", kind),)
    asked = Exists("e0", keys, negated=form != "EXISTS", null_aware=form == "NOT IN")
    relation, beside = (RelationSpec(alias, table.schema) for alias, table in tables.items())
    output = (OutputColumn("k", ColumnRef("a", "k")),)
    case = Case(JoinSpec((relation,), (), (asked,), output, beside=(beside,)), tables)
    run = run_of(case.spec, batches(case, 2), Options(), clock=VirtualClock())
    rows = multiset(pa.Table.from_batches(list(run.run()), case.spec.output_schema))
    assert rows == case.expected(), case.sql()


@pytest.mark.parametrize("held", [[], [1], [None], [1, None], [5]])
@pytest.mark.parametrize("form", ["EXISTS", "NOT EXISTS", "NOT IN"])
def test_one_condition_asks_several_relations(held: list[int | None], form: str) -> None:
    """And has terms that ask nothing; what is unknown passes nowhere."""
    tables = {
        "a": pa.table({"k": pa.array([1, 2, 3, 4, None], pa.int64()), "x": [None, 5, 5, None, None]}),
        "e0": pa.table({"k": pa.array(held, pa.int64())}),
        "e1": pa.table({"k": pa.array([2, 2, 4, None], pa.int64())}),
    }
    keys = [(compare("=", "a.k", f"{alias}.k", pa.int64()),) for alias in ("e0", "e1")]
    first = Exists("e0", keys[0], negated=form != "EXISTS", null_aware=form == "NOT IN")
    asked = Or((And((first, IsNull(Column(ColumnRef("a", "x"))))), Exists("e1", keys[1])))
    relation, *beside = (RelationSpec(alias, table.schema) for alias, table in tables.items())
    output = (OutputColumn("k", ColumnRef("a", "k")),)
    case = Case(JoinSpec((relation,), (), (asked,), output, beside=tuple(beside)), tables)
    run = run_of(case.spec, batches(case, 2), Options(), clock=VirtualClock())
    rows = multiset(pa.Table.from_batches(list(run.run()), case.spec.output_schema))
    assert rows == case.expected(), case.sql()
    name = "Anti(e0)" if first.negated else "Semi(e0)"
    assert {name, "Semi(e1)"} <= {each.name for each in run.figures().state}


def test_wide_texts_are_compared_in_pieces() -> None:
    """Pairs with 2.4 GB of texts are more than Arrow's texts can have in one array."""
    a = pa.table({"k": [n % 60 for n in range(60_000)], "t": [""] * 60_000})
    e = pa.table({"k": range(60), "t": [f"{n:040000d}" for n in range(60)]})
    asked = Exists(
        "e", (compare("=", "a.k", "e.k", pa.int64()),), compare("<>", "a.t", "e.t", pa.string()), negated=True
    )
    relation, beside = (RelationSpec(n, t.schema) for n, t in (("a", a), ("e", e)))
    output = (OutputColumn("k", ColumnRef("a", "k")),)
    case = Case(JoinSpec((relation,), (), (asked,), output, beside=(beside,)), {"a": a, "e": e})
    run = run_of(case.spec, batches(case, 60_000), Options(), clock=VirtualClock())
    assert sum(batch.num_rows for batch in run.run()) == 0


def many(rows: int, condition: bool) -> Case:
    """Return ``a`` beside ``e``: every tuple meets all of ``e``, and with a condition only its first."""
    a = pa.table({"k": pa.array([1, 1, 2], pa.int64()), "x": pa.array([0, 1, 1], pa.int64())})
    e = pa.table({"k": pa.array([1] * rows, pa.int64()), "x": pa.array(range(rows), pa.int64())})
    test = compare(">", "a.x", "e.x", pa.int64()) if condition else None
    asked = Exists("e", (compare("=", "a.k", "e.k", pa.int64()),), test)
    spec = JoinSpec(
        (RelationSpec("a", a.schema),),
        residuals=(asked,),
        output=(OutputColumn("x", ColumnRef("a", "x")), OutputColumn("k", ColumnRef("a", "k"))),
        beside=(RelationSpec("e", e.schema),),
    )
    return Case(spec, {"a": a, "e": e})


@pytest.mark.parametrize("condition", [False, True])
def test_a_tuple_with_many_matches_comes_once(condition: bool) -> None:
    """Chains longer than what is looked at in one go, to their ends where nothing on them matches."""
    case = many(50_000, condition)
    run = run_of(case.spec, batches(case, 10_000), Options(), clock=VirtualClock())
    rows = multiset(pa.Table.from_batches(list(run.run()), case.spec.output_schema))
    assert rows == ({(1, 1): 1} if condition else {(0, 1): 1, (1, 1): 1})
    (held,) = [each for each in run.figures().state if each.name == "Semi(e)"]
    assert held.tuples == held.inserted == 50_000


def test_specs_are_checked() -> None:
    """What nobody asks for, a column that is not there, and a memory budget are refused with a reason."""
    case = many(3, condition=True)
    with pytest.raises(InputError, match="stand beside the join"):
        replace(case.spec, residuals=())
    with pytest.raises(InputError, match="not below NOT"):
        replace(case.spec, residuals=(Not(case.spec.residuals[0]),))
    with pytest.raises(InputError, match="no column 'x'"):
        replace(case.spec, beside=(RelationSpec("e", pa.schema([("k", pa.int64())])),))
    two = replace(case.spec, relations=(*case.spec.relations, RelationSpec("b", pa.schema([]))))
    with pytest.raises(InputError, match="memory_budget"):
        spilling_run_of(two, {}, Options(memory_budget=1 << 20))
