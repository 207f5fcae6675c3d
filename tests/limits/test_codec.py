"""Between processes: messages come whole, by either way of reading, and keys tell questions apart."""

from __future__ import annotations

import asyncio
import datetime as dt
import socket
import struct
import threading
from contextlib import suppress
from decimal import Decimal
from itertools import cycle

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from millrace.limits import codec, messages as m
from millrace.limits.chunk import Failure, digest

LAWS = settings(max_examples=30, deadline=None, derandomize=True)
keys = st.lists(st.binary(min_size=16, max_size=16), max_size=4)
counts = st.lists(st.integers(0, 1 << 40), max_size=3)
failures = st.dictionaries(
    st.binary(min_size=16, max_size=16),
    st.builds(Failure, st.text(), st.text(), st.integers(0, 9), st.just("half of a character, \ud83d")),
    max_size=3,
)
pieces = st.lists(st.builds(m.Piece, keys, counts, counts, st.binary(), st.integers(0, 9)), max_size=2)
messages = st.lists(
    st.builds(m.Bye)
    | st.builds(m.Settle, keys, counts, st.binary())
    | st.builds(m.Fail, st.integers(0, 9), failures)
    | st.builds(m.ClaimReply, st.integers(0, 9), keys, keys, failures, keys, pieces)
    | st.builds(m.Permit, st.integers(0, 9), st.none() | st.floats(0, 1e300), st.none() | st.integers(0, 9)),
    max_size=4,
)


def joined(sent: list[m.Message]) -> bytes:
    return b"".join(map(codec.frame, sent))


async def read_all(data: bytes, count: int) -> list[m.Message]:
    """Read so many messages, and the end behind them."""
    reader = codec.Reader()
    reader.feed_data(data)
    reader.feed_eof()
    found = [await reader.receive() for _ in range(count)]
    with pytest.raises(EOFError):
        await reader.receive()
    return found


@LAWS
@example([m.Batch(bytes(range(256)) * 40_000)])  # more than a buffer of the kernel holds
@given(messages)
def test_messages_come_as_they_were_sent(sent):
    """Several on one connection do not run into each other, and its end is noticed afterwards."""
    assert asyncio.run(read_all(joined(sent), len(sent))) == sent
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender = threading.Thread(target=lambda: [codec.send(ours, message) for message in sent])
        sender.start()
        assert [codec.receive(theirs) for _ in sent] == sent
        sender.join()
        ours.close()
        with pytest.raises(EOFError):
            codec.receive(theirs)


@LAWS
@given(messages.filter(len), st.integers(1, 200))
def test_what_is_cut_off_is_no_message(sent, missing):
    data = joined(sent)
    last = len(joined(sent[-1:]))
    with pytest.raises(EOFError):
        asyncio.run(read_all(data[: -min(missing, last - 1)], len(sent)))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (struct.pack(">I", codec.LARGEST + 1), "expected at most"),
        (b"\xff" * 9, "expected at most"),
        (struct.pack(">I", 4000) + b"\x91" * 4000, "Expected"),
        (struct.pack(">I", 2) + b"{}", "Expected"),
    ],
)
def test_what_is_no_message_is_refused(data, why):
    """Before anything is read of what is too large."""
    with pytest.raises(ValueError, match=why):
        asyncio.run(read_all(data, 1))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(data)
        with pytest.raises(ValueError, match=why):
            codec.receive(theirs)


async def handed_on(sent: list[m.Message], sizes: list[int], turns: list[bool]) -> list[m.Message]:
    """Let messages come in pieces, now to be taken at once, now for the task; return them as they are had."""
    reader, had, turn = codec.Reader(), [], cycle(turns)

    def take(message: m.Message) -> bool:
        if is_taken := next(turn):
            had.append(message)
        return is_taken

    async def wait() -> None:
        with suppress(EOFError):
            while True:
                had.append(await reader.receive())

    reader.take = take
    waiting, data = asyncio.create_task(wait()), joined(sent)
    for size in sizes:
        reader.feed_data(data[:size])
        data = data[size:]
        if next(turn):
            await asyncio.sleep(0)
    reader.feed_data(data)
    reader.feed_eof()
    await waiting
    return had


WAITS = property(lambda self: True, lambda self, value: None)
HANDED = (messages, st.lists(st.integers(0, 60), max_size=8), st.lists(st.booleans(), min_size=1, max_size=5))
TWO = [m.Bye(), m.Settle([], [], b"")]


@LAWS
@example(TWO, [len(codec.frame(TWO[0]))], [True, False, False])
@given(*HANDED)
def test_messages_are_had_once_and_in_order_whoever_takes_them(sent, sizes, turns):
    assert asyncio.run(handed_on(sent, sizes, turns)) == sent


@pytest.mark.broken_rule
def test_what_is_taken_before_the_task_has_had_the_others_is_noticed(monkeypatch):
    """It would come before them."""
    given = TWO, [0, len(codec.frame(TWO[0]))], [True, False, False, True]
    assert asyncio.run(handed_on(*given)) == TWO
    monkeypatch.setattr(codec.Reader, "_waits", WAITS, raising=False)
    assert asyncio.run(handed_on(*given)) != TWO


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
