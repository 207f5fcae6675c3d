"""Answers that come compressed, unpacked a step at a time: a few kilobytes can stand for gigabytes."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator

import httpx

ACCEPTED = "gzip"
"""What requests ask for; others are refused, and so are several at once."""

_STEP = 1 << 16
_GZIP = 16 + zlib.MAX_WBITS


async def unpacked(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the body of an answer, in pieces that are no larger than what was received or a step.

    Who has enough of it may stop: what was not asked for is not unpacked.

    Raises:
        httpx.DecodingError: It is compressed in another way than was asked for, or damaged.
    """
    coding = response.headers.get("Content-Encoding", "").strip().lower()
    if coding in ("", "identity"):
        async for received in response.aiter_raw():
            yield received
        return
    if coding not in ("gzip", "x-gzip"):
        raise httpx.DecodingError(f"it is encoded as {coding!r}, expected {ACCEPTED} or plain text")
    unpacker, begun = zlib.decompressobj(_GZIP), False
    async for received in response.aiter_raw():
        left = received
        while left:
            if unpacker.eof:  # several members, one after the other, are one body
                unpacker = zlib.decompressobj(_GZIP)
            try:
                piece = unpacker.decompress(left, _STEP)
            except zlib.error as error:
                raise httpx.DecodingError(f"it is no gzip: {error}") from None
            begun = True
            left = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
            if piece:
                yield piece
    if begun and not unpacker.eof:
        raise httpx.DecodingError("it ends in the middle of its gzip")
