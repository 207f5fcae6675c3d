"""What all parts of a run refer to: sources, base tuples, predicates, the output and the books."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import tee
from typing import TYPE_CHECKING, Any, TypedDict, cast

import pyarrow as pa

from millrace.engine.access.arrivals import MOST_WAITING, Arrivals, Watermark
from millrace.engine.access.modules import IndexAM, is_index
from millrace.engine.access.paths import Access, AccessMethods
from millrace.engine.access.schedule import Schedule, Source
from millrace.engine.eddy.ingest import KeyRanges
from millrace.engine.eddy.operator import Operator, Step, Visit
from millrace.engine.eddy.output import Output, Sink
from millrace.engine.eddy.run_statistics import RunStatistics
from millrace.engine.eddy.statistics import WarmStart
from millrace.engine.operators.select import Filters, own_caller
from millrace.engine.plan.expressions import Call
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.policies import Policy
from millrace.engine.stairs.index_join import refuse_shared
from millrace.engine.start_up import work_time
from millrace.engine.stems.join_state import Watch
from millrace.engine.stems.state import stems_of
from millrace.engine.stems.stem import singletons
from millrace.engine.tuples.batch import TupleBatch
from millrace.errors import InputError
from millrace.limits.clock import Clock, WallClock
from millrace.options import Options
from millrace.predicates import Caller

if TYPE_CHECKING:
    from millrace.engine.eddy.dataflow import EddyDataflow

_CALLED_WINDOW = 4096
"""Tuples that statistics of users' predicates look back on, so that drifting data are followed."""


class Given(TypedDict, total=False):
    """What a run of a block can be given beside the block, its sources and its options.

    What is about routing means nothing to a static plan.

    Attributes:
        stream: The relation to leave unbuilt; the largest by estimate when it is None.
        schedule: Overrides what ``options.online`` and ``stream`` would choose.
        clock: What module times are measured by.
        output: What becomes of result tuples; by default they become the block's record batches.
        callers: Returns what calls a user's predicate, by its number among the residual predicates;
            by default limits hold within this run.
        access: More access modules by alias, scans and indexes, that work asynchronously beside the sources
            or instead of them. A relation with several gets set semantics; a static plan takes one scan,
            or indexes alone. Without SteMs an index join asks one of the indexes of a relation without a scan
            (:mod:`millrace.engine.stairs.index_join`). A left join that has bind columns asks one index.
        ranges: Learns from relations that have ended what need not be read of others.
        watch: Told whenever there may be more in memory than before.
        warm_start: Where eddies of the same run leave what they learned for those that come later.
        policy: Overrides ``options.policy``.
        eddy: Makes the eddy that runs the block, in the place of
            :class:`millrace.engine.eddy.dataflow.EddyDataflow`.
        later: Bit set of the predicates and left joins that wait for another run, in the order of
            :class:`millrace.engine.plan.graph.QueryGraph`.
        most_waiting: Bytes of rows that may wait for indexes, or of answers to come, before more are read.
    """

    stream: str | None
    schedule: Schedule | None
    clock: Clock | None
    output: Sink | None
    callers: Callable[[int, Call], Caller] | None
    access: Access | None
    ranges: KeyRanges | None
    watch: Watch | None
    warm_start: WarmStart | None
    policy: Policy | None
    eddy: Callable[[RunContext, Given], EddyDataflow] | None
    later: int
    most_waiting: int


