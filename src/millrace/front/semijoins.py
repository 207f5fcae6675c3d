"""``x IN (SELECT …)`` as a relation of a block."""

# ruff: noqa: S608  # SQL is what this module writes

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import types as t
from sqlglot import exp

from millrace.expressions import ColumnRef
from millrace.front.clause import Clause
from millrace.front.coercion import Field, comparison_type, field_of
from millrace.front.conditions import Conjunct, Sorted
from millrace.front.ctes import Leave, definitions, with_prefix
from millrace.front.parse import unwrap
from millrace.front.plan import Read
from millrace.spec import Equality, RelationSpec


@dataclass(eq=False)
class Semijoin:
    """One such relation, and the equalities that join it."""

    conjunct: Conjunct
    spec: RelationSpec
    rows: Read
    equalities: list[Equality]


def semijoins(clause: Clause, group: list[str], found: Sorted) -> Iterator[Semijoin]:
    """Turn ``x IN (SELECT …)`` over columns of the block into relations of their own."""
    planning = clause.planning
    for conjunct in list(found.above):
        node = None if conjunct.node is None else unwrap(conjunct.node)
        query = node.args.get("query") if isinstance(node, exp.In) else None
        if node is None or query is None or conjunct.foreign or not conjunct.reads <= set(group):
            continue
        left = unwrap(node.this)
        keys = left.expressions if isinstance(left, exp.Tuple) else [left]
        columns = [clause.lookup(key) if isinstance(key, exp.Column) else None for key in keys]
        pairs = [c for c in columns if c is not None and c[1].comparable]
        if len(pairs) != len(columns) or planning.escapes(query):
            continue
        if any(planning.volatility.volatile(part) for part in (query, *definitions(query))):
            continue
        made = _subquery(clause, conjunct, query, pairs)
        if made is not None:
            yield made


def _subquery(
    clause: Clause, conjunct: Conjunct, query: exp.Expr, pairs: list[tuple[str, Field]]
) -> Semijoin | None:
    planning = clause.planning
    statement, text = planning.statement, planning.text
    inner = query.this if isinstance(query, exp.Subquery) and query.is_wrapper else query
    if not statement.has_span(inner) or planning.is_streaming(inner):
        return None
    span = statement.span(inner)
    names = [f"c{i}" for i in range(len(pairs))]
    alias = f"__in{statement.span(conjunct.node)[0]}"  # type: ignore[arg-type]
    try:
        prefixes = [with_prefix(statement, query, render) for render in (text.bound, text.edited)]
        texts = [f"({text.bound(span)})", f"({text.edited(span)})"]
        asked, made = (
            f"{prefix}SELECT * FROM {each} AS __in({', '.join(names)})"
            for prefix, each in zip(prefixes, texts, strict=True)
        )
        if planning.frames.barred(made):
            return None
        fields = [field_of(column) for column in planning.frames.schema(asked).fields]
    except (PySparkException, Leave):
        return None
    equalities = []
    for (owner, column), other in zip(pairs, fields, strict=True):
        kind = None
        if other.comparable:
            kind = comparison_type(column.type, other.type, ansi=planning.settings.ansi)
        # IN coerces as set operations do; only where both ways agree it is an equality.
        if kind is None:
            return None
        if column.type != other.type and not _same_family(column.type, other.type):
            return None
        equalities.append(Equality(ColumnRef(owner, column.name), ColumnRef(alias, other.name), kind))
    schema = pa.schema([pa.field(f.name, f.arrow) for f in fields])
    return Semijoin(conjunct, RelationSpec(alias, schema, distinct=True), Read(made), equalities)


def _same_family(left: t.DataType, right: t.DataType) -> bool:
    return isinstance(left, t.IntegralType) and isinstance(right, t.IntegralType)
