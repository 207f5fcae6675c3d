"""An eddy for joins larger than memory."""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Unpack

import pyarrow as pa

from millrace.engine.access.schedule import Schedule, cut
from millrace.engine.arrays import array_of
from millrace.engine.eddy.context import Given
from millrace.engine.eddy.output import Output
from millrace.engine.eddy.run import Run
from millrace.engine.figures import CellFigures
from millrace.engine.operators.select import own_caller
from millrace.engine.plan.expressions import Call
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.spill.algorithms import Inputs, Sources, grace, hybrid, joined, sort_merge, symmetric
from millrace.engine.spill.chunks import ChunkStats, Partition, evened
from millrace.engine.spill.context import Budget, SpillContext, row_bytes
from millrace.engine.spill.folder import SpillFolder, Tally, check_folder
from millrace.engine.spill.guard import BudgetMonitor, OverBudget, Remainder
from millrace.engine.spill.partitions import store
from millrace.engine.stairs.choice import settle_architecture
from millrace.engine.tuples import BATCH_BYTES
from millrace.errors import OptionError
from millrace.limits.clock import WallClock
from millrace.options import Options
from millrace.predicates import Caller

_ALGORITHMS = {"shj": symmetric, "hybrid": hybrid, "grace": grace, "sort_merge": sort_merge}

_RELEASED = 1 << 20
"""Joins smaller than this leave nothing behind that is worth a collection of garbage."""


