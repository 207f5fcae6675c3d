"""How long tuples are of use: the closure of the bounds, against all paths tried one by one."""

from __future__ import annotations

from itertools import pairwise, permutations

import pytest
from hypothesis import given, settings, strategies as st

from millrace.errors import InputError
from millrace.streams.retention import TimeBound, retention

NAMES = ("a", "b", "c", "d")
PAIRS = [(x, y) for x in NAMES for y in NAMES if x != y]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PAIRS), st.integers(0, 50)), max_size=14))
def test_it_is_the_shortest_path_to_the_furthest_stream(given_bounds):
    """A pair without any path is refused, with the names of both."""
    bounds = [TimeBound(x, y, most) for (x, y), most in given_bounds]
    best = {}
    for size in range(2, len(NAMES) + 1):
        for path in permutations(NAMES, size):
            steps = [
                min((b.most for b in bounds if (b.earlier, b.later) == step), default=None)
                for step in pairwise(path)
            ]
            if None not in steps:
                ends = path[0], path[-1]
                best[ends] = min(best.get(ends, 1 << 60), sum(steps))
    missing = [pair for pair in PAIRS if pair not in best]
    if missing:
        with pytest.raises(InputError, match="nothing in the query says how much later") as raised:
            retention(NAMES, bounds)
        assert any(f"{x!r} a row of {y!r}" in str(raised.value) for x, y in missing)
        return
    assert retention(NAMES, bounds) == {x: max(best[x, y] for y in NAMES if x != y) for x in NAMES}


def test_what_a_left_join_waits_for_is_kept_as_long_again():
    """Up to the whole millisecond that Spark's watermark has to be beyond a bound."""
    bounds = [TimeBound("a", "b", 7000), TimeBound("b", "a", 2000)]
    assert retention("ab", bounds, "a") == {"a": 7999, "b": 2000 + 7999}
