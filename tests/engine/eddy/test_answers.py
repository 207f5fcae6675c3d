"""However a block is run, its rows are DuckDB's: the theorem that all rules are there for.

What is drawn together is in ``answers.py``: kinds of blocks and of data, architecture, policy, migration,
schedule, batch size, windows, EXISTS, left joins, users' predicates, access modules, stalls, transfer,
content, preferences, queues, memory budgets, and moves of join state with the invariants checked after each.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable

import pytest
from hypothesis import event, given, seed, settings

from millrace.options import ARCHITECTURES
from tests.engine.eddy.answers import Example, answers, faults_of
from tests.engine.laws import SEED, examples

COUNTS = {"static": 44, "joins": 76, "stems": 112, "stairs": 140, "auto": 28}
"""Examples by architecture: 400 in the gate."""

DRAWN: dict[str, set[object]] = {
    "schedule": {"own", "built in turn", "streamed", "streamed in turn"},
    "access": {"none", "index alone", "competing"},
    "outer": {0, 1, 2},
    **{name: {False, True} for name in ("exists", "windows", "shared")},
}
"""What the examples have to have of the dimensions that are drawn with the data."""


EACH = 4
"""Examples with the same values of all dimensions, and with other data."""


def over(architecture: str, look: Callable[[Example], object]) -> None:
    """Call a function for every example of an architecture, the same ones in each run of the gate."""
    count = examples(COUNTS[architecture]).max_examples
    for number in range(count // EACH):

        @seed(numbered(architecture, number))
        @settings(max_examples=EACH, database=None)
        @given(answers(architecture, numbered(architecture, number)))
        def law(example: Example) -> None:
            look(example)

        law()


def numbered(architecture: str, number: int) -> int:
    """Return what chooses all that is random, from the seed of the run."""
    return random.Random(f"{SEED} {architecture} {number}").getrandbits(32)


@pytest.mark.law
@pytest.mark.parametrize("architecture", COUNTS)
def test_the_answer_is_duckdbs(architecture: str) -> None:
    """Rows or the exception of a predicate; and no binding is asked for twice, and no file is left."""

    def look(example: Example) -> None:
        for name, value in example.dimensions().items():
            event(f"{name}: {value}")
        assert not faults_of(example), example.case.sql()

    over(architecture, look)


def test_the_examples_cross_all_that_they_say() -> None:
    """Each value of each dimension occurs, and in many combinations with those of others."""
    seen: dict[str, set[object]] = defaultdict(set)
    expected: dict[str, set[object]] = defaultdict(set, DRAWN)
    pairs: set[tuple[object, ...]] = set()
    for architecture in COUNTS:

        def look(example: Example) -> None:
            found = example.dimensions()
            for name, value in found.items():
                seen[name].add(value)
            for name, (_, values) in example.choices.items():
                expected[name].update(values)
            rare = [f"{n}: {v}" for n, v in found.items() if v not in (False, None, "none", "batches", "own")]
            pairs.update((a, b) for a in rare for b in rare if a < b)

        over(architecture, look)
    assert {*COUNTS} == {*ARCHITECTURES, "auto"}
    assert seen == expected
    assert len(pairs) > 1000, len(pairs)
