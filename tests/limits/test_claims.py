"""Rows of claims: those of the keys that are wanted, however they were settled."""

from __future__ import annotations

import pytest

from millrace.limits import codec
from millrace.limits.chunk import Claimed
from millrace.limits.lookup_session import LookupSession
from millrace.limits.registration import Registration
from tests.limits.test_conduct import check_rows, rows_of


@pytest.fixture
def ask():
    """Claims keys in a session, and answers them so many at once; then claims some, and returns the reply."""
    session, inbox = LookupSession(Registration("prices")), []
    client = session.join(inbox.append)

    def settle(keys: list[bytes], at_once: int) -> None:
        session.handle(client, codec.keys_message("claim", 0, keys))
        for low in range(0, len(keys), at_once):
            session.handle(client, codec.chunk_message(rows_of(keys[low : low + at_once])))

    def ask(keys: list[bytes]) -> tuple[Claimed, int]:
        inbox.clear()
        session.handle(client, codec.keys_message("claim", 1, keys))
        claimed = Claimed()
        assert codec.read_reply(inbox[0], claimed) == []
        assert check_rows(claimed) == set(keys)
        return claimed, len(inbox[0]["attachment"])

    yield settle, ask
    session.close()


def test_rows_are_cut_to_the_keys_that_are_wanted(ask):
    """A few keys of a large chunk, many of it, and all of it: always their rows and no others."""
    settle, claim = ask
    keys = [number.to_bytes(15, "big") + bytes([number % 4]) for number in range(20_000)]
    settle(keys, 20_000)
    for wanted in (keys[:1], keys[7000:7003], keys[5::3], keys[::-1]):
        _, size = claim(wanted)
        assert size < 200_000 or len(wanted) > 1000


def test_parts_of_many_chunks_come_together(ask):
    """Keys claimed in another grouping than they were settled in have all their rows, in one chunk."""
    settle, claim = ask
    keys = [number.to_bytes(15, "big") + bytes([number % 3]) for number in range(300)]
    settle(keys, 20)
    for wanted in (keys[::7], keys[:200:2] + keys[200:], keys[5:6]):
        claimed, _ = claim(wanted)
        assert sum(len(chunk.keys) not in (0, 20) for chunk in claimed.found) == 1
