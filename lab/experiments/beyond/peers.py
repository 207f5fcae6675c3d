"""Head to head with POLAR's routing of chunks and SkinnerDB's UCT, on one engine and the same data.

The joins are those of ``millrace bench robust`` at a small size. What is compared are intermediate tuples,
which no machine changes; all sides stream the largest relation over the SteMs of the others, and no filters
travel, so that the order alone decides. Peers know all orders without cross products, up to 24 of them,
drawn at random.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from lab.benchmarks.harness import geomean
from lab.benchmarks.robust_cases import CASES, Case, cases
from lab.experiments.experiment import Outcome, Panel, Settings
from lab.experiments.lab.run import Finished, all_batches, finish, key
from millrace.engine.policies import Policy
from millrace.engine.policies.by_orders import Backoff, ByOrders, Dynamic, InitOnce, UpperConfidence
from millrace.engine.policies.chance import Random as RandomPolicy
from millrace.engine.router.back_pressure import Backpressure
from millrace.engine.runs.eddy_run import EddyRun
from millrace.limits.clock import VirtualClock
from millrace.options import Options

PEERS: dict[str, Callable[[Sequence[Sequence[int]], Callable[[], int]], ByOrders]] = {
    "POLAR, init once": InitOnce,
    "POLAR, backoff": Backoff,
    "POLAR, dynamic": Dynamic,
    "SkinnerDB, UCT": UpperConfidence,
}
DEFAULT, BLIND = "default", "random"
_ORDERS = 24
_WAITING = 1 << 62


def orders_of(case: Case, stream: int) -> list[tuple[int, ...]]:
    """Return different join orders without cross products that begin with the streamed relation."""
    place = {alias: number for number, alias in enumerate(case.tables)}
    near: dict[int, set[int]] = {number: set() for number in place.values()}
    for text in case.joins:
        left, right = (place[side.split(".")[0]] for side in text.split(" = "))
        near[left].add(right)
        near[right].add(left)
    draw = Random(case.name)
    found: dict[tuple[int, ...], None] = {}
    for _ in range(50 * _ORDERS):
        order = [stream]
        while len(order) < len(place):
            order.append(draw.choice(sorted(set().union(*(near[n] for n in order)) - set(order))))
        found[tuple(order)] = None
        if len(found) == _ORDERS:
            break
    return list(found)


def made(case: Case, side: str, batch: int, seed: int, expected: int | None) -> Finished:
    """Run one side of a join; ExecutionError if the result has another number of rows than expected."""
    names = list(case.tables)
    stream = max(names, key=lambda alias: case.tables[alias].num_rows)
    policy: Policy | None = RandomPolicy(seed) if side == BLIND else None
    if side in PEERS:
        orders = orders_of(case, names.index(stream))
        policy = PEERS[side](orders, lambda: eddy.figures().intermediate_tuples)
    clock = VirtualClock()
    eddy = EddyRun(
        case.spec,
        all_batches(case.tables, batch),
        Options(architecture="stems", batch_size=batch, transfer=False, by_content=False, seed=seed),
        policy=policy,
        clock=clock,
        # Peers decide for each chunk; queues of any length make the eddy ask for each batch.
        backpressure=Backpressure(None, _WAITING) if side in PEERS else None,
        stream=stream,
    )
    return finish(eddy, clock, expected)


def run(settings: Settings) -> Outcome:
    """Run all sides on all joins; blind, the default policy routes at random."""
    ratios: dict[str, list[float]] = {side: [] for side in PEERS}
    for case in cases(settings["size"], list(CASES)[: settings["joins"]]):
        played = BLIND if settings.ablated else DEFAULT
        ours = made(case, played, settings["batch"], settings.seed, None)
        for side, found in ratios.items():
            peer = made(case, side, settings["batch"], settings.seed, ours.rows)
            found.append((1 + ours.figures.intermediate_tuples) / (1 + peer.figures.intermediate_tuples))
    means = {side: geomean(found) for side, found in ratios.items()}
    figures = {key(side, "mean"): mean for side, mean in means.items()}
    figures |= {key(side, "worst"): max(found) for side, found in ratios.items()}
    figures["worst_mean"] = max(means.values())
    panel = Panel.bars("Intermediate tuples", "default over peer, geometric mean", means)
    return Outcome([panel], figures)
