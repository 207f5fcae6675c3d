"""Every rule that keeps answers correct is needed: the law of ``test_answers.py`` notices when one is gone.

Each test takes one rule away and runs a bounded number of the law's examples. They must find what the rule is
for, and the examples that find it must be right with the rule in place.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st

import millrace.engine.access.arrivals as access
from lab.access import PacedScan
from lab.queues import QueuedBuffer
from millrace.engine.access.hybrid import IndexOrScan
from millrace.engine.access.paths import Paths
from millrace.engine.eddy import decisions as routing
from millrace.engine.eddy.constraints import Legality
from millrace.engine.eddy.dataflow import EddyDataflow
from millrace.engine.eddy.ingest import Transfer
from millrace.engine.eddy.operator import Step
from millrace.engine.eddy.preference import PreferringDataflow
from millrace.engine.operators import beside
from millrace.engine.operators.beside import AskedRelation
from millrace.engine.operators.outer import OuterProbe
from millrace.engine.operators.udf_selection import UdfSelection
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.spill import guard, partitions
from millrace.engine.spill.beside import BesideSource, Passes
from millrace.engine.spill.spilling import SpillingEddy
from millrace.engine.stairs.index_join import IndexJoin
from millrace.engine.stairs.invariants import Stairs
from millrace.engine.stairs.stair import STAIR, BinaryJoin, Segment, StairProbe
from millrace.engine.stems import state as stems_state, stem as admission
from millrace.engine.stems.bindings import bound
from millrace.engine.stems.conditions import Matching, Windows
from millrace.engine.stems.index import OrderedIndex
from millrace.engine.stems.state import SteMs
from millrace.engine.stems.stem import SteM
from millrace.engine.stems.waiting import PriorProbers
from millrace.engine.tuples import RelationStore, codes
from millrace.engine.tuples.batch import TupleBatch
from millrace.errors import ExecutionError, MillraceError
from millrace.options import ARCHITECTURES
from millrace.parquet import reading
from millrace.predicates import KEPT
from tests.engine.eddy.access_cases import IndexPlan, Plan, ScanPlan, asked
from tests.engine.eddy.answers import ASKED, RAISED, WRONG, Example, answers, faults_of
from tests.engine.eddy.blocks import JOINED, chain, stream
from tests.engine.eddy.unrest import Unrest

Patch = pytest.MonkeyPatch
FAILED = "no answer at all"
ANYTHING = "any of these"
A, B, BEYOND = "invariant A", "invariant B", "invariant B+"
EXAMPLES = 400
"""In so many examples at most a broken rule has to be noticed."""


Broken = Callable[[Patch], object]
"""Takes a rule away."""


def swap(where: Any, name: str, careless: Any) -> Broken:
    """Return what puts a function in the place of another."""
    return lambda patch: patch.setattr(where, name, careless)


def wrap(where: Any, name: str, careless: Callable[[Any], Any]) -> Broken:
    """Return what puts a function around another."""
    return lambda patch: patch.setattr(where, name, careless(getattr(where, name)))


def without(where: Any, name: str, **changes: Any) -> Broken:
    """Return what changes the argument of a method."""
    return wrap(where, name, lambda right: lambda self, given: right(self, replace(given, **changes)))


def within(move: str, where: type, name: str, careless: Callable[..., Any]) -> Broken:
    """Return what puts a function in the place of another while a method of ``Stairs`` runs."""

    def moving(right: Callable[..., None]) -> Callable[..., None]:
        def moved(self: Stairs, *given: Any) -> None:
            with mock.patch.object(where, name, careless):
                right(self, *given)

        return moved

    return wrap(Stairs, move, moving)


def unkept(route: Callable[..., Any]) -> Callable[..., Any]:
    """Return routing that inserts nothing."""
    return lambda join, batch, **how: route(join, batch, **{**how, "kept": False})


def no_matches(*probed: Any, matches: Callable[..., Any] = BinaryJoin.matches) -> Any:
    return matches(*probed).take(np.empty(0, np.int64))


def first_matches(join: BinaryJoin, probe: Any, _: int, *, matches: Any = BinaryJoin.matches) -> Any:
    found = matches(join, probe, 1)
    probe.open.clear()
    return found


def extended(widen: Callable[..., Any]) -> Callable[..., Any]:
    """Return a left join that gives nulls to what has no match among those found so far."""

    def step(self: OuterProbe, work: Any, limit: int) -> Step:
        if not work.walk.is_done and work.walk.is_new:
            alone = np.arange(work.batch.size)
            first = self._widened(work.batch, alone, np.zeros(len(alone), np.int32), 0)
            found = widen(self, work, limit)
            return replace(found, batches=(first, *found.batches))
        return widen(self, work, limit)

    return step


def unextended(widened: Callable[..., TupleBatch]) -> Callable[..., TupleBatch]:
    """Return a left join that drops what has no match."""
    return lambda self, batch, left, right, of: widened(self, batch, left[right > 0], right[right > 0], of)


def unordered(of: Callable[[JoinSpec], QueryGraph]) -> Callable[[JoinSpec], QueryGraph]:
    """Return a query graph in which predicates do not wait for left joins."""

    def careless(spec: JoinSpec) -> QueryGraph:
        graph = of(spec)
        return replace(graph, residuals_before=tuple(b & ~graph.outer for b in graph.residuals_before))

    return careless


AWAY: dict[str, Broken] = {
    # Left joins: nulls stand for a match only where there is none, and what reads them waits for them.
    "extend_early": wrap(OuterProbe, "step", extended),
    "never_extend": wrap(OuterProbe, "_widened", unextended),
    "read_unjoined": wrap(QueryGraph, "of", unordered),
    # Those that ask an index know of no match only once it has answered, with what it was asked for.
    "extend_unanswered": swap(AskedRelation, "wait", lambda *_: None),
    "extend_by_all": swap(beside, "keep_asked", lambda rows, *_: rows),
    # Base tuples: Raman, Deshpande & Hellerstein 2003, Table 2, and what it takes for granted.
    # TimeStamp: a match goes to both of its components, not only to the later one.
    "forget_stamps": without(SteM, "start", stamps=None),
    # LastMatchTimeStamp: a tuple that probes again meets the rows it has met already.
    "forget_last_match": without(SteM, "start", seen=0),
    # ProbeCompletion: a bounced tuple may go to another SteM.
    "forget_prior": without(Legality, "of", prior=None),
    # ProbeCompletion, with access modules: a tuple that a SteM bounced may go to other SteMs too.
    "complete_anywhere": wrap(
        SteMs,
        "_completions",
        lambda right: (
            lambda self, signature, prior: (
                *right(self, signature, prior),
                *self.joins(replace(signature, prior=None)),
            )
        ),
    ),
    # ProbeCompletion, second half: a prior prober may leave before it was sent to an AM.
    "leave_early": swap(SteMs, "_completions", lambda *_: ()),
    # SteM BounceBack: a tuple leaves although matches may still come.
    "never_hold": swap(PriorProbers, "hold", lambda *_: None),
    # A prior prober that is not in SteMs never probes again.
    "never_release": swap(PriorProbers, "release", lambda *_: []),
    # SteM BounceBack: a SteM claims to have all matches although no EOT says so.
    "never_bounce": swap(SteM, "missing", lambda *_: np.empty(0, np.int64)),
    # SteM BounceBack: a tuple that is here already is built, and bounced, again.
    "bounce_duplicates": swap(SteM, "_fresh", lambda _, chunk, *__: np.arange(chunk.num_rows)),
    # Verification: equal hashes are taken for equal keys.
    "trust_hashes": swap(Matching, "verified", lambda *given: np.ones(len(given[-2]), np.bool_)),
    # Set semantics: a duplicate is built like any other tuple.
    "keep_duplicates": swap(SteM, "_fresh", lambda _, chunk, *__: np.arange(chunk.num_rows)),
    # Set semantics, half of it: only duplicates within one batch are found.
    "forget_built": swap(admission, "find_matches", lambda *_: (np.empty(0, np.int32),) * 2),
    # Null keys never match: without it, they have some code like all others.
    "admit_nulls": swap(
        admission,
        "keyed",
        lambda batch, columns, _: (batch, [codes(batch.column(k.name), k.type)[0] for k in columns]),
    ),
    # Two columns of one relation in one attribute class must be equal in its every row.
    "admit_unequal": wrap(admission, "keyed", lambda keyed: lambda batch, columns, *_: keyed(batch, columns)),
    # A split gives all tuples away: what rounding leaves over goes to the last operator.
    "round_shares_down": swap(
        routing,
        "_bounds",
        lambda entry, size: np.cumsum([int(s * size) for _, s in entry.decision.shares]).tolist(),
    ),
    # A SteM without a scan may be probed by tuples that bind none of its indexes.
    "probe_unbound": swap(Paths, "is_open", lambda *_: True),
    # An index that returns more than it was asked for is believed.
    "trust_answers": swap(access, "keep_asked", lambda rows, *_: rows),
    # A run ends only when every binding that was asked for has its EOT.
    "forget_answers": swap(IndexOrScan, "missing", lambda *_: False),
    # A relation is covered by another one's bindings although that one is still arriving.
    "cover_early": swap(IndexOrScan, "_driver", lambda self, _: 0 if self._stems[0].rows else None),
    # A shared tuple whose key is null in one role takes part in the others only.
    "match_nulls_of_roles": swap(SteM, "_fits", lambda *_: None),
    # Row numbers are carried for as long as something will read them.
    "let_go_early": wrap(
        stems_state, "find_live_rows", lambda find: lambda run: find(run) and (lambda *_: frozenset())
    ),
    # TimeStamp holds for a search by an inequality too.
    "order_forgets_stamps": wrap(
        OrderedIndex, "probe", lambda probe: lambda self, *given: probe(self, *given[:-1], None)
    ),
    # A null compares with nothing.
    "order_keeps_nulls": wrap(
        OrderedIndex, "_places", lambda places: lambda self, column: (places(self, column)[0], None)
    ),
    # A relation filters others although it is not complete.
    "filter_early": swap(Transfer, "pays", lambda *_: True),
    # What is not read of a file has no key within the range of what was read.
    "narrow_ranges": wrap(
        RelationStore, "ends", lambda ends: lambda *which: (found := ends(*which)) and (found[0], found[0])
    ),
    # Predicates, queues, windows and memory budgets.
    # What a predicate raised surfaces if nothing else rejects the tuple.
    "swallow": swap(UdfSelection, "settle", lambda self, batch: (np.full(batch.size, KEPT), None)),
    # A relation has ended for joins when its last tuple has left the queues.
    "end_before_queues": swap(QueuedBuffer, "draining", property(lambda _: False, lambda *_: None)),
    # Eviction alone does not make the answer right: what is evicted when depends on arrival.
    "forget_distance": swap(Windows, "decide", lambda *_: False),
    # A tuple whose window ends exactly at the watermark may still meet what comes at that time.
    "evict_early": wrap(
        Windows, "expired", lambda expired: lambda self, r, store, mark: expired(self, r, store, mark + 1)
    ),
    # Intermediate tuples point to base tuples, so they go before these do.
    "keep_dangling": swap(Stairs, "expire", lambda *_: None),
    # Prior probers go before their components are evicted.
    "keep_waiting": swap(PriorProbers, "expire", lambda *_: None),
    # Under a budget sources are read one batch at a time, for a join may stop after any.
    "follow_the_last_batch": wrap(
        SpillingEddy, "_scheduled", lambda true: lambda *a, **k: replace(true(*a, **k), weights=None)
    ),
    # NOT IN has to know of nulls in other partitions, and whether there is a row in any.
    "forget_the_whole": swap(BesideSource, "tell", lambda _, part, marks=None: setattr(part, "marks", marks)),
    # A predicate over several relations is judged by what earlier passes have marked the tuples with.
    "mark_all": wrap(Passes, "mark", lambda mark: lambda *of: mark(*of[:-1], of[-1] | True)),
    # A tuple that came before the join stopped goes to files once.
    "spill_twice": wrap(
        guard.Remainder, "built", lambda built: lambda *of: (b for one in built(*of) for b in (one, one))
    ),
    # Join state: Deshpande & Hellerstein 2004.
    # Dual Routing: a tuple probes without being inserted on its own side.
    "probe_only": swap(BinaryJoin, "route", unkept(BinaryJoin.route)),
    # Dual Routing: a tuple is inserted without probing the dual STAIR.
    "insert_only": swap(STAIR, "start", lambda self, batch, *_: StairProbe(batch, [])),
    # Invariant B is not asked for after state was moved: what agrees stays side by side.
    "skip_merge": swap(STAIR, "merge", lambda self, batch, *_: self.insert(batch)),
    # Demotion keeps the STAIR's relation: without it there is nothing to index the rest by.
    "demote_owner": wrap(
        STAIR,
        "part",
        lambda part: (
            lambda self, batch, span: part(self, batch, batch.signature.span & ~(1 << self.owner) or span)
        ),
    ),
    # Demotion puts the part in the tuple's place; here it is only taken out.
    "demote_away": within("demote", STAIR, "merge", lambda *_: None),
    # Promotion, step 2: the tuple is not inserted at the join that promotes it.
    "promote_unseen": within("promote", BinaryJoin, "route", unkept(BinaryJoin.route)),
    # Promotion, step 4: the matches are not put back in the tuple's place.
    "promote_away": within("promote", BinaryJoin, "matches", no_matches),
    # Promotion, step 4, half of it: only the first piece of the matches is put back.
    "promote_first": within("promote", BinaryJoin, "matches", first_matches),
    # What has been taken out of a segment is not found there any more.
    "revive": swap(Segment, "present", lambda *_: None),
    # Another spanning tree: base tuples go to their joins, but what they make there goes nowhere.
    "replant_bare": within("rebuild", BinaryJoin, "matches", no_matches),
    # After a change of the spanning tree, the routing table still names joins of the old one.
    "keep_table": wrap(Unrest, "at_stasis", lambda rest: lambda self: rest(self) and False),
}


def instead(where: Any, *names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add a function to the table under its name; it gets the one in whose place it is called."""

    def added(careless: Callable[..., Any]) -> Callable[..., Any]:
        def around(right: Any) -> Callable[..., Any]:
            return lambda *given, **named: careless(right, *given, **named)

        losses = [wrap(where, name, around) for name in names]
        AWAY[careless.__name__] = lambda patch: [lose(patch) for lose in losses]
        return careless

    return added


