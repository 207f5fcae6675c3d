"""The policies of the eddies paper: what they learn, and what they are blind to."""

from __future__ import annotations

import pytest

from millrace.engine.policies import POLICIES, Policy
from millrace.engine.policies.lottery import LEAST_SHARE
from millrace.options import Options
from tests.engine.policies.cases import independent
from tests.engine.policies.simulator import Simulation, simulate
from tests.engine.policies.test_policies import SIGNATURE, candidate, chosen


def last_shares(simulation: Simulation) -> dict[int, float]:
    """Return the shares of the last decision for tuples that enter, by predicate."""
    entering = [shares for signature, shares in simulation.decisions if not signature.done]
    return {destination.target: share for destination, share in entering[-1]}


def made(policy: str) -> Policy:
    return POLICIES[policy](Options(policy=policy))


@pytest.mark.parametrize("policy", ["naive", "lottery", "windowed_lottery"])
def test_nothing_known_is_split_evenly(policy: str) -> None:
    """Before anything was measured no module is preferred."""
    (shares,) = chosen(policy, [[candidate(i, action="select") for i in range(4)]])
    assert dict(shares) == {candidate(i, action="select").operator: 0.25 for i in range(4)}


def test_back_pressure_sends_tuples_where_they_are_taken_fastest() -> None:
    """Shares are proportional to speed; a module not yet tried counts as the fastest."""
    seen = [(100, 100, 0.4), (100, 0, 0.1), None]
    candidates = [candidate(i, action="select", overall=each) for i, each in enumerate(seen)]
    (shares,) = chosen("naive", [candidates])
    assert [share for _, share in shares] == pytest.approx([1 / 9, 4 / 9, 4 / 9])


def test_back_pressure_is_blind_to_selectivity() -> None:
    """At equal cost every predicate gets the same share, whatever it drops."""
    case = independent(0, (50, 50, 50), (0.99, 0.5, 0.01))
    shares = last_shares(simulate(case.outcomes, case.costs, "naive"))
    assert shares == pytest.approx({0: 1 / 3, 1: 1 / 3, 2: 1 / 3}, abs=0.01)


@pytest.mark.parametrize("policy", ["lottery", "windowed_lottery"])
@pytest.mark.parametrize("seed", range(5))
def test_lotteries_learn_selectivity(policy: str, seed: int) -> None:
    """At equal cost the predicate that drops most gets most tuples, and the order beats an even split."""
    case = independent(seed, (50, 50, 50), (0.95, 0.5, 0.1))
    simulation = simulate(case.outcomes, case.costs, policy)
    shares = last_shares(simulation)
    assert shares[2] > shares[1] > shares[0] >= LEAST_SHARE
    assert simulation.work < 0.95 * simulate(case.outcomes, case.costs, "naive").work


def test_a_loser_keeps_a_ticket() -> None:
    """What drops nothing still gets the least share, so that it may win later."""
    candidates = [
        candidate(0, action="select", overall=(1000, 1000, 1.0)),
        candidate(1, action="select", overall=(1000, 0, 1.0)),
    ]
    (shares,) = chosen("lottery", [candidates])
    assert [share for _, share in shares] == pytest.approx([LEAST_SHARE, 1 - LEAST_SHARE])


def test_a_window_forgets_and_a_plain_lottery_does_not() -> None:
    """After the predicates change places the windowed lottery follows; old tickets go on weighing."""
    favourites = {}
    for policy in ("lottery", "windowed_lottery"):
        lottery, counts = made(policy), [[0, 0], [0, 0]]
        for turn in range(24):
            for i in (0, 1):
                counts[i][0] += 300
                counts[i][1] += 30 if (i == 0) == (turn < 20) else 270
            seen = [(tuples_in, tuples_out, 1.0) for tuples_in, tuples_out in counts]
            candidates = [
                candidate(i, action="select", measured=each, overall=each) for i, each in enumerate(seen)
            ]
            shares = lottery.choose(SIGNATURE, candidates)
        favourites[policy] = max(shares, key=lambda pair: pair[1])[0].target
    assert favourites == {"lottery": 0, "windowed_lottery": 1}


def test_banked_tickets_stand_until_the_window_ends() -> None:
    """What happens within a window is in escrow: it changes nothing before the window is over."""
    lottery = made("windowed_lottery")

    def shares(*seen: tuple[int, int, float]) -> list[float]:
        candidates = [candidate(i, action="select", measured=each) for i, each in enumerate(seen)]
        return [share for _, share in lottery.choose(SIGNATURE, candidates)]

    banked = shares((300, 0, 1.0), (300, 200, 1.0))
    assert banked[0] > 0.7
    assert shares((500, 200, 1.0), (500, 200, 1.0)) == banked
    assert shares((600, 300, 1.0), (600, 200, 1.0))[0] < 0.03
