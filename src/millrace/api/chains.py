"""Chains of ``filter`` and ``join``, and what is derived from them: what Millrace could run in Spark's place.

A link remembers how its DataFrame was made: predicates over a DataFrame, inner joins, or another method of a
DataFrame with a link. The DataFrame itself stays Spark's, so that columns of those it was made of go on
meaning something; what Millrace makes of the chain is made when somebody first asks for its rows. A chain of
inner joins becomes one query, whose columns are those of PySpark's ``join``, in its order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, functions as sf, types as t
from sqlglot import exp

from millrace.api.columns import Compared, Taken, compared, name_of
from millrace.api.gain import Relation, why_no_gain
from millrace.api.joining import select_join, using, where_clause
from millrace.api.session import Session
from millrace.errors import MillraceError, QueryError
from millrace.options import Options
from millrace.spark.filter import where
from millrace.spark.frames import left_to_spark, same_handle, substitute, substitute_of
from millrace.spark.patches import noted
from millrace.spark.session import internal_query, is_connect
from millrace.sql.session.errors import contain
from millrace.sql.syntax.edits import plain_quote
from millrace.sql.syntax.parse import parse

_UNKNOWN = "it is not known how this was made"
_NESTED = (t.StructType, t.MapType, t.ArrayType)
_STRICT = "spark.sql.analyzer.failAmbiguousSelfJoin"

T = TypeVar("T")
Place = tuple[int, str]
"""A column: of which relation, by their order, and its name there."""


@dataclass(frozen=True, eq=False)
class Left:
    """What is left to Spark, and why; ``otherwise`` is it as a method of what Millrace makes below."""

    why: str
    otherwise: Derived | None = None

    def made(self, df: DataFrame, options: Options) -> DataFrame | str:
        """Return it of what Millrace makes below, or why Millrace has no part in it."""
        made: DataFrame | str = self.why if self.otherwise is None else self.otherwise.made(df, options)
        return self.why if isinstance(made, str) else made


@dataclass(frozen=True, eq=False)
class Joins:
    """Inner joins.

    Attributes:
        relations: From left to right.
        on: For each relation but the first, the columns that it shares with those before it, by name, or
            what is compared.
        known: DataFrames on the way here, and how many relations each joins.
        conditions: In SQL, over what is joined.
        otherwise: The last join or filter as a method of what Millrace makes below, for when it takes no part
            in that itself; None where it makes nothing there.
    """

    relations: tuple[Relation, ...]
    on: tuple[tuple[str, ...] | Compared, ...]
    known: tuple[tuple[DataFrame, int], ...] = ()
    conditions: tuple[str, ...] = ()
    otherwise: Derived | None = None

    def made(self, df: DataFrame, options: Options) -> DataFrame | str:
        """Return what Millrace makes of it, or why it takes no join of it."""
        try:
            found = self._joined(df, options)
        except QueryError as error:
            found = str(error)
        return Left(found, self.otherwise).made(df, options) if isinstance(found, str) else found

    def _joined(self, df: DataFrame, options: Options) -> DataFrame | str:
        text = self.text
        streams = df.isStreaming
        fields = (each for one in self.relations for each in one.df.schema.fields)
        nested = next((each.name for each in fields if isinstance(each.dataType, _NESTED)), None)
        if streams and nested is not None:
            return (
                f"column {nested} of a stream has parts, so that a name such as {nested}.part could mean one "
                "of these, or a column of the DataFrame that is called so"
            )
        if not streams and not options.take_all:
            why = why_no_gain(self.relations, self.conditions, options)
            if why is not None:
                return why
        frames = {_name(place): each.df for place, each in enumerate(self.relations)}
        query = Session(df.sparkSession, frames, options=options).query(text)
        if not query.taken:
            return "; ".join(query.reasons)
        return query.df if streams else _columns_of(df, query.df)

    @cached_property
    def text(self) -> str:
        """The query."""
        relations = [
            f"(SELECT * FROM {_name(n)}{where_clause(each.conditions)}) AS {_name(n)}"  # noqa: S608
            if each.conditions
            else _name(n)
            for n, each in enumerate(self.relations)
        ]
        ons = [self._on(place, on) for place, on in enumerate(self.on, 1)]
        return select_join("*", relations, ons, self.conditions)

    def _on(self, place: int, on: tuple[str, ...] | Compared) -> str:
        if not isinstance(on, Compared):
            return using(on)
        spark = self.relations[0].df.sparkSession
        if not is_connect(spark) and spark.conf.get(_STRICT, "true") != "true":
            raise QueryError(f"with {_STRICT} off Spark may take a Column for one of another DataFrame")
        pairs = [[_quoted(self._place(side, place)) for side in pair] for pair in on.pairs]
        return f" ON {' AND '.join(f'{left} = {right}' for left, right in pairs)}"

    def _place(self, side: Taken | Column, last: int) -> Place:
        """Return which column a side of a comparison is, when the relation at ``last`` is joined."""
        if isinstance(side, Taken):
            frame, name = side.frame(), side.name
            among = [self._columns(n, n) for n in range(last + 1) if _among(frame, self.relations[n].known)]
            among += [self._columns(0, n - 1) for known, n in self.known if n <= last and known is frame]
        else:
            named = name_of(side, self.relations[0].df.sparkSession)
            if named is None:
                raise QueryError(
                    f"what {side} is cannot be known: it was made before the session was enabled, or is not "
                    "just a column; join on columns as in orders.custkey == customers.custkey, or by their "
                    "names"
                )
            name, among = named, [self._columns(0, last - 1) + self._columns(last, last)]
        if len(among) != 1:
            raise QueryError(
                f"{name!r} is a column of a DataFrame that is joined {len(among)} times, not once: take it "
                "of one that is, or join in SQL"
            )
        return _only(among[0], name)

    def _columns(self, first: int, last: int) -> list[Place]:
        """Return the columns of what some relations are joined to, in order."""
        found = [(first, name) for name in self.relations[first].df.columns]
        for place in range(first + 1, last + 1):
            added = [(place, name) for name in self.relations[place].df.columns]
            on = self.on[place - 1]
            if isinstance(on, Compared):
                found += added
            else:
                keys = [_only(found, name) for name in on]
                dropped = {*keys, *(_only(added, name) for name in on)}
                found = keys + [each for each in found + added if each not in dropped]
        return found


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
    """The result of a method of ``of`` that runs nothing: it is asked of what Millrace makes instead."""

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
    """How something of Spark's was made, and what Millrace makes of it."""

    chain: Chain
    options: Options = field(default_factory=Options)
    _made: Any = None
    _checked: bool = False

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

    def chosen(self, frame: Any) -> Any:
        """Return Millrace's of the same rows, None where Spark's runs; the log is told why."""
        with internal_query():
            better = self.better(frame)
        if isinstance(better, str):
            left_to_spark(frame, better)
            return None
        return better

    def call(
        self, frame: Any, name: str, plain: Callable[..., Any], args: Any, named: Any, *, derives: bool
    ) -> Any:
        """Return what a method gives of what Millrace makes, or remember that it was called.

        Columns of Millrace's are not quite those of Spark's, but for filters: so methods above others wait
        till rows are asked for.
        """
        if derives and (not isinstance(self.chain, Filters) or self.chain.above):
            kept = tuple(copy(each) if isinstance(each, list | dict) else each for each in args)  # may change
            chain = Derived(frame, self, name, kept, named)
            return substitute(plain(frame, *args, **named), Link(chain, self.options))
        better = self.chosen(frame)
        if better is None:
            return plain(frame, *args, **named)
        try:
            result = getattr(better, name)(*args, **named)
            if isinstance(result, DataFrame) and is_connect(result.sparkSession):
                result.schema  # noqa: B018  # Spark Connect analyses only now
        except AnalysisException:  # columns of the DataFrames that were joined, which only Spark's has
            return plain(frame, *args, **named)
        if result is not better:
            return result
        if "is_cached" in vars(better):  # on classic Spark
            frame.is_cached = better.is_cached
        return frame  # of cache, for example


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
    link: Link | None = substitute_of(df)
    return link