def build_last(patch: Patch) -> None:
    """BuildFirst: a tuple probes first and is built only after all that arrived with it has probed."""
    build, admit = SteM.build, EddyDataflow.admit
    late: list[tuple[SteM, TupleBatch, int]] = []

    def bounce(self: SteM, batch: TupleBatch, stamp: int) -> TupleBatch:
        late.append((self, batch, stamp))
        stamps = np.arange(stamp, stamp + batch.size)
        return replace(batch, signature=replace(batch.signature, built=True), stamps=stamps)

    def admit_later(self: EddyDataflow, arrivals: Any) -> None:
        while late:
            module, batch, stamp = late.pop(0)
            build(module, batch, stamp)
        admit(self, arrivals)

    patch.setattr(SteM, "build", bounce)
    patch.setattr(EddyDataflow, "admit", admit_later)


def forget_roles(patch: Patch) -> None:
    """Tie-break: a tuple has one timestamp in all roles, so it never meets itself."""
    stamped, older = SteM._stamped, SteM._older
    patch.setattr(SteM, "_stamped", lambda self, rows: stamped(self, rows) - self._role)
    patch.setattr(SteM, "_older", lambda self, stamps: older(self, stamps + self._role))


def scatter(patch: Patch) -> None:
    """Equal keys go to the same partition."""
    true, calls = partitions.numbered, iter(range(10**9))
    patch.setattr(partitions, "numbered", lambda c, level, n: (true(c, level, n) + next(calls) % n) % n)


