"""Messages with attachments: whole on the other side, by either way of reading, and never too large."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest
from hypothesis import given, settings, strategies as st

from millrace.limits import codec

LAWS = settings(max_examples=30, deadline=None, derandomize=True)
HALF = "half of a character, \ud83d, which JSON can say and UTF-8 cannot"
values = st.none() | st.integers(-(2**53), 2**53) | st.text(max_size=5) | st.just(HALF)
messages = st.lists(
    st.tuples(
        st.dictionaries(st.text(max_size=5).filter(lambda name: not name.startswith("attach")), values),
        st.binary(max_size=200),
    ),
    max_size=4,
)


def joined(pairs) -> bytes:
    return b"".join(b"".join(codec.frame(with_attachment(*pair))) for pair in pairs)


def with_attachment(message: dict, attachment: bytes) -> dict:
    return {**message, "attachment": attachment} if attachment else message


async def read_all(data: bytes) -> list[dict]:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    found = []
    while not reader.at_eof():
        found.append(await codec.read(reader))
    return found


@LAWS
@given(messages)
def test_messages_come_as_they_were_sent(pairs):
    """Several on one connection do not run into each other."""
    expected = [with_attachment(*pair) for pair in pairs]
    assert asyncio.run(read_all(joined(pairs))) == expected
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for message in expected:
            codec.send(ours, message)
            assert codec.receive(theirs) == message


@LAWS
@given(messages.filter(len), st.integers(1, 200))
def test_what_is_cut_off_is_no_message(pairs, missing):
    """The end of a connection within a message is an error."""
    data = joined(pairs)
    last = len(joined(pairs[-1:]))
    with pytest.raises(EOFError):
        asyncio.run(read_all(data[: -min(missing, last - 1)]))


def test_large_attachments_arrive_whole():
    """More than a buffer of the kernel holds, over a blocking connection; its end is noticed afterwards."""
    ours, theirs = socket.socketpair()
    message = {"x": 1, "attachment": bytes(range(256)) * 40_000}
    with ours, theirs:
        sender = threading.Thread(target=codec.send, args=(ours, message))
        sender.start()
        assert codec.receive(theirs) == message
        sender.join()
        ours.close()
        with pytest.raises(EOFError):
            codec.receive(theirs)


@pytest.mark.parametrize("attached", [codec.LARGEST_ATTACHMENT * 2, -1, 1.5, True, "9", None])
def test_sizes_that_cannot_be_are_refused(attached):
    """Before anything of the attachment is read."""
    data, _ = codec.frame({"attached": attached})
    with pytest.raises(ValueError, match="an attachment of"):
        asyncio.run(read_all(data))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(data)
        with pytest.raises(ValueError, match="an attachment of"):
            codec.receive(theirs)
