"""What a lookup asks: sources, which are data, and sessions, which are open.

A source says what to ask and on what terms. It is frozen and travels with the plan; it has no values of
secrets. A session is a source that one task has opened: connections and threads, all in one event loop.
What a session raises when a request fails is :class:`Refused`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol, runtime_checkable

import pyarrow as pa

from millrace.errors import InputError, near
from millrace.limits.request import Answered, Refused
from millrace.limits.secrets import Secrets
from millrace.lookups.terms import Terms

__all__ = ["Answered", "Naming", "Refused", "Session", "Source", "shortened"]

MOST_SHOWN = 500
"""Letters of a message."""


def shortened(text: str, most: int = MOST_SHOWN) -> str:
    """Return the beginning of a text, on one line; secrets have to be out of it already."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def name_ends(column: str) -> tuple[str, str]:
    """Return what the ends of a column's interval are called, among keys and in templates."""
    return f"{column}.low", f"{column}.high"


def check_mentions(where: str, mentioned: Sequence[str], columns: Sequence[str], place: str) -> None:
    """Raise an InputError where a text mentions other columns than the bind columns, or lacks one.

    ``place`` is where they belong, in errors.
    """
    for column in mentioned:
        if column not in columns:
            wanted = near(column, columns) if columns else "a scan has none."
            raise InputError(f"{where} mentions {{{column}}}, which is no bind column: {wanted}")
    for column in columns:
        if column not in mentioned:
            raise InputError(f"{where} lacks the bind column {column!r}: put {{{column}}} into {place}")


class Session(Protocol):
    """An open source; to be used in the event loop that uses it first.

    Whoever asks sets the time; an answer that is not wanted any more is cancelled.
    """

    async def fetch(self, keys: pa.RecordBatch) -> pa.RecordBatch | Answered:
        """Ask for the rows of some keys: one attempt, without retries and without waiting for turns.

        Args:
            keys: The bind columns in the schema's types, and the ends of closed intervals in the types of
                their columns. No nulls, distinct rows, at most ``terms.batch``.

        Returns:
            Rows in exactly the schema of :meth:`Source.open`, or these with what they took. Rows of other
            keys may be among them.

        Raises:
            Refused: The request failed, or the answer is not of the schema.
        """

    def scan(self) -> AsyncGenerator[pa.RecordBatch, None]:
        """Return all rows, batch by batch; only of a source that ``can_scan``.

        Raises:
            Refused: A request failed, or an answer is not of the schema. What came before it is not all.
        """

    async def close(self) -> None:
        """Let go of connections and threads; what is under way is not wanted any more."""


@runtime_checkable
class Naming(Protocol):
    """A source that mentions the bind columns itself."""

    def check_names(self, columns: tuple[str, ...]) -> None:
        """Raise :class:`millrace.errors.InputError` where it mentions others, or lacks one."""


@runtime_checkable
class Source(Protocol):
    """What to ask, and how; frozen and picklable."""

    @property
    def kind(self) -> str:
        """``"http"``, ``"database"``, ``"function"`` or ``"llm"``, for plans."""

    @property
    def terms(self) -> Terms: ...

    @property
    def secrets(self) -> tuple[str, ...]:
        """The names of the secrets it needs."""

    @property
    def can_scan(self) -> bool:
        """Whether it can return all rows."""

    def describe(self) -> str:
        """Return a line for plans; it shows ``${NAME}`` for secrets."""

    @property
    def identity(self) -> str:
        """What it asks, as text without secrets: equal texts mean equal answers, also in other processes."""

    def check(self, schema: pa.Schema, columns: tuple[str, ...], secrets: Secrets) -> None:
        """Find what is wrong before anything runs; called in the process that plans the query.

        Args:
            schema: The lookup's columns.
            columns: The bind columns, and behind them the ends of intervals (:func:`name_ends`); none for a
                scan.
            secrets: With a value for each of ``secrets``.

        Raises:
            MillraceError: It cannot work: an InputError, an OptionError, an UnsupportedType or, where a
                library is missing, a SetupError.
        """

    def open(self, schema: pa.Schema, columns: tuple[str, ...], secrets: Secrets) -> Session:
        """Return a session; nothing is connected before its first use."""