AWAY |= {each.__name__: each for each in (build_last, forget_roles, scatter)}


@instead(PacedScan, "poll")
def believe_broken_scans(poll: Any, scan: PacedScan) -> Any:
    """A scan that breaks off counts as the EOT of the relation."""
    batch = poll(scan)
    if scan.state == "broken":
        scan.state = "complete"
    return batch


@instead(UdfSelection, "judge")
def raise_at_once(judge: Any, selection: UdfSelection, batch: TupleBatch) -> Any:
    """What a predicate raises is kept until nothing else rejects the tuple."""
    truth, failures = judge(selection, batch)
    if failures is not None:
        raise ExecutionError("'picky' raised: 1 is one of those")
    return truth, failures


@instead(IndexJoin, "_unknown")
def ask_again(_: Any, join: IndexJoin, batch: TupleBatch) -> pa.RecordBatch:
    """An index join asks for each binding once."""
    _, values = bound(join._inner.matching, batch, join._lookup.classes)
    arrays = [values(k) for k in range(len(join._lookup.keys))]
    return pa.RecordBatch.from_arrays(arrays, names=[k.name for k in join._lookup.keys])


@instead(Stairs, "is_open")
def close_early(_: Any, stairs: Stairs, edge: int, owner: int) -> bool:
    """A STAIR is closed when one relation on the other side has ended, although another one has not."""
    beyond = stairs.tree.beyond(edge, 1 << owner)
    return all(not stem.complete for stem in stairs._stems if beyond >> stem.number & 1)


