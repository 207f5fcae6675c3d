"""How long requests took, in steps of a fifth: some dozens of counts tell the median of any number."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

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
