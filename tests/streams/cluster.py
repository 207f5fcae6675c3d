"""A continuous join without Spark: micro-batches, watermarks, failures, restarts and two worker processes."""

from __future__ import annotations

from collections import OrderedDict
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from unittest.mock import patch

import pandas as pd
import pyarrow as pa
import pytest

from millrace.engine.plan.expressions import Column, ColumnRef, Compare
from millrace.engine.plan.spec import Equality, JoinSpec, OutputColumn, RelationSpec
from millrace.options import Options
from millrace.reports.micro_batch import decode_cells
from millrace.spark.task_inputs import InlineTable
from millrace.streams import cell as cells, processor as processing
from millrace.streams.processor import CONTROL, CellProcessor
from millrace.streams.retention import TimeBound, retention
from millrace.streams.task import ContinuousJoin, Stream

MOMENT = pa.timestamp("us", "UTC")
SCHEMA = pa.schema({"k": pa.int64(), "t": MOMENT, "n": pa.int64(), "end": MOMENT})
SECOND = 1_000_000


LOST = 99
"""Fails when all is done, and only the commit is missing."""


class Failed(Exception):
    """A worker process that ended."""


# Spark's keyed state in memory, with attempts that may fail: what a stateful processor is given.


class StateMap:
    def __init__(self, state, name):
        self._state, self._name = state, name

    @property
    def _own(self):
        self._state.tick()
        return self._state.data[self._name].setdefault(self._state.cell, {})

    def getValue(self, key):
        return self._own.get(tuple(key))

    def updateValue(self, key, value):
        self._own[tuple(key)] = value

    def keys(self):
        return iter(list(self._own))

    def removeKey(self, key):
        del self._own[tuple(key)]


class State:
    """All keys' state and timers, as after the latest micro-batch that was committed.

    ``left`` says how many more calls there are before one fails.
    """

    def __init__(self):
        self.data = {}
        self.timers = {}
        self.cell = self.left = None

    def tick(self):
        if self.left == 0:
            raise Failed
        if self.left is not None:
            self.left -= 1

    def getMapState(self, name, key, value):
        self.tick()
        self.data.setdefault(name, {})
        return StateMap(self, name)

    def registerTimer(self, at):
        self.tick()
        self.timers.setdefault(self.cell, set()).add(at)

    def deleteTimer(self, at):
        self.tick()
        self.timers[self.cell].remove(at)

    def blocks(self):
        """The keys of all blocks of all cells' logs: stream, newest tuple, micro-batch."""
        names = (name for cell in self.data["log"].values() for (name,) in cell if not name.isidentifier())
        return [tuple(map(int, name.split(","))) for name in names]

    def copy(self):
        """The same state, for an attempt that may fail."""
        made = State()
        made.data, made.timers = deepcopy((self.data, self.timers))
        return made


def join_of(names: str, window: int, *, cyclic=False, tables=None, preserved=None) -> ContinuousJoin:
    """A chain of streams by ``k``, each at most ``window`` seconds later than the one before it.

    Of two the first may be ``preserved``: the other one is LEFT joined to it.
    """
    pairs = list(pairwise(names))
    ties = [*pairs, (names[-1], names[0])] if cyclic else pairs
    held = {alias: InlineTable(table) for alias, table in (tables or {}).items()}
    streams = [name for name in names if name not in held]
    bounds = [b for x, y in pairs for b in (TimeBound(x, y, window * SECOND), TimeBound(y, x, 0))]
    keeps = retention(streams, [b for b in bounds if {b.earlier, b.later} <= set(streams)], preserved)
    ref = ColumnRef
    ranges = [
        Compare(op, Column(ref(y, "t")), Column(ref(x, column)), MOMENT)
        for x, y in pairs
        if {x, y} <= set(streams)
        for op, column in ((">=", "t"), ("<=", "end"))
    ]
    join = JoinSpec(
        tuple(RelationSpec(name, SCHEMA) for name in names),
        tuple(Equality(ref(x, "k"), ref(y, "k"), pa.int64()) for x, y in ties),
        tuple(ranges),
        tuple(OutputColumn(name, ref(name, "n")) for name in names),
    )
    known = tuple(Stream(name, names.index(name), "t", keeps[name]) for name in streams)
    options = Options(architecture="stems", batch_size=64)
    return ContinuousJoin("test", join, known, held, options, 1, preserved=preserved)


def rows_of(events: list[tuple[int, int, int]], window: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"k": k, "t": t * SECOND, "n": n, "end": (t + window) * SECOND} for k, t, n in events], schema=SCHEMA
    )


