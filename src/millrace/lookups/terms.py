"""On what terms a source is asked."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.limits.policy import Limits


@dataclass(frozen=True, kw_only=True)
class Terms(Limits):
    """The limits of one source, as they are where nothing is said."""

    max_in_flight: int = 8
    retries: int = 3
    timeout: float = 30.0
    batch: int = 1
    circuit_breaker: int | None = 50
