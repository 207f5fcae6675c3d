"""Messages on a TCP connection: four bytes of length, then JSON, then bytes if the JSON says so.

The JSON's ``attached`` is the number of bytes that follow it: keys and Arrow data, which JSON cannot hold.
They are the message's ``attachment`` on both sides. Nothing is unpickled.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from millrace.limits.chunk import KEY_BYTES, Chunk, Claimed, Failure, cut, encoded, split_keys

Message = dict[str, Any]

LARGEST = 1 << 24
"""Bytes of one message without its attachment; whoever sends more is no client of ours."""

LARGEST_ATTACHMENT = 1 << 28
"""Bytes of one attachment. Clients cut what can be cut at :data:`USUAL_ATTACHMENT`."""

USUAL_ATTACHMENT = 1 << 22
"""Bytes at which rows of several keys, or batches, are sent in pieces: others get their turn between."""

_MOST_ATTACHED = LARGEST_ATTACHMENT + 4 * USUAL_ATTACHMENT  # the largest, and what was put in front of it

BUFFER = 1 << 20
"""Bytes that a reader takes before it lets the sender wait."""

_INTEGER = np.dtype("<i8")

MOST = 1 << 40
"""Larger numbers are no counts of anything."""

_SMALL = 1 << 16
_SMALL_PART = 8

_encoder, _decoder = msgspec.json.Encoder(), msgspec.json.Decoder()
_LENGTH = struct.Struct(">I")
_QUIET_SECONDS, _PROBE_SECONDS, _PROBES = 30, 10, 3
_UNREAD_MS = 30_000


def frame(message: Message) -> tuple[bytes, bytes]:
    """Return a message as it is sent: what comes before its attachment, and the attachment."""
    attachment: bytes = message.get("attachment", b"")
    if "attachment" in message:
        message = {**message, "attached": len(attachment)}
        del message["attachment"]
    try:
        payload = _encoder.encode(message)
    except UnicodeEncodeError:  # half of a character that takes two, which JSON can say
        payload = json.dumps(message).encode()
    return _LENGTH.pack(len(payload)) + payload, attachment


def write(writer: asyncio.StreamWriter, message: Message) -> None:
    """Queue a message for sending."""
    head, attachment = frame(message)
    writer.write(head)
    if attachment:
        writer.write(attachment)


async def read(reader: asyncio.StreamReader, largest: int = LARGEST) -> Message:
    """Return the next message.

    Raises:
        EOFError: The other side has closed the connection.
        OSError: The connection broke.
        ValueError: What came is no message, or larger than ``largest`` bytes, or has an attachment that is
            too large (of any size, where ``largest`` is below :data:`LARGEST`).
    """
    message = _parsed(await reader.readexactly(_length(await reader.readexactly(_LENGTH.size), largest)))
    attached = _attached(message, largest)
    if attached:
        message["attachment"] = await reader.readexactly(attached)
    return message


def send(connection: socket.socket, message: Message) -> None:
    """Send a message on a blocking connection; OSError if that broke."""
    head, attachment = frame(message)
    connection.sendall(head)
    if attachment:
        connection.sendall(attachment)


def receive(connection: socket.socket) -> Message:
    """Return the next message of a blocking connection; raises what :func:`read` does."""
    message = _parsed(_exactly(connection, _length(_exactly(connection, _LENGTH.size), LARGEST)))
    attached = _attached(message, LARGEST)
    if attached:
        message["attachment"] = _exactly(connection, attached)
    return message


def watch(connection: socket.socket, *, may_stall: bool = False) -> None:
    """Let the kernel find out, within a minute, when the machine on the other side is gone without a word.

    What is sent and not acknowledged is given 30 s, for keepalive does not watch that. It is not where the
    other side ``may_stall``, for the kernel also counts the time in which that is there and reads nothing.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE", _QUIET_SECONDS),
        ("TCP_KEEPINTVL", _PROBE_SECONDS),
        ("TCP_KEEPCNT", _PROBES),
        ("TCP_USER_TIMEOUT", 0 if may_stall else _UNREAD_MS),
    ):
        if hasattr(socket, name):  # not on every system; its defaults hold there
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _length(packed: bytes, largest: int) -> int:
    length: int = _LENGTH.unpack(packed)[0]
    if length > largest:
        raise ValueError(f"a message of {length} bytes, expected at most {largest}")
    return length


def _parsed(payload: bytes) -> Message:
    try:
        try:
            message = _decoder.decode(payload)
        except msgspec.DecodeError:
            message = json.loads(payload.decode())
    except RecursionError:
        raise ValueError("a message that is nested too deeply") from None
    if not isinstance(message, dict):
        raise ValueError(f"a {type(message).__name__} instead of a message")  # noqa: TRY004
    message.pop("attachment", None)  # bytes are never in the JSON
    return message


def _attached(message: Message, largest: int) -> int:
    attached = message.pop("attached", 0)
    most = _MOST_ATTACHED if largest >= LARGEST else 0
    if type(attached) is not int or not 0 <= attached <= most:
        raise ValueError(f"an attachment of {attached!r} bytes, expected at most {most}")
    return attached


def _exactly(connection: socket.socket, size: int) -> bytes:
    received = bytearray(size)
    view, got = memoryview(received), 0
    while got < size:
        count = connection.recv_into(view[got:])
        if count == 0:
            raise EOFError("the connection was closed")
        got += count
    return bytes(received)


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
        waiting: Keys that others are asking.
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
        piece = piece.worth_sending()
        self.pieces.append(piece)
        self.size += len(piece.rows)

    def clear_rows(self) -> None:
        """Take all rows out, and what should come later."""
        self.pieces, self.later, self.size = [], [], 0

    def message(self) -> Message:
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
    """Add a reply to what was claimed, and return the keys to claim again; ValueError if it is no reply."""
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
    """Return the chunk that came in a message; ValueError if there is none, or it has a key twice."""
    size = header.get("keys")
    if type(size) is not int or not 0 < size <= len(attachment) // (KEY_BYTES + _INTEGER.itemsize):
        raise ValueError(f"a chunk of {size!r} keys")
    view = _Reader(attachment)
    keys, counts = view.keys(size), view.integers(size)
    if len(set(keys)) < size or min(counts) < 0:
        raise ValueError("a chunk with a key twice, or less than no rows")
    return Chunk(keys, counts, view.take(len(attachment)))


def failure_of(given: object) -> Failure:
    """Return the failure that came in a message; ValueError if there is none."""
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
