"""What a source raises when a request of it fails."""

from __future__ import annotations

from functools import partial

from millrace.errors import encodable
from millrace.limits.budget import Usage


class Refused(Exception):
    """A request was not answered, or not with what was asked for.

    Whoever asks decides whether to ask again, and what the failure means for the query.

    Attributes:
        kind: What went wrong, in a few words that are the same for every key, such as ``"HTTP 503"``,
            ``"timeout"`` or the name of an exception.
        message: What went wrong with this request; without values of secrets.
        again: Whether another attempt may succeed.
        wait: Seconds to wait before it, as the source asks for; None if it did not say. Whoever asks waits
            for ``max_retry_after`` at most.
        singly: Of a request for several keys: whether fewer should be asked, rather than the same again.
        usage: What the request has taken all the same; None if that is not known.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        again: bool = False,
        wait: float | None = None,
        singly: bool = False,
        usage: Usage | None = None,
    ) -> None:
        self.kind = encodable(kind)
        self.message = encodable(message)
        super().__init__(self.kind, self.message)
        self.again = again
        self.wait = wait
        self.singly = singly
        self.usage = usage

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[object, ...]:
        how = {name: getattr(self, name) for name in ("again", "wait", "singly", "usage")}
        return partial(Refused, **how), (self.kind, self.message)


MOST_SHOWN = 500


def shortened(text: str, most: int = MOST_SHOWN) -> str:
    """Return the beginning of a text, on one line; secrets have to be out of it already."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"
