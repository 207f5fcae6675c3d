"""``millrace.optimize``: a pipeline of DataFrames, however it was made, planned as one query.

A pipeline is read from Spark's analysed plan, said as SQL, and planned as every text is. What SQL cannot say
of it is a relation of that text, and so is what Spark would not read back as the same. What stands above the
last join that can be said is Spark's as it was, over what Millrace makes. Where nothing of the text is the
eddies', Spark runs the pipeline as it is; whatever goes wrong here leaves it to Spark too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql.types import DataType, StructType

from millrace.api.gain import why_slower
from millrace.api.session import Session
from millrace.errors import InputError, MillraceError, PredicateError, first_line
from millrace.options import Options
from millrace.spark.frames import carry_parts, left_to_spark
from millrace.spark.plan_reader import AnalysedPlan, Operator
from millrace.spark.predicates import Predicate
from millrace.spark.session import facts_of, internal_query, is_connect, keep
from millrace.sql.from_plan import Reading, is_repeatable, read, relation_names, with_calls, with_columns_for
from millrace.sql.session.errors import contain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millrace.api.query import Query
    from millrace.sql.connect_plan import ConnectPlan

    Plan = AnalysedPlan | ConnectPlan
    Part = tuple[Sequence[int], DataFrame]

_DEEPEST = 200
_REFERENCES = frozenset(("CTERelationRef", "UnionLoopRef"))
"""Operators that mean nothing without what stands elsewhere in their plan."""
_STREAMED = frozenset(("Project", "Filter", "Join", "SubqueryAlias", "View"))
"""What is said of streams; all else of them is a relation."""


def optimize(df: DataFrame, options: Options | dict[str, Any] | None = None) -> DataFrame:
    """Return a DataFrame with the rows of a pipeline, its joins and Python filters run by eddies.

    >>> millrace.optimize(trips.join(zones, "zone", "left").groupBy("borough").count())  # doctest: +SKIP

    It is read from Spark's own plan of it, and has the same columns. What Millrace has no part in is returned
    as it is, and :func:`explain` says why.

    Args:
        df: Made in any way.
        options: Settings of the run.

    Raises:
        InputError: It is no DataFrame.
        MillraceError: An option cannot be used.
    """
    settings = Options.of(options)
    if not hasattr(df, "sparkSession"):
        raise InputError(f"optimize reads a DataFrame of Spark, got a {type(df).__name__}")
    return better(df, settings) or df


def better(df: DataFrame, options: Options) -> DataFrame | None:
    """Return Millrace's DataFrame of the same rows; None where Spark's runs, and the log is told why."""
    try:
        with internal_query():
            found = _planned(df, plan_of(df), options)
    except (MillraceError, PySparkException) as error:
        found = first_line(error)
    except Exception as error:  # noqa: BLE001  # whatever it is, Spark has the rows
        found = contain(error)
    if isinstance(found, str):
        left_to_spark(df, found)
        return None
    vars(found)["_millrace_of"] = df  # what the server keeps for it lasts as long
    return found


def plan_of(df: DataFrame) -> Plan:
    """Return the plan of a DataFrame, on classic Spark or on Spark Connect."""
    if not is_connect(df.sparkSession):
        return AnalysedPlan(df)
    from millrace.sql.connect_plan import ConnectPlan  # what it loads need not be installed elsewhere

    return ConnectPlan(df)


def _planned(df: DataFrame, plan: Plan, options: Options) -> DataFrame | str:
    """Return what Millrace makes of a pipeline, or why it makes nothing."""
    if not plan.has_joins and not plan.has_calls:
        return "it joins nothing and calls no function of Python"
    if len(plan.kinds) > _DEEPEST:
        return f"it has {len(plan.kinds)} operators, more than {_DEEPEST}"
    if not {"CollectMetrics", "collect_metrics"}.isdisjoint(plan.kinds):
        return "what it observes is to be seen once, as Spark sees it"
    made: dict[int, Part] = {}
    why = _take(df, plan, plan.root, options, made)
    if not made:
        return why
    if plan.root.place in made:
        return made[plan.root.place][1]
    frame = plan.replace_parts(made)
    if _typed(frame.schema) != _typed(df.schema):
        return f"its columns are others ({frame.schema.simpleString()} for {df.schema.simpleString()})"
    return carry_parts(frame, why, *(part for _, part in made.values()))


def _take(df: DataFrame, plan: Plan, operator: Operator, options: Options, made: dict[int, Part]) -> str:
    """Make what Millrace can of an operator, or else of parts below; return why not all.

    Args:
        df: The pipeline.
        plan: How it was made.
        operator: One of it.
        options: Settings of the run.
        made: What is made, by the places of its operators.
    """
    found, relations = _made(df, plan, operator, options)
    if not isinstance(found, str):
        made[operator.place] = operator.output, found
        return ""
    for relation in () if operator.is_streaming else relations:
        if any(child.place == relation.place for child in relation.children):
            (relation,) = relation.children  # it was a choice of its own columns
        if relation.place in plan.kept or not is_repeatable(relation):
            continue
        for child in relation.children:
            kinds = {each.kind for each in child.walk()}
            if kinds & {"Join", "Filter"} and not kinds & _REFERENCES:
                try:
                    _take(df, plan, with_columns_for(relation, child), options, made)
                except (MillraceError, PySparkException):
                    continue
    return found


def _made(
    df: DataFrame, plan: Plan, root: Operator, options: Options
) -> tuple[DataFrame | str, list[Operator]]:
    """Return what Millrace makes of an operator, or why nothing; and what it leaves of it to Spark."""
    unsayable: set[int] = set()
    if root.is_streaming:
        unsayable = {each.place for each in root.walk() if each.kind not in _STREAMED}
    while True:
        reading = read(root, root.names, unsayable)
        left = list(reading.relations.values())
        if not reading.joins and not reading.calls:
            return "its joins and functions of Python stand below what SQL cannot say", left
        predicates, barred = _predicates_of(plan, reading)
        try:
            query = None if barred else _query(df, plan, reading, predicates, options)
        except (MillraceError, PySparkException):
            query, barred = None, plan.unsayable(reading.said)
            if not barred:
                raise
        if isinstance(query, str):
            return query, left
        # Planning comes first: it tells cheaply where nothing is taken.
        barred |= set() if query is None else plan.unsayable(reading.said)
        if query is not None and not barred:
            break
        unsayable |= barred
    made, schema = query.df, _schema(df, plan, root)
    if _typed(made.schema) != _typed(schema):
        return f"its text has other columns ({made.schema.simpleString()} for {schema.simpleString()})", left
    noted = [new for new, own in zip(schema, made.schema, strict=True) if new.metadata != own.metadata]
    if noted and len({name.lower() for name in schema.names}) < len(schema.names):
        return "columns of one name have comments", left
    for field in noted:
        made = made.withMetadata(field.name, field.metadata)
    return made, left


def _typed(schema: StructType) -> list[tuple[str, DataType]]:
    return [(each.name, each.dataType) for each in schema]


def _schema(df: DataFrame, plan: Plan, operator: Operator) -> StructType:
    """Return the columns of an operator, which may be a choice of those of its place."""
    if operator is plan.root:
        return df.schema
    whole = next(each for each in plan.root.walk() if each.place == operator.place)
    fields = dict(zip(whole.output, plan.frame(operator).schema, strict=True))
    return StructType([fields[number] for number in operator.output])


def _query(
    df: DataFrame, plan: Plan, reading: Reading, predicates: dict[int, Predicate], options: Options
) -> Query | str:
    """Return the query of a pipeline, or why Spark runs it as well."""
    frames = {name: _frame(df, plan, each) for name, each in reading.relations.items()}
    names = {number: predicate.name for number, predicate in predicates.items()}
    text = with_calls(reading.text, names)
    known = facts_of(df.sparkSession).left
    key = (text, *map(id, frames.values()), repr(options))
    if key in known:
        return known[key]
    query = Session(df.sparkSession, frames, list(predicates.values()), options).query(text)
    if not query.taken and not query.filters:
        why = "; ".join(query.reasons)
    elif options.take_all or query.filters:
        return query
    else:
        found = why_slower(df.sparkSession, query.blocks)
        if found is None:
            return query
        why = found
    keep(known, key, why)
    return why


def _frame(df: DataFrame, plan: Plan, operator: Operator) -> DataFrame:
    """Return the rows of a relation of a text, the same DataFrame for the same files."""
    kept = facts_of(df.sparkSession).relations
    names, identity = relation_names(operator), plan.identity(operator)
    key = (identity, *names)
    frame = None if identity is None else kept.get(key)
    if frame is None:
        frame = plan.frame(operator)
        frame = frame if names == list(operator.names) else frame.toDF(*names)
    if identity is not None:
        keep(kept, key, frame)
    return frame


def _predicates_of(plan: Plan, reading: Reading) -> tuple[dict[int, Predicate], set[int]]:
    """Return the functions of Python that a text calls, and the operators that call what is no predicate."""
    found: dict[int, Predicate] = {}
    barred = set()
    for operator in dict.fromkeys(reading.calls.values()):
        for number, function in plan.load_functions(operator).items():
            label = "" if function is None else re.sub(r"\W+", "_", function._name).strip("_")  # noqa: SLF001
            try:
                # No function of Spark's is called so.
                found[number] = Predicate.of(function, f"{label or 'predicate'}_{len(found) + 1}")
            except PredicateError:
                barred.add(operator.place)
    return found, barred
