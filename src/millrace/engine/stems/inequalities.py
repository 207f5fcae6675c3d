"""Residual predicates that a SteM searches by: a column of its relation compared with another relation's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from millrace.engine.arrays import Array
from millrace.engine.plan.expressions import Column, Compare
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.stems.base_tuples import BaseTuples
from millrace.engine.stems.ordered import Ranges, is_ordered, places
from millrace.engine.tuples.batch import TupleBatch

_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


@dataclass(frozen=True)
class Inequality:
    """``column op other.bound``, seen from the relation that has ``column``.

    Attributes:
        number: Place among the block's residual predicates.
        column: Of the relation that is searched.
        op: One of ``<``, ``<=``, ``>``, ``>=``.
        other: Number of the relation that the bound comes from.
        bound: Its column.
        type: In which both are compared.
    """

    number: int
    column: str
    op: str
    other: int
    bound: str
    type: pa.DataType


def inequalities(spec: JoinSpec, relation: int) -> tuple[Inequality, ...]:
    """Return the residual predicates of a block that tuples of a relation can be searched by."""
    alias = spec.aliases[relation]
    found = []
    for number, predicate in enumerate(spec.residuals):
        match predicate:
            case Compare(op, Column(left), Column(right), kind) if op in _TURNED and is_ordered(kind):
                if left.relation == right.relation:
                    continue
                mine, bound, seen = left, right, str(op)
                if right.relation == alias:
                    mine, bound, seen = right, left, _TURNED[op]
                if mine.relation == alias and bound.relation in spec.aliases:
                    other = spec.aliases.index(bound.relation)
                    found.append(Inequality(number, mine.column, seen, other, bound.column, kind))
    return tuple(found)


def ranges(
    base: BaseTuples, searched: Sequence[Inequality], batch: TupleBatch, low: int, high: Array | None
) -> Ranges:
    """Begin to match tuples with the base tuples that satisfy all of these inequalities.

    Args:
        base: What is searched.
        searched: At least one, all of the same column and type.
        batch: The probing tuples.
        low: Only rows from this number on.
        high: Only rows below ``high[i]`` for tuple ``i``; None when there is no bound.
    """
    lows: list[tuple[Array, bool]] = []
    highs: list[tuple[Array, bool]] = []
    valid: Array | None = None
    for each in searched:
        column = batch.stores[each.other].gather(each.bound, batch.rows[each.other])
        bounds, known = places(column, each.type)
        if known is not None:
            valid = known if valid is None else valid & known
        (lows if each.op[0] == ">" else highs).append((bounds, each.op[1:] == "="))
    index = base.ordered(searched[0].column, searched[0].type)
    return index.probe(lows, highs, valid, batch.size, low, high)
