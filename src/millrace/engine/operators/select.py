"""The operators of a block's residual predicates, one by one or together (a profile), and of left joins."""

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
from millrace.engine.operators.selection import GUESS, CompiledSelection, Selection, divide
from millrace.engine.operators.udf_selection import UdfSelection
from millrace.engine.plan.expressions import Call, Predicate, columns_of, exists_in
from millrace.engine.plan.graph import QueryGraph, members
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.tuples.batch import Signature, TupleBatch, ready_predicates
from millrace.limits.clock import POLLED, Clock
from millrace.options import Options
from millrace.predicates import REJECTED, Caller
from millrace.predicates.callers import caller_of


def selections_of(
    spec: JoinSpec,
    clock: Clock,
    options: Options,
    callers: Callable[[int, Call], Caller] | None,
    statistics: Statistics,
) -> list[Selection]:
    """Return a selection for each residual predicate.

    ``callers`` returns what calls a user's predicate, by its number among the residual predicates; by
    default it is :func:`own_caller`.
    """
    callers = callers or own_caller
    schemas = {relation.alias: relation.schema for relation in spec.beside}

    def made(number: int, predicate: Predicate) -> Selection:
        if isinstance(predicate, Call):
            caller = callers(number, predicate)
            masked = options.mask_values
            return UdfSelection(number, predicate, spec.visible, caller, clock, statistics, masked=masked)
        if any(exists_in(predicate)):
            return ExistsSelection(number, predicate, schemas, spec.visible, clock, statistics)
        return CompiledSelection(number, predicate, spec.visible, clock, statistics)

    return [made(number, predicate) for number, predicate in enumerate(spec.residuals)]


def own_caller(number: int, call: Call) -> Caller:
    """Return what calls a user's predicate, with limits that hold for it alone."""
    return caller_of(call.spec, call.values, None, str(number))


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


class Filters:
    """The operators of a block's predicates and left joins, and the relations beside the join.

    Attributes:
        selects: Of each predicate.
        outer: Of each left join, by its number behind those of the predicates,
        asking: and of those the ones that ask an index.
        profile: All predicates that are ready at once.
        settlement: What gives predicates that raised their last word.
    """

    def __init__(
        self,
        graph: QueryGraph,
        selects: Sequence[Selection],
        statistics: Statistics,
        outer: Mapping[int, OuterProbe],
    ) -> None:
        self._graph = graph
        self._statistics = statistics
        self.selects = selects
        self.profile = PredicateProfile(selects, statistics, graph)
        self.settlement = PredicateSettle(selects)
        self.outer = outer
        self.asking = [probe for probe in outer.values() if isinstance(probe, AskingProbe)]
        self._beside: dict[str, BesideRelation] = {}
        for select in selects:
            if isinstance(select, ExistsSelection):
                self._beside |= select.relations
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
        return tuple(each.figures() for each in self._beside.values())

    def remember(self, built: TupleBatch) -> None:
        """Let predicates know of base tuples that met them before they were built."""
        for select in self.selects:
            if built.signature.done & select.done:
                select.remember(built)

    def close(self) -> None:
        for select in self.selects:
            select.close()
        for probe in self.asking:
            probe.beside.close()


class PredicateProfile(Operator):
    """Lets every predicate that is ready decide about every tuple, and keeps the joint outcomes."""

    kind = Kind.PROFILE

    def __init__(self, selects: Sequence[Selection], statistics: Statistics, graph: QueryGraph) -> None:
        super().__init__(0, "Profile", "profile")
        self._selects = selects
        self._statistics = statistics
        self._graph = graph

    def estimate(self, signature: Signature, *, alone: bool) -> Estimate:
        return Estimate(self.label, GUESS)

    def step(self, work: TupleBatch, limit: int) -> Step:
        """Return the tuples that pass all of them."""
        ready = ready_predicates(work.signature, self._graph)
        verdicts = {number: self._selects[number].meet(work) for number in ready}
        passed = {number: truth != REJECTED for number, (truth, _) in verdicts.items()}
        self._statistics.profile(work.signature.span).add(passed)
        pieces = divide(work, verdicts, self.label)
        return Step(pieces, sum(piece.size for piece in pieces))


class PredicateSettle(Operator):
    """Gives predicates that raised their last word.

    Any of them may turn out to reject a tuple. So no exception surfaces before all have been settled.
    """

    kind = Kind.SETTLE

    def __init__(self, selects: Sequence[Selection]) -> None:
        super().__init__(0, "Settle", "settle")
        self._called = {each.target: each for each in selects if isinstance(each, UdfSelection)}

    def step(self, work: TupleBatch, limit: int) -> Step:
        """Return the tuples that pass although predicates raised for them at first.

        Raises:
            ExecutionError: A predicate raised for a tuple that nothing else rejects.
        """
        raised = members(work.signature.raised)
        for number in raised:
            truth, failures = self._called[number].settle(work)
            failures = np.full(work.size, None) if failures is None else failures
            work = replace(work, failures={**work.failures, number: failures})
            work = work.take(np.flatnonzero(truth != REJECTED))
        failed = [
            (int(position), number)
            for number in raised
            for position in np.flatnonzero(work.failures[number] != None)[:1]  # noqa: E711  # each element
        ]
        if failed:
            position, number = min(failed)
            raise self._called[number].error(work, position)
        kept = replace(work, signature=work.signature.having(raised=0), failures={})
        return Step((kept,), kept.size)