@instead(STAIR, "merge")
def first_come(_: Any, stair: STAIR, batch: TupleBatch, *__: Any) -> None:
    """Invariant B by dropping whatever agrees with something stored, rather than by demotion."""
    for segment in list(stair.segments.values()):
        batch = batch.take(np.setdiff1d(np.arange(batch.size), segment.agreeing(batch)[0]))
    stair.insert(batch)


@instead(Stairs, "route")
def insert_loosely(route: Any, stairs: Stairs, *given: Any, **named: Any) -> StairProbe:
    """While B+ does not hold, insertions do not ask for B: the flaw of a merely local invariant."""
    with mock.patch.object(stairs, "enforcing", False):
        return route(stairs, *given, **named)


@instead(Stairs, "_route")
def trust_any_place(route: Any, stairs: Stairs, *given: Any, **named: Any) -> StairProbe:
    """Tuples are compared with none, as if all that is stored were where present routing puts it."""
    stairs._places = lambda: frozenset((span, edge) for span in range(32) for edge in range(10))
    return route(stairs, *given, **named)


@instead(Stairs, "demote", "promote")
def forget_loose(move: Any, stairs: Stairs, *given: Any) -> None:
    """State that was moved is taken to be as routing would have left it."""
    move(stairs, *given)
    stairs.enforcing = False


