"""What the planning process tells of its lookups and predicates, and where tasks find it."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from millrace.errors import OptionError
from millrace.limits.budget import NO_BUDGET, Budget

PREFLIGHT = "preflight"
"""The run of tasks that try whether they reach the coordinator."""

STREAM = "stream "
"""Executions of streams are named so, with an id behind it that restarts of the stream keep."""


@dataclass(frozen=True)
class Address:
    """A coordinator; pickles, for it travels to the tasks.

    Attributes:
        host: Name or number of the machine that plans the query, as the tasks can reach it.
        token: Opens one run there, and no other; stays out of ``repr``.
        certificate: The one that it shows, as PEM text.
    """

    host: str
    port: int
    token: str = field(repr=False)
    certificate: str = field(repr=False)

    def of(self, scope: str) -> Address:
        """Return the address with a token that opens one scope alone: a run, or a stream.

        To be called on the server's own address, whose token opens all.
        """
        return replace(self, token=hmac.digest(self.token.encode(), scope.encode(), "sha256").hex())


@dataclass(frozen=True)
class Settings:
    """The limits of one predicate or lookup, or of a group of them.

    Attributes:
        max_in_flight: Calls under way at once; None sets no bound.
        per_second: Calls started a second; None sets no bound.
        budget: What all calls of a query may cost.
        tokens_per_minute: That calls take together, as they say when they are over; None sets no bound.
    """

    max_in_flight: int | None = None
    per_second: float | None = None
    budget: Budget = NO_BUDGET
    tokens_per_minute: float | None = None

    @property
    def turns(self) -> bool:
        """Whether a call has to wait for its turn at all."""
        limits = (self.max_in_flight, self.per_second, self.tokens_per_minute)
        return any(each is not None for each in limits) or bool(self.budget)

    def __str__(self) -> str:
        budget = self.budget
        named = {
            "max_in_flight": self.max_in_flight,
            "per_second": self.per_second,
            "max_requests": budget.max_requests,
            "max_cost": budget.max_cost,
            "cost": budget.price,
            "tokens_per_minute": self.tokens_per_minute,
        }
        return (
            ", ".join(f"{name}={each:g}" for name, each in named.items() if each is not None) or "no limits"
        )


@dataclass(frozen=True)
class Registration:
    """One lookup of a run, as the coordinator keeps it for the tasks.

    Attributes:
        name: Of the lookup, for people.
        max_in_flight: Requests under way at once, over all tasks; None sets no bound.
        per_second: Requests started a second; None sets no bound.
        cache: A folder, or a file that ends in ``.sqlite``, where rows outlive the run; None keeps them
            for the run only, or with a fingerprint for a stream.
        ttl: Seconds for which rows in the cache count; None for ever.
        fingerprint: Names the definition (source, columns, schema): rows in a cache are read only by
            lookups with the same one.
        circuit_breaker: Failures in a row after which the source is left alone for a while; None for never.
        secrets: Values of ``${NAME}`` by name. Handed to tasks that join; stay out of ``repr``.
        budget: What all requests of a query may cost.
        tokens_per_minute: That its requests take together, as they say when they are over.
        group: Shares limits and budget with all that name the same, in all queries of the process.

    Raises:
        OptionError: A cache without a fingerprint, a time to live without a cache or not above zero.
    """

    name: str
    max_in_flight: int | None = None
    per_second: float | None = None
    cache: Path | None = None
    ttl: float | None = None
    fingerprint: str = ""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    circuit_breaker: int | None = None
    budget: Budget = NO_BUDGET
    tokens_per_minute: float | None = None
    group: str | None = None

    def __post_init__(self) -> None:
        if self.ttl is not None and not self.ttl > 0:
            raise OptionError(f"lookup {self.name!r}: ttl={self.ttl!r}, expected seconds above 0, or None")
        if self.ttl is not None and self.cache is None:
            raise OptionError(
                f"lookup {self.name!r}: ttl without a cache has no meaning: give cache= as well"
            )
        if self.cache is not None and not self.fingerprint:
            raise OptionError(f"lookup {self.name!r}: a cache needs a fingerprint of the lookup's definition")

    @property
    def settings(self) -> Settings:
        return Settings(self.max_in_flight, self.per_second, self.budget, self.tokens_per_minute)
