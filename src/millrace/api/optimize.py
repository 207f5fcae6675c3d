"""``millrace.optimize``: a pipeline of DataFrames, however it was made, planned as one query.

A pipeline is read from Spark's analysed plan, said as SQL, and planned as every text is. What SQL cannot say
of it is a relation of that text, and so is what Spark would not read back as the same. What such a relation
reads is planned alike, as another part of the pipeline. What stands above the last join that can be said is
Spark's as it was, over what Millrace makes. Where nothing of the text is the eddies', Spark runs the pipeline
as it is; whatever goes wrong here leaves it to Spark too.

So does what does not pay. Rows that tasks read from files are joined faster; rows that pass between Spark and
Python cost more than Spark's own join. A pipeline is planned when it runs, so it is known what passes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from math import prod
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, StructType

from millrace.api.session import Session
from millrace.engine.arrays import row_bytes
from millrace.engine.plan.expressions import And, Call, Compare, InList, Predicate as Condition
from millrace.errors import InputError, MillraceError, PredicateError, first_line
from millrace.options import Options
from millrace.spark.block import Block, FrameInput, ParquetInput
from millrace.spark.frames import carry_parts, left_to_spark
from millrace.spark.plan_reader import AnalysedPlan, Operator, Part
from millrace.spark.predicates import Predicate
from millrace.spark.session import LASTING, default_parallelism, facts_of, internal_query, is_connect, keep
from millrace.sql.blocks.cost_model import ROWS_A_SECOND
from millrace.sql.from_plan import Reading, is_repeatable, read, relation_names, with_calls, with_columns_for
from millrace.sql.session.errors import contain

if TYPE_CHECKING:
    from millrace.api.query import Query
    from millrace.sql.connect_plan import ConnectPlan

    Plan = AnalysedPlan | ConnectPlan

_DEEPEST = 200
_REFERENCES = frozenset(("CTERelationRef", "UnionLoopRef"))
"""Operators that mean nothing without what stands elsewhere in their plan."""
_TESTS = frozenset(("Exists", "InSubquery", "ListQuery", "ScalarSubquery"))
_STREAMED = frozenset(("Project", "Filter", "Join", "SubqueryAlias", "View"))
"""What is said of streams; all else of them is a relation."""

BYTES_A_ROW = 6
"""Bytes that may pass between Spark and Python for each row that tasks read from files themselves.

A row that tasks read and join saves some time (``ROWS_A_SECOND`` of :mod:`millrace.sql.blocks.cost_model`).
A number that passes takes about a third of that, and a text half as much again: of a million rows joined
with 300, with one to eight columns. A text counts 20 bytes, so 12 bytes use up the gain; half of them allow
for wrong estimates.
"""
LEAST_GAIN_SECONDS = 0.2
"""Twice what planning a query takes beyond Spark's own analysis, measured by ``python -m lab bench sql``."""
KEPT_BY_EQUALITY = 0.1
"""The share of rows that a column has of one value: of Selinger et al., Access Path Selection, 1979.

Nothing else is taken to reject rows, for nothing tells how many: such a pipeline is rather left to Spark.
"""


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
            found = _Pipeline(df, plan_of(df), options).optimize()
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


