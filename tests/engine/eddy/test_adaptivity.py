"""What learning policies are for: fewer intermediate tuples, whatever order the query is written in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from millrace.options import Options
from tests.engine.eddy.blocks import run, star
from tests.engine.eddy.oracle import Case

HELD = range(100)


def keys(hits: float, n: int, seed: int) -> list[int]:
    """Return keys of which the share ``hits`` is among those held; they repeat evenly."""
    draw = np.random.default_rng(seed)
    return np.where(draw.random(n) < hits, draw.integers(0, len(HELD), n), -1).tolist()


def arms(columns: dict[str, list[int]]) -> Case:
    """Return a star whose relations look the same from outside: only the stream's keys are skewed."""
    return star(dict.fromkeys(columns, HELD), columns)


def intermediate(case: Case, policy: str, order: Sequence[str] = ()) -> int:
    """Return how many intermediate tuples a run makes."""
    options = Options(
        policy=policy, order=tuple(order), batch_size=256, reoptimize_every=1024, transfer=False
    )
    return run(case, options, stream="u", chunk=1 << 20)[1].figures().intermediate_tuples


@pytest.mark.parametrize(
    ("hits", "n"),
    [((0.05, 0.9), 20_000), ((0.9, 0.05), 80_000), ((0.9, 0.5, 0.02), 80_000), ((0.5, 0.02, 0.9), 240_000)],
    ids=str,
)
def test_greedy_finds_the_better_order(hits: tuple[float, ...], n: int) -> None:
    """Whatever is written first: after learning, it is about as good as the best static order.

    Learning is over by the last quarter of the stream. It takes the longer, the more relations share
    the tuples for exploration and the better the one is that is tried first.
    """
    columns = {name: keys(share, n, i) for i, (name, share) in enumerate(zip("xyz", hits, strict=False))}
    early = {name: values[: n * 3 // 4] for name, values in columns.items()}

    def late(policy: str, order: Sequence[str] = ()) -> int:
        return intermediate(arms(columns), policy, order) - intermediate(arms(early), policy, order)

    order = [name for _, name in sorted(zip(hits, "xyz", strict=False))]
    best, worst = late("fixed", order), late("fixed", order[::-1])
    assert worst > 10 * best
    assert late("greedy") < best + 0.05 * (worst - best)


def test_greedy_follows_drift() -> None:
    """Where each static order is wrong for half of the stream, it is better than the best of them."""
    half = 30_000
    # x drops most in the first half of the stream, y in the second.
    x = keys(0.02, half, 1) + keys(1.0, half, 2)
    y = keys(1.0, half, 3) + keys(0.02, half, 4)
    case = arms({"x": x, "y": y})
    static = min(intermediate(case, "fixed", order) for order in ("xy", "yx"))
    assert intermediate(case, "greedy") < 0.3 * static


def test_a_relation_that_multiplies_comes_last() -> None:
    """Its size tells before anything is measured, so that it is not even tried first."""
    case = star({"x": [*HELD] * 20, "y": HELD}, {"x": keys(1.0, 2000, 1), "y": keys(0.5, 2000, 2)})
    _, eddy = run(case, Options(batch_size=64, reoptimize_every=256), stream="u", chunk=500)
    ways = [order for order, _ in eddy.figures().orders]
    assert ways and all(way.startswith("u → y") for way in ways)


@pytest.mark.parametrize("policy", ["greedy", "rank", "random"])
def test_the_same_seed_gives_the_same_run(policy: str) -> None:
    """In virtual time, every figure of a run repeats."""
    case = arms({"x": keys(0.5, 5000, 1), "y": keys(0.3, 5000, 2)})
    options = Options(policy=policy, batch_size=64, reoptimize_every=256, seed=5)
    first, second = (run(case, options, stream="u", chunk=1000)[1].figures() for _ in range(2))
    assert (first.modules, first.orders) == (second.modules, second.orders)
    assert first.intermediate_tuples == second.intermediate_tuples
