"""Messages on a TCP connection: four bytes of length, then JSON, then bytes if the JSON says so.

The JSON's ``attached`` is the number of bytes that follow it: keys and Arrow data, which JSON cannot hold.
They are the message's ``attachment`` on both sides. Nothing is unpickled.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import Any

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

_LENGTH = struct.Struct(">I")
_QUIET_SECONDS, _PROBE_SECONDS, _PROBES = 30, 10, 3


def frame(message: Message) -> tuple[bytes, bytes]:
    """Return a message as it is sent: what comes before its attachment, and the attachment."""
    attachment: bytes = message.get("attachment", b"")
    if "attachment" in message:
        message = {**message, "attached": len(attachment)}
        del message["attachment"]
    payload = json.dumps(message, separators=(",", ":")).encode()
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


def watch(connection: socket.socket) -> None:
    """Let the kernel find out when the machine on the other side is gone without a word."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):  # not on every system; its defaults hold there
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _QUIET_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)


def _length(packed: bytes, largest: int) -> int:
    length: int = _LENGTH.unpack(packed)[0]
    if length > largest:
        raise ValueError(f"a message of {length} bytes, expected at most {largest}")
    return length


def _parsed(payload: bytes) -> Message:
    try:
        message = json.loads(payload)
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
