"""Chains of ``filter`` and ``join``, and what is derived from them: what Millrace could run in Spark's place.

A link remembers how its DataFrame was made: predicates over a DataFrame, inner joins, or another method of a
DataFrame with a link. The DataFrame itself stays Spark's, so that columns of those it was made of go on
meaning something; what Millrace makes of the chain is made when somebody first asks for its rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame
from sqlglot import exp

from millrace.api.columns import Compared, compared
from millrace.api.gain import Relation
from millrace.api.joins import Joins, Left, clause
from millrace.errors import MillraceError, QueryError
from millrace.options import Options
from millrace.spark.filter import where
from millrace.spark.handles import left_to_spark
from millrace.spark.patches import noted
from millrace.spark.session import internal_query, is_connect
from millrace.sql.session.errors import contain
from millrace.sql.syntax.parse import parse

_LINK = "_millrace_link"
_UNKNOWN = "it is not known how this was made"


@dataclass(frozen=True, eq=False)
class Filters:
    """Conditions over a DataFrame, in the order as written: Columns and SQL.

    Attributes:
        df: What is filtered; not itself filtered by a chain.
        conditions: At least one.
        known: The DataFrames on the way here: ``df``, and what some of the conditions made of it.
        above: Whether ``df`` is Millrace's join.
    """

    df: DataFrame
    conditions: tuple[Any, ...]
    known: tuple[DataFrame, ...]
    above: bool = False

    def made(self, df: DataFrame, options: Options) -> DataFrame | str:
        """Return what Millrace makes of it, or why it has no part in it."""
        if not any(noted(each) is not None for each in self.conditions):
            return (
                "no condition of the filter is a call of a function of Python and nothing else: Spark "
                "evaluates all others, also those with a call in them, such as ~f('x') or f('x') & g('x'); "
                "write .filter(f('x')).filter(g('x'))"
            )
        return where(self.df, *self.conditions, options=options)


@dataclass(frozen=True, eq=False)
class Derived:
    """A method's result that runs nothing: it is asked of what Millrace makes instead.

    Attributes:
        of: Whose method it is: a DataFrame or a group.
        link: How that was made; None where that is not known.
        method: Its name.
        args: As given then.
        named: As given then.
    """

    of: Any
    link: Link | None
    method: str
    args: tuple[Any, ...]
    named: Mapping[str, Any]

    def made(self, df: Any, options: Options) -> Any:  # options are those of what it is made of
        """Return the same of what Millrace makes, or why it cannot be."""
        better = _UNKNOWN if self.link is None else self.link.unchecked(self.of)
        args, named = tuple(map(_running, self.args)), {n: _running(each) for n, each in self.named.items()}
        if isinstance(better, str):
            if not any(_is_filtered(each) for each in self.args):
                return better
            better = self.of
        made = getattr(better, self.method)(*args, **named)
        if self.method == "drop" and made.columns != df.columns:  # no error where nothing is dropped
            return "drop names a column of a DataFrame that was joined, which only Spark's has"
        return made


Chain = Filters | Joins | Derived | Left


@dataclass(eq=False)
class Link:
    """How something of Spark's was made, and what Millrace makes of it.

    Attributes:
        chain: How it was made.
        options: Settings of the run.
    """

    chain: Chain
    options: Options = field(default_factory=Options)
    _made: Any = None
    _checked: bool = False

    @property
    def defers(self) -> bool:
        """Whether methods wait till rows are asked for: Millrace's columns are not quite those of Spark's."""
        return not isinstance(self.chain, Filters) or self.chain.above

    def unchecked(self, df: Any) -> Any:
        """Return Millrace's of the same rows, which Spark Connect may still refuse, or why there is none."""
        if self._made is None:
            try:
                with internal_query():
                    self._made = self.chain.made(df, self.options)
            except (MillraceError, PySparkException) as error:
                self._made = _why(self.chain, error)
            except Exception as error:  # noqa: BLE001  # whatever it is, Spark has the rows
                self._made = contain(error)
        return self._made

    def better(self, df: Any) -> Any:
        """Return Millrace's of the same rows, or why Spark's is as good, or the only one."""
        made = self.unchecked(df)
        if not self._checked and isinstance(made, DataFrame) and is_connect(made.sparkSession):
            try:
                made.schema  # noqa: B018  # Spark Connect analyses only now
            except AnalysisException as error:
                self._made = _why(self.chain, error)
        self._checked = True
        return self._made


def _why(chain: Chain, error: Exception) -> str:
    if isinstance(error, MillraceError):
        return str(error)
    told = str(error).splitlines()[0]  # Spark Connect tells the server's stack too
    if not isinstance(chain, Derived):
        return told
    return (
        f"{chain.method} asks for what only Spark's DataFrame has, such as a Column of one that was joined: "
        f"name columns as in col('x'); {told}"
    )


