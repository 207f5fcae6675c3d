"""Is a migration worth it? Cost against benefit, with growing doubt where routing does not settle.

Deshpande & Hellerstein 2004, section 4.2, name two ways in which migration loses: thrashing, where
selectivities fluctuate, and a large migration at the end that nothing comes after. The second is a matter of
weighing: what is saved is counted until the sources end. For the first, two things are doubted:

* **Horizon.** A change of routing is not for ever. It is expected to last as long as the changes before it
  did, or as long again as it has lasted already, whichever is more; only what is saved until then counts.
* **Patience.** What is saved must exceed the cost by a factor. It doubles with every decision that is
  followed by a migration, and halves again when as many tuples have arrived since as had before.
"""

from __future__ import annotations

from millrace.migration.base import Change

_LEAST = 1.5
"""What a migration must save, over what it costs. A higher factor than this lets single changes go that are
right (a saving of three times the cost is usual), and hardly makes the worst case better."""

_MOST = 64.0
"""The most that is ever asked of it, so that a change can still be right after a long time of unrest."""


class Weighing:
    """Remembers how long decisions lasted and what was moved, and says what is worth it."""

    def __init__(self) -> None:
        self._patience = _LEAST
        self._decision: int | None = None
        self._since = 0
        self._lasted = 0.0
        self._followed = False
        self._calm_since = 0

    def is_worth_it(self, change: Change) -> bool:
        """Return whether moving tuples now is expected to pay; if so it is taken to happen.

        Once a decision has been followed, the rest of its tuples only have to pay for themselves.
        """
        self._look(change)
        if change.remaining <= 0:
            return False
        horizon = max(self._lasted, change.arrived - self._since)
        saving = change.saving * min(1.0, horizon / change.remaining)
        if self._followed:
            return saving > change.cost
        if saving <= self._patience * change.cost:
            return False
        self._followed = True
        self._patience = min(_MOST, 2 * self._patience)
        self._calm_since = change.arrived
        return True

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
