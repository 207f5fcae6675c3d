"""Claims by key with rows as answers: each key settled once, whoever dies; and nobody waits for ever."""

from __future__ import annotations

from collections import defaultdict

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings, strategies as st

from millrace.limits import codec
from millrace.limits.answers import Claims
from millrace.limits.chunk import Chunk, Claimed, Failure, split_keys
from millrace.limits.lookup_session import LookupSession
from millrace.limits.registration import Registration

LAWS = settings(max_examples=60, deadline=None, derandomize=True)
OWNERS, KEYS = 3, 4
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["claim", "claim", "claim", "settle", "fail", "give up", "die"]),
        st.integers(0, OWNERS - 1),
        st.lists(st.integers(0, KEYS - 1), min_size=1, max_size=KEYS, unique=True),
    ),
    min_size=12,
    max_size=50,
)


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def rows_of(keys: list[bytes]) -> Chunk:
    """As many rows as the key's number, each naming its key."""
    counts = [each[-1] for each in keys]
    values = [each[-1] for each in keys for _ in range(each[-1])]
    return Chunk.of(keys, counts, pa.table({"key": pa.array(values, pa.int64())}))


def check_rows(claimed: Claimed) -> set[bytes]:
    """Return the keys that were found, with exactly their rows."""
    found = [each for chunk in claimed.found for each in chunk.keys]
    assert len(found) == len(set(found))
    for chunk in claimed.found:
        expected = rows_of(chunk.keys)
        assert chunk.counts == expected.counts and chunk.table() == expected.table()
    return set(found)


class Play:
    """A room, and a model of who asks, who waits and what has been settled."""

    def __init__(self) -> None:
        self.room = LookupSession(Registration("prices"))
        self.inboxes: dict[int, list] = {}
        self.owners = [self.enter() for _ in range(OWNERS)]
        self.asking: dict[bytes, int] = {}
        self.waiting: set[tuple[int, bytes]] = set()
        self.settled: dict[bytes, str] = {}
        self.times_settled: defaultdict[bytes, int] = defaultdict(int)

    def enter(self) -> int:
        inbox: list = []
        number = self.room.join(inbox.append)
        self.inboxes[number] = inbox
        return number

    def act(self, action: str, place: int, numbers: list[int]) -> None:
        owner, keys = self.owners[place], [key(number) for number in numbers]
        if action == "claim":
            self.claim(owner, keys)
        elif action == "die":
            self.room.leave(owner)
            del self.inboxes[owner]
            self.asking = {each: asker for each, asker in self.asking.items() if asker != owner}
            self.waiting = {(waiter, each) for waiter, each in self.waiting if waiter != owner}
            self.owners[place] = self.enter()
        else:
            self.tell(action, owner, keys)
        self.hear()
        assert {each for _, each in self.waiting} <= set(self.asking)

    def claim(self, owner: int, keys: list[bytes]) -> None:
        self.room.handle(owner, codec.keys_message("claim", 1, keys))
        claimed = Claimed()
        later = codec.read_reply(self.inboxes[owner].pop(), claimed)
        found = check_rows(claimed)
        assert later == []
        assert sorted([*claimed.ask, *found, *claimed.failed, *claimed.waiting]) == sorted(keys)
        assert {each for each in keys if self.settled.get(each) == "settle"} == found
        assert {each for each in keys if self.settled.get(each) == "fail"} == set(claimed.failed)
        for each in claimed.ask:
            assert self.asking.setdefault(each, owner) == owner
        for each in claimed.waiting:
            assert self.asking[each] != owner
            self.waiting.add((owner, each))

    def tell(self, action: str, owner: int, keys: list[bytes]) -> None:
        """Settle, fail or give up; keys that are not this owner's must be passed over."""
        for each in keys:
            if self.asking.get(each) == owner:
                del self.asking[each]
                if action != "give up":
                    self.settled[each] = action
                    self.times_settled[each] += 1
        if action == "settle" and keys:
            self.room.handle(owner, codec.chunk_message(rows_of(keys)))
        elif action == "fail":
            failures = [list(Failure("HTTP 503", "busy", 2, "[1]"))] * len(keys)
            self.room.handle(owner, {**codec.keys_message("fail", failures, keys), "number": 0})
            assert self.inboxes[owner].pop() == {"noted": 0}
        elif action == "give up":
            self.room.handle(owner, codec.keys_message("give_up", True, keys))

    def hear(self) -> None:
        """Read the news; every key in them was waited for."""
        for owner in list(self.inboxes):
            while self.inboxes[owner]:
                message = self.inboxes[owner].pop(0)
                keys = split_keys(message["attachment"])
                for each in keys:
                    self.waiting.remove((owner, each))
                settled, handed = keys[: message["told"]], keys[message["told"] :]
                for each in handed:
                    assert each not in self.asking and each not in self.settled
                    self.asking[each] = owner
                self.claim(owner, settled)

    def finish(self) -> None:
        """Everyone settles what it asks; then nobody may be waiting."""
        for each, owner in list(self.asking.items()):
            self.tell("settle", owner, [each])
            self.hear()
        assert not self.waiting and not self.asking
        assert all(times == 1 for times in self.times_settled.values())
        progress = self.room.progress()
        assert progress.keys == progress.done + progress.failed == len(self.settled)
        assert progress.failed == sum(each == "fail" for each in self.settled.values())
        self.room.close()


