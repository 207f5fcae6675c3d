"""A circuit breaker for each source: one that does not answer is left alone, and given up at last.

After so many failures in a row, over all tasks, it opens: no request starts. After a pause it is half open:
one request may start, the probe, when all others are back. If that is answered, all may start again; if
not, the pause doubles. A source that has not answered the last probe is given up, which ends the query: the
user wanted to do without rows of some keys, not of all.

(Nygard, "Release It!", chapter "Stability Patterns".)
"""

from __future__ import annotations

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds before a probe: doubling, from the first to the longest."""

MOST_PROBES = 8
"""Probes in a row that fail before the source is given up; two minutes, and the time that they take."""


class Breaker:
    """The breaker of one source.

    Args:
        threshold: Failures in a row that open it; None for never.

    Attributes:
        open: Whether only probes may start.
        failures: Failures in a row, probes among them.
        why: What went wrong last.
    """

    def __init__(self, threshold: int | None) -> None:
        self._threshold = threshold
        self._probe: tuple[int, int] | None = None
        self._probes = 0
        self.open = False
        self.failures = 0
        self.why = ""

    @property
    def given_up(self) -> bool:
        """Whether the source is taken to be down for good."""
        return self._probes >= MOST_PROBES

    def started(self, permit: tuple[int, int]) -> None:
        """Note a request that may start: while it is open, that is the probe."""
        if self.open:
            self._probe = permit

    def answered(self) -> bool:
        """Note an answer, of whatever request; returns whether this closes it."""
        closes, self.open = self.open, False
        self.failures = self._probes = 0
        return closes

    def failed(self, permit: tuple[int, int], why: str) -> float | None:
        """Note a request that was not answered; those that began before it opened tell nothing new.

        Returns seconds until a probe, if it has just opened, or the probe has failed; None otherwise.
        """
        self.failures += 1
        self.why = why
        if self.open:
            if permit != self._probe:
                return None
            self._probes += 1
        elif self._threshold is None or self.failures < self._threshold:
            return None
        self.open, self._probe = True, None
        return float(min(LONGEST_PAUSE, FIRST_PAUSE * 2**self._probes))

    def told(self) -> str:
        """Return what is wrong, for people."""
        return f"{self.failures} requests in a row have failed (the last one by: {self.why})"