class _Pipeline:
    def __init__(self, df: DataFrame, plan: Plan, options: Options) -> None:
        self._df, self._plan, self._options = df, plan, options
        self._parts: dict[int, Part] = {}  # by the places of the operators that they stand for
        self._searched: set[int] = set()

    def optimize(self) -> DataFrame | str:
        plan = self._plan
        if not plan.has_joins and not plan.has_calls:
            return "it joins nothing and calls no function of Python"
        if len(plan.kinds) > _DEEPEST:
            return f"it has {len(plan.kinds)} operators, more than {_DEEPEST}"
        if plan.reads_through_spark and not self._options.take_all:
            return "all its rows would come from Spark, which reads these files alone (option take_all)"
        if not {"CollectMetrics", "collect_metrics"}.isdisjoint(plan.kinds):
            return "what it observes is to be seen once, as Spark sees it"
        ons = (on for each in plan.root.walk() if each.kind == "Join" for on in each.expressions)
        if any(_TESTS.intersection(on.classes) for on in ons):
            return "Spark refuses some subqueries in ON, unless it sees through all that stands below"
        why = self._take(plan.root)
        parts = [frame for _, frame in self._parts.values()]
        if not parts or (len(parts) == 1 and not why):
            return why or parts[0]
        # The last part is the whole, with an account of its own alone, or there is no part for that.
        frame = self._over_parts(plan.root) if why else parts[-1].select("*")
        return frame if isinstance(frame, str) else carry_parts(frame, why, *parts)

    def _take(self, root: Operator) -> str:
        """Make a part of an operator, and of what it leaves to Spark; return why not of the operator."""
        plan, unsayable = self._plan, set[int]()
        if root.is_streaming:
            unsayable = {each.place for each in root.walk() if each.kind not in _STREAMED}
        why = "its joins and functions of Python stand below what SQL cannot say"
        while True:
            reading = read(root, root.names, unsayable)
            for relation in () if root.is_streaming else reading.relations.values():
                self._take_below(relation, reading.said)
            if not reading.joins and not reading.calls:
                return why
            predicates, barred = _predicates_of(plan, reading)
            if barred:
                why = (
                    "a function of Python that it calls is no predicate, or is not in Spark's plan of it, as "
                    "one that reads a broadcast variable: give it to millrace.where"
                )
            try:
                query = None if barred else self._query(reading, predicates)
            except (MillraceError, PySparkException):
                query, barred = None, plan.unsayable(reading.said)
                if not barred:
                    raise
            if isinstance(query, str):
                return query
            # Planning comes first: it tells cheaply where nothing is taken.
            barred |= set() if query is None else plan.unsayable(reading.said)
            if query is not None and not barred:
                break
            unsayable |= barred
        made, schema = query.df, self._schema(root)
        if _typed(made.schema) != _typed(schema):
            return f"its text has other columns ({made.schema.simpleString()} for {schema.simpleString()})"
        noted = [new for new, own in zip(schema, made.schema, strict=True) if new.metadata != own.metadata]
        if noted and len({name.lower() for name in schema.names}) < len(schema.names):
            return "columns of one name have comments"
        for field in noted:
            made = made.withMetadata(field.name, field.metadata)
        self._parts[root.place] = root.output, made
        return ""

    def _take_below(self, relation: Operator, said: Sequence[Operator]) -> None:
        """Make parts of what a relation of a text reads, once; ``said`` is what the text says."""
        if any(child.place == relation.place for child in relation.children):
            (relation,) = relation.children  # it was a choice of its own columns
        if relation.place in self._searched or not is_repeatable(relation):
            return
        self._searched.add(relation.place)
        above = [each for each in said if relation in each.walk()]
        for child in relation.children:
            kinds = {each.kind for each in child.walk()}
            if not kinds & {"Join", "Filter"} or kinds & _REFERENCES or self._plan.kept([relation, *above]):
                continue
            with suppress(MillraceError, PySparkException):
                self._take(with_columns_for(relation, child))

    def _over_parts(self, operator: Operator) -> DataFrame | str:
        """Return the rows of an operator over the parts below it, or why these cannot stand there."""
        frame, schema = self._plan.frame(operator, self._parts), self._schema(operator)
        if _typed(frame.schema) != _typed(schema):
            return f"its columns are others ({frame.schema.simpleString()} for {schema.simpleString()})"
        return frame

    def _schema(self, operator: Operator) -> StructType:
        """Return the columns of an operator, which may be a choice of those of its place."""
        plan = self._plan
        if operator is plan.root:
            return self._df.schema
        whole = next(each for each in plan.root.walk() if each.place == operator.place)
        fields = dict(zip(whole.output, plan.frame(operator).schema, strict=True))
        return StructType([fields[number] for number in operator.output])

    def _query(self, reading: Reading, predicates: dict[int, Predicate]) -> Query | str:
        """Return the query of a part, or why Spark runs it as well."""
        spark, options = self._df.sparkSession, self._options
        frames = {name: self._frame(each) for name, each in reading.relations.items()}
        names = {number: predicate.name for number, predicate in predicates.items()}
        text = with_calls(reading.text, names)
        known = facts_of(spark).left
        identities = tuple(map(self._plan.identity, reading.relations.values()))
        # The machine may have been busy when Python's start was measured.
        key = (text, identities, options, time.monotonic() // LASTING)
        why = known.get(key)
        if why is not None:
            return why
        query = Session(spark, frames, list(predicates.values()), options).query(text)
        if not query.taken and not query.filters:
            why = "; ".join(query.reasons)
        elif not options.take_all and not query.filters:
            why = why_slower(spark, query.blocks)
        if why is None:
            return query
        return why if None in identities else keep(known, key, why)

    def _frame(self, operator: Operator) -> DataFrame:
        """Return the rows of a relation of a text, the same DataFrame for the same files."""
        kept = facts_of(self._df.sparkSession).relations
        names, identity = relation_names(operator), self._plan.identity(operator)
        key = (identity, *names)
        frame = None if identity is None else kept.get(key)
        if frame is None:
            frame = self._rows(operator)
            frame = frame if names == list(operator.names) else frame.toDF(*names)
        return frame if identity is None else keep(kept, key, frame)

    def _rows(self, operator: Operator) -> DataFrame:
        """Return the rows of a relation, over the parts below it; these are no parts if they do not fit."""
        below = [each.place for each in operator.walk() if each.place in self._parts]
        if below:
            with suppress(MillraceError, PySparkException):
                frame = self._over_parts(operator)
                if not isinstance(frame, str):
                    return frame
            for place in below:
                del self._parts[place]
        return self._plan.frame(operator)


def _typed(schema: StructType) -> list[tuple[str, DataType]]:
    return [(each.name, each.dataType) for each in schema]


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


# Whether a pipeline gains by leaving Spark


def why_slower(spark: SparkSession, blocks: Iterable[Block]) -> str | None:
    """Return why Spark runs a pipeline with some blocks better itself, None where one of them pays."""
    return _join_whys(_why_block_not(spark, block) for block in blocks)


def why_passing(blocks: Iterable[Block]) -> str | None:
    """Return why rows that come from Spark cost more than some blocks save, None where one of them pays."""
    return _join_whys(map(_why_passing, blocks))


def _join_whys(each: Iterable[str | None]) -> str | None:
    whys = list(each)
    return "; ".join(why for why in whys if why is not None) if whys and None not in whys else None


def _count_inputs(block: Block) -> tuple[int, int] | None:
    """Return a block's rows of files and bytes that come from Spark; None where others are known to pay."""
    if any(isinstance(predicate, Call) for predicate in block.join.residuals):
        return None  # functions of Python cost more than rows that pass
    read = passing = 0
    for rows in block.inputs.values():
        match rows:
            case ParquetInput(table=table):
                read += table.rows
            case FrameInput(bytes=size):
                passing += size or 0
            case _:
                return None
    return read, passing


def _why_passing(block: Block) -> str | None:
    """Return why a block's inputs do not pay: their bytes that come from Spark, for rows of files."""
    counts = _count_inputs(block)
    if counts is None or counts[1] <= BYTES_A_ROW * counts[0]:
        return None
    read, passing = counts
    return (
        f"about {passing:,} bytes of rows would come from Spark to be joined with {read:,} rows that "
        "tasks read from files themselves, which does not pay (option take_all)"
    )


def _why_block_not(spark: SparkSession, block: Block) -> str | None:
    """Return why a block does not pay; what it aggregates is taken to be few rows."""
    join, counts = block.join, _count_inputs(block)
    if counts is None:
        return None
    if why := _why_passing(block):
        return why
    read, passing = counts
    relations = {relation.alias: relation for relation in join.sources}
    most, kept = 0, 1.0  # rows of the largest relation, and the share of rows kept
    for alias, rows in block.inputs.items():
        if isinstance(rows, ParquetInput):
            most = max(most, rows.table.rows)
            kept *= prod(map(_share_of, rows.filters))
        else:
            most = max(most, relations[alias].rows or 0)
    width = 0 if block.aggregate is not None or join.count_only else row_bytes(join.output_schema, 20)
    if passing + most * width * kept > BYTES_A_ROW * read:
        rejected = "" if kept == 1 else f", of which conditions keep about {kept:.0%}"
        return (
            f"{most:,} rows with all their columns, about {width} bytes each{rejected}, would pass from "
            "Python to Spark, which takes longer than the join saves: filter by equality, select fewer "
            "columns before, or join in SQL, where only what is needed passes (option take_all)"
        )
    if read / ROWS_A_SECOND / default_parallelism(spark) < LEAST_GAIN_SECONDS:
        return f"joining {read:,} rows saves less than it takes to plan it (option take_all)"
    return None


def _share_of(predicate: Condition) -> float:
    """Return which share of rows a predicate of a scan keeps, as far as that can be said."""
    match predicate:
        case And(arguments=both):
            return prod(map(_share_of, both))
        case Compare(op="="):
            return KEPT_BY_EQUALITY
        case InList(values=values):
            return min(1.0, KEPT_BY_EQUALITY * len(values))
    return 1.0