@instead(STAIR, "demoted_to_base")
def demote_twice(_: Any, stair: STAIR, batch: TupleBatch) -> TupleBatch:
    """A part that is stored in place of several tuples is stored once."""
    part = stair.part(batch, 1 << stair.owner)
    stair.insert(part)
    return part.cut(0, 0)


@instead(Stairs, "rebuild")
def forget_base(rebuild: Any, stairs: Stairs, *given: Any) -> None:
    """Another spanning tree: state is made of the base tuples of all relations but one."""
    with mock.patch.object(stairs, "_stems", stairs._stems[1:]):
        rebuild(stairs, *given)


@instead(STAIR, "_kept")
def trust_tree(_: Any, __: STAIR, segment: Segment, ___: Any, left: Any, right: Any) -> Any:
    """Conjuncts that close a cycle are verified on what joins along the tree return."""
    present = segment.present(right)
    return (left, right) if present is None else (left[present], right[present])


@instead(PreferringDataflow, "_take_aside")
def lose_waiting(take: Any, dataflow: PreferringDataflow) -> Any:
    """What waits because others are wanted comes too, also when its wish has changed meanwhile."""
    return [*take(dataflow)][1:]


@instead(PreferringDataflow, "_rounds_of_arrivals")
def end_before_waiting(rounds: Any, dataflow: PreferringDataflow) -> Any:
    """What waits comes before the end of its relation."""
    with mock.patch.object(type(dataflow._aside), "__bool__", return_value=False):
        yield from rounds(dataflow)


