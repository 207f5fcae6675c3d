"""How far the lookups of a run are, how long requests take, which keys failed: figures, drawn elsewhere."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from millrace.limits.clock import Clock

Latencies = tuple[tuple[float, int], ...]
"""Upper bounds in seconds, ascending; how many requests took at most that, and more than the bound before."""

_LEAST = 0.001
_STEP = math.log(1.2)
_LAST = 80  # more than half an hour


def bucket(seconds: float) -> int:
    """Return the number of the step that a time belongs to."""
    return min(_LAST, max(0, math.ceil(math.log(max(seconds, _LEAST) / _LEAST) / _STEP)))


def latencies(counts: Counter[int]) -> Latencies:
    """Return counts by step with the steps' bounds."""
    return tuple((round(_LEAST * math.exp(_STEP * each), 4), counts[each]) for each in sorted(counts))


def merged(parts: Iterable[Latencies]) -> Latencies:
    """Return the sum of several."""
    counts: Counter[float] = Counter()
    for part in parts:
        counts.update(dict(part))
    return tuple(sorted(counts.items()))


def quantile(given: Latencies, share: float) -> float | None:
    """Return the seconds within which a share of the requests ended, up to a fifth more; None without any."""
    left = share * sum(count for _, count in given)
    for bound, count in given:
        left -= count
        if left <= 0:
            return bound
    return None


RATE_SECONDS = 5.0
"""The rate is that of the last so many seconds."""

MOST_FAILED = 10_000
"""Failed keys of a lookup that are listed; the rest is counted by kind."""

_BUCKET = 0.25
_MOST_KINDS = 100
_OTHER = "other"


@dataclass(frozen=True)
class LookupProgress:
    """One lookup of a run.

    Attributes:
        name: Of the lookup.
        keys: Distinct keys that tasks have wanted so far.
        done: Of these, the keys with rows, or with the knowledge that there are none.
        cached: Of these, the ones whose rows came from the cache of an earlier run.
        failed: Keys that could not be looked up.
        in_flight: Requests under way; without limits on requests, keys that are being looked up.
        requests: Requests that are over, retries included.
        retried: Of these, the ones that repeated a failed one.
        seconds: From the first key on to the latest news, or to now while tasks are connected.
        rate: Keys that were settled (done or failed) a second, over the last :data:`RATE_SECONDS`.
        failures: Failed keys by kind, also of those beyond :data:`MOST_FAILED`.
        problem: Why rows are not kept in the cache any more (a full disk, say), or "".
        limited: Requests that were refused because there were too many (429 and 503, for a web service).
        latencies: How long requests took, as ``(seconds, requests)``: so many took at most so long, and more
            than the entry before.
    """

    name: str
    keys: int
    done: int
    cached: int
    failed: int
    in_flight: int
    requests: int
    retried: int
    seconds: float
    rate: float = 0.0
    failures: tuple[tuple[str, int], ...] = ()
    problem: str = ""
    limited: int = 0
    latencies: Latencies = ()

    @property
    def p50(self) -> float | None:
        """Seconds within which half of the requests ended, to a fifth; None before the first."""
        return quantile(self.latencies, 0.5)

    @property
    def p95(self) -> float | None:
        """Seconds within which 95 of 100 requests ended, to a fifth; None before the first."""
        return quantile(self.latencies, 0.95)


@dataclass(frozen=True)
class FailedKey:
    """A key that could not be looked up.

    Attributes:
        name: Of the lookup.
        key: The binding, as JSON text.
        kind: What went wrong, in a word or two.
        message: The reason.
        attempts: How often it was asked.
    """

    name: str
    key: str
    kind: str
    message: str
    attempts: int


class Figures:
    """Counts of one lookup in one execution; the clock tells seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._first: float | None = None
        self._latest = 0.0
        self._buckets: deque[list[float]] = deque()  # start and settled keys, of the last seconds
        self.keys = self.done = self.cached = self.failed = self.requests = self.retried = self.limited = 0
        self.kinds: Counter[str] = Counter()
        self._took: Counter[int] = Counter()

    def wanted(self, new: int) -> None:
        """Note keys that are wanted for the first time."""
        now = self._touch()
        if self._first is None:
            self._first = now
        self.keys += new

    def found(self, cached: int) -> None:
        """Note keys whose rows were in the cache."""
        self.cached += cached
        self._settled(cached)

    def lose(self, keys: int, cached: int) -> None:
        """Note keys whose rows have gone, of which some were found in the cache."""
        self.keys -= keys
        self.done -= keys
        self.cached -= cached

    def answered(self, keys: int) -> None:
        """Note keys whose rows came."""
        self._settled(keys)

    def fail(self, kind: str) -> None:
        self._settled(1, failed=True)
        self.kinds[kind if kind in self.kinds or len(self.kinds) < _MOST_KINDS else _OTHER] += 1

    def took(self, seconds: float, *, limited: bool, retried: bool = False) -> None:
        """Note a request that is over, and whether it was refused because there were too many."""
        now = self._touch()
        if self._first is None:
            self._first = now - seconds
        self.requests += 1
        self.retried += retried
        self._took[bucket(seconds)] += 1
        self.limited += limited

    def progress(self, name: str, in_flight: int, *, running: bool, problem: str = "") -> LookupProgress:
        now = self._clock.now()
        start = now if self._first is None else self._first
        self._forget(now)
        span = max(_BUCKET, min(RATE_SECONDS, now - start))
        return LookupProgress(
            name,
            self.keys,
            self.done,
            self.cached,
            self.failed,
            in_flight,
            self.requests,
            self.retried,
            max(0.0, (now if running else self._latest) - start),
            sum(each for _, each in self._buckets) / span,
            tuple(self.kinds.most_common()),
            problem,
            self.limited,
            latencies(self._took),
        )

    def _settled(self, keys: int, *, failed: bool = False) -> None:
        now = self._touch()
        if failed:
            self.failed += keys
        else:
            self.done += keys
        if self._buckets and now - self._buckets[-1][0] < _BUCKET:
            self._buckets[-1][1] += keys
        else:
            self._forget(now)
            self._buckets.append([now, keys])

    def _touch(self) -> float:
        self._latest = self._clock.now()
        return self._latest

    def _forget(self, now: float) -> None:
        while self._buckets and self._buckets[0][0] <= now - RATE_SECONDS:
            self._buckets.popleft()


NOTHING = LookupProgress("", 0, 0, 0, 0, 0, 0, 0, 0.0)
"""Of what nobody has asked for yet."""


_SUMMED = ("keys", "done", "cached", "failed", "in_flight", "requests", "retried", "rate", "limited")


def together(parts: list[LookupProgress]) -> LookupProgress:
    """Return the sum of one lookup's progress over several executions; seconds are the longest."""
    kinds: Counter[str] = Counter()
    for part in parts:
        kinds.update(dict(part.failures))
    sums: dict[str, Any] = {name: sum(getattr(part, name) for part in parts) for name in _SUMMED}
    return replace(
        parts[0],
        **sums,
        seconds=max(part.seconds for part in parts),
        failures=tuple(kinds.most_common()),
        problem=next((part.problem for part in parts if part.problem), ""),
        latencies=merged(part.latencies for part in parts),
    )
