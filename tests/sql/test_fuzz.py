"""Sixty random queries give Spark's answers; see ``python -m tests.sql.fuzz`` for more."""

from __future__ import annotations

import random

import pytest

from tests.sql.fuzz.__main__ import mode_of, report, smallest
from tests.sql.fuzz.compare import Comparison
from tests.sql.fuzz.grammar import query

CHUNK = 30
QUERIES = 60


@pytest.fixture(scope="module")
def comparison(spark, tmp_path_factory):
    return Comparison(spark, tmp_path_factory.mktemp("fuzz"))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, QUERIES, CHUNK))
def test_answers(comparison, first):
    """Names and types are Spark's, as are rows where any of the query is joined; refusals are alike."""
    failures = []
    for seed in range(first, first + CHUNK):
        text, mode = query(random.Random(seed)), mode_of(seed)
        result = comparison.run(text, mode)
        if result.failed:
            failures.append((seed, mode, text, result))
    if failures:
        seed, mode, text, result = min(failures, key=lambda failure: len(failure[2]))
        minimal = smallest(comparison, text, mode, result, budget=200)
        seeds = ", ".join(f"{failure[0]} ({failure[3].category})" for failure in failures)
        pytest.fail(f"seeds {seeds}{report(seed, mode, text, result)}minimal: {minimal}", pytrace=False)
