"""What work costs on the virtual clock, on the one processor that all modules share.

Of modules on which the order of events depends, each visit takes the time declared for its place, when it
happens (:class:`Costs`). Work on join state is added up from the counts in the engine's own books
(:class:`Prices`): there arrivals have an order of their own, and what is compared is what was worked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from millrace.engine.figures import CellFigures, StateFigures
from millrace.engine.graph import QueryGraph
from millrace.engine.spec import JoinSpec
from millrace.engine.trees import edges_of

MICRO = 1e-6

Place = tuple[str, int]
"""What an operator does, and its target (:attr:`millrace.engine.operator.Operator.place`)."""

Cost = float | Callable[[], float]
"""Seconds per tuple, the same all the time or asked for whenever there is work."""


class Costs:
    """Costs by place; work without a declared cost takes no time. To be given to a virtual clock.

    Avnur & Hellerstein 2000, section 3.3, give them in *delay units*, as spin loops; here one unit is one
    second of the virtual clock, or whatever the experiment says.

    Args:
        tuples: What a module takes for each tuple in,
        matches: and besides for each match that it returns.
    """

    def __init__(self, tuples: Mapping[Place, Cost], matches: Mapping[Place, float] | None = None) -> None:
        self._tuples, self._matches = tuples, matches or {}

    def __call__(self, work: Any, tuples_in: int, tuples_out: int) -> float:
        """Return the seconds that the work takes."""
        cost = self._tuples.get(work, 0.0)
        return tuples_in * (cost() if callable(cost) else cost) + tuples_out * self._matches.get(work, 0.0)


def join_of(spec: JoinSpec, one: str, other: str) -> Place:
    """Return the place of the binary join of two relations, by their aliases."""
    ends = {spec.aliases.index(one), spec.aliases.index(other)}
    (number,) = (edge.number for edge in edges_of(QueryGraph.of(spec)) if set(edge.ends) == ends)
    return "join", number


@dataclass(frozen=True)
class Prices:
    """Seconds of each operation on one tuple in join state, the same for every architecture.

    Deshpande & Hellerstein 2004 measure seconds in PostgreSQL, where joins and STAIRs alike are hash tables
    in memory (section 4). What differs between architectures is how often each operation is done. A
    microsecond each makes the time scale that of a 2 GHz Pentium IV, and all ratios are those of counts.

    Attributes:
        read: Fetch a base tuple, unpack it and evaluate the predicates of its scan, passed or not.
        insert: Hash a key and link a pointer in. A SteM has an index for each attribute that it is joined on,
            "and as such, the overheads of the two architectures are identical" (section 4).
        probe: Hash a key and look at the head of a chain: as much as to insert it.
        match: Follow a chain, compare, and make a concatenated tuple; no hashing, but an allocation and the
            pointers of all components: as much again. Results cost this too, and nothing more: what becomes
            of them is the same for everybody.
        promote: To take a whole section out of a STAIR is a sweep and costs next to nothing; a promoted tuple
            then probes the STAIR's dual. What it is inserted for and finds is booked as such and paid besides
            (section 3.1.1). ``millrace bench state --cases migrate`` bears this out: settling a million
            tuples, a demotion and a promotion each, takes 0.8 of the time of routing them.
        demote: A demoted tuple is compared with its neighbours (appendix A.1 sorts): another probe.
        evict: Take out a tuple whose window has passed: half a probe, for nothing is looked up.
        route: What adaptivity costs: to look up or make a decision for a batch and send it to a module, ten
            operations on a tuple;
        sample: to offer a base tuple's keys to the samples by which eddies estimate, a tenth of one;
        appraise: STAIRs alone, for each batch read, to weigh what moving state would cost and spare, ten.
    """

    read: float = MICRO
    insert: float = MICRO
    probe: float = MICRO
    match: float = MICRO
    promote: float = MICRO
    demote: float = MICRO
    evict: float = 0.5e-6
    route: float = 10e-6
    sample: float = 0.1e-6
    appraise: float = 10e-6

    def seconds(self, figures: CellFigures, read: int, architecture: str, spec: JoinSpec) -> float:
        """Return what a run of a block has worked so far, of which ``read`` base tuples have come."""
        total = self.read * read + self.match * figures.recomputed_tuples
        joins = [module for module in figures.modules if module.action in ("join", "probe")]
        for module in joins:
            total += self.probe * module.tuples_in + self.match * module.tuples_out
        if architecture == "stems":
            classes = QueryGraph.of(spec).classes
            for number, alias in enumerate(spec.aliases):
                indexes = sum(each.span >> number & 1 for each in classes)
                built = (state.inserted for state in figures.state if state.name == f"SteM({alias})")
                total += self.insert * indexes * sum(built)
        else:  # base tuples are only kept, and STAIRs point to them
            for state in stairs_of(figures):
                total += self.insert * state.inserted + self.evict * state.evicted
                total += self.demote * state.demoted + self.promote * state.promoted
        if architecture == "static":
            return total
        batches = sum(m.calls for m in figures.modules if m.action == "scan") * (architecture == "stairs")
        routed = sum(m.calls for m in joins)
        return total + (self.route * routed + self.sample * read + self.appraise * batches)

    def moving(self, figures: CellFigures) -> float:
        """Return what a run has spent so far on moving state."""
        stairs = stairs_of(figures)
        promoted, demoted = sum(one.promoted for one in stairs), sum(one.demoted for one in stairs)
        # A promoted tuple probes, and is inserted where it goes; each match is made and inserted.
        total = (self.promote + self.insert) * promoted + self.demote * demoted
        return total + (self.match + self.insert) * figures.recomputed_tuples


def stairs_of(figures: CellFigures) -> list[StateFigures]:
    """Return the books of STAIRs."""
    return [state for state in figures.state if state.name.startswith("STAIR(")]
