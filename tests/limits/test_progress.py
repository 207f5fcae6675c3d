"""Progress: sums and rates that are exact on a virtual clock, and bounded however much fails."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from millrace.limits.chunk import Failure
from millrace.limits.client import Client
from millrace.limits.clock import VirtualClock
from millrace.limits.lookup_session import LookupSession
from millrace.limits.progress import Figures, LookupProgress, quantile, together
from millrace.limits.registration import Registration
from tests.limits.running import keys_of


def test_the_rate_is_that_of_the_last_seconds():
    """A steady job has its rate at once and always; after a pause it is that of the pause."""
    clock = VirtualClock(100.0)
    figures = Figures(clock)
    clock.advance(50)  # before anything is wanted: does not count
    figures.wanted(1000)
    for _ in range(80):
        clock.advance(0.25)
        figures.answered(5)
    now = figures.progress("p", 3, running=True)
    assert (now.keys, now.done, now.in_flight, now.seconds) == (1000, 400, 3, 20.0)
    assert now.rate == pytest.approx(20, rel=0.06)
    clock.advance(2.5)
    assert figures.progress("p", 0, running=True).rate == pytest.approx(10, rel=0.1)
    clock.advance(10)
    assert figures.progress("p", 0, running=True).rate == 0
    assert figures.progress("p", 0, running=False).seconds == 20.0
    assert figures.progress("p", 0, running=True).seconds == 32.5


def test_failures_and_cached_keys_are_settled_too():
    """Kinds beyond a hundred are one. Several executions add up; the seconds are the longest one's."""
    figures = Figures(VirtualClock())
    figures.wanted(300)
    figures.found(cached=50)
    for number in range(150):
        figures.fail(f"kind {number}")
        figures.fail("kind 0")
    now = figures.progress("p", 0, running=True)
    assert (now.done, now.cached, now.failed) == (50, 50, 300)
    assert now.failures[0] == ("kind 0", 151) and ("other", 50) in now.failures
    assert len(now.failures) == 101
    one = LookupProgress("p", 5, 2, 1, 1, 2, 9, 3, 4.0, 1.5, (("A", 1),), "")
    two = LookupProgress("p", 50, 20, 10, 10, 20, 90, 30, 3.0, 2.5, (("B", 8), ("A", 2)), "full")
    both = LookupProgress("p", 55, 22, 11, 11, 22, 99, 33, 4.0, 4.0, (("B", 8), ("A", 3)), "full")
    assert together([one, two]) == both


@given(st.lists(st.floats(0.0011, 1000), min_size=1), st.sampled_from([0.05, 0.5, 0.95, 1.0]))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_quantiles_of_requests_are_right_to_a_fifth(seconds, share):
    """Also those of several executions together; without requests there are none."""
    clock = VirtualClock()
    parts = []
    for some in (seconds[::2], seconds[1::2]):
        figures = Figures(clock)
        for each in some:
            figures.took(each, limited=each > 1)
        parts.append(figures.progress("p", 0, running=False))
    whole = together(parts)
    exact = float(np.quantile(seconds, share, method="inverted_cdf"))
    found = quantile(whole.latencies, share)
    assert exact * 0.999 <= found <= exact * 1.201
    assert whole.limited == sum(each > 1 for each in seconds)
    assert (quantile((), share), whole.p50) == (None, quantile(whole.latencies, 0.5))


async def test_the_table_of_failed_keys_is_bounded(monkeypatch):
    """The first ones with their texts; of the others briefly why, to whoever wants them, and how many."""
    monkeypatch.setattr("millrace.limits.answers.MOST_FAILED", 20)
    keys = keys_of(50)
    with LookupSession(Registration("prices")) as room:
        client = Client.local(room)
        await client.claim(keys)
        await client.fail({key: Failure("E", "m" * 1000, 2, f"[{key[-1]}]") for key in keys})
        failed = room.failed()
        assert [each.key for each in failed] == [f"[{number}]" for number in range(20)]
        assert {len(each.message) for each in failed} == {1000}
        known = (await client.claim(keys)).failed
        assert [len(known[key].message) for key in (keys[19], keys[20])] == [1000, 200]
        assert room.progress().failures == (("E", 50),)
        await client.close()


async def test_failed_keys_are_told_though_the_session_is_closed_meanwhile():
    with LookupSession(Registration("prices")) as room:
        client = Client.local(room)
        await client.claim(keys_of(1))
        await client.fail({keys_of(1)[0]: Failure("E", "m", 2, "[0]")})
        asked = room.failed_later()
        await client.close()
        room.close()
        await room.wait_closed()
        async with asyncio.timeout(30):
            assert [each.key for each in await asked] == ["[0]"]
