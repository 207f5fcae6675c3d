"""On what terms a source is asked: how many at once, how fast, how often again and how long."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.errors import OptionError
from millrace.limits.budget import NO_BUDGET, Budget, Cost
from millrace.predicates.spec import check_above_zero, check_whole


@dataclass(frozen=True)
class Terms:
    """The terms of one source; kept over all tasks of a job together.

    Attributes:
        max_in_flight: Requests under way at once.
        per_second: Requests started per second; None sets no bound.
        retries: How often a request is repeated that failed in a way that may pass.
        timeout: Seconds for one request, from its start to the last byte of its answer.
        batch: Keys in one request, at most.
        circuit_breaker: Requests in a row, over all tasks, after whose failure the source is left alone for a
            while, and given up if it does not come back; None for never.
        max_retry_after: Seconds that it can make all tasks wait by ``Retry-After``, at most.
        budget: What all requests of a query may cost.
        cost: Tells what a request has cost, by its keys (a list of dictionaries) and its rows (a PyArrow
            RecordBatch); None where each costs the budget's price.
        tokens_per_minute: That all requests take together, of sources that tell what each took.
        limit_group: Shares limits and budget with all that name the same, in all queries of the process.

    Raises:
        OptionError: A value is out of its range.
    """

    max_in_flight: int = 8
    per_second: float | None = None
    retries: int = 3
    timeout: float = 30.0
    batch: int = 1
    circuit_breaker: int | None = 50
    max_retry_after: float = 60.0
    budget: Budget = NO_BUDGET
    cost: Cost | None = None
    tokens_per_minute: float | None = None
    limit_group: str | None = None

    def __post_init__(self) -> None:
        check_whole("a lookup", self, max_in_flight=1, batch=1)
        if self.circuit_breaker is not None:
            check_whole("a lookup", self, circuit_breaker=1)
        check_whole("a lookup", self, 1000, retries=0)
        check_above_zero("a lookup", self, "timeout", "max_retry_after", "per_second", "tokens_per_minute")
        if self.limit_group is not None and (type(self.limit_group) is not str or not self.limit_group):
            raise OptionError(f"limit_group of a lookup is {self.limit_group!r}, expected a name")
