"""Rows of claims: those of the keys that are wanted, however they were settled."""

from __future__ import annotations

import pytest

from millrace.limits import codec
from millrace.limits.chunk import Claimed
from millrace.limits.lookup_session import LookupSession
from millrace.limits.registration import Registration
from tests.limits.test_conduct import check_rows, rows_of

FEW, MANY = 300, 20_000


@pytest.mark.parametrize(
    ("count", "at_once", "wanted", "bytes_at_most", "cut"),
    [
        (MANY, MANY, range(1), 200_000, 1),
        (MANY, MANY, range(7000, 7003), 200_000, 1),
        (MANY, MANY, range(5, MANY, 3), None, 1),
        (MANY, MANY, range(MANY - 1, -1, -1), None, 0),
        (FEW, 20, range(0, FEW, 7), None, 1),
        (FEW, 20, [*range(0, 200, 2), *range(200, FEW)], None, 1),
        (FEW, 20, range(5, 6), None, 1),
    ],
)
def test_rows_are_those_of_the_keys_that_are_wanted(count, at_once, wanted, bytes_at_most, cut):
    """Whole chunks come as they were settled; what is wanted of others is cut out, and comes together."""
    keys = [number.to_bytes(15, "big") + bytes([number % 4]) for number in range(count)]
    with LookupSession(Registration("prices")) as session:
        inbox = []
        client = session.join(inbox.append)
        session.handle(client, codec.keys_message("claim", 0, keys))
        for low in range(0, count, at_once):
            session.handle(client, codec.chunk_message(rows_of(keys[low : low + at_once])))
        inbox.clear()
        some = [keys[place] for place in wanted]
        session.handle(client, codec.keys_message("claim", 1, some))
        claimed = Claimed()
        assert codec.read_reply(inbox[0], claimed) == []
    assert check_rows(claimed) == set(some)
    assert sum(len(chunk.keys) not in (0, at_once) for chunk in claimed.found) == cut
    assert bytes_at_most is None or len(inbox[0]["attachment"]) < bytes_at_most
