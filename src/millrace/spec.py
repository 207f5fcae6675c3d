"""What to run: frozen, picklable specs. State is built from them inside the task.

A *block* is a maximal select-project-join part of a query. Its :class:`JoinSpec` names the
relations, the equalities that join them, residual predicates over several relations, and the
columns that somebody above the block reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from millrace.errors import InputError, near
from millrace.expressions import ColumnRef, Predicate, columns_of


@dataclass(frozen=True)
class RelationSpec:
    """One relation of a block, as it arrives at the eddy (scan filters already applied).

    Attributes:
        alias: Unique name within the block.
        schema: The columns that arrive: join keys, columns of residual predicates, output columns.
            It may have no column at all (a cross product that only counts).
        distinct: Set semantics: equal tuples count once (an ``IN (SELECT …)`` made a relation).
        rows: Estimated number of rows, for schedules and shares; never for answers.
    """

    alias: str
    schema: pa.Schema
    distinct: bool = False
    rows: int | None = None


@dataclass(frozen=True)
class Equality:
    """``left = right`` between two relations, compared after widening both sides to ``type``."""

    left: ColumnRef
    right: ColumnRef
    type: pa.DataType

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
        residuals: Conjuncts over two or more relations that are not equalities.
        output: Result columns; empty when only the number of rows matters.
        count_only: The result is one ``int64`` column ``__count`` whose sum is the number of rows.
    """

    relations: tuple[RelationSpec, ...]
    equalities: tuple[Equality, ...] = ()
    residuals: tuple[Predicate, ...] = ()
    output: tuple[OutputColumn, ...] = ()
    count_only: bool = False

    def __post_init__(self) -> None:
        aliases = [r.alias for r in self.relations]
        if len(set(aliases)) != len(aliases):
            raise InputError(f"relations of a block need different aliases, got {aliases}")
        for relation in self.relations:
            if len(set(relation.schema.names)) != len(relation.schema):
                raise InputError(
                    f"relation {relation.alias!r} names a column twice: {relation.schema.names}; "
                    "give its columns different names"
                )
        refs = [ref for e in self.equalities for ref in (e.left, e.right)]
        refs += [ref for p in self.residuals for ref in columns_of(p)]
        refs += [o.source for o in self.output]
        for ref in refs:
            if ref.relation not in aliases:
                raise InputError(f"unknown relation {ref.relation!r}: {near(ref.relation, aliases)}")
            names = self.relation(ref.relation).schema.names
            if ref.column not in names:
                raise InputError(
                    f"relation {ref.relation!r} has no column {ref.column!r}: {near(ref.column, names)}"
                )

    @cached_property
    def aliases(self) -> tuple[str, ...]:
        """The relations' aliases in order; a relation's number is its place here."""
        return tuple(r.alias for r in self.relations)

    def relation(self, alias: str) -> RelationSpec:
        """Return the relation of that alias."""
        return self.relations[self.aliases.index(alias)]

    @cached_property
    def output_schema(self) -> pa.Schema:
        """The Arrow schema of the block's result."""
        if self.count_only:
            return pa.schema([pa.field("__count", pa.int64())])
        return pa.schema(
            [
                pa.field(o.name, self.relation(o.source.relation).schema.field(o.source.column).type)
                for o in self.output
            ]
        )
