"""Choices of a query, by a seed, and fewer and smaller ones that fail as they do."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.sql.fuzz.grammar import query

Choices = list[int]


def by_seed(seed: int) -> tuple[Choices, str]:
    """Return the choices of a seed, and the query that they make."""
    rng = random.Random(seed)
    made: Choices = []

    def draw(count: int) -> int:
        made.append(rng.randrange(count))
        return made[-1]

    text = query(draw)
    return made, text


def by_choices(choices: Choices) -> tuple[Choices, str]:
    """Return the query of some choices, zeros behind the last one, and those that it needs."""
    used: Choices = []

    def draw(count: int) -> int:
        used.append(min(choices[len(used)], count - 1) if len(used) < len(choices) else 0)
        return used[-1]

    text = query(draw)
    return used, text


def smallest(choices: Choices, fails: Callable[[str], bool], budget: int = 200) -> str:
    """Return the text of a small query that fails.

    Args:
        choices: Of a query that fails.
        fails: Whether a query fails in the same way.
        budget: How many queries are tried, at most.
    """
    best, text = by_choices(choices)
    tried = {text}

    def is_better(proposal: Choices) -> bool:
        nonlocal best, text
        used, other = by_choices(proposal)
        if (len(used), used) >= (len(best), best) or other in tried or len(tried) > budget:
            return False
        tried.add(other)
        if not fails(other):
            return False
        best, text = used, other
        return True

    size = len(best) // 2
    while size:
        start = 0
        while start < len(best):
            rest = best[:start] + best[start + size :], best[:start] + [0] * size + best[start + size :]
            if not any(map(is_better, rest)):
                start += size
        size //= 2
    for place in range(len(best)):
        for lower in range(best[place] if place < len(best) else 0):
            if is_better([*best[:place], lower, *best[place + 1 :]]):
                break
    return text
