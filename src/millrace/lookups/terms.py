"""On what terms a source is asked."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.limits.policy import Limits


@dataclass(frozen=True, kw_only=True)
class Terms(Limits):
    """The limits of one source, and how many keys go in one request at most (``batch``).

    Raises:
        OptionError: A value is out of its range.
    """

    batch: int = 1
    max_in_flight: int = 8
    retries: int = 3
    timeout: float = 30.0
    circuit_breaker: int | None = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_whole(batch=1)
