"""Chunks and replies to claims as messages, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from millrace.limits.chunk import Chunk, Claimed, Failure, cut, encoded, split_keys
from millrace.limits.digest import KEY_BYTES
from millrace.limits.wire import Message

_INTEGER = np.dtype("<i8")

MOST = 1 << 40
"""Larger numbers are no counts of anything."""

_SMALL = 1 << 16
_SMALL_PART = 8


class Piece(NamedTuple):
    """Some keys of a chunk that is kept whole.

    Attributes:
        keys: The keys, in the order of their rows.
        firsts: Position of each key's first row.
        counts: Number of each key's rows.
        rows: The chunk's rows.
        size: How many keys the chunk has.
    """

    keys: list[bytes]
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


@dataclass
class Reply:
    """What a client is told that claimed some keys.

    Attributes:
        number: Of the claim.
        ask: Keys to ask.
        waiting: Keys that others are asking.
        failed: Keys that could not be looked up.
        later: Keys that are known, and have to be claimed again.
        pieces: Rows of the others.
        size: Bytes of these.
    """

    number: int
    ask: list[bytes]
    waiting: list[bytes]
    failed: dict[bytes, Failure] = field(default_factory=dict)
    later: list[bytes] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    size: int = 0

    def add(self, piece: Piece) -> None:
        """Add rows."""
        piece = piece.worth_sending()
        self.pieces.append(piece)
        self.size += len(piece.rows)

    def clear_rows(self) -> None:
        """Take all rows out, and what should come later."""
        self.pieces, self.later, self.size = [], [], 0

    def message(self) -> Message:
        """Return it as a message."""
        parts = [*self.ask, *self.waiting, *self.failed, *self.later]
        for keys, firsts, counts, rows, _ in self.pieces:
            parts += [*keys, integers(firsts), integers(counts), rows]
        return {
            "claimed": self.number,
            "ask": len(self.ask),
            "waiting": len(self.waiting),
            "failed": [list(failure) for failure in self.failed.values()],
            "later": len(self.later),
            "pieces": [[len(piece.keys), len(piece.rows), piece.size] for piece in self.pieces],
            "attachment": b"".join(parts),
        }


def read_reply(message: Message, claimed: Claimed) -> list[bytes]:
    """Add what a reply says to what was claimed; returns the keys to claim again.

    Raises:
        ValueError: It is no reply.
    """
    view = _Reader(message.get("attachment", b""))
    claimed.ask += view.keys(message["ask"])
    claimed.waiting += view.keys(message["waiting"])
    failures = [failure_of(each) for each in message["failed"]]
    claimed.failed.update(zip(view.keys(len(failures)), failures, strict=True))
    later = view.keys(message["later"])
    parts = []
    for number, length, size in message["pieces"]:
        keys, firsts, counts = view.keys(number), view.integers(number), view.integers(number)
        piece = Piece(keys, firsts, counts, view.take(length), size)
        if piece.whole:
            claimed.found.append(Chunk(keys, counts, piece.rows))
        else:
            parts.append(piece)
    if parts:
        claimed.found.append(_merged(parts))
    return later


def chunk_message(chunk: Chunk) -> Message:
    """Return the message that settles a chunk's keys."""
    attachment = b"".join([*chunk.keys, integers(chunk.counts), chunk.rows])
    return {"settle": {"keys": len(chunk.keys)}, "attachment": attachment}


def chunk_of(header: Mapping[str, Any], attachment: bytes) -> Chunk:
    """Return the chunk that came in a message.

    Raises:
        ValueError: There is none, or it has a key twice.
    """
    size = header.get("keys")
    if type(size) is not int or not 0 < size <= len(attachment) // (KEY_BYTES + _INTEGER.itemsize):
        raise ValueError(f"a chunk of {size!r} keys")
    view = _Reader(attachment)
    keys, counts = view.keys(size), view.integers(size)
    if len(set(keys)) < size or min(counts) < 0:
        raise ValueError("a chunk with a key twice, or less than no rows")
    return Chunk(keys, counts, view.take(len(attachment)))


def failure_of(given: object) -> Failure:
    """Return the failure that came in a message.

    Raises:
        ValueError: There is none.
    """
    match given:
        case [str(kind), str(message), int(attempts), str(binding)] if 0 <= attempts <= MOST:
            return Failure(kind, message, attempts, binding)
    raise ValueError("no failure")


def integers(values: Sequence[int]) -> bytes:
    """Return integers of eight bytes each."""
    return np.array(values, _INTEGER).tobytes()


def keys_message(name: str, value: object, keys: Sequence[bytes]) -> Message:
    """Return a message about keys."""
    return {name: value, "attachment": b"".join(keys)}


def _merged(parts: Sequence[Piece]) -> Chunk:
    """Return one chunk of parts of many: what costs once a chunk is done once."""
    keys = [key for part in parts for key in part.keys]
    counts = [count for part in parts for count in part.counts]
    return Chunk.of(keys, counts, pa.concat_tables([part.table() for part in parts]))


class _Reader:
    """Takes an attachment apart, from its beginning on."""

    def __init__(self, attachment: bytes) -> None:
        self._view = memoryview(attachment)

    def take(self, size: int) -> bytes:
        taken, self._view = bytes(self._view[:size]), self._view[size:]
        return taken

    def keys(self, number: int) -> list[bytes]:
        return split_keys(self.take(number * KEY_BYTES))

    def integers(self, number: int) -> list[int]:
        values: list[int] = np.frombuffer(self.take(number * _INTEGER.itemsize), _INTEGER).tolist()
        return values
