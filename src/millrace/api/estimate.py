"""``millrace.estimate`` and ``Query.estimate``: what predicates and lookups will cost, from samples.

Rows of the sample are really judged, and keys of it really asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame, functions as sf
from sqlglot import exp

from millrace.engine.expressions import Call, ColumnRef
from millrace.engine.spec import Equality, JoinSpec, OutputColumn, RelationSpec
from millrace.errors import OptionError, PredicateError, QueryError, near
from millrace.lookups.index_spec import IndexSpec
from millrace.predicates.calls import KEPT, RAISED
from millrace.predicates.estimate import CostPreview, Judged, LookupEstimate, estimated
from millrace.spark.block import Block, LookupInput
from millrace.spark.cascade import draw_sample, judge_sample
from millrace.spark.execute import execute
from millrace.spark.filter import conditions_of
from millrace.spark.predicates import Applied
from millrace.spark.values import spark_values
from millrace.sql.blocks.conditions import as_equality
from millrace.sql.syntax.parse import function_of, parse, unwrap, where_conjuncts

if TYPE_CHECKING:
    from millrace.spark.predicates import Predicate
    from millrace.sql.plan import PlannedQuery

_ELSEWHERE = (
    "predicates are estimated that stand alone in the outermost WHERE, joined by AND; {} does not: estimate "
    "the DataFrame that it filters, millrace.estimate(df, predicate('column'))"
)
_AFTER = ("group", "having", "order", "limit", "offset", "distinct", "qualify", "windows")


def estimate(
    df: DataFrame,
    *predicates: object,
    sample: int = 200,
    seed: int = 0,
    prices: Mapping[str, float] | None = None,
) -> CostPreview:
    """Return what :func:`where` with the same arguments is expected to take, before you pay for it.

    A uniform sample is really judged, by every predicate, in this process: that many calls are made. From it
    follow the order that an eddy comes to, the calls of each predicate in it, with intervals, and their time.

    >>> print(millrace.estimate(df, is_spam("text"), in_stock("id"), prices={"is_spam": 0.002}))  # doctest:
    +SKIP

    Args:
        df: Not a streaming one.
        predicates: As for :func:`where`, one of Python's functions at least.
        sample: Rows to judge.
        seed: Of the sample.
        prices: Of a request, by the predicate's name, in any unit; with ``batch`` a request has several rows.
            By default what ``cost`` of the predicate says, or what a model's prices make of the sample.

    Raises:
        MillraceError: A predicate cannot be used, a price is of no predicate, the sample is out of range.
    """
    prices = prices or {}
    conditions = conditions_of(predicates)
    calls = [each for each in conditions if isinstance(each, Applied)]
    if not calls:
        raise PredicateError("there is no predicate of Python to estimate: Spark evaluates all conditions")
    names = [call.spec.name for call in calls]
    for name, price in prices.items():
        if name not in names:
            raise OptionError(f"prices have a predicate {name!r}: {near(name, names)}")
        if not price >= 0:
            raise OptionError(f"the price of {name!r} is {price!r}: expected a number that is not negative")
    for condition in conditions:
        if not isinstance(condition, Applied):
            df = df.where(condition)
    arrays = draw_sample(df, [c for call in calls for c in call.columns()], sample, seed, "an estimate")
    totals = [sf.count(sf.lit(1))]
    totals += [sf.approx_count_distinct(sf.struct(*call.columns())) for call in calls if call.spec.dedupe]
    rows, *distinct = df.agg(*totals).collect()[0]
    values, judged = spark_values(df.sparkSession), list[Judged]()
    for call in calls:
        spec = call.spec
        own, arrays = arrays[: len(call.arguments)], arrays[len(call.arguments) :]
        outcome, cost = judge_sample(spec, own, values)
        judged.append(
            Judged(
                spec.name,
                outcome.truth == KEPT,
                cost.seconds,
                spec.per_second,
                distinct.pop(0) if spec.dedupe else None,
                float(prices.get(spec.name, spec.cost if isinstance(spec.cost, int | float) else 0.0)),
                int((outcome.truth == RAISED).sum()),
                spec.batch or 1,
                cost.asked,
                cost.requests,
                0.0 if spec.name in prices else cost.cost,
            )
        )
    return estimated(rows, judged)


def estimate_predicates(
    text: str,
    predicates: Mapping[str, Predicate],
    run: Callable[[str], DataFrame],
    sample: int,
    seed: int,
    prices: Mapping[str, float] | None,
) -> CostPreview:
    """Return what a query's predicates, by lower-case name, are expected to take.

    ``run`` returns the rows of another query over the same tables: those that predicates are called for.
    """
    statement = parse(text, predicates)
    root = statement.root
    calls = [] if root is None else list(filter(function_of, root.find_all(exp.Anonymous)))
    if root is None or not calls:
        why = f" ({statement.why})" if statement.why else ""
        raise QueryError(f"the query calls no predicate of Python that could be estimated{why}")
    if not isinstance(root, exp.Select) or root.args.get("where") is None:
        raise QueryError(_ELSEWHERE.format(statement.shown(calls[0])))
    conjuncts = [unwrap(conjunct) for conjunct in where_conjuncts(root)]
    for call in calls:
        if not any(call is conjunct for conjunct in conjuncts):
            raise QueryError(_ELSEWHERE.format(statement.shown(call)))
    rest = [conjunct for conjunct in conjuncts if not function_of(conjunct)]
    columns: list[exp.Expr] = []
    applied: list[Applied] = []
    for call in calls:
        names = [f"argument_{len(columns) + place}" for place, _ in enumerate(call.expressions)]
        columns += [exp.alias_(each.copy(), name) for each, name in zip(call.expressions, names, strict=True)]
        applied.append(predicates[str(function_of(call))](*names))
    before = root.copy()
    for part in _AFTER:
        before.set(part, None)
    before.set("expressions", columns)
    before.set("where", exp.Where(this=exp.and_(*(conjunct.copy() for conjunct in rest))) if rest else None)
    return estimate(run(before.sql(dialect="spark")), *applied, sample=sample, seed=seed, prices=prices)


def estimate_lookups(query: PlannedQuery, sample: int, seed: int) -> CostPreview | None:
    """Return what a query's lookups are expected to take, None where it has none.

    Keys are those of one relation that is read without a lookup, its own conditions applied. A sample of
    them is really asked for, on the lookup's own terms; its cache has the answers then.

    Raises:
        OptionError: The size of the sample is out of range.
        InputError: A relation is a streaming DataFrame.
        MillraceError: As the query itself: a source that does not answer, a budget that is spent.
    """
    estimates: list[LookupEstimate] = []
    unknown: list[str] = []
    has_predicates = bool(query.filters)
    blocks = [taken.block for taken in query.taken]
    blocks = [each for each in blocks if any(isinstance(i, LookupInput) for i in each.inputs.values())]
    for block in blocks:
        has_predicates |= any(isinstance(each, Call) for each in block.join.residuals)
        for alias, lookup in block.inputs.items():
            if not isinstance(lookup, LookupInput):
                continue
            if lookup.scan is not None or lookup.sources:
                unknown.append(
                    f"lookup {alias}, which has a scan too: how much of it is asked for shows as it runs"
                )
                continue
            for spec in lookup.indexes:
                binding = _binding(block, alias, spec)
                if binding is None:
                    unknown.append(
                        f"lookup {spec.name}, whose keys come from other lookups, or several tables"
                    )
                else:
                    estimates.append(_estimate_lookup(query, block, spec, *binding, sample, seed))
    if has_predicates:
        unknown.append("predicates, whose rows come from lookups, all of which would have to be asked")
    return CostPreview(0, 0, (0, 0, 0), (), tuple(estimates), tuple(unknown)) if blocks else None


def _binding(block: Block, alias: str, spec: IndexSpec) -> tuple[RelationSpec, list[str]] | None:
    """Return a relation that can be read and has all bind columns, with these; None if there is none."""
    join = block.join
    mine = [key for left in join.outer if left.relation == alias for key in left.keys]
    keys = [edge for key in mine if (edge := as_equality(key)) is not None]
    equal = [_equal_to(ColumnRef(alias, column), [*join.equalities, *keys]) for column in spec.columns]
    for relation in join.sources:
        columns = [
            next((ref.column for ref in refs if ref.relation == relation.alias), None) for refs in equal
        ]
        source = block.inputs.get(relation.same_as or relation.alias)
        if source is None or isinstance(source, LookupInput) or None in columns:
            continue
        return relation, [column for column in columns if column is not None]
    return None


def _equal_to(ref: ColumnRef, equalities: Iterable[Equality]) -> list[ColumnRef]:
    """Return all columns that equalities make equal to one, nearest first."""
    equal = [ref]
    for reached in equal:  # it grows meanwhile
        for equality in equalities:
            for left, right in ((equality.left, equality.right), (equality.right, equality.left)):
                if left == reached and right not in equal:
                    equal.append(right)
    return equal[1:]


def _estimate_lookup(
    query: PlannedQuery,
    block: Block,
    spec: IndexSpec,
    relation: RelationSpec,
    columns: list[str],
    sample: int,
    seed: int,
) -> LookupEstimate:
    from millrace.lookups.sampled import sampled

    source = block.inputs[relation.same_as or relation.alias]
    refs = {f"key{place}": ColumnRef(relation.alias, column) for place, column in enumerate(columns)}
    output = tuple(OutputColumn(name, ref) for name, ref in refs.items())
    join = JoinSpec((replace(relation, same_as=None, window=None),), output=output)
    keys = Block(f"{block.name} keys", join, {relation.alias: source})
    run = execute(query.df.sparkSession, keys, replace(query.options, report=False))
    frame = run.frame.dropna().distinct()
    arrays = draw_sample(frame, [sf.col(name) for name in refs], sample, seed, "an estimate")
    most = frame.count()
    batch = pa.RecordBatch.from_arrays(arrays, names=list(spec.columns))
    is_alone = all(
        each.alias == relation.alias or isinstance(block.inputs.get(each.same_as or each.alias), LookupInput)
        for each in block.join.relations
    )
    is_only_lookup = sum(isinstance(each, LookupInput) for each in block.inputs.values()) == 1
    least = most if is_alone and is_only_lookup and not block.join.residuals else 0
    return sampled(spec, batch).of(spec, least, most)
