"""What clients and servers say to each other: a struct a message, packed and checked by msgspec.

A client begins with one of the ``Join…``, and hears :class:`Welcome` or :class:`Refusal`. What follows is
said where it is handled: :mod:`~millrace.limits.permits`, :mod:`~millrace.limits.lookup_session`,
:mod:`~millrace.limits.drivers`, results and live figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Annotated, Union

import msgspec
import pyarrow as pa
from msgspec import Meta, Struct

from millrace.errors import PriceError, encodable
from millrace.limits.budget import Cost, Usage, cost_of
from millrace.limits.chunk import KEY_BYTES, LONGEST_TEXT, Chunk, Claimed, Failure, cut, encoded

MOST = 1 << 40
"""Larger numbers are no counts of anything."""

VERSION = 4
"""Of all that is said here, and of what travels as JSON; to be raised with every change."""

LONGEST_PAUSE = 86_400.0
"""Seconds for which one message can make all tasks wait before they ask a service again."""

STRAY = "surrogateescape"  # as Python has bytes of the environment that are no text

Key = Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
Count = Annotated[int, Meta(ge=0, le=MOST)]
Amount = Annotated[float, Meta(ge=0.0, le=1.7e308)]


class Message(Struct, tag=True, array_like=True):
    """Travels as its name and its fields."""

    def __repr__(self) -> str:
        """Return the name alone: some fields are secret, and errors and logs show no secrets."""
        return type(self).__name__


class Hello(Message, tag=lambda name: f"{name} {VERSION}"):
    """What a client says first; its token opens what it joins. It travels with the version in its name."""

    token: str


class Join(Hello):
    """A task joins a lookup or predicate of a run."""

    session: str


class JoinStream(Hello):
    """A task joins a stream of results."""

    stream: str


class JoinBoard(Hello):
    """A task wants to tell its figures."""

    run: str
    task: Annotated[str, Meta(max_length=1000)]


class JoinDriver(Hello):
    """A planning process joins a coordinator elsewhere, by a name that it keeps when it joins again."""

    driver: Annotated[str, Meta(max_length=100)]


class Welcome(Message):
    """What a client hears first.

    Attributes:
        turns: Whether calls have to wait for permits.
        secrets: Values of ``${NAME}`` by name, in UTF-8, whatever the machines' locales are. Bytes that were
            no text to the planning process come as they were in its environment.
        schema: Of a stream of results.
        now: The coordinator's time.
    """

    turns: bool = False
    secrets: dict[str, bytes] = {}
    schema: bytes = b""
    now: float = 0.0


class Refusal(Message):
    """Why a client is not let in."""

    why: str


class Lost(Message):
    """Why nothing is to be had any more; ``unpriced`` says that nobody can tell what calls cost."""

    why: str
    unpriced: bool = False


class Bye(Message):
    """A client leaves, and hears the same when all that it said is done."""


# Permits


class Request(Message):
    """Wants a permit."""

    ticket: int


class Permit(Message):
    """Leave to make one call; what came of it is set before the permit is given back, which says that.

    Attributes:
        cost: What the call has cost; None if that is not known.
        tokens: That it has taken; None if that is not known.
        outcome: ``""`` if the source has answered, a few words if it has not; None if neither can be said.
        unpriced: Why nobody can tell what calls cost: then none may be made any more.
        seconds: That the call took, for the progress; None if none was made.
        limited: Whether the source has said that it is asked too much.
        retried: Whether the call repeated one that failed.
    """

    ticket: int
    cost: Amount | None = None
    tokens: Count | None = None
    outcome: str | None = None
    unpriced: str | None = None
    seconds: Amount | None = None
    limited: bool = False
    retried: bool = False

    def charge(self, price: Cost | None, request: object, answer: object) -> None:
        """Note what the call has taken, by its answer, or by an error that has an answer's ``usage``.

        ``price`` tells what it has cost; None where nothing bounds that, or it is fixed.

        Raises:
            PriceError: What it has cost cannot be told.
        """
        usage = getattr(answer, "usage", None)
        if isinstance(usage, Usage):
            self.tokens = usage.tokens or None  # one that took none says nothing of others
        if price is not None:
            try:
                self.cost = cost_of(price, request, answer)
            except PriceError as error:
                self.unpriced = encodable(str(error)[:LONGEST_TEXT])
                raise


class Pause(Message):
    """No permit starts before the seconds are over."""

    seconds: Annotated[float, Meta(ge=0.0, le=LONGEST_PAUSE)]


class Granted(Message):
    """A permit: start after so many seconds."""

    ticket: int
    wait: float


class BudgetSpent(Message):
    """The budget has no permit for a request."""

    ticket: int
    why: str


# Lookups


class Claim(Message):
    """Wants keys, at most so many of them to ask."""

    number: int
    keys: list[Key]
    most: int | None = None


class Piece(Struct, array_like=True):
    """Some keys of a chunk that is kept whole.

    Attributes:
        keys: The keys, in the order of their rows.
        firsts: Position of each key's first row.
        counts: Number of each key's rows.
        rows: The chunk's rows.
        size: How many keys the chunk has.
    """

    keys: list[Key]
    firsts: list[int]
    counts: list[int]
    rows: bytes
    size: int

    @property
    def whole(self) -> bool:
        """Whether these are all keys of the chunk."""
        return self.size == len(self.keys)

    def table(self) -> pa.Table:
        """Return the rows of these keys only."""
        return cut(self.rows, self.firsts, self.counts)

    def worth_sending(self) -> Piece:
        """Return what to send: the whole chunk, to be cut where it arrives, or a small part cut here.

        Cutting costs as much as sending some 64 KiB, and is better done by the many who receive.
        """
        if len(self.rows) <= _SMALL or len(self.keys) * _SMALL_PART > self.size:
            return self
        firsts = list(accumulate(self.counts, initial=0))[:-1]
        return Piece(self.keys, firsts, self.counts, encoded(self.table()), len(self.keys))


_SMALL = 1 << 16
_SMALL_PART = 8


class ClaimReply(Message):
    """What becomes of keys that were claimed.

    Attributes:
        number: Of the claim.
        ask: Keys to ask.
        waiting: Keys that others are asking.
        failed: Keys that could not be looked up.
        later: Keys that are known, and have to be claimed again.
        pieces: Rows of the others.
    """

    number: int
    ask: list[Key]
    waiting: list[Key]
    failed: dict[Key, Failure] = {}
    later: list[Key] = []
    pieces: list[Piece] = []

    def add_to(self, claimed: Claimed) -> list[bytes]:
        """Add this to what was claimed, and return the keys to claim again."""
        claimed.ask += self.ask
        claimed.waiting += self.waiting
        claimed.failed |= self.failed
        claimed.found += [Chunk(each.keys, each.counts, each.rows) for each in self.pieces if each.whole]
        parts = [each for each in self.pieces if not each.whole]
        if parts:
            claimed.found.append(_merged(parts))
        return self.later


class Settle(Message):
    """The rows of keys that were asked."""

    keys: list[Key]
    counts: list[Count]
    rows: bytes

    @property
    def chunk(self) -> Chunk:
        """The rows as a chunk; ValueError if they are none, or have a key twice."""
        if not 0 < len(set(self.keys)) == len(self.keys) == len(self.counts):
            raise ValueError(f"a chunk of {len(self.keys)} keys, some of them twice, or no counts")
        return Chunk(self.keys, self.counts, self.rows)


class Fail(Message):
    """Keys that could not be looked up."""

    number: int
    failures: dict[Key, Failure]


class GiveUp(Message):
    """Keys to ask that are handed back."""

    keys: list[Key]


class Noted(Message):
    """Failures are noted."""

    number: int


class News(Message):
    """Keys that this client waits for are settled, or handed over to be asked."""

    settled: list[Key]
    handed: list[Key]


# Results, figures, planning processes


class Start(Message):
    """An attempt of a partition begins."""

    partition: Count
    attempt: Count


class Batch(Message):
    """Rows, as an Arrow IPC stream."""

    rows: bytes


EARLY = b"early"
"""The key, in a batch's metadata, of rows that others supersede."""


