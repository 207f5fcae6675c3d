"""Chains of ``filter`` and ``join`` as queries: what Millrace could run in the place of Spark.

A link remembers how its DataFrame was made: predicates over a DataFrame, or an inner join by names of
columns. The DataFrame itself stays Spark's, so that columns of those it was made of go on meaning something;
what Millrace makes of the chain is made when somebody first asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import types as t
from sqlglot import exp

from millrace.api.session import Session
from millrace.applied import noted
from millrace.errors import MillraceError, QueryError
from millrace.front.parse import parse
from millrace.front.template import plain_quote
from millrace.options import Options
from millrace.spark.filter import where

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, eq=False)
class Filters:
    """Conditions over a DataFrame, in the order as written: Columns and SQL.

    Attributes:
        df: What is filtered; not itself filtered by a chain.
        conditions: At least one.
        unaliased: Whether ``df`` is Millrace's join, which knows no alias of what it was made of.
    """

    df: DataFrame
    conditions: tuple[Any, ...]
    unaliased: bool = False

    def made(self, options: Options) -> DataFrame | str:
        """Return what Millrace makes of it, or why it has no part in it."""
        if not any(noted(each) is not None for each in self.conditions):
            return "filters without a function of Python are Spark's own"
        return where(self.df, *self.conditions, options=options)


_NESTED = (t.StructType, t.MapType, t.ArrayType)


@dataclass(frozen=True, eq=False)
class Joins:
    """Inner joins by names of columns.

    Attributes:
        relations: What is joined, from left to right: DataFrames, with conditions in SQL over each.
        using: For each relation but the first, the columns that it shares with those before it.
        conditions: In SQL, over what is joined.
    """

    relations: tuple[tuple[DataFrame, tuple[str, ...]], ...]
    using: tuple[tuple[str, ...], ...]
    conditions: tuple[str, ...] = ()

    def made(self, options: Options) -> DataFrame | str:
        """Return what Millrace makes of it, or why it takes no join of it."""
        fields = (each for frame, _ in self.relations for each in frame.schema.fields)
        nested = next((each.name for each in fields if isinstance(each.dataType, _NESTED)), None)
        if nested is not None:
            return (
                f"column {nested} has parts, so that a name such as {nested}.part could mean one of these, "
                "or a column of the DataFrame that is called so"
            )
        frames = {_name(place): frame for place, (frame, _) in enumerate(self.relations)}
        spark = self.relations[0][0].sparkSession
        query = Session(spark, frames, options=options).query(self.text)
        return query.df if query.taken else "; ".join(query.reasons)

    @cached_property
    def text(self) -> str:
        """The query; its columns are those of PySpark's ``join``, in its order."""
        parts = [_relation(place, conditions) for place, (_, conditions) in enumerate(self.relations)]
        joined = parts[0]
        for part, names in zip(parts[1:], self.using, strict=True):
            joined += f" JOIN {part} USING ({', '.join(map(plain_quote, names))})"
        return f"SELECT * FROM {joined}{_where(self.conditions)}"  # noqa: S608  # SQL is what this writes


def _name(place: int) -> str:
    """Return a name that no condition of the user's has."""
    return f"__mr_t{place}"


def _relation(place: int, conditions: Sequence[str]) -> str:
    name = _name(place)
    return f"(SELECT * FROM {name}{_where(conditions)}) AS {name}" if conditions else name  # noqa: S608


def _where(conditions: Sequence[str]) -> str:
    return f" WHERE {' AND '.join(f'({each})' for each in conditions)}" if conditions else ""


@dataclass(eq=False)
class Link:
    """A DataFrame of a chain.

    Attributes:
        chain: How it was made.
        options: Settings of the run.
    """

    chain: Filters | Joins
    options: Options = field(default_factory=Options)

    @cached_property
    def better(self) -> DataFrame | str:
        """Millrace's DataFrame of the same rows, or why Spark's is as good, or the only one."""
        try:
            made = self.chain.made(self.options)
            if not isinstance(made, str):
                made.schema  # noqa: B018  # Spark Connect analyses only now
        except (MillraceError, PySparkException) as error:  # a column that only Spark's knows, for example
            return str(error)
        return made


def filtered(df: DataFrame, known: Link | None, condition: Any) -> Filters | Joins | str:
    """Return the chain of a DataFrame that is filtered, or why it is none."""
    if known is None:
        return Filters(df, (condition,))
    chain = known.chain
    if (isinstance(chain, Joins) or chain.unaliased) and _is_qualified(condition):
        return (
            "only Spark knows the aliases of DataFrames, so a filter by a dotted name above a join, "
            f"{condition!r}, leaves both to Spark: filter the DataFrames before they are joined, or name the "
            "column alone"
        )
    if isinstance(chain, Joins):
        if isinstance(condition, str):
            return replace(chain, conditions=(*chain.conditions, condition))
        if noted(condition) is not None:
            if isinstance(known.better, str):
                return Filters(df, (condition,))
            return Filters(known.better, (condition,), unaliased=True)
        return (
            "PySpark does not tell what a Column says, so a filter by one above a join leaves both to Spark: "
            "filter the DataFrames before they are joined, or by SQL text"
        )
    return replace(chain, conditions=(*chain.conditions, condition))


def _is_qualified(condition: Any) -> bool:
    """Whether a text has a dotted name, which may begin with an alias of a DataFrame or with a column."""
    if not isinstance(condition, str):
        return False
    try:
        root = parse(f"SELECT *{_where((condition,))}").root
    except QueryError:
        return False  # a query with it is refused too
    return root is not None and any(
        isinstance(node, exp.Dot) or bool(node.args.get("table"))
        for node in root.find_all(exp.Dot, exp.Column)
    )


def joined(
    left: DataFrame, first: Link | None, right: DataFrame, second: Link | None, on: Any, how: Any
) -> Joins | str:
    """Return the chain of two DataFrames that are joined by names, or why it is none."""
    if how not in (None, "inner"):
        return f"a join with how={how!r} is Spark's: only inner joins are chained"
    names = (on,) if isinstance(on, str) else tuple(on) if isinstance(on, list | tuple) else ()
    if not names or not all(isinstance(each, str) for each in names):
        return (
            "PySpark does not tell what a Column compares, so joins on Columns are Spark's: join by names of "
            "columns, as in join(other, 'id'), or in SQL"
        )
    if second is not None and isinstance(second.chain, Joins):
        return "a join on the right of a join, as if in parentheses, is Spark's: join one after the other"
    added = _read(right, second)
    if first is not None and isinstance(first.chain, Joins):
        before = first.chain
        return Joins((*before.relations, added), (*before.using, names), before.conditions)
    return Joins((_read(left, first), added), (names,))


def _read(df: DataFrame, known: Link | None) -> tuple[DataFrame, tuple[str, ...]]:
    """Return a relation with those conditions over it that a query can say."""
    if known is None or not isinstance(known.chain, Filters):
        return df, ()
    conditions = known.chain.conditions
    if all(isinstance(each, str) and not _is_qualified(each) for each in conditions):
        return known.chain.df, conditions
    return (df if isinstance(known.better, str) else known.better), ()