def linked(made: T, find: Callable[[], Chain], options: Options) -> T:
    """Let what Spark made know its chain, and call its methods on what Millrace makes of that."""
    try:
        chain = find()
    except Exception as error:  # noqa: BLE001  # whatever it is, Spark has the rows
        chain = Left(contain(error))
    return substitute(made, Link(chain, options))


def _running(given: Any) -> Any:
    """Return Millrace's of an argument that has one."""
    found = link_of(given)
    better = None if found is None else found.unchecked(given)
    return given if better is None or isinstance(better, str) else better


def _is_filtered(given: Any) -> bool:
    """Whether Millrace makes a filter of something: of Spark's columns, so that it can stand for Spark's."""
    found = link_of(given)
    return found is not None and isinstance(found.chain, Filters) and _running(given) is not given


def filtered(df: DataFrame, condition: Any) -> Filters | Derived | Joins:
    """Return the chain of a DataFrame that is filtered."""
    known = link_of(df)
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
        root = parse(f"SELECT *{where_clause((condition,))}").root
    except QueryError:
        return False  # a query with it is refused too
    return root is not None and any(
        isinstance(node, exp.Dot) or bool(node.args.get("table"))
        for node in root.find_all(exp.Dot, exp.Column)
    )


def joined(left: DataFrame, right: DataFrame, on: Any, how: Any) -> Joins | Left:
    """Return the chain of two DataFrames that are joined."""
    first = link_of(left)
    found = _joins(left, first, right, link_of(right), on, how)
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


def _columns_of(df: DataFrame, rows: DataFrame) -> DataFrame:
    """Return rows under the very columns of a DataFrame of Spark's, with their aliases.

    A union has the columns of what it begins with: so Columns of the DataFrames that were joined mean what
    they mean to Spark's. Spark never runs the part that is known to be empty. To Spark Connect, Columns of
    what a union is made of mean nothing: there names and aliases do.
    """
    with internal_query():
        made = rows.transform(df.where(sf.lit(False)).union)
    same_handle(made, rows)
    return made


def _only(columns: Sequence[Place], name: str) -> Place:
    found = [each for each in columns if each[1].lower() == name.lower()]
    if len(found) != 1 or set(name) & set(".`*"):
        raise QueryError(
            f"{name!r} names {len(found)} of the columns that are joined, not one: give them other names, or "
            "join in SQL"
        )
    return found[0]


def _among(frame: DataFrame | None, frames: Sequence[DataFrame]) -> bool:
    return any(frame is each for each in frames)


def _name(place: int) -> str:
    """Return a name that no condition of the user's has."""
    return f"__mr_t{place}"


def _quoted(column: Place) -> str:
    return f"{_name(column[0])}.{plain_quote(column[1])}"
