"""The one system that all figures of the eddies paper are run on: its queues, and an eddy of 2000 on them.

Avnur & Hellerstein 2000 say of their system that modules are threads with queues of fixed size between them,
and tuples are routed one by one. Here ten are routed together, in figure 11 one by one, and ten fill a
queue in every figure.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from lab.experiments.experiment import Settings
from millrace.engine.arrivals.access_methods import Access
from millrace.engine.arrivals.schedule import Source
from millrace.engine.policies import POLICIES, Candidate, Fixed, Lottery, Naive, Policy
from millrace.engine.policies.base import Shares
from millrace.engine.router.back_pressure import Backpressure
from millrace.engine.runs.eddy_run import EddyRun
from millrace.engine.spec import JoinSpec
from millrace.engine.tuples import Signature
from millrace.limits.clock import VirtualClock
from millrace.options import Options

NAIVE, LOTTERY, WINDOWED, DRAWN = "naive", "lottery", "windowed_lottery", "lottery, equal turns"
EVEN, NO_QUEUES, ALL_TICKETS, STUCK, STUCK_T = "even-tickets", "no-queues", "all-tickets", "stuck", "stuck-t"


class Drawn(Policy):
    """Draws one module for each batch, so that modules have equal turns on the processor.

    An eddy gives modules turns in proportion to the shares that a policy divides tuples by (lottery
    scheduling of the processor), which the paper's threads did not have. With one share at a time all
    turns are equal.
    """

    def __init__(self, policy: Policy, batch: int, seed: int) -> None:
        self._policy = policy
        self._random = random.Random(seed)
        self.hold = batch

    def choose(self, signature: Signature, candidates: Sequence[Candidate]) -> Shares:
        """Return one operator."""
        shares = self._policy.choose(signature, candidates)
        (drawn,) = self._random.choices([operator for operator, _ in shares], [share for _, share in shares])
        return ((drawn, 1.0),)


def eddy(
    spec: JoinSpec,
    sources: Mapping[str, Source],
    settings: Settings,
    clock: VirtualClock,
    plan: str | Sequence[str],
    access: Access | None = None,
) -> EddyRun:
    """Return an eddy on the system, whole or broken as the settings say.

    Args:
        spec: The block.
        sources: That it reads.
        settings: With ``batch``, ``queue`` and ``buffer``.
        clock: Its time.
        plan: Name of a policy, or a static order of modules.
        access: Access modules by alias.
    """
    name, order = (plan, ()) if isinstance(plan, str) else ("fixed", tuple(plan))
    batch, broken, joins = settings["batch"], settings.ablated, len(spec.relations) > 1
    policy: Policy | None = None
    if name == DRAWN:
        policy = Drawn(Lottery(), batch, settings.seed)
    if name in (LOTTERY, WINDOWED, DRAWN):
        policy = Naive() if broken.endswith(EVEN) else policy
        policy = {STUCK: Fixed(), STUCK_T: Fixed(("T",))}.get(broken, policy)
    elif name == NAIVE and broken == ALL_TICKETS:
        policy = Lottery()
    options = Options(
        architecture="joins" if joins else "auto",
        policy=name if name in POLICIES else None,
        order=order,
        batch_size=batch,
        online=joins,
        reoptimize_every=batch if name == DRAWN else Options().reoptimize_every,
    )
    queue = None if broken.startswith(NO_QUEUES) and name != "fixed" else settings["queue"]
    limits = Backpressure(queue, settings["buffer"])
    return EddyRun(
        spec, sources, options, policy=policy, clock=clock, access=access or {}, backpressure=limits
    )


def place(cost: float, orders: Sequence[float]) -> float:
    """Return where a cost lies between the best static order's (0) and the worst one's (1)."""
    return (cost - min(orders)) / (max(orders) - min(orders))
