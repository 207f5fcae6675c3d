"""Semijoins and antijoins: any architecture, policy and schedule gives DuckDB's EXISTS and NOT IN."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import event, given, settings, strategies as st

from millrace.engine.expressions import And, Column, ColumnRef, Compare, Exists, Predicate
from millrace.engine.operators import exists
from millrace.engine.runs.run_of import run_of
from millrace.engine.spec import JoinSpec, OutputColumn, RelationSpec
from millrace.engine.spill.run_of import run_of as spilling_run_of
from millrace.engine.state import matching
from millrace.engine.state.matching import combined
from millrace.errors import InputError
from millrace.limits.clock import VirtualClock
from millrace.options import ARCHITECTURES, POLICY_NAMES, Options
from tests.engine.eddy.blocks import batches
from tests.engine.eddy.oracle import Case, cases, key_values, multiset
from tests.engine.eddy.test_laws import schedules


def compare(op: str, left: str, right: str, kind: pa.DataType) -> Compare:
    """Return ``a.x op b.y``."""
    a, b = (Column(ColumnRef(*side.split("."))) for side in (left, right))
    return Compare(op, a, b, kind)  # type: ignore[arg-type]


@st.composite
def cases_beside(draw: st.DrawFn) -> Case:
    """Draw a block and one or two relations beside it, with nulls, duplicates and no rows at all."""
    case = draw(cases(max_relations=3, max_rows=12))
    schema = case.spec.relations[0].schema
    tables, asked, beside = dict(case.tables), [], []
    for alias in draw(st.sampled_from([["e0"], ["e0"], ["e0", "e1"]])):
        n = draw(st.sampled_from([0, 1, 2, 4, 9]))
        columns = []
        for field in schema:
            # Values that the block has, mostly, and few of them, so that some tuples match and some do not.
            known = [v for t in case.tables.values() for v in t[field.name].to_pylist() if v is not None]
            pool = [*known[: draw(st.integers(0, 3))], key_values(field.type)[0]]
            pool += draw(st.sampled_from([[], [], [None]]))
            columns.append(
                pa.array(draw(st.lists(st.sampled_from(pool), min_size=n, max_size=n)), field.type)
            )
        tables[alias] = pa.Table.from_arrays(columns, schema=schema)
        beside.append(RelationSpec(alias, schema, rows=n))
        asked.append(draw(predicates(alias, case.spec)))
    residuals = draw(st.sampled_from([[], [], [*case.spec.residuals]]))
    for each in asked:
        residuals.insert(draw(st.integers(0, len(residuals))), each)
    return Case(replace(case.spec, residuals=tuple(residuals), beside=tuple(beside)), tables)


@st.composite
def predicates(draw: st.DrawFn, alias: str, spec: JoinSpec) -> Exists:
    """Draw what is asked of a relation beside a block."""
    schema = spec.relations[0].schema
    names = draw(st.lists(st.sampled_from(schema.names), min_size=1, max_size=2, unique=True))

    def paired(op: str, name: str) -> Compare:
        outer = draw(st.sampled_from(spec.aliases))
        return compare(op, f"{outer}.{name}", f"{alias}.{name}", schema.field(name).type)

    keys = tuple(paired("=", name) for name in names)
    if draw(st.integers(0, 2)) == 0:
        return Exists(alias, keys[:1], negated=True, null_aware=True)
    condition: Predicate | None = None
    if draw(st.booleans()):
        ops = draw(st.lists(st.sampled_from(["<", "<=", "<>", "="]), min_size=1, max_size=2))
        terms = tuple(paired(op, draw(st.sampled_from(["id", "k0"]))) for op in ops)
        condition = terms[0] if len(terms) == 1 else And(terms)
    return Exists(alias, keys, condition, negated=draw(st.booleans()))


def colliding(coded: list[np.ndarray]) -> np.ndarray:
    """Return one code for several: the same for all, so that only verified matches count."""
    return coded[0] if len(coded) == 1 else np.zeros_like(coded[0])


@settings(max_examples=45, deadline=None, derandomize=True)
@given(st.data())
def test_every_routing_gives_the_oracles_rows(data: st.DataObject) -> None:
    """Keys of every type, one or two of them, with and without more conditions, semi, anti and NOT IN."""
    case = data.draw(cases_beside())
    options = Options(
        architecture=data.draw(st.sampled_from(ARCHITECTURES)),
        policy=data.draw(st.sampled_from(POLICY_NAMES)),
        batch_size=data.draw(st.sampled_from([1, 2, 7, 10_000])),
        reoptimize_every=data.draw(st.sampled_from([1, 3, 1000])),
        online=data.draw(st.booleans()),
    )
    schedule = data.draw(st.none() | schedules(case))
    sources = batches(case, data.draw(st.sampled_from([1, 2, 1000])))
    run = run_of(case.spec, sources, options, schedule=schedule, clock=VirtualClock())
    with (
        mock.patch.object(exists, "combined", data.draw(st.sampled_from([combined, colliding]))),
        mock.patch.object(exists, "BATCH_BYTES", most := data.draw(st.sampled_from([1, 50, 1 << 26]))),
        mock.patch.object(matching, "BATCH_BYTES", most),
    ):
        rows = multiset(pa.Table.from_batches(list(run.run()), case.spec.output_schema))
    event(f"{options.architecture}, {'rows' if rows else 'none'}")
    assert rows == case.expected(), case.sql()


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
    with pytest.raises(InputError, match="no column 'x'"):
        replace(case.spec, beside=(RelationSpec("e", pa.schema([("k", pa.int64())])),))
    two = replace(case.spec, relations=(*case.spec.relations, RelationSpec("b", pa.schema([]))))
    with pytest.raises(InputError, match="memory_budget"):
        spilling_run_of(two, {}, Options(memory_budget=1 << 20))