def link_of(df: Any) -> Link | None:
    """Return how something was made, None where that is not known."""
    found: Link | None = getattr(df, "__dict__", {}).get(_LINK)
    return found


def link(df: Any, chain: Chain, options: Options) -> None:
    """Remember how something was made."""
    setattr(df, _LINK, Link(chain, options))


def _running(given: Any) -> Any:
    """Return Millrace's of an argument that has one."""
    found = link_of(given)
    better = None if found is None else found.unchecked(given)
    return given if better is None or isinstance(better, str) else better


def _is_filtered(given: Any) -> bool:
    """Whether Millrace makes a filter of something: of Spark's columns, so that it can stand for Spark's."""
    found = link_of(given)
    return found is not None and isinstance(found.chain, Filters) and _running(given) is not given


def filtered(df: DataFrame, known: Link | None, condition: Any) -> Filters | Derived | Joins:
    """Return the chain of a DataFrame that is filtered."""
    if known is None:
        return Filters(df, (condition,), (df,))
    chain = known.chain
    if isinstance(chain, Filters):
        return replace(chain, conditions=(*chain.conditions, condition), known=(*chain.known, df))
    alone = Derived(df, known, "filter", (condition,), {})
    if isinstance(chain, Joins) and isinstance(condition, str) and not _is_qualified(condition):
        passed = (*chain.known, (df, len(chain.relations)))
        conditions = (*chain.conditions, condition)
        return replace(chain, conditions=conditions, known=passed, otherwise=alone)
    if noted(condition) is None:
        return alone
    better = known.better(df)
    if isinstance(better, str):
        left_to_spark(df, better)
        return Filters(df, (condition,), (df,))
    return Filters(better, (condition,), (df,), above=True)


def _is_qualified(condition: Any) -> bool:
    """Whether a text has a dotted name, which may begin with an alias of a DataFrame or with a column."""
    if not isinstance(condition, str):
        return False
    try:
        root = parse(f"SELECT *{clause((condition,))}").root
    except QueryError:
        return False  # a query with it is refused too
    return root is not None and any(
        isinstance(node, exp.Dot) or bool(node.args.get("table"))
        for node in root.find_all(exp.Dot, exp.Column)
    )


def joined(
    left: DataFrame, first: Link | None, right: DataFrame, second: Link | None, on: Any, how: Any
) -> Joins | Left:
    """Return the chain of two DataFrames that are joined."""
    found = _joins(left, first, right, second, on, how)
    below = None
    if first is not None or _is_filtered(right):
        below = Derived(left, first, "join", (right, on, how), {})
    return Left(found, below) if isinstance(found, str) else replace(found, otherwise=below)


def _joins(
    left: DataFrame, first: Link | None, right: DataFrame, second: Link | None, on: Any, how: Any
) -> Joins | str:
    if how not in (None, "inner"):
        return f"a join with how={how!r} is Spark's: only inner joins are chained"
    conditions = _conditions(on)
    if conditions is None:
        return (
            "PySpark does not tell what a Column compares, and this one was not seen being made: join on "
            "equalities of columns, as in orders.custkey == customers.custkey, made while the session is "
            "enabled, or by names of columns, as in join(other, 'id')"
        )
    if second is not None and isinstance(second.chain, Joins):
        return "a join on the right of a join, as if in parentheses, is Spark's: join one after the other"
    added = _read(right, second)
    if first is None or not isinstance(first.chain, Joins):
        return Joins((_read(left, first), added), (conditions,))
    before = first.chain
    known = (*before.known, (left, len(before.relations)))
    return Joins((*before.relations, added), (*before.on, conditions), known, before.conditions)


def _conditions(on: Any) -> tuple[str, ...] | Compared | None:
    """Return what joins, None where that cannot be known."""
    each: Sequence[Any] = tuple(on) if isinstance(on, list | tuple) else (on,)
    if each and all(isinstance(one, str) for one in each):
        return tuple(each)
    return compared(each)


def _read(df: DataFrame, known: Link | None) -> Relation:
    """Return a relation with those conditions over it that a query can say."""
    if known is None:
        return Relation(df, (), (df,))
    chain = known.chain
    passed = (*chain.known, df) if isinstance(chain, Filters) else (df,)
    if isinstance(chain, Filters) and not chain.above:
        conditions = chain.conditions
        if all(isinstance(each, str) and not _is_qualified(each) for each in conditions):
            return Relation(chain.df, conditions, passed)
    better = known.better(df)
    return Relation(df if isinstance(better, str) else better, (), passed)
