"""Where the tasks of a job find the coordinator of its limits, and which limits they keep."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Address:
    """A coordinator; pickles, for it travels to the tasks.

    Attributes:
        host: Name or number of the machine that plans the query, as the tasks can reach it.
        port: TCP port there.
        token: Shows the coordinator that a client belongs to it; stays out of ``repr``.
    """

    host: str
    port: int
    token: str = field(repr=False)


@dataclass(frozen=True)
class Settings:
    """The limits of one predicate.

    Attributes:
        max_in_flight: Calls under way at once; None sets no bound.
        per_second: Calls started a second; None sets no bound.
    """

    max_in_flight: int | None = None
    per_second: float | None = None

    @property
    def turns(self) -> bool:
        """Whether a call has to wait for its turn at all."""
        return self.max_in_flight is not None or self.per_second is not None
