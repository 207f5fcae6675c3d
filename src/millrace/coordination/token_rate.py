"""Evenly spread tokens: what calls of language models take, which is known only when they are over."""

from __future__ import annotations

Key = tuple[int, int]


class TokenRate:
    """The moments at which calls may start, so that all of them together take so many tokens a minute.

    A call is taken for the mean of those before until it is over, and the difference moves the next start. So
    over any time calls take no more than the rate gives, but for what those under way turn out larger.

    Args:
        per_minute: Tokens.

    Attributes:
        next: No call is to start before, in seconds of the caller's clock.
    """

    def __init__(self, per_minute: float) -> None:
        self._seconds_a_token = 60.0 / per_minute
        self._total = 0
        self._calls = 0
        self._reserved: dict[Key, float] = {}
        self.next = float("-inf")

    @property
    def known(self) -> bool:
        """Whether some call has told what it took; until then they go one by one."""
        return self._calls > 0

    def begin(self, call: Key, start: float) -> None:
        """Count a call that starts at a time."""
        reserved = self._reserved[call] = self._total / self._calls if self._calls else 0.0
        self.next = max(start, self.next) + reserved * self._seconds_a_token

    def end(self, call: Key, tokens: int | None, now: float) -> None:
        """Count what a call took that is over; one that does not tell took what it was taken for."""
        reserved = self._reserved.pop(call, 0.0)
        if tokens is None:
            return
        self._total += tokens
        self._calls += 1
        first = self.next if self._calls > 1 else max(self.next, now)
        self.next = first + (tokens - reserved) * self._seconds_a_token
