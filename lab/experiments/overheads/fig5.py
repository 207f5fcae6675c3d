"""Figure 5: three selections that keep everything, so that no order is better than another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import thread_time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lab.experiments.experiment import Outcome, Settings
from lab.experiments.lab.block import block
from lab.experiments.overheads.sweep import Query, outcome, sweep
from lab.experiments.overheads.wisconsin import wisconsin
from millrace.engine.expressions import Call, Column, ColumnRef, Compare, Literal, Predicate
from millrace.predicates import PredicateSpec

_BELOW = {"two": 2, "four": 4, "ten": 10}
_TABLE = "tenk1"
FREE = "no delay"
DELAYS = {"delay 0": 0, "delay 10": 10, "delay 100": 100}
"""Microseconds a tuple."""


@dataclass(frozen=True)
class Delay:
    """``delay(column, micros) < below``: keeps the processor busy for a batch as long as for its tuples."""

    below: int
    micros: int

    def __call__(self, column: Any) -> Any:
        if self.micros:
            until = thread_time() + len(column) * self.micros * 1e-6
            while thread_time() < until:
                pass
        return pc.less(column, self.below)


def query(name: str, table: pa.Table) -> Query:
    """Return one of the four queries."""
    kept = table.select(list(_BELOW))
    columns = {column: Column(ColumnRef(_TABLE, column)) for column in _BELOW}
    predicates: list[Predicate] = []
    for column, below in _BELOW.items():
        if name == FREE:
            predicates.append(Compare("<", columns[column], Literal(below, pa.int32()), pa.int32()))
        else:
            spec = PredicateSpec(f"delay_{column}", Delay(below, DELAYS[name]), "arrow")
            predicates.append(Call(spec, (columns[column],)))
    return Query(name, block({_TABLE: kept}, predicates=predicates), {_TABLE: kept}, "stems", "rank")


def run(settings: Settings) -> Outcome:
    """Measure the four queries."""
    table = wisconsin(settings["tuples"], settings.seed)
    found = outcome({name: sweep(query(name, table), settings) for name in (FREE, *DELAYS)}, FREE)
    worst = {
        f"{kind}_vs_best_static": max(found.figures[f"{name}_vs_best_static"] for name in names)
        for kind, names in (("free", (FREE, "delay 0")), ("slight", ("delay 10", "delay 100")))
    }
    return replace(found, figures={**found.figures, **worst})
