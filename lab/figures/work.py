"""Joins compared by what they work: tuples in one order for every side, each operation at a price.

When a tuple arrives does not depend on how fast anybody works, as in Deshpande & Hellerstein 2004, section
5.1, where a module in front of the eddy controls rates and delays. Seconds are added up from what the
engine counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from lab.figures.engine import MICRO, Array
from lab.figures.figure import Panel
from millrace.engine.access.schedule import Schedule, Source
from millrace.engine.eddy.run import Run
from millrace.engine.figures import CellFigures, StateFigures
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.plan.trees import JoinTree, spanning_tree
from millrace.engine.policies import Candidate, Decision, Policy, policy_from
from millrace.engine.stairs.choice import policy_of
from millrace.engine.tuples.batch import Signature
from millrace.errors import ExecutionError
from millrace.limits.clock import VirtualClock
from millrace.options import Options, Order


@dataclass(frozen=True)
class Stream:
    """A relation on its way: its tuples in the order of arrival, so many a second after a delay.

    ``passing`` says which of them pass the scan's predicates, ``bool``; only these reach whoever joins them.
    """

    table: pa.Table
    rate: float = 1.0
    delay: float = 0.0
    passing: Array | None = None

    def batches(self, size: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield for each batch the tuples read, and those that pass."""
        for low in range(0, self.table.num_rows, size):
            (rows,) = self.table.slice(low, size).combine_chunks().to_batches()
            passed = rows if self.passing is None else rows.filter(pa.array(self.passing[low : low + size]))
            yield rows.num_rows, passed


class Arriving:
    """Streams that are read side by side.

    Args:
        streams: By alias, in the order of the block's relations.
        batch: Tuples that are read together; the last ones of a stream are fewer.

    Attributes:
        order: The alias of each batch, by the time when its last tuple has come.
        schedule: For a run that reads them so.
        read: Tuples read so far by alias, those among them that do not pass.
    """

    def __init__(self, streams: Mapping[str, Stream], batch: int) -> None:
        self._batches = {alias: list(stream.batches(batch)) for alias, stream in streams.items()}
        times = [
            (stream.delay + min(stream.table.num_rows, (number + 1) * batch) / stream.rate, place, alias)
            for place, (alias, stream) in enumerate(streams.items())
            for number in range(len(self._batches[alias]))
        ]
        self.order = [alias for _, _, alias in sorted(times)]
        # With weights, batches of which nothing has passed arrive too; the sources know whose turn it is.
        places = tuple(range(len(streams)))
        self.schedule = Schedule(None, interleaved=True, order=places, weights=(1.0,) * len(places))

    def sources(self, look: Callable[[], None], every: int) -> dict[str, Source]:
        """Return the streams from the beginning, for one run, with a look before every so many batches."""
        self.read, self._next = dict.fromkeys(self._batches, 0), 0

        def source(alias: str) -> Iterator[pa.RecordBatch | None]:
            for rows, batch in self._batches[alias]:
                while self.order[self._next] != alias:  # another one is next of all
                    yield None
                if self._next % every == 0:
                    look()
                self._next += 1
                self.read[alias] += rows
                yield batch

        return {alias: source(alias) for alias in self._batches}


@dataclass(frozen=True)
class Prices:
    """Seconds of each operation on one tuple in join state, the same for every architecture.

    Deshpande & Hellerstein 2004 measure seconds in PostgreSQL, where joins and STAIRs alike are hash tables
    in memory (section 4). Architectures differ in how often each operation is done; with a microsecond for
    each, all ratios are those of counts.
    """

    read: float = MICRO
    """Fetch a base tuple, unpack it and evaluate the predicates of its scan, passed or not."""
    insert: float = MICRO
    """Hash a key and link a pointer in. A SteM has an index for each attribute that it is joined on, "and as
    such, the overheads of the two architectures are identical" (section 4)."""
    probe: float = MICRO
    """Hash a key and look at the head of a chain: as much as to insert it."""
    match: float = MICRO
    """Follow a chain, compare, and make a concatenated tuple, a result or not."""
    promote: float = MICRO
    """Take a tuple out of a STAIR. What it then probes, matches and is inserted for is paid besides."""
    demote: float = MICRO
    """Compare a tuple with its neighbours (appendix A.1 sorts): another probe."""
    route: float = 10e-6
    """Make a decision for a batch and send it to a module: ten operations on a tuple."""
    sample: float = 0.1e-6
    """Offer a base tuple's keys to the samples by which eddies estimate, a tenth of one."""
    appraise: float = 10e-6
    """Weigh, for each batch read, what moving state would cost and spare; STAIRs alone."""

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
                total += self.insert * state.inserted
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


@dataclass(frozen=True)
class Plan:
    """A tree of binary joins, maybe bushy: its order as ``Options.order`` takes it.

    By span of an input, ``edges`` has the number of the edge that it is joined along, and ``relations`` the
    relation at the edge's other end.
    """

    order: Order
    edges: Mapping[int, int]
    relations: Mapping[int, int]


def drawn(tree: JoinTree, aliases: Sequence[str], draw: np.random.Generator) -> Plan:
    """Return a random plan without cross products: the last join is drawn first, then those of its inputs."""
    return next(plans_of(tree, aliases, lambda edges: [edges[draw.integers(len(edges))]]))


