"""What a uniform sample says of all rows, but for a stated doubt: binomial tails, and bounds by them."""

from __future__ import annotations

import math


def most_below(tries: int, share: float, doubt: float) -> int:
    """Return the largest k for which the k-th of so many random numbers is below a share, but for a doubt."""
    low, high = 0, tries + 1  # the tail of low is large enough, that of high is not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if tail(middle, tries, share) >= 1 - doubt else (low, middle)
    return low


def least_share(found: int, tries: int, doubt: float) -> float:
    """Return what the share of which so many were found in a sample is at least, but for a doubt."""
    low, high = 0.0, found / tries if tries else 0.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if tail(found, tries, middle) > doubt else (middle, high)
    return low


def tail(least: int, tries: int, chance: float) -> float:
    """Return the probability of so many successes or more in independent tries."""
    if least <= 0 or (chance >= 1 and least <= tries):
        return 1.0
    if least > tries or chance <= 0:
        return 0.0
    logs = math.log(chance), math.log1p(-chance)
    whole = math.lgamma(tries + 1)

    def exactly(k: int) -> float:
        return math.exp(
            whole - math.lgamma(k + 1) - math.lgamma(tries - k + 1) + k * logs[0] + (tries - k) * logs[1]
        )

    if least <= tries * chance:
        return 1 - math.fsum(map(exactly, range(least)))
    return math.fsum(map(exactly, range(least, tries + 1)))


def most_share(found: int, tries: int, doubt: float) -> float:
    """Return what the share of which so many were found in a sample is at most, but for a doubt."""
    return 1 - least_share(tries - found, tries, doubt)
