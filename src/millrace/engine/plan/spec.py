"""What to run: frozen, picklable specs. State is built from them inside the task.

A *block* is a maximal select-project-join part of a query. Its :class:`JoinSpec` names the
relations, the equalities that join them, residual predicates over several relations, and the
columns that somebody above the block reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa

from millrace.engine.plan.expressions import (
    Call,
    Column,
    ColumnRef,
    Exists,
    LeftJoin,
    Predicate,
    beside,
    columns_of,
    exists_in,
    relations_of,
)
from millrace.errors import InputError, near


@dataclass(frozen=True)
class Window:
    """A sliding window over one relation of a stream join.

    A result of the block is kept if the largest time among its windowed components is at most ``length``
    beyond the time of this relation's component, whatever the order of arrival. A null time matches nothing.

    Attributes:
        column: Its times: a timestamp, a date or a signed integer. They may not fall from row to row.
        length: In the column's unit: microseconds for ``timestamp[us]``, days for dates, above 0.
    """

    column: str
    length: int


@dataclass(frozen=True)
class RelationSpec:
    """One relation of a block, as it arrives at the eddy (scan filters already applied).

    Attributes:
        alias: Unique name within the block.
        schema: The columns that arrive: join keys, columns of residual predicates, output columns.
            It may have no column at all (a cross product that only counts).
        distinct: Set semantics: equal tuples count once (an ``IN (SELECT …)`` made a relation).
        rows: Number of rows that are expected, for schedules and shares; never for answers.
        guessed: Whether that is an estimate, which says nothing certain of when the relation ends.
        passing: Share of the rows, as estimated, that the filters of the scan have let pass.
        same_as: Alias of an earlier relation whose tuples these are too (a self-join): they arrive once, as
            tuples of that relation, and share its SteM. This relation then has no source of its own.
        window: Which tuples may meet in a result, by time; None for all. It bounds what state is kept.
    """

    alias: str
    schema: pa.Schema
    distinct: bool = False
    rows: int | None = None
    guessed: bool = False
    passing: float = 1.0
    same_as: str | None = None
    window: Window | None = None

    def expect(self, passing: float, rows: float, *, guessed: bool) -> RelationSpec:
        """Return the relation with so many rows expected, of so many before the filters of its scan."""
        share = passing / rows if rows else 1.0
        return replace(self, rows=math.ceil(passing), guessed=guessed, passing=share)


@dataclass(frozen=True)
class Equality:
    """``left = right`` between two relations, compared after widening both sides to ``type``."""

    left: ColumnRef
    right: ColumnRef
    type: pa.DataType

    @property
    def ends(self) -> tuple[ColumnRef, ColumnRef]:
        return self.left, self.right

    @property
    def relations(self) -> tuple[str, str]:
        return self.left.relation, self.right.relation

    def __str__(self) -> str:
        return f"{self.left} = {self.right}"


@dataclass(frozen=True)
class OutputColumn:
    """A column of the block's result: ``source`` under the unique name ``name``."""

    name: str
    source: ColumnRef


