"""Policies that route chunks along whole join orders find the best one, and try others as they say."""

from __future__ import annotations

import random

import pytest

from millrace.engine.policies.by_orders import Backoff, ByOrders, Dynamic, InitOnce, UpperConfidence

ORDERS = [(0, 1, 2, 3), (0, 1, 3, 2), (0, 2, 1, 3), (0, 3, 2, 1)]
KINDS = (InitOnce, Backoff, Dynamic, UpperConfidence)


def played(policy: ByOrders, resistances: list[float], chunks: int, seed: int = 0) -> list[int]:
    """Return the orders picked where each has a resistance, with a little noise."""
    draw = random.Random(seed)
    picked = []
    for _ in range(chunks):
        order = policy.pick()
        policy.chunks[order] += 1
        policy.learn(order, resistances[order] * draw.uniform(0.95, 1.05))
        picked.append(order)
    return picked


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("best", range(4))
def test_most_chunks_take_the_best_order(kind: type[ByOrders], best: int) -> None:
    """Wherever the best order stands among the others, it wins; of a bad prefix one order may be enough."""
    resistances = [3.0 + i for i in range(4)]
    resistances[best] = 0.5
    picked = played(kind(ORDERS, lambda: 0), resistances, 2_000)
    assert len(set(picked)) >= 3
    assert picked[-500:].count(best) >= 450


@pytest.mark.parametrize("kind", [Backoff, Dynamic, UpperConfidence])
def test_a_change_is_noticed_unless_all_was_decided_at_first(kind: type[ByOrders]) -> None:
    """What becomes the best order later is found by those that go on trying, and by InitOnce never."""
    for each, finds in ((kind, True), (InitOnce, False)):
        policy = each(ORDERS, lambda: 0)
        played(policy, [1.0, 2.0, 2.0, 2.0], 200)
        picked = played(policy, [4.0, 4.0, 0.2, 4.0], 4_000)
        assert (picked[-500:].count(2) > 250) is finds


def test_trying_costs_a_share_of_the_work_at_most() -> None:
    """Once each order has been tried, regret stays within one percent of the best order's work."""
    resistances = [1.0, 5.0, 9.0, 2.0]
    picked = played(Dynamic(ORDERS, lambda: 0), resistances, 5_000)[4:]
    regret = sum(resistances[order] - 1.0 for order in picked)
    assert 0 < regret <= 0.0125 * len(picked) * (1 + 1.0)