class EarlyRows(Message):
    """Rows that others supersede, as an Arrow IPC stream; every attempt has its own."""

    rows: bytes


class Commit(Message):
    """These were all rows."""


class Wanted(Message):
    """Whether the partition's rows are needed still."""

    wanted: bool


class Committed(Message):
    """All rows have arrived."""


class Preferred(Message):
    """What the reader wants first from now on: pickled predicates, as functions travel to tasks."""

    predicates: bytes


class Figures(Message):
    """Rows that a task has read and made, and its figures, compressed."""

    rows_in: Count
    rows_out: Count
    over: bool
    packed: Annotated[bytes, Meta(max_length=1 << 20)]


class MethodCall(Message):
    """A method of the coordinator, and what it is given, as JSON."""

    number: int
    method: str
    arguments: bytes


class MethodResult(Message):
    """What a call has returned, as JSON, or its ``error``: kind and reason."""

    number: int
    result: bytes = b""
    error: tuple[str, str] | None = None


encoder = msgspec.msgpack.Encoder()
decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(
    Union[(*Hello.__subclasses__(), *Message.__subclasses__())]
)


def other_version(payload: bytes | bytearray) -> str:
    """Return what to do about a hello of another version; empty for any other message, or none at all."""
    try:
        fields = msgspec.msgpack.decode(payload, type=list[msgspec.Raw])
        _, _, version = msgspec.msgpack.decode(fields[0], type=str).partition(" ")
    except (ValueError, RecursionError, IndexError):
        return ""
    if version in ("", str(VERSION)):
        return ""
    return (
        f"it speaks version {version[:20]!r} of the messages, and this is version '{VERSION}': install the "
        "same version of Millrace on both sides"
    )


@dataclass
class Reply:
    """A reply to a claim, while it is made; ``size`` is that of its rows, in bytes."""

    message: ClaimReply
    size: int = field(default=0)

    def add(self, piece: Piece) -> None:
        piece = piece.worth_sending()
        self.message.pieces.append(piece)
        self.size += len(piece.rows)

    def clear_rows(self) -> None:
        """Take all rows out, and what should come later."""
        self.message.pieces, self.message.later, self.size = [], [], 0


def _merged(parts: Sequence[Piece]) -> Chunk:
    """Return one chunk of parts of many: what costs once a chunk is done once."""
    keys = [key for part in parts for key in part.keys]
    counts = [count for part in parts for count in part.counts]
    return Chunk.of(keys, counts, pa.concat_tables([part.table() for part in parts]))