class SpillingEddy:
    """Runs a block whose state may be larger than ``Options.memory_budget``, by ``Options.algorithm``.

    Each piece of work that fits is joined by an eddy of its own, with the architecture and the policy of the
    options. Batches are made smaller than ``Options.batch_size`` where results of that many tuples would take
    too much of the budget.

    The budget covers base tuples, intermediate tuples and their indexes, batches in flight and what waits to
    be written. It does not cover what sources need to decode what they yield, nor results once they have
    been yielded. How much a join needs is measured as it runs: when it is too much, intermediate tuples are
    given up, and made again when they are needed, if the architecture can do without; else, or if that is
    not enough, what is left of the join is written to files and divided (:mod:`millrace.engine.spill.guard`).

    Args:
        spec: The block, over two relations or more.
        sources: Record batches by alias; each is read once.
        options: With ``memory_budget``.
        given: Of :class:`millrace.engine.eddy.context.Given` there may be ``clock``, ``output``, ``ranges``;
            ``callers``, asked once for each predicate; ``stream``, left unbuilt while nothing is spilled, for
            what is read back from files streams its own largest; and ``warm_start``. Each eddy begins with
            what those before it learned.

    Raises:
        OptionError: No memory budget, or a spill folder that cannot be used.
        InputError: A relation with set semantics is to be left unbuilt, or not all of it is joined on.
    """

    def __init__(
        self,
        spec: JoinSpec,
        sources: Mapping[str, Iterable[pa.RecordBatch]],
        options: Options | None = None,
        **given: Unpack[Given],
    ) -> None:
        options = settle_architecture(spec, options or Options())
        ranges, stream = given.get("ranges"), given.get("stream")
        if options.memory_budget is None:
            raise OptionError("option memory_budget is None: spilling needs a number of bytes to stay below")
        check_folder(options.spill_folder)
        learns = ranges is not None and options.transfer and not options.online
        self._ended = partial(ranges.ended, QueryGraph.of(spec)) if ranges and learns else None
        shared = {i: spec.aliases.index(r.same_as) for i, r in enumerate(spec.relations) if r.same_as}
        spec = replace(spec, relations=tuple(replace(r, same_as=None) for r in spec.relations))
        self._spec, self._options = spec, options
        self._sources = {i: iter(sources[alias]) for i, alias in enumerate(spec.aliases) if i not in shared}
        self._shared = shared
        self._clock = given.get("clock") or WallClock()
        self._output = given.get("output")
        self._callers: dict[int, Caller] = {}
        self._make_caller = given.get("callers") or own_caller
        self._warm_start = given.get("warm_start") or _Learned()
        self._seconds = 0.0
        self.tally = Tally(spec.aliases)
        schedule = Schedule.of(spec, online=False, stream=stream)
        self._context = SpillContext(
            spec,
            options,
            SpillFolder(options.spill_folder, self.tally),
            schedule.unbuilt,
            schedule.order,
            options.online and not shared,
            Budget(options.memory_budget),
        )
        stores = options.architecture in ("joins", "stairs") and options.intermediate
        self._can_do_without = stores and spec.is_repeatable
        # An eddy that nothing is sent to checks the block as any eddy does, before a source is read.
        settings = self._settings(1, online=False, intermediate=True)
        Run(spec, dict.fromkeys(spec.aliases, ()), settings, stream=stream, callers=self._caller)

    def run(self) -> Iterator[Any]:
        """Yield the block's result, in batches of ``spec.output_schema`` and in no certain order.

        Spill files are gone when this ends, fails or is closed.

        Raises:
            ExecutionError: A user's predicate raised for a tuple that nothing else rejects, or spilling
                failed, for example because the disk is full.
            OptionError: The budget is too small for a single batch.
            PredicateError: A user's predicate returned what is no truth value.
        """
        began = self._clock.now()
        context = self._context
        try:
            with context.folder:
                sources = Sources(context, self._sources, self._shared, self._clock, self._ended)
                yield from _ALGORITHMS[self._options.algorithm](context, sources, self._join)
            if self._output is not None:
                yield from self._output.finish()
            elif self._spec.count_only:
                count = array_of([self.tally.results], pa.int64())
                yield pa.RecordBatch.from_arrays([count], schema=self._spec.output_schema)
        finally:
            for caller in self._callers.values():
                caller.close()
            self._callers.clear()
            self._seconds = self._clock.now() - began

    def figures(self, cell: int = 0) -> CellFigures:
        """Return what this run has done so far: all eddies' figures, and what was spilled.

        Beside the eddies' modules there are ``Scan(…)``, ``Spill(…)`` with the actions ``"write"`` and
        ``"read"`` (tuples, batches, bytes), and joins: ``tuples_in`` base tuples into so many (``calls``)
        joins of ``Partitions in memory`` and ``Partitions from disk``, those that were given up among them.
        """
        ratio = self._context.budget.peak / self._context.budget.total
        return replace(self.tally.figures(cell, self._seconds), budget_peak_ratio=ratio)

    def _join(
        self,
        inputs: Inputs,
        stats: Mapping[int, ChunkStats],
        streamed: int | None,
        *,
        online: bool = False,
        partition: Partition | None = None,
    ) -> Generator[Any, None, Remainder | None]:
        """Yield what eddies make of inputs that are expected to fit."""
        of, from_disk = partition or Partition({}, level=1), partition is not None
        while rest := (yield from self._run(inputs, stats, streamed, of, online=online, from_disk=from_disk)):
            if online:
                return rest
            if not (of.intermediate and self._can_do_without):
                yield from joined(self._context, [store(self._context, rest, of)], self._join)
                return None
            of = replace(of, intermediate=False)
            inputs = {relation: rest.all(relation) for relation in self._context.order}
        return None

    def _run(
        self,
        inputs: Inputs,
        stats: Mapping[int, ChunkStats],
        streamed: int | None,
        partition: Partition,
        *,
        online: bool,
        from_disk: bool,
    ) -> Generator[Any, None, Remainder | None]:
        """Yield what one eddy makes of its inputs; return what it has left when it outgrows the budget."""
        context, spec = self._context, self._spec
        relations = [
            replace(relation, rows=stats[number].rows, guessed=False) if number in stats else relation
            for number, relation in enumerate(spec.relations)
        ]
        width = sum(
            stats[n].bytes / stats[n].rows if n in stats and stats[n].rows else row_bytes(r.schema)
            for n, r in enumerate(relations)
        )
        batch = context.budget.batch(self._options.batch_size, width, len(relations) + len(spec.residuals))
        if not online:  # which waits for no tuple
            inputs = {number: evened(source, max(1, batch // 3)) for number, source in inputs.items()}
        unread: dict[int, Any] = {number: cut(source, batch) for number, source in inputs.items()}
        spec = replace(spec, relations=tuple(relations))
        schedule = self._scheduled(spec, streamed, online=online)
        monitor = BudgetMonitor(
            context,
            frozenset(schedule.order if online else schedule.order[-1:]),
            is_limited=not from_disk or context.fits(partition),
            may_end=online or streamed is not None,
        )
        output = self._output or Output(spec, batch, min(BATCH_BYTES, context.budget.buffer))
        began, counted = self._clock.now(), output.counted
        eddy = Run(
            spec,
            {alias: monitor.reading(number, unread[number]) for number, alias in enumerate(spec.aliases)},
            self._settings(batch, online=online, intermediate=partition.intermediate),
            schedule=schedule,
            clock=self._clock,
            output=output,
            callers=self._caller,
            warm_start=self._warm_start,
            watch=monitor,
        )
        # Each eddy counts its own; the block's count comes at the end.
        counts = spec.count_only and self._output is None
        with suppress(OverBudget):
            for result in eddy.dataflow.results():
                if not counts:
                    yield result
        if self._output is None and not counts:
            yield from output.finish()
        seconds, found = self._clock.now() - began, output.counted - counted
        figures = replace(eddy.figures(), seconds=seconds, output_tuples=found)
        self.tally.joined(figures, from_disk=from_disk)
        rest = monitor.remainder(unread)
        del eddy, inputs, monitor
        # An eddy's parts refer to each other, so without a collection its state would stay for a while.
        if context.budget.join(0) >= _RELEASED:
            gc.collect()
            pa.default_memory_pool().release_unused()
        return rest

    def _scheduled(self, spec: JoinSpec, streamed: int | None, *, online: bool) -> Schedule:
        """Return the schedule of one eddy: one batch at a time, so that it may end after any."""
        stream = None if streamed is None else spec.aliases[streamed]
        schedule = Schedule.of(spec, online=online, stream=stream)
        if online:
            return replace(schedule, weights=(1.0,) * len(spec.relations))
        return replace(schedule, interleaved=False)

    def _settings(self, batch: int, *, online: bool, intermediate: bool) -> Options:
        intermediate = intermediate and self._options.intermediate
        return replace(
            self._options, memory_budget=None, online=online, batch_size=batch, intermediate=intermediate
        )

    def _caller(self, number: int, call: Call) -> Caller:
        """Return what calls a user's predicate, one for all eddies: limits and answers are common to them."""
        if number not in self._callers:
            self._callers[number] = self._make_caller(number, call)
        return self._callers[number]


@dataclass
class _Learned:
    """What one eddy learned, for those of later partitions."""

    text: str | None = None

    def read(self) -> str | None:
        return self.text

    def write(self, text: str) -> None:
        self.text = text
