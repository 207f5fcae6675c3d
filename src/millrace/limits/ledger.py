"""What streams have spent of their budgets, beside the answers that it was spent on.

A stream goes on where it was when its process is started again, and so does its budget. What a file says is
never less than what has been spent: a share of the budget is written down before calls are made of it.
Calls that are not bounded themselves are counted whenever it is written. So whoever is killed loses that
share at most, and who ends in order loses nothing. A stream may have gone on elsewhere before it begins here
again, or before a call of the time before ends here: so what others have spent is read in the transaction
that writes, and added to what was spent here. Each writer has a row of its own: no two spoil what the other
wrote.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from millrace.errors import InputError
from millrace.limits.budget import Budget, Spending, Spent
from millrace.limits.cache import explained, file_of, opened, transaction
from millrace.limits.registration import STREAM, Registration

_SHARES = 64
"""A budget is written down in so many parts."""

_ENDED = ""
"""A file has a row for each writer, and one for all that have settled."""

_PATIENCE = 5.0
"""Seconds for which one waits for others that write to the file: permits wait meanwhile."""

_Amount = tuple[int, float]
"""Requests and cost."""


class LastingSpending(Spending):
    """What has been spent of a budget, over restarts, in a file of answers.

    The name is of the stream and of what spends; no other has it.
    """

    def __init__(self, budget: Budget, path: Path, name: str) -> None:
        super().__init__(budget)
        self._path = path
        self._name = name
        self._why = {"read": "", "written": ""}
        self._writer = uuid4().hex[:12]
        self._others: _Amount = (0, 0.0)
        self._written: _Amount = (0, 0.0)
        self._settled = not self._succeeds("read", self._look)

    @property
    def may_begin(self) -> bool:
        """Whether one more call may be made now; none may that cannot be written down."""
        if self._settled:
            self._settled = not self._succeeds("read", self._look)
        return not any(self._why.values()) and super().may_begin

    def begin(self) -> bool:
        """Count a call if it may be made now; tell whether.

        A share of the budget is written down first where what is written does not cover the call. None is
        made if that fails, or if others have spent the rest meanwhile.
        """
        if not self.may_begin:
            return False
        requests, cost = self._own
        if self._exceeds(requests + 1, cost + self._reserved + self._highest):
            self._write(shares=1, calls=1)
        return super().begin()

    def end(self, cost: float | None) -> None:
        super().end(cost)
        if self._exceeds(self._own[0], self._own[1] + self._reserved):
            self._write(shares=1)

    def settle(self) -> None:
        """Write down what has been spent, and no more; calls under way have cost what was reserved."""
        if self._own != (0, 0.0) or self._written != (0, self._reserved) or self._why["written"]:
            self._write(shares=0)
        self._settled = True

    @property
    def _reserved(self) -> float:
        return self._under_way * self._highest

    @property
    def _own(self) -> _Amount:
        """What was spent here since it was settled last."""
        return self.requests - self._others[0], self.cost - self._others[1]

    def _look(self) -> None:
        if self._path.exists():
            with self._opened() as base:
                self._read(base)

    def _read(self, base: sqlite3.Connection) -> None:
        """Take in what others have spent since."""
        requests, cost, highest = base.execute(
            "SELECT coalesce(sum(requests), 0), total(cost), coalesce(max(highest), 0.0) FROM spent "
            "WHERE name = ? AND writer != ?",
            (self._name, self._writer),
        ).fetchone()
        own, self._others = self._own, (requests, cost)
        self.requests, self.cost = own[0] + requests, own[1] + cost
        self._highest = max(self._highest, highest)
        self._is_told = self._is_told or highest > 0

    def _exceeds(self, requests: int, cost: float) -> bool:
        """Whether so much is more than is written down."""
        is_bounded = self.budget.max_requests is not None or not any(self._written)
        return (is_bounded and requests > self._written[0]) or cost > self._written[1]

    def _write(self, shares: int, calls: int = 0) -> None:
        """Write down what has been spent, and so many shares of the budget in advance; none settles.

        Calls that are to be made are written down if they may be: others are read before, and none writes at
        the same time.
        """

        def write() -> None:
            with self._opened() as base, transaction(base):
                self._read(base)
                if calls and not super(LastingSpending, self).may_begin:
                    return
                requests, cost = self._own
                amounts: dict[str, _Amount] = {}
                if shares:
                    requests += calls + shares * (self.budget.max_requests or 0) // _SHARES
                    cost += self._reserved + calls * self._highest
                    cost += shares * (self.budget.max_cost or 0.0) / _SHARES
                    written = requests, cost
                else:
                    amounts[_ENDED] = requests, cost
                    written = 0, self._reserved
                if any(written):
                    amounts[self._writer] = written
                base.execute("DELETE FROM spent WHERE name = ? AND writer = ?", (self._name, self._writer))
                base.executemany(
                    "INSERT INTO spent VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
                    "requests = requests + excluded.requests, cost = cost + excluded.cost, "
                    "highest = max(highest, excluded.highest)",
                    [(self._name, writer, *each, self._highest) for writer, each in amounts.items()],
                )
            self._written = written
            if not shares:
                self._others = self.requests, self.cost

        self._succeeds("written", write)

    def _succeeds(self, what: str, act: Callable[[], None]) -> bool:
        """Do something with the file; where it fails, no more calls may be made, and errors say why."""
        try:
            act()
        except InputError as error:
            self._why[what] = f", and what was spent cannot be {what} ({error}), so no more calls are made"
            return False
        self._why[what] = ""
        return True

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        with explained(self._path), closing(opened(self._path, _PATIENCE)) as base:
            base.execute("PRAGMA synchronous = FULL")  # what was paid is not forgotten with the power
            yield base

    def __str__(self) -> str:
        return super().__str__() + "".join(self._why.values())


@dataclass
class _Known:
    """What has been spent, and by which lookups: run and number."""

    spending: Spending
    lookups: set[tuple[str, str]] = field(default_factory=set)


class Spendings:
    """What the lookups and predicates of a process have spent."""

    def __init__(self) -> None:
        self._known: dict[_Key, _Known] = {}

    def of(self, session: str, registration: Registration) -> Spending:
        """Return what has been spent of a budget, by all executions of a stream, or of a run, together.

        The session is named ``run/execution/number``.
        """
        if not registration.budget:
            return Spending(registration.budget)
        key = _key(session, registration)
        if key not in self._known:
            path, name, budget = key
            self._known[key] = _Known(
                Spending(budget) if path is None else LastingSpending(budget, path, name)
            )
        self._known[key].lookups.add(_lookup(session))
        return self._known[key].spending

    def spent(self, run: str, number: int, registration: Registration) -> list[Spent]:
        """Return the same for a report, by stream."""
        known = [each.spending for each in self._known.values() if (run, str(number)) in each.lookups]
        return [each.spent(registration.name) for each in known or [Spending(registration.budget)]]

    def settle(self, session: str, registration: Registration) -> None:
        """Write down what has been spent, where it lasts: nobody is in the session now."""
        _settle(self._known.get(_key(session, registration)))

    def forget(self, run: str) -> None:
        """Let go of what no other run spends, with all that lasts written down."""
        for key, known in list(self._known.items()):
            known.lookups = {each for each in known.lookups if each[0] != run}
            if not known.lookups:
                _settle(self._known.pop(key))

    def close(self) -> None:
        """Write down everything that lasts."""
        for each in self._known.values():
            _settle(each)


def stream_in(session: str) -> str:
    """Return the stream that a session is of, by its name; empty where it is of a job."""
    execution = session.partition("/")[2].partition("/")[0]
    return execution if execution.startswith(STREAM) else ""


_Key = tuple[Path | None, str, Budget]
"""File and name that it is filed under, or None and the lookup where it does not last; and the budget."""


def _key(session: str, registration: Registration) -> _Key:
    cache, stream, (run, number) = registration.cache, stream_in(session), _lookup(session)
    if cache is None or not stream:
        return None, f"{run}/{number}", registration.budget
    name = f"{stream}/{registration.name}/{number}/{registration.fingerprint}"
    return file_of(cache), name, registration.budget


def _lookup(session: str) -> tuple[str, str]:
    return session.partition("/")[0], session.rpartition("/")[2]


def _settle(known: _Known | None) -> None:
    if known is not None and isinstance(known.spending, LastingSpending):
        known.spending.settle()
