"""An index AM with a watch: how long its answers take, and how many it gives a second."""

from __future__ import annotations

import math
from collections import deque

import pyarrow as pa

from millrace.engine.access.modules import Answer, Bounded, IndexAM
from millrace.limits.clock import Clock

_MEMORY = 0.9

_UNMEASURED = 0.001
"""Seconds that a lookup is taken to last before the first answer."""

_TRIAL = 64
"""Bindings that an index which takes any number at once gets before its first answer."""


class Paced:
    """Passes everything on to an index AM, and measures it on the way.

    Args:
        index: The AM.
        clock: What it is measured by.

    Attributes:
        at_once: Bindings that it works on at the same time; None for any number.
        latency: Seconds from a binding's submission to its answer, recent average; 0 before the first.
        alarm: When something is to be submitted unless much changes before; infinity for nothing.
    """

    def __init__(self, index: IndexAM, clock: Clock) -> None:
        self.name = index.name
        self.columns = index.columns
        self.at_once = index.at_once if isinstance(index, Bounded) else None
        self.latency = 0.0
        self.alarm = math.inf
        self._index = index
        self._clock = clock
        self._sent: deque[tuple[float, int]] = deque()
        self._since = 0.0
        self._least = _UNMEASURED
        self._each = 0.0

    @property
    def pending(self) -> int:
        """Bindings submitted and not yet answered."""
        return self._index.pending

    @property
    def is_full(self) -> bool:
        """Whether no more should be submitted before some are answered."""
        return self._index.is_full

    def submit(self, bindings: pa.RecordBatch) -> None:
        """Take bindings."""
        now = self._clock.now()
        if not self._index.pending:
            self._since = now
        self._sent.append((now, bindings.num_rows))
        self._index.submit(bindings)

    def poll(self) -> list[Answer]:
        """Return the answers that have come since the last call."""
        pending = self._index.pending
        answers = self._index.poll()
        if count := sum(answer.bindings.num_rows for answer in answers):
            self._measure(count, pending)
        return answers

    def due(self) -> float | None:
        """Return when to poll again or to submit more."""
        due = self._index.due()
        return None if due is None else min(due, self.alarm)

    def close(self) -> None:
        """Let go of the source."""
        self._index.close()

    @property
    def expected(self) -> float:
        """Seconds that one more binding is expected to take, behind those that are pending."""
        oldest = self._clock.now() - self._sent[0][0] if self._sent else 0.0
        return max(self._least, oldest, (self.pending + 1) * self._each)

    def room(self, seconds: float) -> int:
        """Return how many bindings to submit now: enough to keep the index busy, and no queue for long.

        As many wait in the index as it works on, so that it need not wait for the eddy.

        Args:
            seconds: How long the last of them may take.
        """
        if self.is_full:
            return 0
        limit = math.inf if self.at_once is None else 2.0 * self.at_once
        if self.at_once is None and not self.latency:
            limit = _TRIAL
        if self._each and seconds < math.inf:
            limit = min(limit, max(self.pending + 1, seconds // self._each))
        return int(max(0, min(limit, 1 << 30) - self.pending))

    def _measure(self, count: int, pending: int) -> None:
        """Book that so many of the pending bindings have been answered; as if in their order."""
        now = self._clock.now()
        if self.at_once is not None and pending >= self.at_once:  # it was busy: that is what it can do
            each = (now - self._since) / count
            self._each = _averaged(self._each, each)
        self._since = now
        while count and self._sent:
            sent, bindings = self._sent.popleft()
            took = now - sent
            slower = took > self._least and self.latency
            self._least = _averaged(self._least, took) if slower else took
            self.latency = _averaged(self.latency, took)
            if bindings > count:
                self._sent.appendleft((sent, bindings - count))
            count -= min(count, bindings)


def _averaged(old: float, new: float) -> float:
    return new if not old else _MEMORY * old + (1 - _MEMORY) * new
