"""Selections with a declared cost and a known selectivity: users' predicates that take their time.

Avnur & Hellerstein 2000, section 3.3: a spin loop, then a randomized decision. The decisions are drawn before
and stand in a column, so that every run of a comparison meets the same ones; the spin loop is the clock's.
"""

from __future__ import annotations

import pyarrow as pa

from millrace.clock import VirtualClock
from millrace.experiments.lab.costs import Cost
from millrace.expressions import Call, Column, ColumnRef
from millrace.predicates import PredicateSpec


def selection(alias: str, column: str, cost: Cost, clock: VirtualClock) -> Call:
    """Return a predicate that keeps the tuples whose column says so.

    Args:
        alias: The relation.
        column: A column of booleans; also the predicate's name.
        cost: Seconds of the clock for each tuple.
        clock: Moves while the predicate works.
    """

    def decide(kept: pa.Array) -> pa.Array:
        clock.advance(len(kept) * (cost() if callable(cost) else cost))
        return kept

    return Call(PredicateSpec(column, decide, "arrow"), (Column(ColumnRef(alias, column)),))