class RunContext:
    """What an eddy and a static plan have in common.

    ``options`` name an architecture: relations share their tuples in SteMs alone.

    Raises:
        InputError: A relation with set semantics is to be left unbuilt, or not all of it is joined on.
    """

    def __init__(self, spec: JoinSpec, sources: Mapping[str, Source], options: Options, given: Given) -> None:
        access, indexes = _divided(spec, given.get("access") or {})
        shares = options.architecture == "stems"
        if not shares:
            refuse_shared(spec, access, options.architecture)
            asked, (spec, sources) = spec, _unshared(spec, sources)
            if spec is not asked:  # what one role need not read of a shared source, another has to
                given = {**given, "ranges": None}
        self.ranges = given.get("ranges") or KeyRanges()
        self.spec, self.sources, self.options = spec, sources, options
        self.limit = options.batch_size
        self.graph = replace(QueryGraph.of(spec), later=given.get("later", 0))
        self.clock = given.get("clock") or WallClock()
        self.methods = AccessMethods(spec, self.graph, sources, access, self.clock)
        online = options.online or bool(self.methods.scans)
        built = self.methods.paths.built(self.graph)
        schedule = given.get("schedule") or Schedule.of(
            spec, online=online, stream=given.get("stream"), built=built
        )
        if schedule.interleaved and not shares:  # binary joins leave unbuilt only what comes after all else
            schedule = replace(schedule, unbuilt=None)
        self.schedule = schedule
        self.schedule.check(spec, built)
        self.stems = stems_of(spec, self.graph, self.methods.paths)
        self.most_waiting = given.get("most_waiting", MOST_WAITING)
        self.arrivals = Arrivals(self.methods, self.stems, self.most_waiting)
        self.watermark = Watermark(spec, self.graph, self.stems)
        self.output: Sink = given.get("output") or Output(spec, self.limit)
        self.called = any(isinstance(p, Call) for p in spec.residuals)
        window = _CALLED_WINDOW if self.called else 2 * options.reoptimize_every
        self.statistics = RunStatistics([r.alias for r in spec.sources], window)
        self.filters = Filters(self, given.get("callers") or own_caller, indexes)
        self.watch = given.get("watch")
        self.visit: Visit = self._visit

    def arrive(self, relation: int, batch: pa.RecordBatch) -> TupleBatch:
        self.watermark.arrive(relation, batch)
        unbuilt = relation == self.schedule.unbuilt
        found = singletons(self.stems[relation], batch, self.spec.aliases[relation], built=unbuilt)
        self.output.arrive(found)
        return found

    def emit(self, batch: TupleBatch) -> Iterator[Any]:
        began = self.clock.now()
        self.statistics.end(batch)
        yield from self.output.add(batch)
        self.statistics.accounts.update("output", batch.size, batch.size, self.clock.now() - began)

    def _visit(self, operator: Operator, work: Any) -> Step:
        """Let an operator do the next step of its work, and count it."""
        began = work_time(self.clock)
        if isinstance(work, TupleBatch):
            signature, tuples_in = work.signature, work.size
            work = operator.start(work)
        else:
            signature, tuples_in = work.batch.signature, 0
        step = operator.step(work, self.limit)
        self.clock.spend(operator.place, tuples_in, step.tuples_out)
        seconds = work_time(self.clock) - began
        self.statistics.visit(signature, operator, tuples_in, step.tuples_out, seconds)
        return step


def _divided(spec: JoinSpec, access: Access) -> tuple[Access, dict[str, IndexAM]]:
    """Return the access modules of joined relations, and the indexes that left joins ask, by alias.

    Raises:
        InputError: A left join has bind columns and not one index, or has an index and no bind columns.
    """
    indexes: dict[str, IndexAM] = {}
    for join in spec.outer:
        modules = access.get(join.relation, ())
        if len(modules) != bool(join.bind) or not all(map(is_index, modules)):
            raise InputError(
                f"the left join with {join.relation!r} has {len(modules)} access modules; expected one "
                "index if it has bind columns, and none without"
            )
        if modules:
            indexes[join.relation] = cast(IndexAM, modules[0])
    return {alias: modules for alias, modules in access.items() if alias not in indexes}, indexes


def _unshared(spec: JoinSpec, sources: Mapping[str, Source]) -> tuple[JoinSpec, Mapping[str, Source]]:
    """Return the block with a source of its own for every relation.

    Batches are handed to each relation by reference; those that one has read and another has not are kept.
    """
    if all(relation.same_as is None for relation in spec.relations):
        return spec, sources
    apart = replace(spec, relations=tuple(replace(r, same_as=None) for r in spec.relations))
    own = dict(sources)
    for lead in {r.same_as for r in spec.relations if r.same_as is not None}:
        sharing = [r.alias for r in spec.relations if lead in (r.alias, r.same_as)]
        own |= zip(sharing, tee(sources[lead], len(sharing)), strict=True)
    return apart, own
