"""What the predicates of a query in SQL will cost: its rows before they are called, and a sample of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from sqlglot import exp

from millrace.errors import QueryError
from millrace.predicates.estimate import Estimate
from millrace.spark.estimate import estimate
from millrace.sql.syntax.parse import function_of, parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millrace.spark.predicates import Applied, Predicate

_ELSEWHERE = (
    "predicates are estimated that stand alone in the outermost WHERE, joined by AND; {} does not: estimate "
    "the DataFrame that it filters, millrace.estimate(df, predicate('column'))"
)
_AFTER = ("group", "having", "order", "limit", "offset", "distinct", "qualify", "windows")


def estimate_of(
    text: str,
    predicates: Mapping[str, Predicate],
    run: Callable[[str], DataFrame],
    sample: int,
    seed: int,
    prices: Mapping[str, float] | None,
) -> Estimate:
    """Return what a query's predicates are expected to take; see :meth:`millrace.api.query.Query.estimate`.

    Args:
        text: The query.
        predicates: By lower-case name.
        run: Returns the rows of another query over the same tables.
        sample: Rows to judge.
        seed: Of the sample.
        prices: Of a call, by the predicate's name.
    """
    statement = parse(text, predicates)
    root = statement.root
    calls = [] if root is None else [each for each in root.find_all(exp.Anonymous) if function_of(each)]
    if root is None or not calls:
        why = f" ({statement.why})" if statement.why else ""
        raise QueryError(f"the query calls no predicate of Python that could be estimated{why}")
    where = root.args.get("where")
    if not isinstance(root, exp.Select) or where is None:
        raise QueryError(_ELSEWHERE.format(statement.shown(calls[0])))
    conjuncts = list(where.this.flatten()) if isinstance(where.this, exp.And) else [where.this]
    asked = [each for each in (each.unnest() for each in conjuncts) if function_of(each)]
    for each in calls:
        if not any(each is call for call in asked):
            raise QueryError(_ELSEWHERE.format(statement.shown(each)))
    rest = [each for each in conjuncts if not any(each.unnest() is call for call in asked)]
    columns: list[exp.Expr] = []
    applied: list[Applied] = []
    for call in asked:
        names = [f"argument_{len(columns) + place}" for place, _ in enumerate(call.expressions)]
        columns += [exp.alias_(each.copy(), name) for each, name in zip(call.expressions, names, strict=True)]
        applied.append(predicates[str(function_of(call))](*names))
    before = root.copy()
    for part in _AFTER:
        before.set(part, None)
    before.set("expressions", columns)
    before.set("where", exp.Where(this=exp.and_(*(each.copy() for each in rest))) if rest else None)
    return estimate(run(before.sql(dialect="spark")), *applied, sample=sample, seed=seed, prices=prices)
