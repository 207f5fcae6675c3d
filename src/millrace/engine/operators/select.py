"""Selecting: tuples meet the block's residual predicates, one by one or all together (a profile)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from millrace.engine.access.modules import IndexAM
from millrace.engine.access.schedule import Source
from millrace.engine.eddy.operator import Estimate, Kind, Operator, Step
from millrace.engine.eddy.statistics import Statistics
from millrace.engine.figures import StateFigures
from millrace.engine.operators.beside import AskedRelation, BesideRelation
from millrace.engine.operators.exists import ExistsSelection
from millrace.engine.operators.outer import AskingProbe, OuterProbe
from millrace.engine.operators.selection import CompiledSelection, Selection, divide
from millrace.engine.operators.udf_selection import UdfSelection
from millrace.engine.plan.expressions import Call, Predicate, columns_of, exists_in
from millrace.engine.plan.graph import QueryGraph, members
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.tuples.batch import Signature, TupleBatch, ready_predicates
from millrace.limits.clock import POLLED, Clock
from millrace.options import Options
from millrace.predicates import REJECTED, Caller
from millrace.predicates.callers import caller_of

_GUESS = 1 / 3
"""Share of tuples that a predicate is taken to pass before any was seen (System R's guess)."""


def selections_of(
    spec: JoinSpec, clock: Clock, options: Options, callers: Callable[[int, Call], Caller] | None
) -> list[Selection]:
    """Return a selection module for each residual predicate.

    Args:
        spec: The block.
        clock: What the modules' time is measured by.
        options: Whether errors show values.
        callers: Returns what calls a user's predicate, by its number among the residual predicates;
            by default limits hold within this eddy.
    """
    schemas = {relation.alias: relation.schema for relation in spec.beside}

    def made(number: int, predicate: Predicate) -> Selection:
        if isinstance(predicate, Call):
            caller = (callers or _local_caller)(number, predicate)
            masked = options.mask_values
            return UdfSelection(number, predicate, spec.visible, caller, clock, masked=masked)
        if any(exists_in(predicate)):
            return ExistsSelection(number, predicate, schemas, spec.visible, clock)
        return CompiledSelection(number, predicate, spec.visible, clock)

    return [made(number, predicate) for number, predicate in enumerate(spec.residuals)]


def outer_probes_of(
    spec: JoinSpec, indexes: Mapping[str, IndexAM], clock: Clock, woken: threading.Event
) -> dict[int, OuterProbe]:
    """Return the operator of each left join, by its number behind the residual predicates.

    ``indexes`` are asked for relations of left joins that have bind columns; they set ``woken``.
    """
    read: dict[str, set[str]] = {join.relation: set() for join in spec.outer}
    refs = [o.source for o in spec.output]
    refs += [ref for node in (*spec.residuals, *spec.outer) for ref in columns_of(node)]
    for ref in refs:
        if ref.relation in read:
            read[ref.relation].add(ref.column)
    probes: dict[int, OuterProbe] = {}
    for number, join in enumerate(spec.outer, len(spec.residuals)):
        alias, name = join.relation, f"LeftJoin({join.relation})"
        given = join, spec.relation(alias).schema, spec.visible, name, read[alias]
        place = number, spec.visible.index(alias), alias
        if join.bind:
            probes[number] = AskingProbe(*place, AskedRelation(*given, indexes[alias], clock, woken))
        else:
            probes[number] = OuterProbe(*place, BesideRelation(*given))
    return probes


class Selecting:
    """Lets batches meet predicates, and knows the relations beside the join.

    Args:
        spec: The block.
        graph: Its query graph.
        selections: Its residual predicates.
        statistics: Where each predicate's outcomes are booked.
        outer: The operator of each left join.

    Attributes:
        selects: The operator of each predicate.
        outer: The operator of each left join, by its number,
        asking: and of those the ones that ask an index.
        profile: All predicates that are ready at once.
        settlement: What gives predicates that raised their last word.
    """

    def __init__(
        self,
        graph: QueryGraph,
        selections: Sequence[Selection],
        statistics: Statistics,
        outer: Mapping[int, OuterProbe],
    ) -> None:
        self._graph = graph
        self._selections = selections
        self._statistics = statistics
        self.selects = [PredicateSelect(self, selection) for selection in selections]
        self.profile = PredicateProfile(self, graph)
        self.settlement = PredicateSettle(self)
        self._called = {each.number: each for each in selections if isinstance(each, UdfSelection)}
        self.outer = outer
        self.asking = [probe for probe in outer.values() if isinstance(probe, AskingProbe)]
        asking = [each for each in selections if isinstance(each, ExistsSelection)]
        self._beside = {alias: found.relation for each in asking for alias, found in each.matches.items()}
        self._beside |= {each.label: each.beside for each in self.outer.values()}

    def fill(self, spec: JoinSpec, sources: Mapping[str, Source], clock: Clock) -> None:
        """Read the relations beside the join that have to be complete before the first tuple comes."""
        asked = {join.relation for join in spec.outer if join.bind}
        for number, relation in enumerate(spec.beside, self._graph.relations):
            for batch in () if relation.alias in asked else sources[relation.alias]:
                if not isinstance(batch, pa.RecordBatch):
                    clock.wait(POLLED)
                    continue
                began = clock.now()
                self._beside[relation.alias].take(batch)
                seconds = clock.now() - began
                self._statistics.update(("scan", number), batch.num_rows, batch.num_rows, seconds)

    def figures(self) -> tuple[StateFigures, ...]:
        """Return what is held of the relations beside the join."""
        return tuple(each.figures() for each in self._beside.values())

    def meet(self, batch: TupleBatch, predicates: Sequence[int], label: str) -> list[TupleBatch]:
        """Return what is left of a batch when its tuples have met some predicates, all of them each.

        Args:
            batch: The tuples.
            predicates: Numbers of the predicates; the joint outcomes of several are kept (a profile).
            label: Joins the tuples' path.
        """
        verdicts = {}
        for number in predicates:
            selection = self._selections[number]
            before = selection.worked
            verdicts[number] = verdict = selection.judge(batch)
            kept = int(np.count_nonzero(verdict[0]))
            spent = selection.worked - before
            self._statistics.update(self.selects[number], batch.size, kept, spent)
        if len(predicates) > 1:
            passed = {number: truth != REJECTED for number, (truth, _) in verdicts.items()}
            self._statistics.profile(batch.signature.span).add(passed)
        return divide(batch, verdicts, label)

    def settle(self, batch: TupleBatch) -> TupleBatch:
        """Give all predicates that raised their last word, and return the tuples that pass after all.

        Any of them may turn out to reject a tuple. So no exception surfaces before all have been settled.

        Raises:
            ExecutionError: A predicate raised for a tuple that nothing else rejects.
        """
        raised = members(batch.signature.raised)
        for number in raised:
            truth, failures = self._called[number].settle(batch)
            failures = np.full(batch.size, None) if failures is None else failures
            batch = replace(batch, failures={**batch.failures, number: failures})
            batch = batch.take(np.flatnonzero(truth != REJECTED))
        failed = [
            (int(position), number)
            for number in raised
            for position in np.flatnonzero(batch.failures[number] != None)[:1]  # noqa: E711  # each element
        ]
        if failed:
            position, number = min(failed)
            raise self._called[number].error(batch, position)
        return replace(batch, signature=batch.signature.having(raised=0), failures={})

    def remember(self, built: TupleBatch) -> None:
        """Let predicates know of base tuples that met them before they were built."""
        for selection in self._selections:
            if built.signature.done >> selection.number & 1:
                selection.remember(built)

    def close(self) -> None:
        """Let go of what predicates hold."""
        for selection in self._selections:
            selection.close()
        for probe in self.asking:
            probe.beside.close()


class PredicateSelect(Operator):
    """Lets one predicate decide."""

    kind = Kind.SELECT

    def __init__(self, selecting: Selecting, selection: Selection) -> None:
        super().__init__(selection.number, selection.name, selection.label)
        self.done = 1 << selection.number
        self._selecting = selecting
        self._selection = selection

    @property
    def evaluated(self) -> int:  # type: ignore[override]
        """Rows that a user's function was called for."""
        return self._selection.evaluated

    def estimate(self, signature: Signature, *, alone: bool) -> Estimate:
        """Return a guess."""
        return Estimate(self.label, _GUESS)

    def step(self, work: TupleBatch, limit: int) -> Step:
        """Return the tuples that pass, and apart from them those for which the predicate raised."""
        pieces = self._selecting.meet(work, [self.target], self.label)
        return Step(pieces, sum(piece.size for piece in pieces))


class PredicateProfile(Operator):
    """Lets every predicate that is ready decide about every tuple."""

    kind = Kind.PROFILE

    def __init__(self, selecting: Selecting, graph: QueryGraph) -> None:
        super().__init__(0, "Profile", "profile")
        self._selecting = selecting
        self._graph = graph

    def estimate(self, signature: Signature, *, alone: bool) -> Estimate:
        """Return a guess."""
        return Estimate(self.label, _GUESS)

    def step(self, work: TupleBatch, limit: int) -> Step:
        """Return the tuples that pass all of them."""
        pieces = self._selecting.meet(work, ready_predicates(work.signature, self._graph), self.label)
        return Step(pieces, sum(piece.size for piece in pieces))


class PredicateSettle(Operator):
    """Gives predicates that raised their last word."""

    kind = Kind.SETTLE

    def __init__(self, selecting: Selecting) -> None:
        super().__init__(0, "Settle", "settle")
        self._selecting = selecting

    def step(self, work: TupleBatch, limit: int) -> Step:
        """Return the tuples that pass although predicates raised for them at first."""
        kept = self._selecting.settle(work)
        return Step((kept,), kept.size)


def _local_caller(number: int, call: Call) -> Caller:
    return caller_of(call.spec, call.values, None, str(number))
