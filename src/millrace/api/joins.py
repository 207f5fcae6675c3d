"""Chains of inner joins as one query, whose columns are those of PySpark's ``join``, in its order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql import Column, functions as sf, types as t

from millrace.api.columns import Compared, Taken, name_of
from millrace.api.gain import Relation, why_no_gain
from millrace.api.session import Session
from millrace.errors import QueryError
from millrace.options import Options
from millrace.spark.handles import same_handle
from millrace.spark.session import internal_query, is_connect
from millrace.sql.syntax.edits import plain_quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NESTED = (t.StructType, t.MapType, t.ArrayType)
_STRICT = "spark.sql.analyzer.failAmbiguousSelfJoin"

Place = tuple[int, str]
"""A column: of which relation, by their order, and its name there."""


class Made(Protocol):
    """What Millrace makes of something of Spark's."""

    def made(self, df: Any, options: Options) -> Any:
        """Return it, or why there is none."""


@dataclass(frozen=True, eq=False)
class Left:
    """What Spark makes, though perhaps of what Millrace makes below.

    Attributes:
        why: Why it is Spark's.
        otherwise: It as a method of what Millrace makes below; None where it makes nothing.
    """

    why: str
    otherwise: Made | None = None

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
    otherwise: Made | None = None

    def made(self, df: DataFrame, options: Options) -> DataFrame | str:
        """Return what Millrace makes of it, or why it takes no join of it.

        Args:
            df: Spark's DataFrame.
            options: Settings of the run.

        Raises:
            PySparkException: Spark does not understand it.
        """
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
        joined = _relation(0, self.relations[0].conditions)
        for place, on in enumerate(self.on, 1):
            joined += f" JOIN {_relation(place, self.relations[place].conditions)} {self._on(place, on)}"
        return f"SELECT * FROM {joined}{clause(self.conditions)}"  # noqa: S608  # SQL is what this writes

    def _on(self, place: int, on: tuple[str, ...] | Compared) -> str:
        if not isinstance(on, Compared):
            return f"USING ({', '.join(map(plain_quote, on))})"
        spark = self.relations[0].df.sparkSession
        if not is_connect(spark) and spark.conf.get(_STRICT, "true") != "true":
            raise QueryError(f"with {_STRICT} off Spark may take a Column for one of another DataFrame")
        pairs = [[_quoted(self._place(side, place)) for side in pair] for pair in on.pairs]
        return f"ON {' AND '.join(f'{left} = {right}' for left, right in pairs)}"

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


def clause(conditions: Sequence[str]) -> str:
    """Return conditions as a clause."""
    return f" WHERE {' AND '.join(f'({each})' for each in conditions)}" if conditions else ""


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


def _relation(place: int, conditions: Sequence[str]) -> str:
    name = _name(place)
    return f"(SELECT * FROM {name}{clause(conditions)}) AS {name}" if conditions else name  # noqa: S608
