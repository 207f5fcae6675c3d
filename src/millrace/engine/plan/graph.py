"""The query graph: attribute classes and which relations they connect.

Columns that equalities tie together form an *attribute class*; every member of a class has the
same value in a result tuple, so an equality between any two members is implied and may be used
whether or not the query wrote it. Classes only join equalities that compare in the same type,
because widening to different types is not transitive.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from millrace.engine.plan.expressions import Call, ColumnRef, relations_of
from millrace.engine.plan.spec import JoinSpec, Window


@dataclass(frozen=True)
class AttributeClass:
    """Columns equated with each other.

    Attributes:
        type: The type in which they are compared.
        members: ``(relation number, column)``, in the order of relations.
    """

    type: pa.DataType
    members: tuple[tuple[int, str], ...]

    def columns(self, relation: int) -> tuple[str, ...]:
        """Return the relation's columns in this class: usually one or none."""
        return tuple(column for number, column in self.members if number == relation)

    @cached_property
    def span(self) -> int:
        """Bit set of the relations that have a column in this class."""
        return sum({1 << number for number, _ in self.members})


@dataclass(frozen=True)
class QueryGraph:
    """Attribute classes and residual predicates as bit sets over relation numbers.

    Attributes:
        relations: How many there are.
        residual_spans: Per residual predicate, the relations that it reads; behind them, per left join,
            those that have to be there.
        residuals_before: Per residual predicate and left join, bit set of those that have to be done before
            it: a predicate that is not deterministic keeps its place among the others.
        outer: Bit set of the left joins among these numbers.
        later: Bit set of those that wait for another run: to this one they are nothing.
        leads: Per relation, the one whose tuples it shares: itself, or the first of several that are the
            same data (a self-join).
        windows: Per relation, its sliding window and the type of its times; empty when no relation has one.
    """

    relations: int
    classes: tuple[AttributeClass, ...]
    residual_spans: tuple[int, ...]
    residuals_before: tuple[int, ...]
    leads: tuple[int, ...]
    windows: tuple[tuple[Window, pa.DataType] | None, ...] = ()
    outer: int = 0
    later: int = 0

    @classmethod
    def of(cls, spec: JoinSpec) -> QueryGraph:
        """Build the graph of a block.

        Tuples meet a left join when they span all relations and have passed what has to come before it:

        * A predicate or ON that reads columns of a left-joined relation comes behind that left join, for it
          judges the nulls that the left join makes.
        * Anything else may come before or behind. A left join neither drops a tuple nor changes its columns,
          so ``σ(R) ⟕ S = σ(R ⟕ S)``, and ``(R ⟕ S) ⟕ T = (R ⟕ T) ⟕ S``, where T's ON does not read S.
        * Joins come before, although ``(R ⟕ S) ⋈ T = (R ⋈ T) ⟕ S`` too. State holds one tuple for
          each combination of base tuples of the block, and a left join makes several of one.
        * A predicate that is not deterministic comes behind all of them: it is called for every row.
        * Other predicates come before a left join that asks an index: each key may cost a request.
        """
        number = {alias: i for i, alias in enumerate(spec.aliases)}
        groups: list[tuple[pa.DataType, set[ColumnRef]]] = []
        for equality in spec.equalities:
            pair = {equality.left, equality.right}
            touching = [g for g in groups if g[0] == equality.type and g[1] & pair]
            groups = [g for g in groups if g not in touching]
            groups.append((equality.type, pair.union(*(g[1] for g in touching))))
        classes = tuple(
            AttributeClass(kind, tuple(sorted((number[r.relation], r.column) for r in refs)))
            for kind, refs in groups
        )
        widening = {o.relation: 1 << len(spec.residuals) + i for i, o in enumerate(spec.outer)}
        everything = (1 << len(spec.relations)) - 1
        spans = [sum(1 << number[a] for a in relations_of(p) if a in number) for p in spec.residuals]
        spans += [everything] * len(spec.outer)
        pinned = [isinstance(p, Call) and not p.spec.deterministic for p in spec.residuals]
        before = [
            sum(1 << j for j in range(i) if pinned[i] or pinned[j])
            | sum(bit for alias, bit in widening.items() if pinned[i] or alias in relations_of(p))
            for i, p in enumerate(spec.residuals)
        ]
        free = sum(1 << i for i, others in enumerate(before) if not others)
        before += [
            sum(widening.get(alias, 0) for alias in relations_of(o)) | (free if o.bind else 0)
            for o in spec.outer
        ]
        leads = tuple(number[r.same_as or r.alias] for r in spec.relations)
        windows = tuple(
            None if r.window is None else (r.window, r.schema.field(r.window.column).type)
            for r in spec.relations
        )
        windows = windows if any(windows) else ()
        return cls(
            len(spec.relations), classes, tuple(spans), tuple(before), leads, windows, sum(widening.values())
        )

    def roles(self, relation: int) -> tuple[int, ...]:
        """Return the relations that share their tuples with this one, itself among them."""
        return tuple(role for role, lead in enumerate(self.leads) if lead == self.leads[relation])

    @cached_property
    def everything(self) -> int:
        return (1 << self.relations) - 1

    def bound(self, span: int, relation: int) -> tuple[int, ...]:
        """Return the numbers of the classes that tie ``relation`` to tuples of ``span``."""
        found = self._bound.get((span, relation))
        if found is None:
            bit = 1 << relation
            found = tuple(i for i, c in enumerate(self.classes) if c.span & bit and c.span & span)
            self._bound[span, relation] = found
        return found

    @cached_property
    def _bound(self) -> dict[tuple[int, int], tuple[int, ...]]:
        """What :meth:`bound` has returned: it is asked for every batch."""
        return {}

    def neighbours(self, span: int) -> tuple[int, ...]:
        """Return the relations outside ``span`` that a class connects to it."""
        return tuple(r for r in range(self.relations) if not span >> r & 1 and self.bound(span, r))


def members(span: int) -> list[int]:
    """Return the relations of a span."""
    return [r for r in range(span.bit_length()) if span >> r & 1]