@dataclass(frozen=True)
class JoinSpec:
    """A select-project-join block over two or more relations (one is allowed: a filtered scan).

    Attributes:
        relations: In the order of the FROM clause.
        equalities: Conjuncts that join two relations; the query graph's edges. May be cyclic.
        residuals: Other conjuncts: over two or more relations, calls, and whether ``beside`` has matches.
        output: Result columns; empty when only the number of rows matters.
        count_only: The result is one ``int64`` column ``__count`` whose sum is the number of rows.
        beside: Relations that decide about no tuple's way: residuals ask whether they have a match (EXISTS,
            NOT IN), or tuples are widened by them at the end (LEFT JOIN).
        outer: The left joins with relations ``beside``, as written. Their ON may read those joined before.
    """

    relations: tuple[RelationSpec, ...]
    equalities: tuple[Equality, ...] = ()
    residuals: tuple[Predicate, ...] = ()
    output: tuple[OutputColumn, ...] = ()
    count_only: bool = False
    beside: tuple[RelationSpec, ...] = ()
    outer: tuple[LeftJoin, ...] = ()

    def __post_init__(self) -> None:
        aliases = [r.alias for r in self.sources]
        if len(set(aliases)) != len(aliases):
            raise InputError(f"relations of a block need different aliases, got {aliases}")
        for relation in self.relations:
            if len(set(relation.schema.names)) != len(relation.schema):
                raise InputError(
                    f"relation {relation.alias!r} names a column twice: {relation.schema.names}; "
                    "give its columns different names"
                )
        for place, relation in enumerate(self.relations):
            if relation.same_as is not None:
                self._check_shared(relation, self.relations[:place])
        kinds = {r.alias: _time_kind(r) for r in self.relations if r.window is not None}
        if len(set(kinds.values())) > 1:
            told = ", ".join(f"{alias!r} is a {kind}" for alias, kind in kinds.items())
            raise InputError(
                f"the times of windowed relations are compared with each other, but the one of {told}; "
                "expected the same kind in all of them: cast their columns"
            )
        refs = [ref for e in self.equalities for ref in e.ends]
        refs += [ref for p in self.residuals for ref in columns_of(p)]
        refs += [o.source for o in self.output]
        joined = {join.relation for join in self.outer}
        check_columns(refs, (*self.relations, *(r for r in self.beside if r.alias in joined)))
        for place, join in enumerate(self.outer):
            seen = {*self.aliases, *(before.relation for before in self.outer[:place])}
            if unseen := relations_of(join) - seen:
                raise InputError(
                    f"the left join with {join.relation!r} reads {sorted(unseen)}, which are not joined "
                    f"before it; expected some of {sorted(seen)}"
                )
            keys = [key.right.ref.column for key in join.keys if isinstance(key.right, Column)]
            if not set(join.bind) <= set(keys):
                raise InputError(
                    f"the left join with {join.relation!r} binds {list(join.bind)}, but its keys give values "
                    f"to {keys} alone; expected bind columns among these"
                )
        asked: list[Exists | LeftJoin] = [each for p in self.residuals for each in exists_in(p)]
        asked += self.outer
        check_columns([ColumnRef(p.relation, name) for p in asked for name in beside(p)], self.beside)
        if sorted(p.relation for p in asked) != sorted(r.alias for r in self.beside):
            raise InputError(
                f"relations {[r.alias for r in self.beside]} stand beside the join, so one residual, not "
                "below NOT, or one left join has to ask for the matches of each, got "
                f"{[p.relation for p in asked]}"
            )

    @property
    def is_repeatable(self) -> bool:
        """Whether predicates judge a tuple that is made again as they did before."""
        return all(p.spec.deterministic for p in self.residuals if isinstance(p, Call))

    def _check_shared(self, relation: RelationSpec, earlier: tuple[RelationSpec, ...]) -> None:
        """Raise InputError unless the tuples of ``relation`` can be those of the one it names."""
        first = next((r for r in earlier if r.alias == relation.same_as and r.same_as is None), None)
        if first is None:
            own = [r.alias for r in earlier if r.same_as is None]
            raise InputError(
                f"relation {relation.alias!r} shares the tuples of {relation.same_as!r}, which is no earlier "
                f"relation with tuples of its own: {near(str(relation.same_as), own)}"
            )
        mine, its = ((r.schema, r.distinct, r.window) for r in (relation, first))
        if mine != its:
            told = [f"({s.names}, distinct={d}, window={w})" for s, d, w in (mine, its)]
            raise InputError(
                f"relation {relation.alias!r} shares the tuples of {first.alias!r}, so both need the same "
                "columns in the same order, the same set semantics and the same window, got "
                f"{' and '.join(told)}; give both the columns that either of them needs, or a source each"
            )

    @cached_property
    def aliases(self) -> tuple[str, ...]:
        """The relations' aliases in order; a relation's number is its place here."""
        return tuple(r.alias for r in self.relations)

    @property
    def sources(self) -> tuple[RelationSpec, ...]:
        """Everything whose tuples arrive: the relations, and behind them those beside the join."""
        return (*self.relations, *self.beside)

    @cached_property
    def visible(self) -> tuple[str, ...]:
        """The relations that a result has components of, by number: those beside the join if it widens."""
        return tuple(r.alias for r in self.sources) if self.outer else self.aliases

    def relation(self, alias: str) -> RelationSpec:
        """Return the relation of that alias, joined or beside."""
        return next(r for r in self.sources if r.alias == alias)

    @cached_property
    def output_schema(self) -> pa.Schema:
        if self.count_only:
            return pa.schema([pa.field("__count", pa.int64())])
        return pa.schema(
            [
                pa.field(o.name, self.relation(o.source.relation).schema.field(o.source.column).type)
                for o in self.output
            ]
        )


def check_columns(refs: Iterable[ColumnRef], among: tuple[RelationSpec, ...]) -> None:
    """Raise InputError unless each is a column of one of these relations."""
    names = {relation.alias: relation.schema.names for relation in among}
    for ref in refs:
        if ref.relation not in names:
            raise InputError(f"unknown relation {ref.relation!r}: {near(ref.relation, list(names))}")
        if ref.column not in names[ref.relation]:
            raise InputError(
                f"relation {ref.relation!r} has no column {ref.column!r}: "
                f"{near(ref.column, names[ref.relation])}"
            )


def _time_kind(relation: RelationSpec) -> str:
    """Return what the times of a windowed relation are, for comparison with other relations' times.

    Raises:
        InputError: The window cannot be used.
    """
    window, where = relation.window, f"the window of relation {relation.alias!r}"
    assert window is not None
    if window.column not in relation.schema.names:
        raise InputError(
            f"{where} goes by column {window.column!r}, which is not there: "
            f"{near(window.column, relation.schema.names)}"
        )
    length = window.length
    if type(length) is not int or not 0 < length < 1 << 63:
        raise InputError(
            f"{where} has length {length!r}: expected a whole number above 0, in the unit of column "
            f"{window.column!r}, such as 60_000_000 for a minute of microseconds"
        )
    if relation.distinct:
        raise InputError(
            f"{where}: a relation with set semantics cannot have one, for which of its equal tuples counts "
            "would depend on time; drop duplicates before, or leave out distinct"
        )
    kind = relation.schema.field(window.column).type
    if pa.types.is_timestamp(kind):
        return f"timestamp[{kind.unit}]{' with time zone' if kind.tz else ''}"
    if pa.types.is_date32(kind):
        return "date"
    if pa.types.is_signed_integer(kind):
        return "whole number"
    raise InputError(
        f"{where} goes by column {window.column!r} of type {kind}: expected a timestamp, a date (date32) or "
        "a signed integer; cast it to one of them"
    )
