"""Figure 5: three selections that keep everything, so that no order is better than another."""

from __future__ import annotations

from dataclasses import dataclass
from time import thread_time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millrace.experiments.experiment import Check, Experiment, Outcome, Parameter, Settings
from millrace.experiments.overheads.star import steps
from millrace.experiments.overheads.sweep import LARGE, ROUNDS, Query, amortized, figures, panels, sweep, told
from millrace.experiments.overheads.wisconsin import wisconsin
from millrace.expressions import Call, Column, ColumnRef, Compare, Literal, Predicate
from millrace.predicates import PredicateSpec
from millrace.spec import JoinSpec, RelationSpec

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
    block = JoinSpec(
        (RelationSpec(_TABLE, kept.schema, rows=len(kept)),), residuals=tuple(predicates), count_only=True
    )
    return Query(name, block, {_TABLE: kept}, "stems", "rank")


def run(settings: Settings) -> Outcome:
    """Measure the four queries."""
    table = wisconsin(settings.whole("tuples"), settings.seed)
    step = steps(settings.progress, 1 + len(DELAYS))
    swept = {
        name: sweep(query(name, table), settings, step(number)) for number, name in enumerate((FREE, *DELAYS))
    }
    free = {name: swept[name].ratio(LARGE) for name in (FREE, "delay 0")}
    slight = {name: swept[name].ratio(LARGE) for name in ("delay 10", "delay 100")}
    return Outcome(
        panels(swept, FREE),
        figures(swept),
        (
            amortized({name: swept[name] for name in free}),
            Check(
                f"free predicates take at most {settings['free']:g} times as long, every 1,000 tuples",
                max(free.values()) <= settings["free"],
                told(free),
            ),
            Check(
                f"slightly expensive ones at most {settings['slight']:g} times as long",
                max(slight.values()) <= settings["slight"],
                told(slight),
            ),
        ),
    )


EXPERIMENT = Experiment(
    id="overheads-fig5",
    title="Overhead of an eddy with selections",
    source="Deshpande 2004, section 3.2, figure 5",
    claim="Three selections that keep everything, so that adapting has nothing to win. Deciding for every "
    "tuple is dear; amortized over tuples, and where predicates are even slightly expensive, an eddy costs "
    "next to nothing beyond one static plan. Batches have X tuples on both sides, and decisions, by rank as "
    "in the paper, are renewed every X.",
    mechanism="amortizing decisions over X tuples: each tuple is routed alone, by a decision of its own",
    parameters=(
        Parameter("tuples", 10_000, 1000, 100_000, "tuples", "in tenk1"),
        ROUNDS,
        Parameter("free", 1.1, 1.0, 100.0, "times", "the most that free predicates may take"),
        Parameter("slight", 1.02, 1.0, 100.0, "times", "the most that predicates of 10 µs or more may take"),
    ),
    run=run,
    wall=True,
)
