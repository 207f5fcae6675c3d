"""Spark's keyed state in memory, with attempts that may fail: what a stateful processor is given."""

from __future__ import annotations


class StateMap:
    def __init__(self, cells, cell):
        self._cells, self._cell = cells, cell

    @property
    def _own(self):
        return self._cells.setdefault(self._cell(), {})

    def getValue(self, key):
        return self._own.get(tuple(key))

    def updateValue(self, key, value):
        self._own[tuple(key)] = value

    def keys(self):
        return iter(list(self._own))

    def removeKey(self, key):
        del self._own[tuple(key)]


class State:
    """All keys' state and timers, as after the latest micro-batch that was committed."""

    def __init__(self):
        self.data = {}
        self.timers = {}
        self.cell = None

    def getMapState(self, name, key, value):
        return StateMap(self.data.setdefault(name, {}), lambda: self.cell)

    def registerTimer(self, at):
        self.timers.setdefault(self.cell, set()).add(at)

    def deleteTimer(self, at):
        self.timers[self.cell].remove(at)

    def blocks(self):
        """The keys of all blocks of all cells' logs: stream, newest tuple, micro-batch."""
        names = (name for cell in self.data["log"].values() for (name,) in cell if not name.isidentifier())
        return [tuple(map(int, name.split(","))) for name in names]

    def copy(self):
        """The same state, for an attempt that may fail."""
        made = State()
        made.data = {
            name: {cell: dict(own) for cell, own in cells.items()} for name, cells in self.data.items()
        }
        made.timers = {cell: set(timers) for cell, timers in self.timers.items()}
        return made


class Times:
    """What Spark says of a micro-batch's watermark."""

    def __init__(self, watermark):
        self._watermark = watermark

    def getCurrentWatermarkInMs(self):
        return self._watermark
