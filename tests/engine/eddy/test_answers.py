"""However a block is run, its rows are DuckDB's: the theorem that all rules are there for.

What is drawn together is in ``answers.py``: kinds of blocks and of data, architecture, policy, migration,
schedule, batch size, windows, EXISTS, left joins, users' predicates, access modules, stalls, transfer,
content, preferences, queues, memory budgets, and moves of join state with the invariants checked after each.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable

import pytest
from hypothesis import event, given, seed, settings

from millrace.options import ALGORITHMS, ARCHITECTURES, MIGRATIONS, POLICY_NAMES
from tests.engine.eddy.answers import SHAPES, SOURCES, Example, answers, faults_of
from tests.engine.eddy.oracle import KINDS
from tests.engine.laws import SEED, examples

COUNTS = {"static": 44, "joins": 76, "stems": 112, "stairs": 140, "auto": 28}
"""Examples by architecture: 400 in the gate."""

YES_AND_NO = {False, True}
VALUES: dict[str, set[object]] = {
    "shape": {*SHAPES},
    "policy": {*POLICY_NAMES},
    "batch": {1, 2, 3, 7, 100},
    "schedule": {"own", "built in turn", "streamed", "streamed in turn"},
    "source": {*SOURCES},
    "calls": {"none", "called", *KINDS},
    "access": {"none", "index alone", "competing"},
    "preference": {"none", "stays", "changes"},
    "budget": {"none", *ALGORITHMS},
    "migration": {None, *MIGRATIONS},
    "moves": {"none", "", "all", "some"},
    "architecture": {*COUNTS},
    "outer": {0, 1, 2},
    **dict.fromkeys(["online", "transfer", "exists", "windows", "shared", "queues"], YES_AND_NO),
    **dict.fromkeys(["collides", "pieces", "divides", "stops", "intermediate"], YES_AND_NO),
}
"""Every value that the examples have to have, by dimension."""


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
    seen: dict[str, Counter[object]] = defaultdict(Counter)
    pairs: set[tuple[object, ...]] = set()
    for architecture in COUNTS:

        def look(example: Example) -> None:
            found = example.dimensions()
            for name, value in found.items():
                seen[name][value] += 1
            rare = [f"{n}: {v}" for n, v in found.items() if v not in (False, None, "none", "batches", "own")]
            pairs.update((a, b) for a in rare for b in rare if a < b)

        over(architecture, look)
    assert {*COUNTS} == {*ARCHITECTURES, "auto"}
    assert {name: set(counts) for name, counts in seen.items()} == VALUES
    assert len(pairs) > 1000, len(pairs)
