"""``x IN (SELECT …)`` as a relation of a block."""

# ruff: noqa: S608  # SQL is what this module writes

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import types as t
from sqlglot import exp

from millrace.block import FrameInput
from millrace.expressions import ColumnRef
from millrace.front.clause import Clause
from millrace.front.coercion import Field, comparison_type, field_of
from millrace.front.conjuncts import Conjunct, Sorted, volatile
from millrace.front.leave import Leave
from millrace.front.predicates import unwrap
from millrace.front.relations import estimate
from millrace.spec import Equality, RelationSpec


@dataclass(eq=False)
class Semijoin:
    """One such relation, and the equalities that join it."""

    conjunct: Conjunct
    spec: RelationSpec
    input: FrameInput
    equalities: list[Equality]


def semijoins(clause: Clause, group: list[str], found: Sorted) -> Iterator[Semijoin]:
    """Turn ``x IN (SELECT …)`` over columns of the block into relations of their own."""
    context = clause.context
    for conjunct in list(found.above):
        node = unwrap(conjunct.node)
        query = node.args.get("query") if isinstance(node, exp.In) else None
        if query is None or conjunct.foreign or not conjunct.reads <= set(group):
            continue
        left = unwrap(node.this)
        keys = left.expressions if isinstance(left, exp.Tuple) else [left]
        columns = [clause.lookup(key) if isinstance(key, exp.Column) else None for key in keys]
        pairs = [c for c in columns if c is not None and c[1].comparable]
        if len(pairs) != len(columns) or volatile(query) or context.escapes(query):
            continue
        made = _subquery(clause, conjunct, query, pairs)
        if made is not None:
            yield made


def _subquery(
    clause: Clause, conjunct: Conjunct, query: exp.Expr, pairs: list[tuple[str, Field]]
) -> Semijoin | None:
    context = clause.context
    inner = query.this if isinstance(query, exp.Subquery) and query.is_wrapper else query
    if not context.statement.has_span(inner):
        return None
    names = [f"c{i}" for i in range(len(pairs))]
    text = context.text.render(*context.statement.span(inner))
    try:
        prefix = context.with_prefix(query)
        frame = context.frames.rows(f"{prefix}SELECT * FROM ({text}) AS __in({', '.join(names)})")
        fields = [field_of(column) for column in frame.schema.fields]
    except (PySparkException, Leave):
        return None
    alias = f"__in{context.statement.span(conjunct.node)[0]}"
    equalities = []
    for (owner, column), other in zip(pairs, fields, strict=True):
        kind = None
        if other.comparable:
            kind = comparison_type(column.type, other.type, ansi=context.ansi)
        # IN coerces as set operations do; only where both ways agree it is an equality.
        if kind is None:
            return None
        if column.type != other.type and not _same_family(column.type, other.type):
            return None
        equalities.append(Equality(ColumnRef(owner, column.name), ColumnRef(alias, other.name), kind))
    rows, size = estimate(context, frame)
    schema = pa.schema([pa.field(f.name, f.arrow) for f in fields])
    spec = RelationSpec(alias, schema, distinct=True, rows=rows)
    return Semijoin(conjunct, spec, FrameInput(frame, size), equalities)


def _same_family(left: t.DataType, right: t.DataType) -> bool:
    return isinstance(left, t.IntegralType) and isinstance(right, t.IntegralType)
