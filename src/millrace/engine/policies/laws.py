"""The laws of routing policies: a policy that obeys them can be given as ``Options(policy=…)``.

* Tuples go to legal operators, each named once, in shares of a whole.
* A decision follows from what was measured, and from a seed: two copies of a policy decide alike.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from millrace.engine.eddy.decisions import ask
from millrace.engine.eddy.operator import JOINS, Kind, Operator, Step
from millrace.engine.eddy.statistics import Account, Profile
from millrace.engine.policies import Candidate, Decision, policy_from
from millrace.engine.tuples.batch import Signature
from millrace.options import Options

_SITUATIONS = 200
"""Runs of decisions that a policy is asked for: it takes well below a second."""

_LEAST = math.ulp(0.0)
"""The smallest amount that is more than nothing."""


def check_policy(policy: Any, options: Options | None = None, *, seed: int = 0) -> None:
    """Run a policy through the laws, in situations drawn at random.

    Args:
        policy: What ``Options.policy`` may be: a name, an object, a class, or ``"package.module:Class"``.
        options: The settings that named policies are made from.
        seed: Of the situations.

    Raises:
        OptionError: No policy can be made of it.
        RoutingError: It decided what is not legal.
        AssertionError: Two copies of it decided differently.
    """
    draw = random.Random(seed)
    for _ in range(_SITUATIONS):
        rounds = [draw_candidates(draw) for _ in range(draw.randint(1, 5))]
        decide(policy, rounds, options, preferred=draw.randint(0, 1))


def decide(
    policy: Any,
    rounds: Sequence[Sequence[Candidate]],
    options: Options | None = None,
    *,
    preferred: int = 0,
) -> list[Decision]:
    """Return what a fresh policy decides, one round after the other; raises as :func:`check_policy` does."""
    made, again = (policy_from(policy, options or Options()) for _ in range(2))
    signature = Signature(1, preferred=preferred)
    decisions = []
    for candidates in rounds:
        decision, other = (ask(each, signature, candidates) for each in (made, again))
        if decision != other:
            raise AssertionError(
                f"policy {type(made).__name__} decided {decision}, and a copy of it {other}; expected the "
                "same: draw from a generator that the policy makes with a fixed seed"
            )
        decisions.append(decision)
    return decisions


def draw_candidates(draw: random.Random) -> list[Candidate]:
    """Return legal candidates: one that settles, or modules, with a profile where predicates are several."""
    profile = Profile()
    if draw.randint(0, 9) == 0:
        return [_draw_candidate(draw, Kind.SETTLE, 0, profile)]
    passed = np.array([draw.randint(0, 63) for _ in range(draw.randint(0, 40))], np.int64)
    profile.add({i: passed >> i & 1 == 1 for i in range(6)})
    join = draw.choice([Kind.PROBE, Kind.JOIN])
    kinds = [draw.choice([join, Kind.SELECT]) for _ in range(draw.randint(1, 6))]
    if draw.randint(0, 9) == 0:
        kinds = [Kind.BUILD, *(kind for kind in kinds if kind is Kind.SELECT)]
    found = [_draw_candidate(draw, kind, target, profile) for target, kind in enumerate(kinds)]
    if kinds.count(Kind.SELECT) > 1:
        found.append(_draw_candidate(draw, Kind.PROFILE, 0, profile))
    return found


def _draw_candidate(draw: random.Random, kind: Kind, target: int, profile: Profile) -> Candidate:
    is_join = kind in JOINS
    return Candidate(
        _Listed(kind, target),
        f"r{target}",
        _draw_account(draw),
        _draw_amount(draw, 1e6),
        overall=_draw_account(draw) if kind is Kind.SELECT else None,
        profile=profile if kind in (Kind.SELECT, Kind.PROFILE) else None,
        cumulative=_draw_amount(draw, 1e6) if is_join and draw.randint(0, 1) else None,
        anywhere=_draw_account(draw) if is_join else None,
    )


def _draw_account(draw: random.Random) -> Account:
    account = Account(1 << 20)
    if draw.randint(0, 1):
        account.update(draw.randint(0, 5000), draw.randint(0, 9000), _draw_amount(draw, 10.0))
    return account


def _draw_amount(draw: random.Random, most: float) -> float:
    """Return an amount up to ``most``, often one at the border."""
    return draw.choice([0.0, _LEAST, most, *(draw.uniform(0, most) for _ in range(3))])


class _Listed(Operator):
    """An operator that can be chosen, and does nothing."""

    def __init__(self, kind: Kind, target: int) -> None:
        self.kind = kind  # type: ignore[misc]  # of each operator here, not of the class
        super().__init__(target, *[f"{kind.value} {target}"] * 2)

    def step(self, work: Any, limit: int) -> Step:
        raise AssertionError(f"nothing is to be sent to {self}")