class Cluster:
    """Runs micro-batches; ``processes`` are the memories of workers, one of which gets each task.

    Windows are written anew after so many micro-batches as ``anew`` says, into few blocks if that is often.
    """

    processor = CellProcessor

    def __init__(self, task: ContinuousJoin, window: int, anew: int = 256):
        self.task, self.window, self.anew = task, window, anew
        self.state, self.results, self.rows = State(), [], []
        self.processes = [OrderedDict(), OrderedDict()]
        self.watermark = self.latest = 0

    def restart(self, **options):
        """A new plan in new processes, perhaps with other options."""
        self.task = replace(
            self.task, name=self.task.name + "'", options=replace(self.task.options, **options)
        )
        self.processes = [OrderedDict(), OrderedDict()]

    def batch(self, arrived, process=0, watermark=None, fail=None, blocks=()):
        """Run a micro-batch: tuples by alias; ``fail`` raises out of the so-manieth call of state.

        What was learned is kept after every second one, so that short runs meet it.
        ``blocks`` are further rows for the cell: a number in place of a relation's, and bytes.
        """
        state = self.state.copy()
        spark = self.processor(self.task, (0,))
        state.left = fail
        found = []
        aliases = self.task.join.aliases
        rows = [
            (0, aliases.index(a), rows_of(e, self.window).serialize().to_pybytes())
            for a, e in arrived.items()
            if e
        ]
        rows += [(0, *each) for each in blocks]
        frames = pd.DataFrame(rows, columns=["cell", "relation", "block"])
        calls = [(CONTROL, lambda times: spark.handleInputRows((CONTROL,), iter([frames[:0]]), times))]
        if len(frames):
            calls.append((0, lambda times: spark.handleInputRows((0,), iter([frames]), times)))
        elif any(timer <= self.watermark for timer in state.timers.get(0, ())):
            calls.append((0, lambda times: spark.handleExpiredTimer((0,), times, None)))
        with (
            patch.multiple(processing, _LEARNING=2, _ANEW=self.anew),
            patch.multiple(cells, _CELLS=self.processes[process], _SHARES=8 if self.anew > 99 else 1),
        ):
            spark.init(state)
            for cell, call in calls:
                state.cell = cell
                found += call(SimpleNamespace(getCurrentWatermarkInMs=lambda: self.watermark))
        if fail is not None:  # it made fewer calls, and the commit is lost
            raise Failed
        self.state = state  # the commit
        out = [row for df in found for row in df.to_dict("records")]
        for row in out:
            if row["block"] is not None:
                self.results += self.read(pa.py_buffer(row["block"]))
        self.rows += [decode_cells([row["cells"]]) for row in out[-1:]]
        if watermark is not None:
            self.watermark = max(self.watermark, watermark * 1000)

    def read(self, block):
        return pa.ipc.read_record_batch(block, self.task.join.output_schema).to_pylist()

    def play(self, arrived, delay, process=0, fail=None, blocks=()):
        """Run a micro-batch, after one that fails in the other process or not, up to the latest time.

        The watermark is that time minus the delay.
        """
        if fail is not None:
            # Even if the source gave other rows in that attempt, nothing of it stays.
            others = {**arrived, "a": [*arrived["a"], (0, max(1, self.latest), 9999)]}
            with pytest.raises(Failed):
                self.batch(others, 1 - process, fail=fail, blocks=blocks)
        self.latest = max([self.latest, *(row[1] for rows in arrived.values() for row in rows)])
        self.batch(arrived, process, watermark=self.latest - delay, blocks=blocks)

    def play_future(self, blocks=()):
        """Run steady micro-batches after one with a row of the far future; return their rows' numbers."""
        self.batch({"a": [(1, 10**9, 0)]}, blocks=blocks)
        for second in range(1, 20):
            rows = [(k, second, second * 1000 + k) for k in range(40)]
            self.batch(dict.fromkeys("abc", rows), watermark=second - 1)
        return [second * 1000 + k for second in range(1, 20) for k in range(40)]


def answer(events: dict[str, list[tuple[int, int, int]]], names: str, window: int) -> list[tuple[int, ...]]:
    """The batch answer: numbers of the rows of each result, in the order of names."""
    found = [()]
    for name in names:
        found = [
            (*before, row)
            for before in found
            for row in events[name]
            if not before or (before[-1][0] == row[0] and before[-1][1] <= row[1] <= before[-1][1] + window)
        ]
    return sorted(tuple(row[2] for row in each) for each in found)
