"""The policies of the eddies paper: what they learn, and what they are blind to."""

from __future__ import annotations

import pytest

from millrace.engine.policies import POLICIES
from millrace.engine.policies.lottery import LEAST_SHARE
from millrace.options import Options
from tests.engine.policies.cases import independent
from tests.engine.policies.simulator import simulate
from tests.engine.policies.test_policies import SIGNATURE, candidate, chosen, favourite

Seen = tuple[int, int, float]


def shares(policy: str, *seen: Seen | None) -> list[float]:
    """Return the shares of predicates of which so many tuples, so many that passed, and seconds are known."""
    known = [candidate(i, action="select", measured=each, overall=each) for i, each in enumerate(seen)]
    return [share for _, share in chosen(policy, [known])[0]]


@pytest.mark.parametrize("policy", ["naive", "lottery", "windowed_lottery"])
def test_nothing_known_is_split_evenly(policy: str) -> None:
    """Before anything was measured no module is preferred."""
    assert shares(policy, None, None, None, None) == [0.25] * 4


def test_back_pressure_sends_tuples_where_they_are_taken_fastest() -> None:
    """Shares are proportional to speed, whatever is dropped; a module not yet tried counts as the fastest."""
    assert shares("naive", (100, 100, 0.4), (100, 0, 0.1), None) == pytest.approx([1 / 9, 4 / 9, 4 / 9])


@pytest.mark.parametrize("policy", ["lottery", "windowed_lottery"])
def test_lotteries_learn_selectivity(policy: str) -> None:
    """At equal cost the predicate that drops most gets most tuples, and the order beats an even split."""
    for seed in range(5):
        case = independent(seed, (50, 50, 50), (0.95, 0.5, 0.1))
        simulation = simulate(case.outcomes, case.costs, policy)
        entering = [found for signature, found in simulation.decisions if not signature.done]
        last = {operator.target: share for operator, share in entering[-1]}
        assert last[2] > last[1] > last[0] >= LEAST_SHARE
        assert simulation.work < 0.95 * simulate(case.outcomes, case.costs, "naive").work


def test_a_loser_keeps_a_ticket() -> None:
    """What drops nothing still gets the least share, so that it may win later."""
    found = shares("lottery", (1000, 1000, 1.0), (1000, 0, 1.0))
    assert found == pytest.approx([LEAST_SHARE, 1 - LEAST_SHARE])


@pytest.mark.parametrize(("policy", "wins"), [("lottery", 0), ("windowed_lottery", 1)])
def test_a_window_forgets_and_a_plain_lottery_does_not(policy: str, wins: int) -> None:
    """After the predicates change places the windowed lottery follows; old tickets go on weighing."""
    lottery, counts = POLICIES[policy](Options(policy=policy)), [[0, 0], [0, 0]]
    for turn in range(24):
        for i in (0, 1):
            counts[i][0] += 300
            counts[i][1] += 30 if (i == 0) == (turn < 20) else 270
        seen = [(passed_in, passed, 1.0) for passed_in, passed in counts]
        found = lottery.choose(
            SIGNATURE,
            [candidate(i, action="select", measured=each, overall=each) for i, each in enumerate(seen)],
        )
    assert favourite(found) == wins


def test_banked_tickets_stand_until_the_window_ends() -> None:
    """What happens within a window is in escrow: it changes nothing before the window is over."""
    lottery = POLICIES["windowed_lottery"](Options(policy="windowed_lottery"))

    def found(*seen: Seen) -> list[float]:
        known = [candidate(i, action="select", measured=each) for i, each in enumerate(seen)]
        return [share for _, share in lottery.choose(SIGNATURE, known)]

    banked = found((300, 0, 1.0), (300, 200, 1.0))
    assert banked[0] > 0.7
    assert found((500, 200, 1.0), (500, 200, 1.0)) == banked
    assert found((600, 300, 1.0), (600, 200, 1.0))[0] < 0.03
