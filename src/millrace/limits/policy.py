"""On what terms something is asked: how many at once, how fast, how often again, how long, and at what cost.

One table of settings, with one check, for lookups, predicates and models.

The library for repeating calls is loaded only where one is to be repeated: it takes asyncio with it, and most
tasks need neither.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from millrace.errors import OptionError, near
from millrace.limits.budget import Budget, Cost, budget_of
from millrace.limits.registration import Registration
from millrace.limits.request import Refused
from millrace.limits.secrets import Secrets

if TYPE_CHECKING:
    from tenacity import RetryCallState

FIRST_WAIT = 0.1
LONGEST_WAIT = 30.0
"""Seconds between attempts: random, up to these bounds, doubling from the first to the longest."""

SHARED = ("max_in_flight", "per_second", "tokens_per_minute", "max_requests", "max_cost")

_SHOWN = ("batch", "retries", "timeout", *SHARED, "dedupe", "limit_group")


class LimitOptions(TypedDict, total=False):
    """The limits of requests: of lookups (8 in flight, 3 retries, 30 s), predicates and models.

    A request is an HTTP request, a statement of a database, or a call of a function.

    Attributes:
        max_in_flight: Requests under way at once, over all tasks of the job. Connections of a database are
            kept open for some seconds after their last statement.
        per_second: Requests that start in a second, over all tasks of the job; None sets no bound.
        retries: Further attempts at a request whose failure may pass, after growing random waits.
        timeout: Seconds for one attempt, from its start to the last byte of its last page. A function that
            runs in a thread is not stopped; its result is dropped. A statement is stopped, where the driver
            has a way, and its connection closed. PostgreSQL, MySQL and MariaDB end it themselves a second
            later, also if the task has died.
        batch: Keys or rows in a request, at most; 1 for lookups, 500 for a database. A predicate of kind
            ``async`` that is given it is called with lists.
        max_requests: Requests that a query may make in all, retries included; one of several pages counts
            once. At the limit the query stops with :class:`millrace.errors.BudgetError`. Only where
            a join reads the scan of a lookup table too, it asks no more, and the scan returns the rest.
        max_cost: What all requests of a query may cost, in the unit of ``cost``, or of a model's prices. At a
            fixed price it is never exceeded. Else it is exceeded at most by what requests under way cost
            more than any before. Until one has told its cost, requests go one by one.
        limit_group: A name. All lookups, predicates and models of this process that give the same one share
            ``max_in_flight``, ``per_second`` and budget, in all its queries. They have to give the same
            limits.
    """

    max_in_flight: int
    per_second: float | None
    retries: int
    timeout: float
    batch: int
    max_requests: int | None
    max_cost: float | None
    limit_group: str | None


class LookupOptions(LimitOptions, total=False):
    """The limits of a lookup.

    Attributes:
        cost: What a request costs: a number, or a function of its keys (a list of dictionaries) and its rows
            (a PyArrow RecordBatch).
        circuit_breaker: Failures in a row, over all tasks, after which the source is asked only once in a
            while; those count that may pass. If the source has not come back after two minutes, the query
            fails, whatever ``on_error`` is. 50 by default; None to go on asking. Each lookup of a
            ``limit_group`` has its own.
    """

    cost: float | Cost | None
    circuit_breaker: int | None


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of one lookup, predicate or model; kept over all tasks of a job together.

    Attributes:
        max_in_flight: See :class:`LimitOptions`, and for the others that are not told of here. None sets no
            bound.
        timeout: None lets a call take for ever.
        batch: None is for what is asked for single values.
        cost: What a call costs: a number, or a function of its request and its answer.
        tokens_per_minute: That all calls take together, of sources that tell what each took.
        circuit_breaker: See :class:`LookupOptions`.
        max_retry_after: Seconds that a source can make all tasks wait by ``Retry-After``, at most.

    Raises:
        OptionError: A value is out of its range.
    """

    max_in_flight: int | None = None
    per_second: float | None = None
    retries: int = 0
    timeout: float | None = None
    batch: int | None = None
    max_requests: int | None = None
    max_cost: float | None = None
    cost: float | Cost | None = None
    limit_group: str | None = None
    tokens_per_minute: float | None = None
    circuit_breaker: int | None = None
    max_retry_after: float = 60.0

    def __post_init__(self) -> None:
        self._check_whole(max_in_flight=1, batch=1)
        if self.circuit_breaker is not None:
            self._check_whole(circuit_breaker=1)
        self._check_whole(1000, retries=0)
        for name in ("timeout", "max_retry_after", "per_second", "tokens_per_minute"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (number and 0 < value < float("inf")) and value is not getattr(type(self), name):
                raise OptionError(f"{self.owner}: {name} is {value!r}, expected a number above 0")
        _ = self.budget
        if self.limit_group is None:
            return
        if type(self.limit_group) is not str or not self.limit_group:
            raise OptionError(f"{self.owner}: limit_group is {self.limit_group!r}, expected a name")
        if not any(getattr(self, setting) for setting in SHARED):
            raise OptionError(
                f"{self.owner}: limit_group {self.limit_group!r} has nothing to share: give "
                f"{', '.join(SHARED[:-1])} or {SHARED[-1]} as well"
            )

    def _check_whole(self, most: int = 1_000_000, **least: int) -> None:
        """Raise an OptionError for a setting that is no whole number from so much to ``most``.

        None will do where it is the default.
        """
        for name, low in least.items():
            value = getattr(self, name)
            is_whole = type(value) is int and low <= value <= most
            if not is_whole and value is not getattr(type(self), name):
                raise OptionError(
                    f"{self.owner}: {name} is {value!r}, expected a whole number from {low} to {most:,}"
                )

    @property
    def owner(self) -> str:
        """Whose limits these are, for errors."""
        return "a lookup"

    @property
    def budget(self) -> Budget:
        """What its calls may cost."""
        return budget_of(self.owner, self.max_requests, self.max_cost, self.cost)

    @property
    def price(self) -> Cost | None:
        """What tells the cost of a call; None where each costs the same, or nothing bounds it."""
        return self.cost if callable(self.cost) else None

    def describe(self) -> str:
        """Return the settings that are set, for plans."""
        named = {name: getattr(self, name, None) for name in _SHOWN}
        return ", ".join(f"{name}={value}" for name, value in named.items() if value)

    def registration(
        self,
        name: str,
        secrets: Secrets,
        fingerprint: str = "",
        cache: Path | None = None,
        ttl: float | None = None,
    ) -> Registration:
        """Return what the planning process registers for its lookup, predicate or model."""
        return Registration(
            name,
            self.max_in_flight,
            self.per_second,
            cache,
            ttl,
            fingerprint,
            secrets.values(),
            self.circuit_breaker,
            self.budget,
            self.tokens_per_minute,
            self.limit_group,
        )


def check_options(where: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raise an OptionError for settings that are not among the known ones."""
    for name in given:
        if name not in known:
            raise OptionError(f"{where}: unknown setting {name!r}: {near(name, known)}")


def settings_of(function: Callable[..., object], limits: type) -> list[str]:
    """Return the names that a function takes, those of its ``**limits`` among them."""
    parameters = inspect.signature(function).parameters.values()
    own = [each.name for each in parameters if each.kind is not inspect.Parameter.VAR_KEYWORD]
    return [*own, *limits.__annotations__]


def schedule(limits: Limits) -> dict[str, Any]:
    """Return when to repeat, at the earliest when a source asks for it, and when to stop, for tenacity."""
    from tenacity import stop_after_attempt, wait_random_exponential

    backoff = wait_random_exponential(multiplier=FIRST_WAIT, max=LONGEST_WAIT)

    def wait(state: RetryCallState) -> float:
        error = None if state.outcome is None else state.outcome.exception()
        asked = (error.wait or 0.0) if isinstance(error, Refused) else 0.0
        return max(float(backoff(state)), min(asked, limits.max_retry_after))

    return {"stop": stop_after_attempt(limits.retries + 1), "wait": wait, "reraise": True}
