"""What the operations on join state cost on the virtual clock, the same for every architecture.

Deshpande & Hellerstein 2004 measure seconds in PostgreSQL, where joins and STAIRs alike are hash tables in
memory (section 4). What differs between architectures is how often each operation is done, so here the
operations that the engine's own books count are given a price each:

* ``read``: fetch a base tuple, unpack it and evaluate the predicates of its scan, whether it passes or not.
* ``insert``: hash a key and link a pointer in. A SteM has an index for each attribute that it is joined on,
  "and as such, the overheads of the two architectures are identical" (section 4).
* ``probe``: hash a key and look at the head of a chain: as much as to insert it.
* ``match``: follow a chain, compare, and make a concatenated tuple; no hashing, but an allocation and the
  pointers of all components. As much again. Results cost this too, and nothing more: what becomes of them is
  the same for everybody.
* ``demote``, ``promote``: to take a whole section out of a STAIR is a sweep and costs next to nothing. A
  promoted tuple then probes the STAIR's dual; a demoted one is compared with its neighbours (appendix A.1
  sorts), another probe. Insertions and matches that either causes are booked as such and paid besides
  (section 3.1.1, the operation's steps). ``millrace bench state --cases migrate`` bears this out: settling a
  million tuples, a demotion and a promotion each, takes 0.8 of the time of routing them.
* ``evict``: take out a tuple whose window has passed: half a probe, for nothing is looked up.

Adaptivity has a price of its own:

* ``route``: to look up or make a decision for a batch and send it to a module: ten operations on a tuple.
* ``sample``: to offer a base tuple's keys to the samples by which eddies estimate: a tenth of one.
* ``appraise``: STAIRs alone, for each batch read: to weigh what moving state would cost and spare, ten more.

A microsecond each makes the time scale that of a 2 GHz Pentium IV, and all ratios are those of counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millrace.figures import CellFigures
from millrace.graph import QueryGraph
from millrace.spec import JoinSpec


@dataclass(frozen=True)
class Costs:
    """Seconds of each operation on one tuple."""

    read: float = 1e-6
    insert: float = 1e-6
    probe: float = 1e-6
    match: float = 1e-6
    demote: float = 1e-6
    promote: float = 1e-6
    evict: float = 0.5e-6
    route: float = 10e-6
    sample: float = 0.1e-6
    appraise: float = 10e-6

    def adapting(self, figures: CellFigures, read: int, *, stairs: bool) -> float:
        """Return what an eddy has spent so far on deciding, and not on tuples.

        Args:
            figures: Of the run.
            read: Base tuples read.
            stairs: Whether moves of state are weighed.
        """
        routed = sum(m.calls for m in figures.modules if m.action in ("join", "probe"))
        batches = sum(m.calls for m in figures.modules if m.action == "scan")
        return self.route * routed + self.sample * read + self.appraise * batches * stairs

    def seconds(self, figures: CellFigures, read: int, indexes: Mapping[str, int] | None = None) -> float:
        """Return what a run has worked so far.

        Args:
            figures: Of the run.
            read: Base tuples read.
            indexes: Of the SteMs architecture: by module name, how many indexes a SteM has. None where
                base tuples are only kept, and STAIRs point to them.
        """
        total = self.read * read + self.match * figures.recomputed_tuples
        for module in figures.modules:
            if module.action in ("join", "probe"):
                total += self.probe * module.tuples_in + self.match * module.tuples_out
        for state in figures.state:
            if indexes is not None:
                total += self.insert * indexes[state.name] * state.inserted
            elif state.name.startswith("STAIR("):
                total += self.insert * state.inserted + self.evict * state.evicted
                total += self.demote * state.demoted + self.promote * state.promoted
        return total


def indexes_of(spec: JoinSpec) -> dict[str, int]:
    """Return how many attributes each SteM is joined on, by its name in figures."""
    classes = QueryGraph.of(spec).classes
    return {
        f"SteM({alias})": sum(1 for each in classes if each.span >> number & 1)
        for number, alias in enumerate(spec.aliases)
    }
