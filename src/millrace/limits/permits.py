"""Leave to make calls, for all tasks that a source's or a predicate's limits hold for.

A client says :class:`~millrace.limits.messages.Request`, ``Permit`` and ``Pause``, and hears ``Granted`` or
``BudgetSpent``.

One lookup has permits of its own; those of a ``limit_group`` are shared by the sessions of all its lookups
and predicates, whatever queries they are of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from itertools import count

from millrace.limits.budget import Spending
from millrace.limits.clock import Clock, WallClock
from millrace.limits.ledger import stream_in
from millrace.limits.limiter import Breaker, Limiter
from millrace.limits.messages import BudgetSpent, Granted, Pause, Permit, Request
from millrace.limits.registration import Settings
from millrace.limits.session import Deliver

_AHEAD = 0.02
"""Seconds by which permits are given out early: more than a timer is late, and than a message takes."""

_LONGEST_OUTCOME = 100


class Permits:
    """Gives out permits in the order in which they were asked for; lives in one event loop.

    Args:
        clock: Tells seconds; the system's clock by default.
        spending: Of the settings' budget, where others have spent of it before.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock | None = None,
        spending: Spending | None = None,
    ) -> None:
        self.settings = settings
        self.spending = spending or Spending(settings.budget)
        self._breakers: dict[str, Breaker] = {}  # by source
        self._clock = clock or WallClock()
        counted = self.spending if settings.budget else None
        self._limiter = Limiter(
            self._clock,
            settings.max_in_flight,
            settings.per_second,
            _AHEAD,
            counted,
            settings.tokens_per_minute,
        )
        self._numbers = count()
        self._deliver: dict[int, Deliver] = {}
        self._given_up: dict[int, Callable[[], None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def empty(self) -> bool:
        return not self._deliver

    def in_flight(self, owners: set[int]) -> int:
        """Return how many permits some of the clients have."""
        return self._limiter.out_of(owners)

    def breaker(self, source: str) -> Breaker:
        """Return what is known of a source's health; each has a breaker, whatever limits it shares."""
        return self._breakers.get(source) or Breaker()

    def join(
        self,
        deliver: Deliver,
        given_up: Callable[[], None],
        source: str = "",
        circuit_breaker: int | None = None,
    ) -> int:
        """Let a client in, and return its number.

        Args:
            deliver: Takes messages for it.
            given_up: Called when the source is taken to be down.
            source: That it asks.
            circuit_breaker: Failures in a row after which calls of the source pause; None for never.
        """
        number = next(self._numbers)
        self._limiter.breakers[number] = self._breakers.setdefault(source, Breaker(circuit_breaker))
        self._deliver[number] = deliver
        self._given_up[number] = given_up
        return number

    def leave(self, client: int) -> None:
        """Take back all that a client has.

        The last client of a source takes its breaker along, so that the next action tries anew. That of a
        stream stays for the next micro-batch.
        """
        del self._deliver[client], self._given_up[client]
        self._limiter.drop(client)
        breaker = self._limiter.breakers.pop(client)
        for source, other in list(self._breakers.items()):
            if other is breaker and not stream_in(source) and other not in self._limiter.breakers.values():
                del self._breakers[source]
        self.grant()

    def withdraw(self, clients: Collection[int]) -> None:
        """Take clients out of the queue for good; a call of theirs lasts until they say so."""
        for client in clients:
            self._limiter.withdraw(client)
        self.grant()

    def handle(self, client: int, message: Request | Permit | Pause) -> None:
        """Do what a client's message about permits says; ValueError for a ticket that is in use."""
        match message:
            case Request():
                self._limiter.request(client, message.ticket)
            case Permit():
                if self._limiter.release(client, message.ticket, message.cost, message.tokens):
                    self._judge(client, message.ticket, message.outcome)
            case Pause():
                self._limiter.pause(message.seconds)
        self.grant()

    def grant(self) -> None:
        """Give out what is due, and come back when more is."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._limiter.waiting:
            return
        for grant in self._limiter.grants():
            wait = max(0.0, grant.start - self._clock.now())
            self._deliver[grant.owner](Granted(grant.ticket, wait))
        for owner, ticket in self._limiter.take_refused():
            self._deliver[owner](BudgetSpent(ticket, str(self.spending)))
        due = self._limiter.due()
        if due is not None:
            delay = max(0.0, due - self._clock.now())
            self._timer = asyncio.get_running_loop().call_later(delay, self.grant)

    def _judge(self, client: int, ticket: int, outcome: str | None) -> None:
        """Let the breaker of the client's source know what came of a call."""
        breaker = self._limiter.breakers[client]
        if outcome == "":
            breaker.answer()
        elif outcome is not None:
            breaker.fail((client, ticket), outcome[:_LONGEST_OUTCOME], self._clock.now())
            if breaker.given_up:
                for each in [each for each, other in self._limiter.breakers.items() if other is breaker]:
                    self._given_up[each]()
