"""The one system that all figures of the eddies paper are run on: its queues, and an eddy of 2000 on them.

Avnur & Hellerstein 2000 say of their system that modules are threads with queues of fixed size between them,
and tuples are routed one by one. Here ten are routed together, in figure 11 one by one, and ten fill a
queue in every figure.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from millrace.arrivals.access_methods import Access
from millrace.arrivals.schedule import Source
from millrace.clock import VirtualClock
from millrace.errors import ExecutionError
from millrace.experiments.experiment import Parameter, Settings
from millrace.experiments.lab.run import Finished, finish
from millrace.options import Options
from millrace.policies import POLICIES, Candidate, Fixed, Lottery, Naive, Policy
from millrace.policies.base import Shares
from millrace.router.back_pressure import Backpressure
from millrace.runs.eddy_run import EddyRun
from millrace.spec import JoinSpec
from millrace.tuples import Signature

BATCH = Parameter("batch", 10, 1, 1_000, "tuples", "that are routed together; the paper's is 1")
QUEUE = Parameter("queue", 10, 1, 100_000, "tuples", "in a module's input queue when it is full")
BUFFER = Parameter("buffer", 500, 1, 100_000, "tuples", "in the eddy when it takes no more")
SYSTEM = (BATCH, QUEUE, BUFFER)

NAIVE, LOTTERY, WINDOWED, DRAWN = "naive", "lottery", "windowed_lottery", "lottery, equal turns"
EVEN, NO_QUEUES, ALL_TICKETS, STUCK, STUCK_T = "even-tickets", "no-queues", "all-tickets", "stuck", "stuck-t"


class Drawn(Policy):
    """Draws one module for each batch, so that modules have equal turns on the processor.

    An eddy gives modules turns in proportion to the shares that a policy divides tuples by (lottery
    scheduling of the processor), which the paper's threads did not have. With one share at a time all
    turns are equal.

    Args:
        policy: Whose shares are drawn by.
        batch: Tuples that a draw is for.
        seed: Of the draws.
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
    *,
    batch: int | None = None,
) -> EddyRun:
    """Return an eddy on the system, whole or broken as the settings say.

    Args:
        spec: The block.
        sources: That it reads.
        settings: With the parameters of ``SYSTEM``.
        clock: Its time.
        plan: Name of a policy, or a static order of modules.
        access: Access modules by alias.
        batch: Tuples that are routed together, where that is not the parameter.
    """
    batch = batch or settings.whole("batch")
    name = plan if isinstance(plan, str) else "fixed"
    order = () if isinstance(plan, str) else tuple(plan)
    options = Options(
        architecture="joins" if len(spec.relations) > 1 else "auto",
        policy=name if name in POLICIES else None,
        order=order,
        batch_size=batch,
        online=len(spec.relations) > 1,
        reoptimize_every=batch if name == DRAWN else Options().reoptimize_every,
    )
    queue = None if settings.ablated.startswith(NO_QUEUES) and name != "fixed" else settings.whole("queue")
    policy: Policy | None = Drawn(Lottery(), batch, settings.seed) if name == DRAWN else None
    if name in (LOTTERY, WINDOWED, DRAWN):
        policy = Naive() if settings.ablated.endswith(EVEN) else policy
        policy = {STUCK: Fixed(), STUCK_T: Fixed(("T",))}.get(settings.ablated, policy)
    elif name == NAIVE and settings.ablated == ALL_TICKETS:
        policy = Lottery()
    return EddyRun(
        spec,
        sources,
        options,
        policy=policy,
        clock=clock,
        access=access or {},
        backpressure=Backpressure(queue, settings.whole("buffer")),
    )


def finished(run: EddyRun, clock: VirtualClock, expected: int) -> Finished:
    """Run an eddy to its end.

    Raises:
        ExecutionError: It found another number of rows than there are.
    """
    done = finish(run, clock)
    if done.rows != expected:
        raise ExecutionError(f"the eddy found {done.rows} rows, expected {expected}")
    return done


def place(cost: float, orders: Sequence[float]) -> float:
    """Return where a cost lies between the best static order's (0) and the worst one's (1)."""
    return (cost - min(orders)) / (max(orders) - min(orders))