@instead(PreferringDataflow, "_go_on")
def forget_waiting(go_on: Any, dataflow: PreferringDataflow) -> Any:
    """Where waiting does not pay, what waits goes on."""
    yield from go_on(dataflow)
    if not dataflow._aside._room:
        list(dataflow._take_aside())


@instead(reading, "_in_order")
def begin_again(in_order: Any, splits: Any, order: Any, grade: Any) -> Any:
    """Where row groups are put in another order, those that have been read are not among them."""
    wanted = order.wanted
    for split in in_order(splits, order, grade):
        yield split
        if order.wanted != wanted:
            yield from in_order(splits, order, grade)
            return


PLAIN = {
    "policy": "random",
    "shape": "dense",
    "source": "batches",
    "piece": None,
    **dict.fromkeys(["asked", "beside", "windowed", "picky", "budget", "preference", "queues"], False),
    **dict.fromkeys(["divides", "sharing", "outer_asks"], False),
}


class Rule:
    """What examples find without a rule, by its name in the table: a wrong answer, if nothing else is said.

    Dimensions of the examples may be fixed, and only some of them run.
    """

    def __init__(self, away: str, *found: str, architecture: str = "stems", **fixed: Any) -> None:
        self.away, self.architecture = away, architecture
        self.found = {*(found or [WRONG])} - {ANYTHING}
        self.only: Callable[[Example], bool] = fixed.pop("only", lambda _: True)
        self.examples: int = fixed.pop("examples", EXAMPLES)
        self.fixed = PLAIN | fixed

    def __str__(self) -> str:
        return f"{self.away}-{self.architecture}"


def stair(away: str, *found: str, **fixed: Any) -> Rule:
    """Return a rule of STAIRs whose state is moved at random."""
    moving = {"moves": True, "often": 0.6, "hope": "", "intermediate": True, "online": True}
    return Rule(away, *found, architecture="stairs", **(moving | fixed))


def asking(away: str, **fixed: Any) -> Rule:
    """Return a rule of access modules, whose loss is found as a wrong answer or as a run that cannot end."""
    return Rule(away, ANYTHING, asked=True, **fixed)


def with_indexes(least: int, *, scanned: bool | None = None) -> Callable[[Example], bool]:
    """Return whether some relation has so many indexes, and scans or sources beside them."""

    def has(example: Example) -> bool:
        return any(
            len(plan.indexes) >= least and scanned in (None, plan.source or bool(plan.scans))
            for plan in example.access.values()
        )

    return has


def with_scans(example: Example) -> bool:
    """Return whether scans compete without an index."""
    return any(plan.source + len(plan.scans) > 1 and not plan.indexes for plan in example.access.values())