def play(actions) -> None:
    playing = Play()
    for action in actions:
        playing.act(*action)
    playing.finish()


@LAWS
@given(ACTIONS)
def test_a_key_is_settled_once_and_no_wait_is_in_vain(actions):
    """Whoever dies or gives up: a key has one asker, all who want it get its rows, all who wait hear."""
    play(actions)


def nothing_is_handed_over(self, owner, keys):
    for each in self.own(owner, keys):
        del self._owners[each]
    return {}


def everybody_asks(self, key):
    return None


def nobody_is_told(self, keys):
    for each in keys:
        del self._owners[each]
    return {}


def anybody_may_settle(self, owner, keys):
    return [each for each in keys if each in self._owners]


@pytest.mark.broken_rule
@pytest.mark.parametrize(
    ("rule", "broken"),
    [
        ("give_up", nothing_is_handed_over),
        ("owner", everybody_asks),
        ("settle", nobody_is_told),
        ("own", anybody_may_settle),
    ],
)
def test_the_law_notices_a_broken_rule(monkeypatch, rule, broken):
    """Keys of the dead are inherited, a key has one asker, waiters are told, strangers settle nothing."""
    monkeypatch.setattr(Claims, rule, broken)
    law = settings(LAWS, phases=[Phase.generate], report_multiple_bugs=False, database=None)(
        given(ACTIONS)(play)
    )
    with pytest.raises((AssertionError, KeyError)):
        law()


def test_the_longest_waiting_inherits_and_those_behind_wait_for_it():
    """An owner that leaves is not told anything, nor is one that has stopped waiting by leaving."""
    claims = Claims()
    claims.ask(0, [key(1), key(2)])
    for waiter in (1, 2, 3):
        claims.wait(waiter, key(1))
    assert claims.drop(1) == {}
    assert claims.drop(0) == {2: [key(1)]}
    assert key(2) not in claims
    assert claims.settle([key(1)]) == {3: [key(1)]}
    assert len(claims) == 0


def test_rows_are_cut_to_the_keys_that_are_wanted():
    """A few keys of a large chunk, many of it, and all of it: always their rows and no others."""
    room = LookupSession(Registration("prices"))
    inbox: list = []
    client = room.join(inbox.append)
    keys = [number.to_bytes(15, "big") + bytes([number % 4]) for number in range(20_000)]
    room.handle(client, codec.keys_message("claim", 0, keys))
    room.handle(client, codec.chunk_message(rows_of(keys)))
    for wanted in (keys[:1], keys[7000:7003], keys[5::3], keys[::-1]):
        inbox.clear()
        room.handle(client, codec.keys_message("claim", 1, wanted))
        claimed = Claimed()
        assert codec.read_reply(inbox[0], claimed) == []
        assert check_rows(claimed) == set(wanted)
        assert len(inbox[0]["attachment"]) < 200_000 or len(wanted) > 1000
    room.close()


def test_parts_of_many_chunks_come_together():
    """Keys claimed in another grouping than they were settled in have all their rows, in one chunk."""
    room = LookupSession(Registration("prices"))
    inbox: list = []
    client = room.join(inbox.append)
    keys = [number.to_bytes(15, "big") + bytes([number % 3]) for number in range(300)]
    room.handle(client, codec.keys_message("claim", 0, keys))
    for low in range(0, 300, 20):
        room.handle(client, codec.chunk_message(rows_of(keys[low : low + 20])))
    for wanted in (keys[::7], keys[:200:2] + keys[200:], keys[5:6]):
        inbox.clear()
        room.handle(client, codec.keys_message("claim", 1, wanted))
        claimed = Claimed()
        assert codec.read_reply(inbox[0], claimed) == []
        assert check_rows(claimed) == set(wanted)
        assert sum(len(chunk.keys) not in (0, 20) for chunk in claimed.found) == 1
    room.close()
