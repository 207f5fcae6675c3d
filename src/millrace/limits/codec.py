"""Messages on a TCP connection: four bytes of length, then a struct as msgspec packs it.

No pickles come in at a server. A task gets one, of predicates, from the process that made its function.
"""

from __future__ import annotations

import asyncio
import selectors
import socket
import ssl
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import SupportsIndex

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
_NO_LENGTH = bytes(_LENGTH.size)
_QUIET_SECONDS, _PROBE_SECONDS, _PROBES = 30, 10, 3
_UNREAD_MS = 90_000
"""Longer than whoever reads may be held up by another process that writes to the same cache, and its disk."""


def frame(message: Message, framed: bytearray | None = None) -> bytearray:
    """Return a message as it is sent, behind what is framed already."""
    framed = bytearray() if framed is None else framed
    start = len(framed)
    framed += _NO_LENGTH
    try:
        encoder.encode_into(message, framed, start + _LENGTH.size)
    except BaseException:
        del framed[start:]
        raise
    _LENGTH.pack_into(framed, start, len(framed) - start - _LENGTH.size)
    return framed


def write(writer: asyncio.StreamWriter, message: Message) -> None:
    """Queue a message for sending."""
    writer.write(frame(message))


class Reader(asyncio.StreamReader):
    """Messages of a connection: for a task that awaits them, or handed on as they come.

    Attributes:
        stopped: Whether :meth:`stop` was called.
        take: Gets each message that comes whole while the task waits; returns whether it has taken it. The
            task gets the others. To wake it for each would be a fifth of what a permit takes.
    """

    def __init__(self) -> None:
        super().__init__(BUFFER, asyncio.get_running_loop())
        self.take: Callable[[Message], bool] | None = None
        self._came = bytearray()
        self._waits = False
        self.stopped = False

    async def receive(self, largest: int = LARGEST) -> Message:
        """Return the next message.

        Raises:
            EOFError: The other side has closed the connection.
            OSError: The connection broke.
            ValueError: What came is no message, or larger than ``largest`` bytes.
        """
        while not (end := _find_end(self._came, 0, largest)):
            self._waits = not self._came
            try:
                more = await self.read(BUFFER)
            finally:
                self._waits = False
            if not more:
                raise EOFError("the connection was closed")
            self._came += more
        message = _message(self._came[_LENGTH.size : end])
        del self._came[:end]
        return message

    def stop(self) -> None:
        """Let the task hear that this is the end, whatever comes."""
        self.stopped = True
        self.feed_eof()

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        """Take what has come; called by the protocol."""
        came, start = bytes(data), 0  # it is bytes: no copy
        if self._waits and self.take is not None:
            with suppress(ValueError):  # the task hears of it
                while not self.stopped and (end := _find_end(came, start, LARGEST)):
                    if not self.take(_message(came[start + _LENGTH.size : end])):
                        break
                    start = end
        if start < len(came) and not self.stopped:
            self._waits = False
            super().feed_data(came[start:])


def send(connection: socket.socket, message: Message) -> None:
    """Send a message on a blocking connection; OSError if that broke."""
    connection.sendall(frame(message))


def receive(connection: socket.socket) -> Message:
    """Return the next message of a blocking connection; raises what :meth:`Reader.receive` does."""
    return _message(_exactly(connection, _length(_exactly(connection, _LENGTH.size), 0, LARGEST)))


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


def _find_end(data: bytes | bytearray, start: int, largest: int) -> int:
    """Return where a message ends that begins there; 0 if it has not come whole."""
    first = start + _LENGTH.size
    end = first + _length(data, start, largest) if len(data) >= first else 0
    return end if end <= len(data) else 0


def _length(packed: bytes | bytearray, start: int, largest: int) -> int:
    length: int = _LENGTH.unpack_from(packed, start)[0]
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