CHAINS = st.integers(0, 1000).map(chain)
"""Blocks ``a.k = b.k AND b.j = c.j``."""

TIED = st.integers(0, 1000).map(lambda seed: chain(seed, equalities=(*JOINED, "a.k = b.j")))
"""The same, in which two columns of one relation are in one attribute class."""

STREAMS = st.integers(0, 1000).map(stream)
"""The same over streams with windows."""

STALLED = {
    "a": Plan(source=False, scans=(ScanPlan(every=1.0),)),
    "b": Plan(source=False, indexes=(IndexPlan(("k",), 0.1),), scans=(ScanPlan(0.0, (0, 1000.0)),)),
}
"""While ``a`` is still arriving, ``b`` is asked for, and its scan has stalled."""

BROKEN = {"b": Plan(source=False, scans=(ScanPlan(rows=1), ScanPlan(every=1.0)))}
"""Of two scans one breaks off."""

OUTER = {"beside": True, "only": lambda e: bool(e.case.spec.outer)}
BUILT, STREAMED = {"order": "built", "scheduled": True}, {"order": "streamed", "scheduled": True}
APART = ("demote", "promote")

RULES = [
    Rule("forget_stamps", **BUILT),
    Rule("forget_last_match", **STREAMED),
    Rule("forget_prior", **STREAMED),
    Rule("never_hold", **STREAMED),
    Rule("build_last", **BUILT),
    Rule("trust_hashes", collides=True),
    Rule("trust_hashes", collides=True, shape="skewed"),
    Rule("keep_duplicates", shape="sets"),
    Rule("forget_built", shape="sets"),
    Rule("admit_nulls"),
    Rule("admit_unequal", case=TIED),
    Rule("round_shares_down", **BUILT),
    Rule("round_shares_down", **STREAMED),
    asking("complete_anywhere"),
    asking("leave_early", only=with_indexes(2)),
    asking("leave_early", only=with_indexes(1)),
    asking("never_bounce", only=with_indexes(2)),
    asking("never_bounce", online=False, **STREAMED),
    asking("bounce_duplicates", only=with_indexes(2, scanned=False)),
    asking("bounce_duplicates", only=with_scans),
    asking("bounce_duplicates", only=with_indexes(1, scanned=True)),
    asking("probe_unbound", case=CHAINS, plans={"b": asked("k", "j", delay=1.0)}),
    asking("trust_answers"),
    asking("forget_last_match", online=False, **STREAMED),
    asking("never_release", online=False, **STREAMED),
    asking("believe_broken_scans", case=CHAINS, plans=BROKEN),
    asking("forget_answers"),
    asking("forget_stamps"),
    asking("cover_early", case=CHAINS, plans=STALLED),
    Rule("lose_waiting", preference=True, changes=True, online=False, scheduled=False),
    Rule("end_before_waiting", preference=True, changes=False, online=False, scheduled=False),
    Rule("forget_waiting", preference=True, changes=False, aside=100, online=False, scheduled=False),
    Rule("begin_again", preference=True, changes=True, source="files", online=False, scheduled=False),
    Rule("forget_roles", sharing=True, only=lambda e: len(e.case.spec.relations) == 2),
    Rule("forget_roles", sharing=True, only=lambda e: len(e.case.spec.relations) > 2),
    Rule("forget_stamps", sharing=True, only=lambda e: any(r.same_as for r in e.case.spec.relations)),
    Rule("match_nulls_of_roles", sharing=True),
    Rule("let_go_early", FAILED, online=False),
    Rule("order_forgets_stamps", shape="ordered"),
    Rule("order_keeps_nulls", shape="ordered"),
    Rule("filter_early", online=False, transfer=True, scheduled=False),
    Rule("narrow_ranges", source="files", online=False, scheduled=False),
    Rule("extend_early", **OUTER),
    Rule("never_extend", **OUTER),
    Rule("read_unjoined", FAILED, **OUTER),
    Rule("extend_unanswered", outer_asks=True, **OUTER),
    # It takes an index that returns more than it was asked for, twice, and tuples that meet that: one in 400.
    Rule("extend_by_all", outer_asks=True, examples=6 * EXAMPLES, **OUTER),
    Rule("raise_at_once", RAISED, picky=True),
    Rule("swallow", RAISED, picky=True),
    Rule("end_before_queues", architecture="joins", queues=True, online=True),
    *(Rule("forget_distance", architecture=name, windowed=True) for name in ARCHITECTURES),
    *(Rule("evict_early", architecture=name, windowed=True, scheduled=False) for name in ARCHITECTURES),
    Rule("keep_dangling", ANYTHING, architecture="joins", windowed=True, moves=True, often=0.0),
    Rule("keep_waiting", ANYTHING, case=STREAMS, **STREAMED),
    Rule("ask_again", WRONG, ASKED, architecture="joins", asked=True),
    Rule("follow_the_last_batch", budget=True, architecture="joins", online=True, stops=0.2, algorithm="shj"),
    Rule(
        "follow_the_last_batch", budget=True, architecture="static", online=True, stops=0.2, algorithm="shj"
    ),
    Rule("scatter", budget=True, algorithm="grace"),
    Rule("scatter", budget=True, kept=0.0, beside=True, algorithm="shj", batch=100),
    Rule("forget_the_whole", budget=True, kept=0.0, beside=True),
    Rule("mark_all", budget=True, kept=0.0, beside=True),
    Rule("spill_twice", budget=True, algorithm="shj", online=True),
    Rule("demote_twice", architecture="stairs", intermediate=False, online=True),
    *(stair(name, WRONG, A) for name in ("probe_only", "insert_only", "close_early", "first_come")),
    *(stair(name, WRONG, A) for name in ("demote_away", "promote_unseen", "promote_away", "promote_first")),
    *(stair(name, WRONG, A) for name in ("revive", "forget_base", "replant_bare")),
    stair("skip_merge", WRONG, B),
    stair("insert_loosely", WRONG, B, chosen=APART),
    stair("trust_any_place", WRONG, B, chosen=APART),
    stair("forget_loose", WRONG, B, BEYOND, chosen=APART),
    stair("trust_tree", WRONG),
    stair("trust_hashes", WRONG, collides=True),
    *(stair(name, FAILED) for name in ("demote_owner", "keep_table")),
]


