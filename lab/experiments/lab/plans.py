"""Join plans: drawn at random, run as static plans, and as what an eddy begins with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from millrace.engine.policies import Candidate, Policy
from millrace.engine.policies.base import Shares
from millrace.engine.trees import JoinTree
from millrace.engine.tuples import Signature
from millrace.options import Order


@dataclass(frozen=True)
class Plan:
    """A tree of binary joins, maybe bushy.

    Attributes:
        order: As ``Options.order`` takes it.
        edges: By span of an input, the number of the edge that it is joined along.
        relations: By span of an input, the relation at the edge's other end.
    """

    order: Order
    edges: Mapping[int, int]
    relations: Mapping[int, int]


def drawn(tree: JoinTree, aliases: Sequence[str], draw: np.random.Generator) -> Plan:
    """Return a random plan without cross products: the last join is drawn first, then those of its inputs."""
    return next(_plans(tree, aliases, lambda edges: [edges[draw.integers(len(edges))]]))


def plans_of(tree: JoinTree, aliases: Sequence[str]) -> Iterator[Plan]:
    """Yield every plan without cross products."""
    return _plans(tree, aliases, lambda edges: edges)


def _plans(tree: JoinTree, aliases: Sequence[str], last: Callable[[list[int]], list[int]]) -> Iterator[Plan]:
    """Yield the plans whose last joins ``last`` chooses from the edges inside a span."""

    def below(span: int) -> Iterator[Plan]:
        if span & (span - 1) == 0:
            yield Plan((aliases[span.bit_length() - 1],), {}, {})
            return
        inside = [e.number for e in tree.edges if all(span >> end & 1 for end in e.ends)]
        for edge in last(inside):
            a, b = tree.by_number[edge].ends
            sides = [span & tree.beyond(edge, 1 << end) for end in (b, a)]
            for left in below(sides[0]):
                for right in below(sides[1]):
                    edges = {**left.edges, **right.edges, sides[0]: edge, sides[1]: edge}
                    far = {**left.relations, **right.relations, sides[0]: b, sides[1]: a}
                    parts = (p.order[0] if len(p.order) == 1 else p.order for p in (left, right))
                    yield Plan(tuple(parts), edges, far)

    yield from below((1 << tree.relations) - 1)


class Opening(Policy):
    """Routes by a plan until it is over, and then as another policy decides.

    Args:
        plan: What to begin with.
        policy: Decides afterwards, and where the plan says nothing.
        over: Returns whether the plan need not be followed any more.
    """

    def __init__(self, plan: Plan, policy: Policy, over: Callable[[], bool]) -> None:
        self._plan = plan
        self._policy = policy
        self._over = over

    def choose(self, signature: Signature, candidates: Sequence[Candidate]) -> Shares:
        """Return the plan's next join while it is held: an edge for binary joins, a relation for SteMs."""
        span = signature.span
        if span in self._plan.edges and not self._over():
            planned = (("join", self._plan.edges[span]), ("probe", self._plan.relations[span]))
            # The policy is asked all the same: it may want to stay where it has been.
            candidates = [c for c in candidates if c.operator.place in planned] or candidates
        return self._policy.choose(signature, candidates)
