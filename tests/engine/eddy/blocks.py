"""Small blocks for tests of the router, and one way to run them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from millrace.engine.arrivals.schedule import Schedule
from millrace.engine.expressions import ColumnRef
from millrace.engine.policies import Policy
from millrace.engine.runs.eddy_run import EddyRun
from millrace.engine.spec import Equality, JoinSpec, OutputColumn, RelationSpec
from millrace.limits.clock import VirtualClock
from millrace.options import Options
from tests.engine.eddy.oracle import Case, multiset

Rows = Counter[tuple[Any, ...]]


def block(
    tables: dict[str, pa.Table],
    equalities: Sequence[str],
    *,
    distinct: Sequence[str] = (),
    count_only: bool = False,
) -> Case:
    """Return the block ``a.x = b.y AND …`` over the tables, all columns of which it returns."""

    def ref(text: str) -> ColumnRef:
        return ColumnRef(*text.strip().split("."))

    relations = tuple(RelationSpec(a, t.schema, a in distinct, t.num_rows) for a, t in tables.items())
    pairs = [[ref(side) for side in text.split("=")] for text in equalities]
    joined = tuple(Equality(a, b, tables[a.relation].schema.field(a.column).type) for a, b in pairs)
    columns = [ColumnRef(a, name) for a, table in tables.items() for name in table.column_names]
    output = () if count_only else tuple(OutputColumn(f"{c.relation}_{c.column}", c) for c in columns)
    return Case(JoinSpec(relations, joined, (), output, count_only), tables)


def chain(seed: int, kind: pa.DataType | None = None, nulls: float = 0.0, rows: int = 9) -> Case:
    """Return ``a.k = b.k AND b.j = c.j`` over random tables, in which keys repeat."""
    draw = random.Random(seed)
    kind = kind or pa.int64()

    def values(n: int) -> pa.Array:
        drawn = [None if draw.random() < nulls else draw.randint(0, 3) for _ in range(n)]
        texts = pa.types.is_string(kind)
        return pa.array([f"k{v}" if texts and v is not None else v for v in drawn], kind)

    tables = {}
    for alias, keys in (("a", "k"), ("b", "kj"), ("c", "j")):
        n = draw.randint(2, rows)
        tables[alias] = pa.table({"id": pa.array(range(n), pa.int32()), **{key: values(n) for key in keys}})
    return block(tables, ["a.k = b.k", "b.j = c.j"])


def star(arms: dict[str, Sequence[int]], keys: dict[str, Sequence[int]]) -> Case:
    """Return a block that joins ``u``, whose columns are ``keys``, with one relation for each of them."""
    tables = {"u": pa.table({name: pa.array(values, pa.int64()) for name, values in keys.items()})}
    tables |= {name: pa.table({"k": pa.array(values, pa.int64())}) for name, values in arms.items()}
    return block(tables, [f"u.{name} = {name}.k" for name in arms], count_only=True)


def batches(case: Case, chunk: int) -> dict[str, list[pa.RecordBatch]]:
    """Return each relation's rows in record batches of at most ``chunk``."""
    return {a: t.combine_chunks().to_batches(max_chunksize=chunk) for a, t in case.tables.items()}


def run(
    case: Case,
    options: Options | None = None,
    *,
    schedule: Schedule | None = None,
    stream: str | None = None,
    policy: Policy | None = None,
    chunk: int = 4,
) -> tuple[Rows, EddyRun]:
    """Run the block in virtual time; return its rows and the eddy, for its figures."""
    eddy = EddyRun(
        case.spec,
        batches(case, chunk),
        options,
        schedule=schedule,
        stream=stream,
        policy=policy,
        clock=VirtualClock(),
    )
    return multiset(pa.Table.from_batches(list(eddy.run()), case.spec.output_schema)), eddy
