"""What streams have spent of their budgets, in files beside the answers that it was spent on.

A stream goes on where it was when its process is started again, and so does its budget. What a file says is
never less than what has been spent: a share of the budget is written down before calls are made of it. So
whoever is killed loses that share at most, and who ends in order loses nothing. A stream may have gone on
elsewhere before it begins here again, or before a call of the time before ends here: so a file is read anew
before it is written, and what others have spent since is added to what was spent here.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from millrace.budget import Budget, Spending, Spent
from millrace.coordination.cache import SUFFIX
from millrace.coordination.registration import STREAM, Registration

_MOST = 4096
_SHARES = 64
"""A budget is written down in so many parts."""


class LastingSpending(Spending):
    """What has been spent of a budget, over restarts.

    Args:
        budget: The budget.
        folder: Where answers are kept.
        name: Of the stream and of what spends; no other has it.

    Raises:
        OSError: The file cannot be read or written.
    """

    def __init__(self, budget: Budget, folder: Path, name: str) -> None:
        super().__init__(budget)
        digest = hashlib.sha256(name.encode()).hexdigest()[:24]
        self._path = folder / f"budget-{digest}.json"
        self._why = ""
        self._written = (0, 0.0)
        self._settled = False
        self._read()

    @property
    def may_begin(self) -> bool:
        """Whether one more call may be made now; none may that cannot be written down."""
        if self._settled:
            try:
                self._read()
                self._settled = False
            except OSError as error:
                self._why = f", and {self._path} cannot be read ({error.strerror}), so no more calls are made"
        return not self._why and super().may_begin

    def begin(self) -> None:
        """Count a call, once it is written down."""
        super().begin()
        self._check()

    def end(self, cost: float | None) -> None:
        """Count what a call has cost."""
        super().end(cost)
        self._check()

    def settle(self) -> None:
        """Write down what has been spent, and no more; calls under way have cost what was reserved."""
        if self._written != (self.requests, self._reserved):
            self._write(shares=0)
        self._settled = True

    @property
    def _reserved(self) -> float:
        return self.cost + self._under_way * self._highest

    def _read(self) -> None:
        """Add what others have spent since this was written here last."""
        if not self._path.exists():
            return
        known = json.loads(self._path.read_text())
        requests, cost = self._written
        self.requests += max(0, known["requests"] - requests)
        self.cost += max(0.0, known["cost"] - cost)
        self._highest = max(self._highest, known["highest"])
        self._written = known["requests"], known["cost"]

    def _check(self) -> None:
        requests, cost = self._written
        if self.requests > requests or self._reserved > cost:
            self._write(shares=1)

    def _write(self, shares: int) -> None:
        """Write down what has been spent, and so many shares of the budget in advance."""
        part = self._path.with_suffix(f".{os.getpid()}")
        try:
            self._read()
            requests = self.requests + shares * (self.budget.max_requests or 0) // _SHARES
            cost = self._reserved + shares * (self.budget.max_cost or 0.0) / _SHARES
            part.write_text(json.dumps({"requests": requests, "cost": cost, "highest": self._highest}))
            part.replace(self._path)
        except OSError as error:
            self._why = f", and {self._path} cannot be written ({error.strerror}), so no more calls are made"
        else:
            self._written = requests, cost

    def __str__(self) -> str:
        return super().__str__() + self._why


@dataclass
class _Known:
    """What has been spent, and by which lookups: run and number."""

    spending: Spending
    lookups: set[tuple[str, str]] = field(default_factory=set)


class Spendings:
    """What the lookups and predicates of a process have spent, those used last."""

    def __init__(self) -> None:
        self._known: OrderedDict[_Key, _Known] = OrderedDict()

    def of(self, session: str, registration: Registration) -> Spending:
        """Return what has been spent of a budget, by all executions of a stream, or of a run, together.

        Args:
            session: Its name, ``run/execution/number``.
            registration: Whose budget it is.

        Raises:
            OSError: What a stream has spent cannot be read.
        """
        if not registration.budget:
            return Spending(registration.budget)
        key = _key(session, registration)
        if key not in self._known:
            folder, name, budget = key
            self._known[key] = _Known(
                Spending(budget) if folder is None else LastingSpending(budget, folder, name)
            )
        self._known.move_to_end(key)
        self._known[key].lookups.add(_lookup(session))
        while len(self._known) > _MOST:
            _settle(self._known.popitem(last=False)[1])
        return self._known[key].spending

    def spent(self, run: str, number: int, registration: Registration) -> list[Spent]:
        """Return the same for a report, by stream."""
        known = [each.spending for each in self._known.values() if (run, str(number)) in each.lookups]
        return [each.spent(registration.name) for each in known or [Spending(registration.budget)]]

    def settle(self, session: str, registration: Registration) -> None:
        """Write down what has been spent, where it lasts: nobody is in the session now."""
        _settle(self._known.get(_key(session, registration)))

    def close(self) -> None:
        """Write down everything that lasts."""
        for each in self._known.values():
            _settle(each)


def stream_in(session: str) -> str:
    """Return the stream that a session is of, by its name; empty where it is of a job."""
    execution = session.partition("/")[2].partition("/")[0]
    return execution if execution.startswith(STREAM) else ""


_Key = tuple[Path | None, str, Budget]
"""Folder and name that it is filed under, or None and the lookup where it does not last; and the budget."""


def _key(session: str, registration: Registration) -> _Key:
    cache, stream, (run, number) = registration.cache, stream_in(session), _lookup(session)
    if cache is None or not stream:
        return None, f"{run}/{number}", registration.budget
    folder = cache.parent if cache.suffix == SUFFIX else cache
    return folder, f"{stream}/{registration.name}/{number}/{registration.fingerprint}", registration.budget


def _lookup(session: str) -> tuple[str, str]:
    return session.partition("/")[0], session.rpartition("/")[2]


def _settle(known: _Known | None) -> None:
    if known is not None and isinstance(known.spending, LastingSpending):
        known.spending.settle()
