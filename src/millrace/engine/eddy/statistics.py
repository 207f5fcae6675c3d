"""What the router has seen of its modules: update() after every call, get() before decisions.

Each pair of signature and destination keeps two accounts: totals over the whole run, for reports,
and a window that forgets, for decisions. The window halves itself whenever it holds
``window`` tuples, so that older tuples weigh ever less and drifting data is followed.

What an eddy has learned is kept as a text for the eddies of later tasks (:class:`WarmStart`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Truths = np.ndarray[Any, np.dtype[np.bool_]]


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
    """

    def __init__(self, window: int = 512) -> None:
        self._window = window
        # By predicate, for each place of the window: 1 if the tuple there passed, 0 if not, -1 if it has not
        # met it.
        self._outcomes = np.zeros((0, window), np.int8)
        self._counts: dict[tuple[int, int, int | None], tuple[int, int]] = {}
        self.tuples = 0

    @property
    def held(self) -> int:
        """Number of tuples in the window."""
        return min(self.tuples, self._window)

    def add(self, passed: Mapping[int, Truths]) -> None:
        """Add tuples that met the same predicates; by predicate, which of them passed it."""
        size = len(next(iter(passed.values())))
        kept = min(size, self._window)
        places = self._room(max(passed) + 1, kept)
        for predicate, truths in passed.items():
            self._outcomes[predicate, places] = truths[size - kept :]

    def _room(self, predicates: int, tuples: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the places of so many new tuples, which have met no predicate yet."""
        missing = predicates - len(self._outcomes)
        if missing > 0:
            more = np.full((missing, self._window), -1, np.int8)
            self._outcomes = np.concatenate([self._outcomes, more])
        self.tuples += tuples
        self._counts.clear()
        places = self._newest(tuples)
        self._outcomes[:, places] = -1
        return places

    def export(self) -> list[list[int]]:
        """Return the window, oldest first, ready for JSON.

        For each predicate: 1 for every tuple that passed it, 0 for those it rejected, -1 for those
        that did not meet it.
        """
        exported: list[list[int]] = self._outcomes[:, self._newest(self.held)].tolist()
        return exported

    def learn(self, outcomes: list[list[int]]) -> None:
        """Add tuples that another task profiled.

        Raises:
            ValueError: These are no outcomes as :meth:`export` gives them.
        """
        table = np.array(outcomes, np.int8)
        if not table.size:
            return
        if table.ndim != 2 or not (np.isin(table, (-1, 0, 1)).all() and (table >= 0).any(axis=0).all()):
            raise ValueError(
                "a profile has -1, 0 or 1 by predicate and tuple, and every tuple met a predicate"
            )
        newest = table[:, -self._window :]
        places = self._room(len(newest), newest.shape[1])
        self._outcomes[: len(newest), places] = newest

    def forget(self) -> None:
        """Drop everything: the data are no longer what they were."""
        self.tuples = 0
        self._counts.clear()

    def passing(self, predicate: int, given: int = 0, newest: int | None = None) -> tuple[int, int]:
        """Return how many tuples that pass all of ``given``, a bit set, met the predicate and passed it.

        Only the ``newest`` so many of them are looked at.
        """
        key = predicate, given, newest
        if key not in self._counts:
            self._counts[key] = self._count(predicate, given, self.held if newest is None else newest)
        return self._counts[key]

    def _count(self, predicate: int, given: int, newest: int) -> tuple[int, int]:
        places = self._newest(min(newest, self.held))
        before = [i for i in range(given.bit_length()) if given >> i & 1]
        if max([predicate, *before]) >= len(self._outcomes):
            return 0, 0
        outcomes = self._outcomes[predicate, places]
        outcomes = outcomes[(self._outcomes[before][:, places] == 1).all(axis=0)]
        return int((outcomes >= 0).sum()), int((outcomes == 1).sum())

    def _newest(self, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the places of so many of the newest tuples, oldest first."""
        return np.arange(self.tuples - count, self.tuples) % self._window


class Statistics:
    """Accounts by any hashable key; an account appears at its first use.

    A decision looks back on roughly ``window`` tuples.
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
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = Account(self._window)
            if self._taught and (known := self._taught.get(repr(key))) is not None:
                account.recent_in, account.recent_out, account.recent_seconds = known
        return account

    def update(self, key: object, tuples_in: int, tuples_out: int, seconds: float) -> None:
        self.get(key).update(tuples_in, tuples_out, seconds)

    def export(self) -> list[list[Any]]:
        """Return what is worth passing on, ready for JSON: recent accounts, by key, and profiles."""
        accounts = [
            [repr(key), a.recent_in, a.recent_out, a.recent_seconds]
            for key, a in self._accounts.items()
            if a.recent_in
        ]
        return [
            accounts,
            [[span, profile.export()] for span, profile in self._profiles.items() if profile.held],
        ]

    def learn(self, warm_start: list[list[Any]]) -> None:
        """Begin with what another task passed on; totals, which are for reports, stay at zero.

        Raises:
            TypeError, ValueError: It is not what :meth:`export` gives. Nothing has been learned then.
        """
        accounts, profiles = warm_start
        taught = {str(key): [float(number) for number in numbers] for key, *numbers in accounts}
        if not all(len(each) == 3 and all(0 <= n < math.inf for n in each) for each in taught.values()):
            raise ValueError("an account has three numbers, none of them negative")
        learned = {int(span): Profile() for span, _ in profiles}
        for span, outcomes in profiles:
            learned[int(span)].learn(outcomes)
        self._taught, self._profiles = taught, learned

    def items(self) -> Iterator[tuple[object, Account]]:
        """Yield every key with its account, in the order of first use."""
        yield from self._accounts.items()


FORMAT = 1
"""Version of the text: of what statistics export and of the names they give to accounts."""


class WarmStart(Protocol):
    """A place where one text is kept for all eddies of a run on this machine."""

    def read(self) -> str | None:
        """Return the text, or None when there is none yet."""

    def write(self, text: str) -> None:
        """Replace the text."""


@dataclass
class Lessons:
    """What was learned, for the eddies of one process."""

    text: str | None = None

    def read(self) -> str | None:
        return self.text

    def write(self, text: str) -> None:
        self.text = text


def recall(warm_start: WarmStart | None, statistics: Statistics) -> None:
    """Begin with what was learned before; a text that is damaged, or of another version, is none."""
    text = None if warm_start is None else warm_start.read()
    if text is not None:
        with suppress(KeyError, OverflowError, TypeError, ValueError):
            lessons = json.loads(text)
            if lessons["format"] == FORMAT:
                statistics.learn(lessons["learned"])


def share(warm_start: WarmStart | None, statistics: Statistics) -> None:
    """Leave what was learned to others."""
    if warm_start is not None:
        warm_start.write(as_text(statistics))


def as_text(statistics: Statistics) -> str:
    """Return what was learned as the text that :func:`recall` reads."""
    return json.dumps({"format": FORMAT, "learned": statistics.export()}, separators=(",", ":"))
