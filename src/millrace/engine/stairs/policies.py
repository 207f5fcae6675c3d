"""When stored tuples are moved to where present routing would have put them.

A policy never sees state. It is asked at points of stasis, when all tuples that have arrived are through
and before more of them do, as long as some stored tuples are not where present routing would have put them.

Deshpande & Hellerstein 2004, section 4.2, name two ways in which migration loses: thrashing, where
selectivities fluctuate, and a large migration at the end that nothing comes after. :class:`Eager`, the
greedy policy of the paper, does both. :class:`Backoff`, which the paper plans, weighs: what is saved is
counted until the sources end, and for thrashing two things are doubted:

* **Horizon.** A change of routing is not for ever. It is expected to last as long as the changes before it
  did, or as long again as it has lasted already, whichever is more; only what is saved until then counts.
  The first change is taken to be the last, until there is another.
* **Patience.** What is saved must exceed the cost by a factor. It doubles with every decision that is
  followed by a migration, and halves again when as many tuples have arrived since as had before.

And since both cost and saving are estimates, and the end of the sources is a guess where sizes are not
known:

* **Budget.** All migrations together cost no more than a share of the work done so far. So however wrong
  the estimates, moving state never adds more than that share to what not moving it costs; and it comes too
  late by no more than the time in which a bad place of the state has made work in that proportion.

Simulated work over that of never moving, ``eager`` and ``backoff``: one change at 30 % of the stream 0.60 and
0.60, at 97 % 1.38 and 1.00; a change every 4,000 of 400,000 tuples 13.3 and 1.00; the mean of 150 random
sequences 2.08 and 0.96, the worst 6.1 and 1.43.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

_LEAST = 1.5
"""What a migration must save, over what it costs. A higher factor than this lets single changes go that are
right (a saving of three times the cost is usual), and hardly makes the worst case better."""

_BUDGET, _BUDGET_KNOWN = 0.12, 0.5
"""The share of the work so far that all migrations may cost; where relations' sizes are known, and with them
the end, more may be risked: most wrong moves are wrong because too little comes after them."""

_PIECES = 8
"""Where the budget does not suffice for all, at least one in so many is moved at a time, or nothing."""

_MOST = 64.0
"""The most that is ever asked of it, so that a change can still be right after a long time of unrest."""


@dataclass(frozen=True)
class Change:
    """At a point of stasis, some stored tuples are not where present routing would have put them.

    Attributes:
        tuples: How many.
        cost: Expected operations (insertions, probes, matches) that moving all of them takes.
        saving: Expected operations that having moved them spares until the sources end; may be negative.
        arrived: Source tuples that have arrived so far.
        remaining: Expected source tuples still to come, an estimate; 0.0 if there are known to be none.
        decision: Serial number of the change of routing that asks for the move.
        worked: Operations that routing has taken so far.
        spent: Operations that moves have taken so far.
        guessed: Whether the size of some relation that is still coming is not known, so that ``remaining``
            and ``saving`` go by an estimate of it, or by what has arrived.
    """

    tuples: int
    cost: float
    saving: float
    arrived: int
    remaining: float
    decision: int
    worked: float = math.inf
    spent: float = 0.0
    guessed: bool = False


class MigrationPolicy(ABC):
    """Decides when state follows routing. Answers depend on the changes asked about and nothing else.

    Attributes:
        weighs: Whether cost and saving matter to it. Then it is asked about those tuples alone that
            are worth moving by themselves; otherwise about all that are misplaced, unestimated.
        follows: Whether state ever follows routing; else no other spanning tree is taken either.
    """

    weighs = False
    follows = True

    @abstractmethod
    def allowance(self, change: Change) -> int:
        """Return how many of the tuples to move now, 0 to ``change.tuples``."""


class Eager(MigrationPolicy):
    """Moves everything, whatever it costs: it thrashes where selectivities fluctuate."""

    def allowance(self, change: Change) -> int:
        return change.tuples


class Never(MigrationPolicy):
    """Moves nothing: tuples stored before a change of routing cost as much as ever."""

    follows = False

    def allowance(self, change: Change) -> int:
        return 0


class Backoff(MigrationPolicy):
    """Moves everything that is worth moving, ever less readily where routing does not settle."""

    weighs = True

    def __init__(self) -> None:
        self._patience = _LEAST
        self._decision: int | None = None
        self._since = 0
        self._lasted = 0.0
        self._followed = False
        self._calm_since = 0

    def allowance(self, change: Change) -> int:
        """Return all of the tuples, as far as the budget goes, or 0; they are taken to be moved."""
        self._look(change)
        if not self._is_worth_it(change):
            return 0
        tuples = change.tuples
        if change.cost > 0:
            share = _BUDGET if change.guessed else _BUDGET_KNOWN
            left = share * change.worked - change.spent
            affordable = left * change.tuples / change.cost
            if affordable < change.tuples / _PIECES:
                return 0
            tuples = int(min(tuples, affordable))
        if not self._followed:
            self._followed = True
            self._patience = min(_MOST, 2 * self._patience)
            self._calm_since = change.arrived
        return tuples

    def _is_worth_it(self, change: Change) -> bool:
        """Return whether moving tuples is expected to pay.

        Once a decision has been followed, the rest of its tuples only have to pay for themselves, and a bit
        more where that is a guess.
        """
        if change.remaining <= 0:
            return False
        saving = change.saving
        if change.decision > 1:  # before, routing has never gone back on a change
            horizon = max(self._lasted, change.arrived - self._since)
            saving *= min(1.0, horizon / change.remaining)
        if not self._followed:
            return saving > self._patience * change.cost
        return saving > (_LEAST if change.guessed else 1.0) * change.cost

    def _look(self, change: Change) -> None:
        """Take in a new decision, and how calm it has been."""
        if change.decision != self._decision:
            between = 1 if self._decision is None else max(1, change.decision - self._decision)
            lasted = (change.arrived - self._since) / between
            self._lasted = lasted if self._decision is None else (self._lasted + lasted) / 2
            self._decision, self._since, self._followed = change.decision, change.arrived, False
        if self._patience > _LEAST and change.arrived >= 2 * self._calm_since:
            self._patience = max(_LEAST, self._patience / 2)
            self._calm_since = change.arrived


MIGRATION_POLICIES: Mapping[str, Callable[[], MigrationPolicy]] = MappingProxyType(
    {"eager": Eager, "never": Never, "backoff": Backoff}
)
"""What makes each policy, by its name in ``Options.migration``.

It is read-only: tasks have a copy of their own, which a change here would not reach.
"""


DEFAULT_MIGRATION = "backoff"
"""The name of the policy to take where the options name none (docs/policies.md)."""
