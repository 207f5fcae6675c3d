"""The aggregates that a SELECT calls, by what becomes of them when rows come in partial rows.

Those that stay as they are have to give the same for rows that are fewer but no others: ``max``, or anything
DISTINCT. The others have to be put together from partial results.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from sqlglot import exp

from millrace.sql.syntax.parse import Unsupported, function_of

Kind = Literal["sum", "avg", "count", "min", "max", "same"]

CLAUSES = ("expressions", "group", "having", "order", "sort", "cluster", "distribute", "qualify", "windows")
"""The clauses of a SELECT that see its groups."""

_KINDS: dict[type[exp.Expr], Kind] = {
    exp.Sum: "sum",
    exp.Avg: "avg",
    exp.Count: "count",
    exp.CountIf: "count",
    exp.Min: "min",
    exp.Max: "max",
    exp.LogicalAnd: "min",
    exp.LogicalOr: "max",
    exp.AnyValue: "same",
    exp.ApproxDistinct: "same",
    exp.ArgMax: "same",
    exp.ArgMin: "same",
    exp.BitwiseAndAgg: "same",
    exp.BitwiseOrAgg: "same",
    exp.Grouping: "same",
    exp.GroupingId: "same",
}
_NAMED: dict[str, Kind] = {"mean": "avg", "every": "min", "some": "max"}
# A function that sqlglot does not know, and ``any(…)``, which it takes for that of ``= ANY (…)``.
_UNCERTAIN = (exp.Anonymous, exp.Any)
_WRAPPERS = (exp.Filter, exp.IgnoreNulls, exp.RespectNulls, exp.WithinGroup)


@dataclass(frozen=True, eq=False)
class Aggregate:
    """A call of an aggregate.

    Attributes:
        node: The call, with its FILTER.
        kind: How it is put together from partial results; ``"same"`` for one that may stay as it is.
        argument: Its only argument, None where it has several, or counts rows.
        rows: Whether it counts rows.
        condition: Of its FILTER.
    """

    node: exp.Expr
    kind: Kind
    argument: exp.Expr | None = None
    rows: bool = False
    condition: exp.Expr | None = None

    @property
    def distinct(self) -> bool:
        """Whether it takes every value once."""
        return isinstance(self.argument, exp.Distinct)

    @property
    def tests(self) -> bool:
        """Whether it counts the rows for which its argument is true."""
        return isinstance(_bare(self.node), exp.CountIf)


def groups(select: exp.Select) -> bool:
    """Tell whether a SELECT gives out groups of rows, and not the rows."""
    if any(select.args.get(key) for key in ("group", "having", "distinct")):
        return True
    called = (_bare(node) for node in _called(select))
    return any(isinstance(node, exp.AggFunc) or node.name.lower() in _NAMED for node in called)


def aggregates(select: exp.Select) -> list[Aggregate]:
    """Return the aggregates that a SELECT calls itself.

    Raises:
        Unsupported: It may call one that does not begin in tasks.
    """
    return [_read(node) for node in _called(select)]


def is_windowed(select: exp.Select) -> bool:
    """Tell whether a SELECT calls window functions, which see each row."""
    return any(isinstance(part, exp.Window) for node in _clauses(select) for part in node.walk())


def _clauses(select: exp.Select) -> Iterator[exp.Expr]:
    for key in CLAUSES:
        found = select.args.get(key)
        for node in found if isinstance(found, list) else [found]:
            if isinstance(node, exp.Expr):
                yield node


def _called(select: exp.Select) -> Iterator[exp.Expr]:
    """Yield the calls of what is an aggregate, or may be one, outside of subqueries."""
    for graph in _clauses(select):
        yield from _within(graph)


def _within(node: exp.Expr) -> Iterator[exp.Expr]:
    if isinstance(node, exp.Query):
        return
    if isinstance(node, exp.Window):
        called = _bare(node.this)
        inside = [*called.iter_expressions(), *(n for n in node.iter_expressions() if n is not node.this)]
    elif isinstance(node, (exp.AggFunc, *_WRAPPERS, *_UNCERTAIN)) and function_of(node) is None:
        yield node
        return
    else:
        inside = list(node.iter_expressions())
    for child in inside:
        yield from _within(child)


def _read(node: exp.Expr) -> Aggregate:
    called, condition = node, None
    if isinstance(node, exp.Filter):
        called, condition = node.this, node.expression.this
    kind = _NAMED.get(called.name.lower()) if isinstance(called, exp.Anonymous) else _KINDS.get(type(called))
    arguments = _arguments(called)
    distinct = len(arguments) == 1 and isinstance(arguments[0], exp.Distinct)
    if distinct and isinstance(called, exp.AggFunc):
        return Aggregate(node, kind or "same", arguments[0], condition=condition)
    if kind is None:
        raise Unsupported(f"{_name(called)} may need every row")
    if kind == "count" and not called.expressions and isinstance(called.this, exp.Star):
        return Aggregate(node, kind, rows=True, condition=condition)
    if len(arguments) != 1 and kind in ("sum", "avg", "count"):
        raise Unsupported(f"{_name(called)} of several arguments")
    return Aggregate(node, kind, arguments[0] if len(arguments) == 1 else None, condition=condition)


def _arguments(node: exp.Expr) -> list[exp.Expr]:
    if isinstance(node, exp.Anonymous):
        return list(node.expressions)
    first = [node.this] if isinstance(node.this, exp.Expr) else []
    return [*first, *(each for each in node.iter_expressions() if each is not node.this)]


def _bare(node: exp.Expr) -> exp.Expr:
    while isinstance(node, _WRAPPERS):
        node = node.this
    return node


def _name(node: exp.Expr) -> str:
    node = _bare(node)
    return (node.name if isinstance(node, exp.Anonymous) else type(node).__name__).lower()
