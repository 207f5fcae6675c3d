"""A common table expression, or a repeated query, that has a block and is read often is computed once.

Spark puts a definition in the place of each name. A task's Python code would then run for each, since what
every place reads of it differs and nothing below is alike. So its result passes an exchange whose two ends
let nothing through: hashing by all columns keeps every column below it, and no filter is pushed below a
sample, not even of all rows. Below is the same everywhere, and Spark makes an exchange of the same rows once
a query (``spark.sql.exchange.reuse``), also across the DataFrames that the blocks of a query read.
"""

# ruff: noqa: S608  # SQL is what this module writes

from __future__ import annotations

from collections import Counter

from pyspark.sql import types as t
from sqlglot import exp

from millrace.sql.expr.types import Field
from millrace.sql.planner.context import PlanContext
from millrace.sql.rewrite.repeats import CommonSubqueries
from millrace.sql.syntax.edits import Edit, quote
from millrace.sql.syntax.parse import Unsupported
from millrace.sql.syntax.scopes import Scope, cte_of, tables_in

_HASHED = (
    t.NumericType, t.StringType, t.BinaryType, t.BooleanType, t.DateType, t.TimestampType, t.TimestampNTZType,
)  # fmt: skip


class CteMaterialization:
    """The common table expressions and repeated queries of one query.

    Args:
        context: The query. SELECTs are planned from inner to outer ones, and definitions before their uses.
    """

    def __init__(self, context: PlanContext) -> None:
        self._context = context
        assert context.statement.root is not None
        named = ((table, cte_of(table)) for table in tables_in(context.statement.root))
        self._reads = [(table, cte) for table, cte in named if cte is not None]
        self._counts = Counter(id(cte) for _, cte in self._reads)
        self._settled: set[int] = set()
        self._repeats = CommonSubqueries(context)

    def repeats(self, scope: Scope) -> bool:
        """Tell whether a SELECT is part of a query that was planned before, and has blocks there."""
        first = self._repeats.first(scope)
        if first is not None:
            self._settle(first)
        return first is not None

    def _settle(self, body: exp.Expr) -> None:
        """Let a repeated query pass an exchange if there are relations among its places."""
        places = self._repeats.places(body)
        if not places or id(body) in self._settled or not self._has_block(body):
            return
        read = [place.parent for place in places if _is_relation(place)]
        self._settled.add(id(body))
        if len(read) > 1 and isinstance(read[0], exp.Subquery):
            self._share(body, read[0], f"{self._context.shown(read[0])}, read {len(read)} times")

    def before(self, scope: Scope | None = None) -> None:
        """Settle the definitions that a SELECT reads, before it is planned itself; without one, all."""
        for table, cte in self._reads:
            if id(cte) in self._settled or not (
                scope is None or table.find_ancestor(exp.Select) is scope.select
            ):
                continue
            self._settled.add(id(cte))
            if self._counts[id(cte)] > 1 and _is_plain(cte) and self._has_block(cte.this):
                self._share(cte.this, table, f"{cte.alias}, read {self._counts[id(cte)]} times")
        if scope is not None and scope.clause is not None:
            for relation in scope.clause.relations():
                self._settle(relation.node.this)

    def _has_block(self, body: exp.Expr) -> bool:
        """Tell whether a query has a block, or a definition that it reads."""
        named = (cte_of(table) for table in tables_in(body))
        inner = (cte.this for cte in named if cte is not None and cte is not body.parent)
        return self._context.has_block(body) or any(map(self._has_block, inner))

    def _share(self, body: exp.Expr, read: exp.Expr, told: str) -> None:
        context = self._context
        if not context.statement.has_span(body):
            return
        if context.volatility.volatile(body) or context.escapes(body):
            return
        fields = self._fields(read)
        if not fields or not all(_is_hashed(field.type) for field in fields):
            return
        inner = [f"{context.stem}s{place}" for place in range(len(fields))]
        names = ", ".join(quote(field.name) for field in fields)
        span = context.statement.span(body)
        columns = ", ".join(inner)
        before = f"SELECT * FROM (SELECT /*+ REPARTITION({columns}) */ * FROM ("
        behind = f") AS __s({columns})) TABLESAMPLE (100 PERCENT) REPEATABLE (0) AS __t({names})"
        context.text.edits.append(Edit(*span, (before, context.text.edited(span), behind)))
        context.shared.append(told)

    def _fields(self, read: exp.Expr) -> tuple[Field, ...]:
        """Return the columns of a definition by one of its readings; none where they cannot be known."""
        found = self._context.names.scopes.find(read)
        if found is None or found[1].columns:
            return ()
        try:
            return self._context.names.fields(found[1])
        except Unsupported:
            return ()


def _is_relation(body: exp.Query) -> bool:
    """Tell whether a query in parentheses is one of a FROM clause, and its order is nobody's business."""
    around = body.parent
    ordered = body.args.get("order") is not None and body.args.get("limit") is None
    return isinstance(around, exp.Subquery) and isinstance(around.parent, exp.From | exp.Join) and not ordered


def _is_plain(cte: exp.CTE) -> bool:
    """Tell whether a definition does not read itself, and is in no order that somebody might look for."""
    with_ = cte.find_ancestor(exp.With)
    body = cte.this
    ordered = body.args.get("order") is not None and body.args.get("limit") is None
    return with_ is not None and not with_.args.get("recursive") and not ordered


def _is_hashed(kind: t.DataType) -> bool:
    """Tell whether Spark deals rows by values of a type.

    It does by structs too, but takes a field out below an exchange, and then does not find it above.
    """
    return _is_hashed(kind.elementType) if isinstance(kind, t.ArrayType) else isinstance(kind, _HASHED)
