"""Running a block in one task: what an eddy and a static plan have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import tee
from typing import Any, Protocol, TypedDict, cast

import pyarrow as pa

from millrace.engine.access.arrivals import Arrivals, Watermark
from millrace.engine.access.modules import IndexAM, is_index
from millrace.engine.access.paths import Access, AccessMethods
from millrace.engine.access.schedule import Schedule, Source
from millrace.engine.eddy.operator import Operator, Step
from millrace.engine.eddy.output import Output, Sink
from millrace.engine.eddy.run_statistics import RunStatistics
from millrace.engine.eddy.transfer import KeyRanges
from millrace.engine.figures import CellFigures
from millrace.engine.operators.select import Selecting, outer_probes_of, selections_of
from millrace.engine.plan.expressions import Call
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.stairs.index_join import refuse_shared
from millrace.engine.stems.join_state import StateTotals, Watch
from millrace.engine.stems.state import stems_of
from millrace.engine.stems.stem import singletons
from millrace.engine.tuples.batch import Signature, TupleBatch
from millrace.errors import InputError
from millrace.limits.clock import Clock, WallClock
from millrace.options import Options
from millrace.predicates import Caller


class Run(Protocol):
    """A block being run in one task."""

    def run(self) -> Iterator[Any]:
        """Yield the block's result."""

    def figures(self, cell: int = 0) -> CellFigures:
        """Return what was done so far."""


class Given(TypedDict, total=False):
    """What every run of a block can be given beside the block, its sources and its options.

    Attributes:
        stream: The relation to leave unbuilt; the largest by estimate when it is None.
        schedule: Overrides what ``options.online`` and ``stream`` would choose.
        clock: What module times are measured by.
        output: What becomes of result tuples; by default they become the block's record batches.
        callers: Returns what calls a user's predicate, by its number among the residual predicates;
            by default limits hold within this run.
        access: More access modules by alias, scans and indexes, that work asynchronously beside the sources
            or instead of them. A relation with several gets set semantics. Without SteMs a relation has one
            scan, or only indexes, one of which an index join asks
            (:mod:`millrace.engine.operators.index_join`). A left join that has bind columns asks one index.
        ranges: Learns from relations that have ended what need not be read of others.
        watch: Told whenever there may be more in memory than before.
    """

    stream: str | None
    schedule: Schedule | None
    clock: Clock | None
    output: Sink | None
    callers: Callable[[int, Call], Caller] | None
    access: Access | None
    ranges: KeyRanges | None
    watch: Watch | None


class BlockRun(ABC):
    """Runs one select-project-join block over the tuples of one task.

    Args:
        sources: Record batches by alias, each with exactly the schema of its relation, and ``STALLED``, or
            None, wherever there is nothing at present.
        architecture: Where join state is kept; relations share their tuples in SteMs alone.
        window: How many tuples decisions look back on.

    Raises:
        InputError: A relation with set semantics is to be left unbuilt, or not all of it is joined on.
    """

    def __init__(
        self,
        spec: JoinSpec,
        sources: Mapping[str, Source],
        options: Options,
        architecture: str,
        window: int,
        given: Given,
    ) -> None:
        access, indexes = _divided(spec, given.get("access") or {})
        if architecture != "stems":
            refuse_shared(spec, access, architecture)
            spec, sources = _unshared(spec, sources)
        self.spec, self._sources = spec, sources
        self._limit = options.batch_size
        self._graph = QueryGraph.of(spec)
        self._clock = given.get("clock") or WallClock()
        self._methods = AccessMethods(spec, self._graph, sources, access, self._clock)
        online = options.online or self._methods.is_asynchronous
        built = self._methods.paths.built(self._graph)
        schedule = given.get("schedule") or Schedule.of(
            spec, online=online, stream=given.get("stream"), built=built
        )
        # Binary joins can only leave unbuilt what comes after all else.
        self._schedule = schedule if architecture == "stems" else schedule.for_joins()
        self._schedule.check(spec, built)
        self.stems = stems_of(spec, self._graph, self._methods.paths)
        self._arrivals = Arrivals(spec, self._graph, self._methods, self.stems, self._clock)
        self._watermark = Watermark(spec, self._graph, self.stems)
        self._output: Sink = given.get("output") or Output(spec, options.batch_size)
        self.statistics = RunStatistics([r.alias for r in spec.sources], window)
        accounts, callers = self.statistics.accounts, given.get("callers")
        selects = selections_of(spec, self._clock, options, callers, accounts)
        outer = outer_probes_of(spec, indexes, self._clock, self._methods.woken)
        self._selecting = Selecting(self._graph, selects, accounts, outer)
        self._watch = given.get("watch") or Watch()
        self._seconds = 0.0

    def run(self) -> Iterator[Any]:
        """Yield the block's result, in batches of ``spec.output_schema`` and in no certain order.

        Raises:
            ExecutionError: A user's predicate raised for a tuple that nothing else rejects.
            PredicateError: A user's predicate returned what is no truth value.
        """
        began = self._clock.now()
        try:
            self.fill()
            yield from self._results()
            yield from self._output.finish()
        finally:
            self._seconds = self._clock.now() - began
            self._selecting.close()
            self._methods.close()

    def fill(self) -> None:
        """Read all of the relations that semi joins and left joins look into."""
        self._selecting.fill(self.spec, self._sources, self._clock)

    @abstractmethod
    def _results(self) -> Iterator[Any]:
        """Yield output as it becomes ready."""

    @abstractmethod
    def _held(self) -> StateTotals:
        """Return what join state holds and did."""

    def _singletons(self, relation: int, batch: pa.RecordBatch) -> TupleBatch:
        """Return base tuples that have arrived."""
        self._watermark.arrive(relation, batch)
        unbuilt = relation == self._schedule.unbuilt
        found = singletons(self.stems[relation], batch, self.spec.aliases[relation], built=unbuilt)
        self._output.arrive(found)
        return found

    def _emit(self, batch: TupleBatch) -> Iterator[Any]:
        """Hand result tuples to the output."""
        began = self._clock.now()
        self.statistics.end(batch)
        yield from self._output.add(batch)
        self.statistics.accounts.update("output", batch.size, batch.size, self._clock.now() - began)

    def _step(self, operator: Operator, signature: Signature, work: Any, *, fresh: bool) -> Step:
        """Let an operator do the next step of its work, and count it; ``fresh``: that is a whole batch."""
        began = self._clock.now()
        step = operator.step(operator.start(work) if fresh else work, self._limit)
        tuples_in = work.size if fresh else 0
        self._clock.spend(operator.place, tuples_in, step.tuples_out)
        seconds = self._clock.now() - began
        self.statistics.visit(signature, operator, tuples_in, step.tuples_out, seconds)
        return step

    def figures(self, cell: int = 0) -> CellFigures:
        figures = self.statistics.figures(cell, self._seconds, self._output.name, self._output.counted)
        held, beside = self._held(), self._selecting.figures()
        return replace(
            figures,
            modules=(*figures.modules, *held.lookups),
            state=(*held.state, *beside),
            peak_state=held.peak + sum(each.tuples for each in beside),
            migrated_tuples=held.migrated,
            recomputed_tuples=held.recomputed,
        )


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