def plans_of(
    tree: JoinTree, aliases: Sequence[str], last: Callable[[list[int]], list[int]] = list
) -> Iterator[Plan]:
    """Yield the plans without cross products whose last joins ``last`` chooses from those inside a span."""

    def below(span: int) -> Iterator[Plan]:
        if span & (span - 1) == 0:
            yield Plan((aliases[span.bit_length() - 1],), {}, {})
            return
        inside = [e.number for e in tree.edges if all(span >> end & 1 for end in e.ends)]
        for edge in last(inside):
            a, b = tree.by_number[edge].ends
            sides = [span & tree.beyond(edge, 1 << end) for end in (b, a)]
            for left in below(sides[0]):
                for right in below(sides[1]):
                    edges = {**left.edges, **right.edges, sides[0]: edge, sides[1]: edge}
                    far = {**left.relations, **right.relations, sides[0]: b, sides[1]: a}
                    parts = (p.order[0] if len(p.order) == 1 else p.order for p in (left, right))
                    yield Plan(tuple(parts), edges, far)

    yield from below((1 << tree.relations) - 1)


@dataclass(eq=False)
class Opening(Policy):
    """Routes by a plan while an eddy is held to it; else, or where it says nothing, by another policy."""

    plan: Plan
    policy: Policy
    held: Callable[[], bool]

    def choose(self, signature: Signature, candidates: Sequence[Candidate]) -> Decision:
        """Return the plan's next join while it is held: an edge for binary joins, a relation for SteMs."""
        span = signature.span
        if span in self.plan.edges and self.held():
            planned = (("join", self.plan.edges[span]), ("probe", self.plan.relations[span]))
            # The policy is asked all the same: it may want to stay where it has been.
            candidates = [c for c in candidates if c.operator.place in planned] or candidates
        return self.policy.choose(signature, candidates)


COST = "work, seconds of the virtual clock"


@dataclass(frozen=True)
class Work:
    """What a run took: seconds of work, what was counted, and seconds and results from time to time."""

    seconds: float
    figures: CellFigures
    curve: list[tuple[float, int]]


@dataclass(frozen=True)
class Query:
    """A join with its data: ``batch`` tuples come at a time, for which a decision holds.

    ``rows`` of the result may be known; ``name`` begins what is said of errors.
    """

    spec: JoinSpec
    streams: Mapping[str, Stream]
    batch: int
    rows: int | None = None
    name: str = ""

    @cached_property
    def tree(self) -> JoinTree:
        return spanning_tree(QueryGraph.of(self.spec), [0] * len(self.spec.relations))

    @cached_property
    def plans(self) -> dict[Order, Plan]:
        return {plan.order: plan for plan in plans_of(self.tree, self.spec.aliases)}

    @cached_property
    def arriving(self) -> Arriving:
        """The streams side by side, for one run after the other."""
        return Arriving(self.streams, self.batch)

    def work(
        self,
        architecture: str,
        migration: str | None = None,
        *,
        order: Order | Plan,
        held: bool | Callable[[Arriving], bool] = False,
        prices: Prices = Prices(),
        looks: int = 32,
        policy: Policy | None = None,
    ) -> Work:
        """Run one side.

        Args:
            architecture: As in ``Options``, like ``migration``.
            migration: None for the default policy.
            order: Of a static plan; what an eddy has to keep to while it is held.
            held: Whether an eddy is held to the plan, maybe by what has arrived.
            prices: Of the operations.
            looks: How often to look at the time, about.
            policy: What an eddy routes by once it is not held; by default the engine's.

        Raises:
            ExecutionError: The result is wrong.
        """
        plan = order if isinstance(order, Plan) else self.plans[order]
        options = Options(
            architecture=architecture, migration=migration, batch_size=16_384, reoptimize_every=self.batch
        )
        arriving, curve = self.arriving, list[tuple[float, int]]()

        def look() -> None:
            figures = run.figures()
            seconds = prices.seconds(figures, sum(arriving.read.values()), architecture, self.spec)
            curve.append((seconds, sum(m.tuples_in for m in figures.modules if m.action == "output")))

        sources = arriving.sources(look, max(1, len(arriving.order) // looks))
        given: dict[str, Any] = {"schedule": arriving.schedule, "clock": VirtualClock()}
        if architecture == "static":
            options = replace(options, order=plan.order)
        else:
            policy = policy or policy_from(policy_of(self.spec, options), options)
            given["policy"] = Opening(plan, policy, lambda: held(arriving) if callable(held) else held)
        run = Run(self.spec, sources, options, **given)
        rows = sum(batch.column(0)[0].as_py() for batch in run.run())
        look()
        if self.rows not in (None, rows):
            raise ExecutionError(f"{self.name}{architecture} found {rows} rows of {self.rows}")
        return Work(curve[-1][0], run.figures(), curve)


def panels(works: Mapping[str, Work], static: Sequence[str] = ()) -> list[Panel]:
    """Return what each side worked, and the tuples that it made on the way; static plans are named."""
    made = {name: work.figures.intermediate_tuples for name, work in works.items()}
    seconds = {name: work.seconds for name, work in works.items()}
    return [
        Panel.bars("Execution cost", COST, seconds, static=static),
        Panel.bars("Intermediate tuples", "tuples", made, static=static),
    ]
