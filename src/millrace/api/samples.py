"""``millrace.cascade``, ``millrace.estimate`` and ``Query.estimate``: what a uniform sample tells.

Rows of the sample are really judged, in this process, and keys of it really asked for.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, functions as sf
from sqlglot import exp

from millrace.api.predicates import conditions_of
from millrace.engine.plan.expressions import Call, ColumnRef
from millrace.engine.plan.spec import JoinSpec, OutputColumn, RelationSpec
from millrace.errors import (
    BudgetError,
    ExecutionError,
    InputError,
    OptionError,
    PredicateError,
    QueryError,
    near,
)
from millrace.limits.request import FetchStats
from millrace.lookups.table import IndexSpec
from millrace.predicates.callers import caller_of
from millrace.predicates.calls import KEPT, RAISED, Outcome, Values
from millrace.predicates.cascade import Maybe, Score, ScoreKind, Thresholds, learned
from millrace.predicates.estimate import CostPreview, Judged, LookupEstimate, estimated
from millrace.predicates.service import Service
from millrace.predicates.spec import PredicateSpec
from millrace.spark.block import Block, LookupInput
from millrace.spark.execute import execute
from millrace.spark.predicates import Applied, Predicate, check_arity
from millrace.spark.values import spark_values
from millrace.sql.blocks.conditions import as_equality, group_connected
from millrace.sql.syntax.parse import function_of, parse, unwrap, where_conjuncts

if TYPE_CHECKING:
    from millrace.sql.plan import PlannedQuery

_LEAST, _MOST = 10, 1_000_000
_ELSEWHERE = (
    "predicates are estimated that stand alone in the outermost WHERE, joined by AND; {} does not: estimate "
    "the DataFrame that it filters, millrace.estimate(df, predicate('column'))"
)
_AFTER = ("group", "having", "order", "limit", "offset", "distinct", "qualify", "windows")


def cascade(
    score: Callable[..., Any],
    costly: object,
    *,
    recall: float = 0.95,
    precision: float = 0.95,
    confidence: float = 0.95,
    kind: ScoreKind = "row",
) -> Cascade:
    """Put a cheap score before a costly predicate, which then decides only where the score is not sure.

    Thresholds are learned on a sample that both judge, and keep their promises with the stated confidence
    whatever the scores are like. Rows between them get the costly predicate's own answer.

    >>> cheap = millrace.cascade(length_of, is_complaint, recall=0.95)  # doctest: +SKIP
    >>> fitted = cheap.learn(reviews, "text", sample=1000)  # doctest: +SKIP
    >>> millrace.where(reviews, *fitted("text"))  # doctest: +SKIP

    Args:
        score: From a row's values to a number, the higher the likelier that the costly predicate keeps it. A
            null or NaN leaves the row to the costly predicate.
        costly: A function made by :func:`predicate` or by PySpark's ``udf``, ``pandas_udf`` or ``arrow_udf``.
        recall: Share of the rows that the costly predicate keeps which are to be kept, at least.
        precision: Share of the kept rows that the costly predicate keeps, at least.
        confidence: Probability with which both hold, over the samples that might have been drawn.
        kind: How the score is called: ``"row"``, ``"pandas"`` or ``"arrow"``, as for :func:`predicate`.

    Raises:
        MillraceError: The costly predicate is none; a share is out of range when thresholds are learned.
    """
    return Cascade(Score(score, kind), Predicate.of(costly), recall, precision, confidence)


@dataclass(frozen=True)
class Cascade:
    """A cheap score before a costly predicate, not fitted to any data yet; see :func:`cascade`."""

    score: Score
    costly: Predicate
    recall: float
    precision: float
    confidence: float

    def learn(self, df: DataFrame, *columns: str, sample: int = 1000, seed: int = 0) -> FittedCascade:
        """Let both stages judge a uniform sample of a DataFrame, and find the thresholds.

        The sample is judged in this process, by so many calls of the costly predicate.

        Args:
            df: The rows to be filtered, or others like them.
            columns: Names of the arguments.
            sample: Rows to judge. To lose at most a share of 0.05 with a confidence of 0.95 the predicate has
                to keep 80 rows of it, or nothing is rejected unseen.
            seed: Of the sample.

        Raises:
            OptionError: The size of the sample is out of range.
            ExecutionError: The costly predicate raised.
            PredicateError: A function takes other arguments, or returns something else than it should.
        """
        check_arity(self.costly.spec, len(columns))
        check_arity(PredicateSpec("score", self.score.function), len(columns))
        arrays = draw_sample(df, [sf.col(name) for name in columns], sample, seed, "a cascade")
        return self.fit(arrays, spark_values(df.sparkSession))

    def fit(self, arrays: list[pa.Array], values: Values) -> FittedCascade:
        """Let both stages judge a uniform sample that was drawn before: an array for each argument."""
        outcome, _ = judge_sample(self.costly.spec, arrays, values)
        if (outcome.truth == RAISED).any() and self.costly.spec.on_error == "fail":
            first = next(iter(outcome.failures.values()), None)
            said = "" if first is None else f": {first.kind}: {first.message}"
            raise ExecutionError(
                f"predicate {self.costly.name!r} raised for {int((outcome.truth == RAISED).sum())} of "
                f"{len(outcome.truth)} rows of the sample{said}. Handle that in the function, or set "
                "on_error='null'"
            )
        thresholds = learned(
            self.score.of(arrays, values),
            outcome.truth == KEPT,
            recall=self.recall,
            precision=self.precision,
            confidence=self.confidence,
        )
        return FittedCascade(self, thresholds)


@dataclass(frozen=True)
class FittedCascade:
    """A cascade with its thresholds: apply it to columns, and give both stages to ``where``.

    >>> millrace.where(df, *fitted("text"))  # doctest: +SKIP
    """

    cascade: Cascade
    thresholds: Thresholds

    def __call__(self, *columns: str) -> tuple[Applied, Applied]:
        """Return both stages applied to columns: two predicates, whose order the eddy finds."""
        if not columns:
            raise PredicateError("a cascade is applied to no column: write *fitted('column')")
        score, costly, thresholds = self.cascade.score, self.cascade.costly.spec, self.thresholds
        first = PredicateSpec(f"{costly.name}_maybe", Maybe(score, thresholds.low), score.kind)
        second = replace(costly, sure=(score, thresholds.high))
        return Applied.of(first, columns, {}), Applied.of(second, columns, {})


def draw_sample(
    df: DataFrame, columns: Sequence[Column], sample: int, seed: int, what: str
) -> list[pa.Array]:
    """Return columns of so many rows of a DataFrame, each set of rows as likely as any other.

    All rows are read. ``what`` needs the sample, for errors.
    """
    if type(sample) is not int or not _LEAST <= sample <= _MOST:
        raise OptionError(
            f"sample of {what} is {sample!r}: expected a whole number from {_LEAST} to {_MOST:,}"
        )
    if df.isStreaming:
        raise InputError(
            f"{what} needs a sample, and a streaming DataFrame has no end: give it a DataFrame of like rows"
        )
    named = [column.alias(f"_{place}") for place, column in enumerate(columns)]
    table = df.select(*named).orderBy(sf.rand(seed)).limit(sample).toArrow()
    return [pa.concat_arrays(c.chunks) if c.num_chunks else pa.nulls(0, c.type) for c in table.columns]


def judge_sample(spec: PredicateSpec, arrays: list[pa.Array], values: Values) -> tuple[Outcome, FetchStats]:
    """Return what a predicate says of the rows, and what that took in all; limits hold for it alone."""
    stats = FetchStats()
    caller = caller_of(_priced(spec), values, stats=stats)
    began = time.perf_counter()
    try:
        outcome = caller.call(arrays)
    finally:
        caller.close()
    stats.seconds = time.perf_counter() - began
    return outcome, stats


def _priced(spec: PredicateSpec) -> PredicateSpec:
    """Return a predicate whose calls tell what they cost, if its service knows, though nothing bounds it."""
    price = spec.asked.cost if isinstance(spec.asked, Service) else None
    if price is None or spec.max_cost is not None:
        return spec

    def cost(request: object, answer: object) -> float:
        with suppress(BudgetError):  # nobody can tell
            return price(request, answer)
        return 0.0

    return replace(spec, cost=cost, max_cost=sys.float_info.max)


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

    >>> filters = is_spam("text"), in_stock("id")  # doctest: +SKIP
    >>> print(millrace.estimate(df, *filters, prices={"is_spam": 0.002}))  # doctest: +SKIP

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
        outcome, asked = judge_sample(spec, own, values)
        judged.append(
            Judged(
                spec.name,
                outcome.truth == KEPT,
                asked.seconds,
                spec.per_second,
                distinct.pop(0) if spec.dedupe else None,
                float(prices.get(spec.name, spec.cost if isinstance(spec.cost, int | float) else 0.0)),
                int((outcome.truth == RAISED).sum()),
                spec.batch or 1,
                asked.rows,
                asked.requests,
                0.0 if spec.name in prices else asked.cost,
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
    them is really asked for, on the lookup's own terms; its cache has the answers then. What the query itself
    would raise is raised here: by a source that does not answer, say, or a budget that is spent.
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
    groups = group_connected(edge.ends for edge in (*join.equalities, *keys))
    equal = [next((g for g in groups if ColumnRef(alias, column) in g), []) for column in spec.columns]
    for relation in join.sources:
        columns = [
            next((ref.column for ref in refs if ref.relation == relation.alias), None) for refs in equal
        ]
        source = block.inputs.get(relation.same_as or relation.alias)
        if source is None or isinstance(source, LookupInput) or None in columns:
            continue
        return relation, [column for column in columns if column is not None]
    return None


def _estimate_lookup(
    query: PlannedQuery,
    block: Block,
    spec: IndexSpec,
    relation: RelationSpec,
    columns: list[str],
    sample: int,
    seed: int,
) -> LookupEstimate:
    from millrace.lookups.sampled import estimate_of

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
    return estimate_of(spec, batch, least, most)
