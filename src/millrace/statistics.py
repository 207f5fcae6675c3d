"""What the router has seen of its modules: update() after every call, get() before decisions.

Each pair of signature and destination keeps two accounts: totals over the whole run, for reports,
and a window that forgets, for decisions. The window halves itself whenever it holds
``window`` tuples, so that older tuples weigh ever less and drifting data is followed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass
class Account:
    """Tuples in and out, calls and seconds of one module, in total and in the window."""

    window: int
    tuples_in: int = 0
    tuples_out: int = 0
    calls: int = 0
    seconds: float = 0.0
    recent_in: float = 0.0
    recent_out: float = 0.0
    recent_seconds: float = 0.0

    def update(self, tuples_in: int, tuples_out: int, seconds: float) -> None:
        """Book one call of the module."""
        self.tuples_in += tuples_in
        self.tuples_out += tuples_out
        self.calls += 1
        self.seconds += seconds
        self.recent_in += tuples_in
        self.recent_out += tuples_out
        self.recent_seconds += seconds
        while self.recent_in > self.window:
            self.recent_in /= 2
            self.recent_out /= 2
            self.recent_seconds /= 2

    @property
    def selectivity(self) -> float:
        """Recent tuples out per tuple in; above 1 for a join that multiplies."""
        return self.recent_out / self.recent_in if self.recent_in else 1.0

    @property
    def cost(self) -> float:
        """Recent seconds per tuple in."""
        return self.recent_seconds / self.recent_in if self.recent_in else 0.0


class Statistics:
    """Accounts by any hashable key; an account appears at its first use.

    Args:
        window: Tuples that a decision looks back on, roughly.
    """

    def __init__(self, window: int = 262_144) -> None:
        self._window = window
        self._accounts: dict[object, Account] = {}

    def get(self, key: object) -> Account:
        """Return the key's account."""
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = Account(self._window)
        return account

    def update(self, key: object, tuples_in: int, tuples_out: int, seconds: float) -> None:
        """Book one call under the key."""
        self.get(key).update(tuples_in, tuples_out, seconds)

    def items(self) -> Iterator[tuple[object, Account]]:
        """Yield every key with its account, in the order of first use."""
        yield from self._accounts.items()