class _Enough(Exception):
    """What a rule is for was found."""


def faults(example: Example) -> set[str]:
    try:
        return faults_of(example, strict=False)
    except (LookupError, MillraceError, ValueError, AssertionError, pa.ArrowException):
        return {FAILED}


def search(lost: Rule) -> tuple[set[str], list[Example]]:
    """Return the faults that a bounded number of examples find, and the examples that find new ones."""
    found: set[str] = set()
    finders: list[Example] = []

    @settings(
        max_examples=lost.examples,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=HealthCheck,
    )
    @given(answers(lost.architecture, fixed=lost.fixed))
    def look(example: Example) -> None:
        if lost.only(example) and not (found and lost.found <= found):
            new = faults(example) - found
            if new:
                finders.append(example)
            found.update(new)
        if found and lost.found <= found:
            raise _Enough

    with suppress(_Enough):
        look()
    return found, finders


@pytest.mark.broken_rule
@pytest.mark.parametrize("lost", RULES, ids=str)
def test_a_broken_rule_is_noticed(lost: Rule, monkeypatch: Patch) -> None:
    """Without the rule what it is for is found; with it, nothing is wrong with the same examples."""
    AWAY[lost.away](monkeypatch)
    found, finders = search(lost)
    assert found and lost.found <= found, f"expected {lost.found}, found {found}"
    monkeypatch.undo()
    assert [faults(example) for example in finders] == [set()] * len(finders)
