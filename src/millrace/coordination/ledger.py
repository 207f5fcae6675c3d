"""What streams have spent of their budgets, in files beside the answers that it was spent on.

A stream goes on where it was when its process is started again, and so does its budget. What a file says is
never less than what has been spent: a share of the budget is written down before calls are made of it. So
whoever is killed loses that share at most, and who ends in order loses nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from millrace.budget import Budget, Spending

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
        if self._path.exists():
            known = json.loads(self._path.read_text())
            self.requests, self.cost = known["requests"], known["cost"]
            self._highest = max(self._highest, known["highest"])
        self._written = (self.requests, self.cost)

    @property
    def may_begin(self) -> bool:
        """Whether one more call may be made now; none may that cannot be written down."""
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
            self._write(self.requests, self._reserved)

    @property
    def _reserved(self) -> float:
        return self.cost + self._under_way * self._highest

    def _check(self) -> None:
        requests, cost = self._written
        if self.requests > requests or self._reserved > cost:
            budget = self.budget
            self._write(
                self.requests + (budget.max_requests or 0) // _SHARES,
                self._reserved + (budget.max_cost or 0.0) / _SHARES,
            )

    def _write(self, requests: int, cost: float) -> None:
        part = self._path.with_suffix(f".{os.getpid()}")
        try:
            part.write_text(json.dumps({"requests": requests, "cost": cost, "highest": self._highest}))
            part.replace(self._path)
        except OSError as error:
            self._why = f", and {self._path} cannot be written ({error.strerror}), so no more calls are made"
        else:
            self._written = requests, cost

    def __str__(self) -> str:
        return super().__str__() + self._why
