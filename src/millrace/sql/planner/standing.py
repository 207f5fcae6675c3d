"""Queries over one join of streams: what they share, and what each wants beside it."""

# ruff: noqa: S608  # SQL is what this module writes

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from millrace.engine.expressions import ColumnRef, Predicate, columns_of
from millrace.errors import InputError
from millrace.options import Options
from millrace.spark.block import FrameInput
from millrace.spark.session import internal_query
from millrace.spark.types import arrow_schema
from millrace.sql.blocks.conditions import connected
from millrace.sql.plan import BlockPlan, Plan
from millrace.sql.planner.build import with_inputs
from millrace.sql.planner.planner import Planner
from millrace.sql.syntax.edits import quote
from millrace.sql.syntax.parse import parse
from millrace.streams.hub.query import terms
from millrace.streams.retention import EventTimes, retention

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Wanted:
    """What a query wants of the join that it shares with others.

    Attributes:
        filters: Its conditions over one relation.
        residuals: Its conditions over several.
        columns: Where the columns of its result, ``schema``, come from.
        streams: The streams that it joins.
    """

    filters: tuple[Predicate, ...]
    residuals: tuple[Predicate, ...]
    columns: tuple[ColumnRef, ...]
    schema: pa.Schema
    streams: tuple[str, ...]


class SharedJoin:
    """The join of streams that standing queries share; ``source`` is how it stands behind FROM.

    Attributes:
        block: The join with its inputs, all columns of them.
        times: The event times of its streams.

    Raises:
        InputError: It is no join of streams that an eddy can run as a whole.
    """

    def __init__(
        self, spark: SparkSession, streams: Mapping[str, DataFrame], source: str, options: Options
    ) -> None:
        self._spark, self._streams, self._source, self._options = spark, dict(streams), source, options
        with self._planner() as planner:
            plan = _only(planner.plan(parse(f"SELECT * FROM {source}"))[0])
            self.block = with_inputs(plan, planner.frames)
        columns = {} if plan.times is None else plan.times.columns
        tables = sorted(set(plan.join.aliases) - set(columns))
        if plan.times is None or tables:
            raise InputError(
                f"the queries of a hub share a join of streams, and {', '.join(tables)} is none: expected "
                "streaming DataFrames with watermarks; join tables with what the queries give out"
            )
        self.times: EventTimes = plan.times
        self._residuals = frozenset(terms(plan.join.residuals))
        self._equalities = frozenset(plan.join.equalities)

    def wanted(self, select: str, where: str | None, streams: Iterable[str] | None = None) -> Wanted:
        """Return what a query wants: columns as behind SELECT, conditions as behind WHERE, of some streams.

        Raises:
            InputError: It wants what only Spark evaluates.
        """
        joined = self._some(streams)
        if len(joined) < len(self.block.join.aliases) and select.strip() == "*":
            select = ", ".join(f"{quote(alias)}.*" for alias in joined)
        text = f"SELECT {select}\nFROM {self._source}"
        with self._planner() as planner:
            whole, schema = planner.plan(parse(text if where is None else f"{text}\nWHERE (\n{where}\n)"))
        plan = _only(whole)
        if whole.direct is None:
            raise InputError(
                "a hub's query selects columns of the join as they are, under any names: compute in a query "
                "over what it writes, or give the stream a column with the expression"
            )
        equalities = frozenset(plan.join.equalities)
        if equalities != self._equalities:
            more = " AND ".join(sorted(map(str, equalities ^ self._equalities)))
            raise InputError(
                f"{more} joins streams, and all queries of a hub join them alike: put it into the hub's "
                "join, or make another hub"
            )
        sources = {each.name: each.source for each in plan.join.output}
        columns = tuple(sources[name] for name in whole.direct.columns)
        residuals = tuple(each for each in terms(plan.join.residuals) if each not in self._residuals)
        filters = tuple(_filters(plan))
        read = [ref for each in (*filters, *residuals) for ref in columns_of(each)]
        for ref in (*read, *columns):
            if ref.column not in self.block.join.relation(ref.relation).schema.names:
                raise _left_to_spark(ref.column)
            if ref.relation not in joined:
                raise InputError(
                    f"the query reads {ref}, and joins {', '.join(joined)} only: name {ref.relation!r} among "
                    "its streams"
                )
        return Wanted(filters, residuals, columns, arrow_schema(schema), joined)

    def _some(self, streams: Iterable[str] | None) -> tuple[str, ...]:
        """Return the streams that a query joins, in the join's order; refuse what the hub cannot join."""
        join = self.block.join
        if streams is None:
            return join.aliases
        named = set(streams)
        if not named <= set(join.aliases) or len(named) < 2:
            raise InputError(
                f"a query joins the streams {sorted(named)}: expected two or more of "
                f"{', '.join(join.aliases)}"
            )
        some = tuple(alias for alias in join.aliases if alias in named)
        if len(some) == len(join.aliases):
            return some
        keys = connected(equality.ends for equality in join.equalities)
        if len(keys) != 1 or {ref.relation for ref in keys[0]} != set(join.aliases):
            raise InputError(
                "a query joins some of a hub's streams only where all of them are joined by one key, for "
                "else rows of one stream are in several places: join all of them, or make another hub"
            )
        edges = [{*equality.relations} for equality in join.equalities]
        if len(connected([edge for edge in edges if edge <= named], some)) != 1:
            raise InputError(
                f"no equality of the hub's join ties {', '.join(some)} together: name the streams between"
            )
        bounds = [each for each in self.times.bounds if {each.earlier, each.later} <= named]
        whole, own = retention(join.aliases, self.times.bounds), retention(some, bounds)
        short = [alias for alias in some if own[alias] > whole[alias]]
        if short:
            raise InputError(
                f"without the other streams' ranges of time, rows of {', '.join(short)} would be needed "
                "longer than the hub keeps them: add a range between these streams to the hub's join, or "
                "make another hub"
            )
        return some

    @contextmanager
    def _planner(self) -> Iterator[Planner]:
        with internal_query(), closing(Planner(self._spark, self._options, self._streams, {}, {})) as planner:
            yield planner


def _only(plan: Plan) -> BlockPlan:
    """Return the block that a query is; refuse what is more than that, or less."""
    if len(plan.blocks) != 1 or plan.filters or plan.parts:
        why = "; ".join(plan.reasons) or "it is not one join"
        raise InputError(f"a hub's queries share one join of streams, and this is none: {why}")
    (block,) = plan.blocks
    if block.above:
        raise _left_to_spark(" and ".join(block.above))
    return block


def _filters(plan: BlockPlan) -> Iterator[Predicate]:
    for alias, rows in plan.inputs.items():
        if not isinstance(rows, FrameInput) or rows.filters is None:
            where = f": {' '.join(rows.where.split())}" if isinstance(rows, FrameInput) else ""
            raise _left_to_spark(f"a condition on {alias}{where}")
        yield from rows.filters


def _left_to_spark(what: str) -> InputError:
    return InputError(
        f"only Spark evaluates {what}, and a hub's queries are told apart without it: expected comparisons "
        "of columns with each other and with constants, BETWEEN, IN, LIKE and IS NULL; or give the stream a "
        "column with the expression"
    )
