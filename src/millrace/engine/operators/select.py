"""The operators of a block's residual predicates, one by one or together (a profile), and of left joins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from millrace.engine.access.modules import IndexAM
from millrace.engine.access.schedule import Source
from millrace.engine.eddy.operator import Kind, Operator, Step
from millrace.engine.eddy.statistics import Statistics
from millrace.engine.figures import StateFigures
from millrace.engine.operators.beside import AskedRelation, BesideRelation
from millrace.engine.operators.exists import ExistsSelection
from millrace.engine.operators.outer import AskingProbe, OuterProbe
from millrace.engine.operators.selection import GUESS, CompiledSelection, Selection, divide
from millrace.engine.operators.udf_selection import UdfSelection
from millrace.engine.plan.expressions import Call, columns_of, exists_in
from millrace.engine.plan.graph import QueryGraph, members
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.start_up import work_time
from millrace.engine.tuples.batch import TupleBatch, ready_predicates
from millrace.limits.clock import POLLED, Clock
from millrace.predicates import REJECTED, Caller
from millrace.predicates.callers import caller_of

if TYPE_CHECKING:
    from millrace.engine.eddy.context import RunContext


def own_caller(_: int, call: Call) -> Caller:
    """Return what calls a user's predicate, with limits that hold for it alone."""
    return caller_of(call.spec, call.values)


class Filters:
    """The operators of a block's predicates and left joins, and the relations beside the join.

    Args:
        callers: Returns what calls a user's predicate, by its number among the residual predicates.
        indexes: Asked for relations of left joins that have bind columns; they wake access methods.

    Attributes:
        beside: What is looked into for matches, by alias.
        selects: Of each predicate.
        outer: Of each left join, by its number behind those of the predicates,
        asking: and of those the ones that ask an index.
        profile: All predicates that are ready at once.
        settlement: What gives predicates that raised their last word.
    """

    def __init__(
        self, context: RunContext, callers: Callable[[int, Call], Caller], indexes: Mapping[str, IndexAM]
    ) -> None:
        self._graph = context.graph
        self._statistics = context.statistics.accounts
        self.beside: dict[str, BesideRelation] = {}
        self.selects: list[Selection] = []
        for number, predicate in enumerate(context.spec.residuals):
            if isinstance(predicate, Call):
                self.selects.append(UdfSelection(number, predicate, context, callers(number, predicate)))
            elif any(exists_in(predicate)):
                exists = ExistsSelection(number, predicate, context)
                self.beside |= exists.relations
                self.selects.append(exists)
            else:
                self.selects.append(CompiledSelection(number, predicate, context))
        self.profile = PredicateProfile(self.selects, self._statistics, self._graph)
        self.settlement = PredicateSettle(self.selects)
        self.outer = dict(_outer_probes(context, indexes))
        self.asking = [probe for probe in self.outer.values() if isinstance(probe, AskingProbe)]
        self.beside |= {each.label: each.beside for each in self.outer.values()}

    def fill(self, spec: JoinSpec, sources: Mapping[str, Source], clock: Clock) -> None:
        """Read the relations beside the join that have to be complete before the first tuple comes."""
        asked = {join.relation for join in spec.outer if join.bind}
        for number, relation in enumerate(spec.beside, self._graph.relations):
            for batch in () if relation.alias in asked else sources[relation.alias]:
                if batch is None:
                    clock.wait(POLLED)
                    continue
                began = work_time(clock)
                self.beside[relation.alias].take(batch)
                seconds = work_time(clock) - began
                self._statistics.update(("scan", number), batch.num_rows, batch.num_rows, seconds)

    def share(self, read: Mapping[str, BesideRelation]) -> None:
        """Look into relations that have been read for all runs of the block; their figures are told once."""
        for select in self.selects:
            if isinstance(select, ExistsSelection):
                select.relations |= {a: read[a] for a in select.relations if a in read}  # type: ignore[misc]
        for probe in self.outer.values():
            probe.beside = read.get(probe.label, probe.beside)
        self.beside = {alias: each for alias, each in self.beside.items() if alias not in read}

    def figures(self) -> tuple[StateFigures, ...]:
        return tuple(each.figures() for each in self.beside.values())

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


def _outer_probes(context: RunContext, indexes: Mapping[str, IndexAM]) -> Iterator[tuple[int, OuterProbe]]:
    """Yield the operator of each left join with its number behind the residual predicates."""
    spec = context.spec
    read: dict[str, set[str]] = {join.relation: set() for join in spec.outer}
    refs = [o.source for o in spec.output]
    refs += [ref for node in (*spec.residuals, *spec.outer) for ref in columns_of(node)]
    for ref in refs:
        if ref.relation in read:
            read[ref.relation].add(ref.column)
    for number, join in enumerate(spec.outer, len(spec.residuals)):
        alias, name = join.relation, f"LeftJoin({join.relation})"
        given = join, spec.relation(alias).schema, spec.visible, name, read[alias]
        place = number, spec.visible.index(alias), alias
        if join.bind:
            asked = AskedRelation(*given, indexes[alias], context.clock, context.methods.woken)
            yield number, AskingProbe(*place, asked, context.most_waiting)
        else:
            yield number, OuterProbe(*place, BesideRelation(*given))


class PredicateProfile(Operator):
    """Lets every predicate that is ready decide about every tuple, and keeps the joint outcomes."""

    kind = Kind.PROFILE
    guess = GUESS

    def __init__(self, selects: Sequence[Selection], statistics: Statistics, graph: QueryGraph) -> None:
        super().__init__(0, "Profile", "profile")
        self._selects = selects
        self._statistics = statistics
        self._graph = graph

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
