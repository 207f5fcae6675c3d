"""What the router has seen of its modules: update() after every call, get() before decisions.

Each pair of signature and destination keeps two accounts: totals over the whole run, for reports,
and a window that forgets, for decisions. The window halves itself whenever it holds
``window`` tuples, so that older tuples weigh ever less and drifting data is followed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np


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


class Profile:
    """Outcomes of profiled tuples: which of several predicates each of them passes.

    Only tuples that met every predicate tell how one predicate fares on what another has left
    (the profile window of Babu et al. 2004, section 3.3). The newest ``window`` tuples are kept.

    Args:
        window: Tuples to keep.
    """

    def __init__(self, window: int = 512) -> None:
        self._evaluated = np.zeros(window, np.uint64)
        self._passed = np.zeros(window, np.uint64)
        self.tuples = 0

    @property
    def held(self) -> int:
        """Number of tuples in the window."""
        return min(self.tuples, len(self._passed))

    def add(self, evaluated: int, passed: np.ndarray[Any, np.dtype[np.uint64]]) -> None:
        """Add tuples.

        Args:
            evaluated: Bit set of the predicates that each of them met.
            passed: Bit sets of the predicates that they passed, shape ``(n,)``.
        """
        passed = passed[-len(self._passed) :]
        places = (self.tuples + np.arange(len(passed))) % len(self._passed)
        self._evaluated[places] = evaluated
        self._passed[places] = passed
        self.tuples += len(passed)

    def export(self) -> tuple[list[int], list[int]]:
        """Return the window, oldest first: bit sets of predicates met, and passed."""
        places = np.arange(self.tuples - self.held, self.tuples) % len(self._passed)
        return self._evaluated[places].tolist(), self._passed[places].tolist()

    def learn(self, evaluated: list[int], passed: list[int]) -> None:
        """Add tuples that another task profiled."""
        for met, bits in zip(evaluated, passed, strict=True):
            self.add(met, np.array([bits], np.uint64))

    def forget(self) -> None:
        """Drop everything: the data are no longer what they were."""
        self.tuples = 0

    def passing(self, predicate: int, given: int = 0, newest: int | None = None) -> tuple[int, int]:
        """Return how many tuples that pass all of ``given`` met the predicate, and how many passed it.

        Args:
            predicate: Number of the predicate.
            given: Bit set of predicates passed before.
            newest: Look at this many of the newest tuples only.
        """
        held = self.held if newest is None else min(newest, self.held)
        places = np.arange(self.tuples - held, self.tuples) % len(self._passed)
        evaluated, passed = self._evaluated[places], self._passed[places]
        bit, condition = np.uint64(1 << predicate), np.uint64(given)
        met = ((evaluated & (bit | condition)) == (bit | condition)) & ((passed & condition) == condition)
        return int(met.sum()), int((passed[met] & bit != 0).sum())


class Statistics:
    """Accounts by any hashable key; an account appears at its first use.

    Args:
        window: Tuples that a decision looks back on, roughly.
    """

    def __init__(self, window: int = 262_144) -> None:
        self._window = window
        self._accounts: dict[object, Account] = {}
        self._profiles: dict[int, Profile] = {}
        self._taught: dict[str, list[float]] = {}

    def profile(self, span: int) -> Profile:
        """Return the joint outcomes of predicates on tuples of that span."""
        found = self._profiles.get(span)
        if found is None:
            found = self._profiles[span] = Profile()
        return found

    def get(self, key: object) -> Account:
        """Return the key's account."""
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = Account(self._window)
            if self._taught and (known := self._taught.get(repr(key))) is not None:
                account.recent_in, account.recent_out, account.recent_seconds = known
        return account

    def update(self, key: object, tuples_in: int, tuples_out: int, seconds: float) -> None:
        """Book one call under the key."""
        self.get(key).update(tuples_in, tuples_out, seconds)

    def export(self) -> list[list[Any]]:
        """Return what is worth passing on, ready for JSON: recent accounts, by key, and profiles."""
        accounts = [
            [repr(key), a.recent_in, a.recent_out, a.recent_seconds]
            for key, a in self._accounts.items()
            if a.recent_in
        ]
        return [accounts, [[span, *profile.export()] for span, profile in self._profiles.items()]]

    def learn(self, warm_start: list[list[Any]]) -> None:
        """Begin with what another task passed on; totals, which are for reports, stay at zero."""
        accounts, profiles = warm_start
        self._taught = {key: numbers for key, *numbers in accounts}
        for span, evaluated, passed in profiles:
            self.profile(span).learn(evaluated, passed)

    def items(self) -> Iterator[tuple[object, Account]]:
        """Yield every key with its account, in the order of first use."""
        yield from self._accounts.items()
