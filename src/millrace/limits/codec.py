"""Messages on a TCP connection: four bytes of length, then a struct as msgspec packs it.

No pickles come in at a server. A task gets one, of predicates, from the process that made its function.
"""

from __future__ import annotations

import asyncio
import selectors
import socket
import ssl
import struct

import msgspec

from millrace.limits.messages import Message, decoder, encoder, other_version

USUAL_ATTACHMENT = 1 << 22
"""Bytes at which rows of several keys, or batches, are sent in pieces: others get their turn between."""

LARGEST_ATTACHMENT = 1 << 28
"""Bytes of the rows in one message. Clients cut what can be cut at :data:`USUAL_ATTACHMENT`."""

LARGEST = LARGEST_ATTACHMENT + 8 * USUAL_ATTACHMENT
"""Bytes of one message; whoever sends more is no client of ours."""

BUFFER = 1 << 20
"""Bytes that a reader takes before it lets the sender wait."""

_LENGTH = struct.Struct(">I")
_QUIET_SECONDS, _PROBE_SECONDS, _PROBES = 30, 10, 3
_UNREAD_MS = 90_000
"""Longer than whoever reads may be held up by another process that writes to the same cache, and its disk."""


def frame(message: Message) -> bytearray:
    """Return a message as it is sent."""
    framed = bytearray(_LENGTH.size)
    encoder.encode_into(message, framed, _LENGTH.size)
    _LENGTH.pack_into(framed, 0, len(framed) - _LENGTH.size)
    return framed


def write(writer: asyncio.StreamWriter, message: Message) -> None:
    """Queue a message for sending."""
    writer.write(frame(message))


class Reader:
    """Messages of a connection. What comes at once is taken apart without waiting again."""

    def __init__(self, stream: asyncio.StreamReader) -> None:
        self._stream = stream
        self._came = bytearray()

    async def read(self, largest: int = LARGEST) -> Message:
        """Return the next message.

        Raises:
            EOFError: The other side has closed the connection.
            OSError: The connection broke.
            ValueError: What came is no message, or larger than ``largest`` bytes.
        """
        came, size = self._came, _LENGTH.size
        while len(came) < size or len(came) < (end := size + _length(came, largest)):
            more = await self._stream.read(BUFFER)
            if not more:
                raise EOFError("the connection was closed")
            came += more
        payload = came[size:end]
        del came[:end]
        return _message(payload)


def send(connection: socket.socket, message: Message) -> None:
    """Send a message on a blocking connection; OSError if that broke."""
    connection.sendall(frame(message))


def receive(connection: socket.socket) -> Message:
    """Return the next message of a blocking connection; raises what :meth:`Reader.read` does."""
    return _message(_exactly(connection, _length(_exactly(connection, _LENGTH.size), LARGEST)))


def has_spoken(connection: ssl.SSLSocket) -> bool:
    """Whether something is there to be received on a blocking connection, or it is over; does not wait."""
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        return bool(connection.pending() or selector.select(0))


def watch(connection: socket.socket, *, may_stall: bool = False) -> None:
    """Let the kernel find out, within two minutes, when the machine on the other side is gone without a word.

    What is sent and not acknowledged is given 90 s, for keepalive does not watch that. It is not where the
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


def _length(packed: bytes | bytearray, largest: int) -> int:
    length: int = _LENGTH.unpack_from(packed)[0]
    if length > largest:
        raise ValueError(f"a message of {length} bytes, expected at most {largest}")
    return length


def _message(payload: bytes | bytearray) -> Message:
    try:
        return decoder.decode(payload)
    except RecursionError:
        raise ValueError("a message that is nested too deeply") from None
    except msgspec.ValidationError as error:
        raise ValueError(other_version(payload) or f"no message: {error}") from error


def _exactly(connection: socket.socket, size: int) -> bytearray:
    received = bytearray(size)
    view, got = memoryview(received), 0
    while got < size:
        count = connection.recv_into(view[got:])
        if count == 0:
            raise EOFError("the connection was closed")
        got += count
    return received
