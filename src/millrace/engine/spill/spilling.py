"""An eddy for joins larger than memory."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from millrace.engine.access.schedule import Schedule
from millrace.engine.arrays import array_of
from millrace.engine.eddy.output import Output, Sink
from millrace.engine.eddy.run_of import run_of
from millrace.engine.eddy.statistics import WarmStart
from millrace.engine.eddy.transfer import KeyRanges
from millrace.engine.figures import CellFigures
from millrace.engine.plan.expressions import Call
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.plan.spec import JoinSpec
from millrace.engine.spill.algorithms import grace, hybrid, joined, row_bytes, sort_merge, symmetric
from millrace.engine.spill.chunks import Extent
from millrace.engine.spill.division import remainder
from millrace.engine.spill.folder import SpillFolder, check_folder
from millrace.engine.spill.guard import Guard, OverBudget, Rest
from millrace.engine.spill.memory import Memory, release
from millrace.engine.spill.reading import Reading
from millrace.engine.spill.tally import Tally
from millrace.engine.spill.work import Inputs, Setting, Work, evened, sliced
from millrace.engine.stairs.choice import settled
from millrace.engine.tuples import BATCH_BYTES
from millrace.engine.tuples.batch import TupleBatch
from millrace.errors import OptionError
from millrace.limits.clock import Clock, WallClock
from millrace.options import Options
from millrace.predicates import Caller, Outcome
from millrace.predicates.callers import caller_of

_ALGORITHMS = {"shj": symmetric, "hybrid": hybrid, "grace": grace, "sort_merge": sort_merge}


class SpillingEddy:
    """Runs a block whose state may be larger than ``Options.memory_budget``, by ``Options.algorithm``.

    The arguments are those of :class:`millrace.engine.eddy.eddy_run.EddyRun`. Each piece of work that fits is
    joined by an eddy of its own, with the architecture and the policy of the options. Batches are made
    smaller than ``Options.batch_size`` where results of that many tuples would take too much of the budget.

    The budget covers base tuples, intermediate tuples and their indexes, batches in flight and what waits to
    be written. It does not cover what sources need to decode what they yield, nor results once they have
    been yielded. How much a join needs is measured as it runs: when it is too much, intermediate tuples are
    given up, and made again when they are needed, if the architecture can do without; else, or if that is
    not enough, what is left of the join is written to files and divided (:mod:`millrace.engine.spill.guard`).

    Args:
        spec: The block, over two relations or more.
        sources: Record batches by alias; each is read once.
        options: With ``memory_budget``.
        stream: The relation to leave unbuilt while nothing is spilled; what is read back from files
            streams its own largest.
        clock: What times are measured by.
        output: What becomes of result tuples; by default the block's record batches.
        callers: Returns what calls a user's predicate; asked once for each.
        ranges: Learns from relations that have ended what need not be read of others.
        warm_start: Where eddies leave what they learned; each begins with what those before it learned.

    Raises:
        OptionError: No memory budget, or a spill folder that cannot be used.
        InputError: A relation with set semantics is to be left unbuilt, or not all of it is joined on.
    """

    def __init__(
        self,
        spec: JoinSpec,
        sources: Mapping[str, Iterable[pa.RecordBatch]],
        options: Options | None = None,
        *,
        stream: str | None = None,
        clock: Clock | None = None,
        output: Sink | None = None,
        callers: Callable[[int, Call], Caller] | None = None,
        ranges: KeyRanges | None = None,
        warm_start: WarmStart | None = None,
    ) -> None:
        self._options = settled(spec, options or Options())
        if self._options.memory_budget is None:
            raise OptionError("option memory_budget is None: spilling needs a number of bytes to stay below")
        check_folder(self._options.spill_folder)
        learns = ranges is not None and self._options.transfer and not self._options.online
        self._ended = partial(ranges.ended, QueryGraph.of(spec)) if ranges and learns else None
        shared = {i: spec.aliases.index(r.same_as) for i, r in enumerate(spec.relations) if r.same_as}
        spec = replace(spec, relations=tuple(replace(r, same_as=None) for r in spec.relations))
        self._spec = spec
        self._sources = {i: iter(sources[alias]) for i, alias in enumerate(spec.aliases) if i not in shared}
        self._shared = shared
        self._schedule = Schedule.of(spec, online=False, stream=stream)
        self._clock = clock or WallClock()
        self._output = output
        self._callers = _Callers(callers)
        self._warm_start = warm_start or _Notes()
        self.tally = Tally(spec.aliases)
        self._memory = Memory()
        self._seconds = 0.0
        stores = self._options.architecture in ("joins", "stairs") and self._options.intermediate
        self._can_do_without = stores and spec.is_repeatable
        # An eddy that nothing is sent to checks the block as any eddy does, before a source is read.
        settings = self._settings(1, online=False, intermediate=True)
        run_of(spec, dict.fromkeys(spec.aliases, ()), settings, stream=stream, callers=self._callers)

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
        try:
            with SpillFolder(self._options.spill_folder, self.tally, self._spec.aliases) as folder:
                setting = Setting(
                    self._spec,
                    self._options,
                    folder,
                    self._schedule.unbuilt,
                    self._schedule.order,
                    self._options.online and not self._shared,
                    self._memory,
                )
                algorithm = _ALGORITHMS[self._options.algorithm]
                yield from algorithm(
                    setting,
                    Reading(setting, self._sources, self._shared, self._clock, self._ended),
                    partial(self._join, setting),
                )
            yield from self._rest()
        finally:
            self._callers.close()
            self._seconds = self._clock.now() - began

    def figures(self, cell: int = 0) -> CellFigures:
        """Return what this run has done so far: all eddies' figures, and what was spilled.

        Beside the eddies' modules there are ``Scan(…)``, ``Spill(…)`` with the actions ``"write"`` and
        ``"read"`` (tuples, batches, bytes), and joins: ``tuples_in`` base tuples into so many (``calls``)
        joins of ``Partitions in memory`` and ``Partitions from disk``, those that were given up among them.
        """
        assert self._options.memory_budget is not None
        ratio = self._memory.peak / self._options.memory_budget
        return replace(self.tally.figures(cell, self._seconds), budget_peak_ratio=ratio)

    def _join(
        self,
        setting: Setting,
        inputs: Inputs,
        extents: Mapping[int, Extent],
        streamed: int | None,
        *,
        online: bool = False,
        work: Work | None = None,
    ) -> Generator[Any, None, Rest | None]:
        """Yield what eddies make of inputs that are expected to fit."""
        piece = work or Work({}, level=1)
        while rest := (
            yield from self._run(
                setting, inputs, extents, streamed, piece, online=online, from_disk=bool(work)
            )
        ):
            if online:
                return rest
            if not (piece.intermediate and self._can_do_without):
                left = remainder(setting, rest, piece)
                yield from joined(setting, [left], partial(self._join, setting))
                return None
            piece = replace(piece, intermediate=False)
            inputs = {relation: rest.all(relation) for relation in setting.order}
        return None

    def _run(
        self,
        setting: Setting,
        inputs: Inputs,
        extents: Mapping[int, Extent],
        streamed: int | None,
        piece: Work,
        *,
        online: bool,
        from_disk: bool,
    ) -> Generator[Any, None, Rest | None]:
        """Yield what one eddy makes of its inputs; return what it has left when it outgrows the budget."""
        spec = self._spec
        relations = [
            replace(relation, rows=extents[number].rows, guessed=False) if number in extents else relation
            for number, relation in enumerate(spec.relations)
        ]
        width = sum(
            extents[n].bytes / extents[n].rows if n in extents and extents[n].rows else row_bytes(r.schema)
            for n, r in enumerate(relations)
        )
        batch = setting.budget.batch(self._options.batch_size, width, len(relations) + len(spec.residuals))
        if not online:  # which waits for no tuple
            inputs = {number: evened(source, max(1, batch // 3)) for number, source in inputs.items()}
        unread = {number: sliced(source, batch) for number, source in inputs.items()}
        spec = replace(spec, relations=tuple(relations))
        schedule = self._scheduled(spec, streamed, online=online)
        guard = Guard(
            setting.memory,
            setting.budget,
            frozenset(schedule.order if online else schedule.order[-1:]),
            limited=not from_disk or piece.fits(setting),
            cut=online or streamed is not None,
        )
        output = (
            Output(spec, batch, min(BATCH_BYTES, setting.budget.buffer))
            if self._output is None
            else _Unfinished(self._output)
        )
        eddy = run_of(
            spec,
            {alias: guard.reading(number, unread[number]) for number, alias in enumerate(spec.aliases)},
            self._settings(batch, online=online, intermediate=piece.intermediate),
            schedule=schedule,
            clock=self._clock,
            output=output,
            callers=self._callers,
            warm_start=self._warm_start,
            watch=guard,
        )
        # Each eddy counts its own; the block's count comes at the end.
        counts = spec.count_only and self._output is None
        try:
            for result in eddy.run():
                if not counts:
                    yield result
        except OverBudget:
            if not counts:
                yield from output.finish()
        self.tally.joined(eddy.figures(), from_disk=from_disk)
        rest = guard.rest(unread)
        del eddy, inputs, guard
        release(setting.memory.join(0))
        return rest

    def _scheduled(self, spec: JoinSpec, streamed: int | None, *, online: bool) -> Schedule:
        """Return the schedule of a piece of work: one batch at a time, so that it may end after any."""
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

    def _rest(self) -> Iterator[Any]:
        if self._output is not None:
            yield from self._output.finish()
        elif self._spec.count_only:
            count = array_of([self.tally.results], pa.int64())
            yield pa.RecordBatch.from_arrays([count], schema=self._spec.output_schema)


class _Notes:
    """What one eddy learned, for those of later pieces of work."""

    def __init__(self) -> None:
        self._text: str | None = None

    def read(self) -> str | None:
        return self._text

    def write(self, text: str) -> None:
        self._text = text


class _Unfinished:
    """A sink that many eddies fill one after the other: none of them has the last word."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.counted = 0

    def arrive(self, batch: TupleBatch) -> None:
        self._sink.arrive(batch)

    def add(self, batch: Any) -> Iterator[Any]:
        self.counted += batch.size
        return self._sink.add(batch)

    def rest(self) -> Iterator[Any]:
        return self._sink.rest()

    def idle(self) -> Iterator[Any]:
        return self._sink.idle()

    def pause(self) -> Iterator[Any]:
        return self._sink.pause()

    def finish(self) -> Iterator[Any]:
        return iter(())


class _Callers:
    """Makes what calls users' predicates, once for all eddies: limits and answers are common to them."""

    def __init__(self, make: Callable[[int, Call], Caller] | None) -> None:
        self._make = make or _local_caller
        self._made: dict[int, Caller] = {}

    def __call__(self, number: int, call: Call) -> Caller:
        if number not in self._made:
            self._made[number] = self._make(number, call)
        return _Lent(self._made[number])

    def close(self) -> None:
        for caller in self._made.values():
            caller.close()
        self._made.clear()


class _Lent:
    """A caller that stays open when an eddy lets go of it."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def call(self, columns: list[pa.Array]) -> Outcome:
        return self._caller.call(columns)

    def close(self) -> None:
        """Nothing: others go on with it."""


def _local_caller(number: int, call: Call) -> Caller:
    return caller_of(call.spec, call.values, None, str(number))
