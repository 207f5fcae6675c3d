"""The table of answers: each key asked once, whoever dies; and nobody waits for ever."""

from __future__ import annotations

from hypothesis import given, settings, strategies as st

from millrace.limits.answers import Answer, Answers, News

LAWS = settings(max_examples=75, deadline=None, derandomize=True)
OWNERS, KEYS = 4, 6
steps = st.lists(
    st.tuples(
        st.sampled_from(["claim", "claim", "settle", "give up", "drop"]),
        st.integers(0, OWNERS - 1),
        st.sets(st.integers(0, KEYS - 1), max_size=KEYS),
    ),
    max_size=60,
)


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


class Play:
    """A table, and a model of who asks and who waits."""

    def __init__(self) -> None:
        self.answers = Answers()
        self.asking: dict[bytes, int] = {}
        self.waiting: set[tuple[int, bytes]] = set()
        self.answered: dict[bytes, Answer] = {}

    def hear(self, news: list[News]) -> None:
        for owner, each, answer in news:
            self.waiting.remove((owner, each))
            if answer is None:
                assert each not in self.asking and each not in self.answered
                self.asking[each] = owner
            else:
                assert answer == self.answered[each]

    def claim(self, owner: int, keys: list[bytes]) -> None:
        claim = self.answers.claim(owner, keys)
        assert sorted([*claim.ask, *claim.answered, *claim.waiting]) == sorted(keys)
        for each in claim.ask:
            assert each not in self.answered
            assert self.asking.setdefault(each, owner) == owner
        for each in claim.waiting:
            assert self.asking[each] != owner
            self.waiting.add((owner, each))
        assert claim.answered == {each: self.answered[each] for each in claim.answered}

    def settle(self, owner: int, keys: list[bytes], *, give_up: bool = False) -> None:
        own = [each for each in keys if self.asking.get(each) == owner]
        for each in own:
            del self.asking[each]
            if not give_up:
                self.answered[each] = Answer(each[-1] % 2)
        self.hear(
            self.answers.settle(owner, {each: None if give_up else Answer(each[-1] % 2) for each in keys})
        )

    def drop(self, owner: int) -> None:
        self.asking = {each: asker for each, asker in self.asking.items() if asker != owner}
        self.waiting = {(waiter, each) for waiter, each in self.waiting if waiter != owner}
        self.hear(self.answers.drop(owner))


@LAWS
@given(steps)
def test_a_key_has_one_asker_and_one_answer_and_no_wait_is_in_vain(actions):
    """A key is asked again only if its asker died or gave up; when askers settle, all who wait are told."""
    play = Play()
    for action, owner, numbers in actions:
        keys = [key(number) for number in sorted(numbers)]
        if action == "claim":
            play.claim(owner, keys)
        elif action == "drop":
            play.drop(owner)
        else:
            play.settle(owner, keys, give_up=action == "give up")
        assert {each for _, each in play.waiting} <= set(play.asking)
    for each, owner in list(play.asking.items()):
        play.settle(owner, [each])
    assert not play.waiting


def test_the_longest_waiting_inherits_what_a_dead_owner_was_asking():
    """One waiter is told to ask, the next one waits for that one."""
    answers = Answers()
    for owner in range(3):
        answers.claim(owner, [key(1)])
    assert answers.drop(0) == [News(1, key(1), None)]
    assert answers.settle(1, {key(1): Answer(1)}) == [News(2, key(1), Answer(1))]
    assert answers.claim(3, [key(1)]).answered == {key(1): Answer(1)}


def test_an_answer_of_someone_who_is_not_asking_is_passed_over():
    """An owner that was thought dead cannot overwrite what its heir finds out."""
    answers = Answers()
    answers.claim(0, [key(1)])
    assert answers.settle(1, {key(1): Answer(1), key(2): Answer(1)}) == []
    assert answers.claim(1, [key(1), key(2)]).ask == [key(2)]


def test_texts_of_failures_are_bounded():
    """A long traceback keeps its end; after a thousand of them only beginnings of messages are kept."""
    answers = Answers()
    long = Answer(2, ("ValueError", "m" * 9000, "t" * 9000 + "the end"))
    numbers = range(1001)
    answers.claim(0, map(key, numbers))
    answers.settle(0, {key(number): long for number in numbers})
    kept = [answers.claim(1, [key(number)]).answered[key(number)].failure for number in (0, 1000)]
    assert len(kept[0][1]) == len(kept[0][2]) == 4000 and kept[0][2].endswith("the end")
    assert kept[1] == ("ValueError", "m" * 200, "")
