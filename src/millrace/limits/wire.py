"""Messages on a TCP connection: four bytes of length, then JSON. Nothing is unpickled."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import Any

Message = dict[str, Any]

LARGEST = 1 << 24
"""Bytes of one message; whoever sends more is no client of ours."""

_LENGTH = struct.Struct(">I")
_QUIET_SECONDS, _PROBE_SECONDS, _PROBES = 30, 10, 3


def write(writer: asyncio.StreamWriter, message: Message) -> None:
    """Queue a message for sending."""
    payload = json.dumps(message, separators=(",", ":")).encode()
    writer.write(_LENGTH.pack(len(payload)) + payload)


async def read(reader: asyncio.StreamReader, largest: int = LARGEST) -> Message:
    """Return the next message.

    Raises:
        EOFError: The other side has closed the connection.
        OSError: The connection broke.
        ValueError: What came is no message, or larger than ``largest`` bytes.
    """
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > largest:
        raise ValueError(f"a message of {length} bytes, expected at most {largest}")
    payload = await reader.readexactly(length)
    try:
        message = json.loads(payload)
    except RecursionError:
        raise ValueError("a message that is nested too deeply") from None
    if not isinstance(message, dict):
        raise ValueError(f"a {type(message).__name__} instead of a message")  # noqa: TRY004
    return message


def watch(writer: asyncio.StreamWriter) -> None:
    """Let the kernel find out when the machine on the other side is gone without a word."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):  # not on every system; its defaults hold there
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _QUIET_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
