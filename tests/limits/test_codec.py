"""Between processes: messages come whole, by either way of reading, and keys tell questions apart."""

from __future__ import annotations

import asyncio
import datetime as dt
import socket
import threading
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from millrace.limits import codec
from millrace.limits.chunk import digest

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
@example([({"x": 1}, bytes(range(256)) * 40_000)])  # more than a buffer of the kernel holds
@given(messages)
def test_messages_come_as_they_were_sent(pairs):
    """Several on one connection do not run into each other, and its end is noticed afterwards."""
    expected = [with_attachment(*pair) for pair in pairs]
    assert asyncio.run(read_all(joined(pairs))) == expected
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender = threading.Thread(target=lambda: [codec.send(ours, message) for message in expected])
        sender.start()
        assert [codec.receive(theirs) for _ in expected] == expected
        sender.join()
        ours.close()
        with pytest.raises(EOFError):
            codec.receive(theirs)


@LAWS
@given(messages.filter(len), st.integers(1, 200))
def test_what_is_cut_off_is_no_message(pairs, missing):
    """The end of a connection within a message is an error."""
    data = joined(pairs)
    last = len(joined(pairs[-1:]))
    with pytest.raises(EOFError):
        asyncio.run(read_all(data[: -min(missing, last - 1)]))


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


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.dates()
ARGUMENTS = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@LAWS
@given(st.lists(ARGUMENTS, max_size=4), st.lists(ARGUMENTS, max_size=4))
def test_keys_are_equal_exactly_for_equal_arguments(left, right):
    """What prints alike has the same key, and nothing else has."""
    assert digest(left) == digest(eval(repr(left), {"datetime": dt, "nan": np.nan, "inf": np.inf}))
    assert (digest(left) == digest(right)) == (repr(left) == repr(right))


def test_values_that_print_alike_have_other_keys():
    """A function can tell these apart, so they are different questions; so can it what a text leaves out."""
    alike = [1, 1.0, True, "1", b"1", Decimal(1), None, "None", [1], (1,), {1: 1}, -0.0, 0.0]
    assert len({digest([value]) for value in alike}) == len(alike)
    assert digest(["a", "b"]) != digest(["a, b"])
    one, other = np.zeros(5000), np.zeros(5000)
    other[2500] = 1
    assert digest([one]) == digest([one.copy()]) != digest([other])
