"""``millrace.optimize``: a pipeline of DataFrames, however it was made, planned as one query.

A pipeline is read from Spark's analysed plan, said as SQL, and planned as every text is. What Spark cannot
say of it is a relation of that text. Where nothing of the text is the eddies', Spark runs the pipeline as it
is, and whatever goes wrong on the way here leaves it to Spark too.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pyspark.errors import PySparkException

from millrace.api.gain import why_slower
from millrace.api.session import Session
from millrace.errors import InputError, MillraceError
from millrace.options import Options
from millrace.spark.frames import left_to_spark
from millrace.spark.plan_reader import CALL, AnalysedPlan, Operator
from millrace.spark.predicates import Predicate
from millrace.spark.session import internal_query, is_connect
from millrace.sql.from_plan import Reading, read, relation_names
from millrace.sql.session.errors import contain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MOST = 64
_frames: WeakKeyDictionary[SparkSession, OrderedDict[tuple[int, ...], DataFrame]] = WeakKeyDictionary()
"""DataFrames of relations that pipelines read, the latest: one that is read again is planned as before."""


def optimize(df: DataFrame, options: Options | dict[str, Any] | None = None) -> DataFrame:
    """Return a DataFrame with the rows of a pipeline, its joins and Python filters run by eddies.

    >>> millrace.optimize(trips.join(zones, "zone", "left").groupBy("borough").count())  # doctest: +SKIP

    It is read from Spark's own plan of it, and has the same columns. What Millrace has no part in is returned
    as it is, and :func:`explain` says why. Spark Connect tells no plan: use :func:`enable` there, or SQL.

    Args:
        df: Made in any way.
        options: Settings of the run.

    Raises:
        InputError: It is no DataFrame, or one of Spark Connect.
        MillraceError: An option cannot be used.
    """
    settings = Options.of(options)
    if not hasattr(df, "sparkSession"):
        raise InputError(f"optimize reads a DataFrame of Spark, got a {type(df).__name__}")
    if is_connect(df.sparkSession):
        raise InputError(
            "Spark Connect does not tell how a DataFrame was made: write the query in SQL, or enable the "
            "session"
        )
    return better(df, settings) or df


def better(df: DataFrame, options: Options) -> DataFrame | None:
    """Return Millrace's DataFrame of the same rows; None where Spark's runs, and the log is told why."""
    try:
        with internal_query():
            found = _planned(df, options)
    except (MillraceError, PySparkException) as error:
        found = str(error).splitlines()[0]
    except Exception as error:  # noqa: BLE001  # whatever it is, Spark has the rows
        found = contain(error)
    if isinstance(found, str):
        left_to_spark(df, found)
        return None
    return found


def _planned(df: DataFrame, options: Options) -> DataFrame | str:
    """Return what Millrace makes of a pipeline, or why it makes nothing."""
    plan = AnalysedPlan(df)
    if not plan.has_joins and not plan.has_calls:
        return "it joins nothing and calls no function of Python"
    root = plan.root
    if root.kind == "Repartition":
        (root,) = root.children
    reading = read(root, df.columns)
    if not reading.joins and not reading.calls:
        return "its joins and functions of Python stand below what SQL cannot say"
    spark = df.sparkSession
    frames = {name: _frame(plan, spark, each) for name, each in reading.relations.items()}
    text, predicates = _with_predicates(plan, reading)
    query = Session(spark, frames, predicates, options).query(text)
    if not query.taken and not query.filters:
        return "; ".join(query.reasons)
    expected, found = (
        [(each.name, each.dataType) for each in frame.schema.fields] for frame in (df, query.df)
    )
    why = None if options.take_all or query.filters else why_slower(spark, query.blocks)
    if why is not None:
        return why
    if found != expected:
        return f"its text has other columns ({found} for {expected})"
    if root is plan.root:
        return query.df
    count, shuffles = plan.partitions(plan.root)
    return query.df.repartition(count) if shuffles else query.df.coalesce(count)


def _frame(plan: AnalysedPlan, spark: SparkSession, operator: Operator) -> DataFrame:
    """Return the rows of a relation of a text, the same DataFrame for the same relation."""
    kept = _frames.setdefault(spark, OrderedDict())
    is_leaf = not operator.children
    if is_leaf and operator.output in kept:
        kept.move_to_end(operator.output)
        return kept[operator.output]
    frame = plan.frame(operator)
    names = relation_names(operator)
    if names != list(operator.names):
        frame = frame.toDF(*names)
    if is_leaf:
        kept[operator.output] = frame
        while len(kept) > _MOST:
            kept.popitem(last=False)
    return frame


def _with_predicates(plan: AnalysedPlan, reading: Reading) -> tuple[str, dict[str, Predicate]]:
    """Return a text that calls functions of Python by names, and what these are."""
    predicates: dict[str, Predicate] = {}
    names: dict[int, str] = {}
    for operator in dict.fromkeys(reading.calls.values()):
        for number, function in plan.functions(operator).items():
            if function is None:
                raise InputError("a function of Python is so large that Spark sends it beside its plan")
            made = Predicate.of(function)
            label = re.sub(r"\W+", "_", made.name).strip("_") or "predicate"
            name = label
            while name in predicates:
                name = f"{label}_{len(predicates)}"
            predicates[name] = made
            names[number] = name
    text = re.sub(rf"\b{CALL}(\d+)\(", lambda match: f"{names[int(match[1])]}(", reading.text)
    return text, predicates
