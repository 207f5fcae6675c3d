"""Random queries give Spark's answers; ``python -m tests.sql.fuzz`` asks more of them."""

from __future__ import annotations

import os
import random

import pytest

from tests.sql.fuzz.__main__ import hunt
from tests.sql.fuzz.compare import Comparison
from tests.sql.fuzz.shrink import by_seed, smallest


@pytest.fixture(scope="module")
def comparison(spark, tmp_path_factory):
    return Comparison(spark, tmp_path_factory.mktemp("fuzz"))


@pytest.mark.slow
def test_answers(comparison):
    """Names and types are Spark's, as are rows where any of the query is joined; refusals are alike."""
    assert "".join(hunt(comparison, seed) for seed in range(20)) == ""


@pytest.mark.nightly
def test_answers_to_queries_that_nobody_has_asked_yet(comparison):
    """A seed whose query differs is printed, and has to join those above."""
    draw = random.Random(os.environ["MILLRACE_SEED"])
    assert "".join(hunt(comparison, draw.randrange(10**9)) for _ in range(300)) == ""


def test_a_query_that_fails_shrinks():
    """To one that has little more than what fails."""
    seed, text = next((n, text) for n in range(100) if "LEFT JOIN" in (text := by_seed(n)[1]))
    small = smallest(by_seed(seed)[0], lambda text: "LEFT JOIN" in text)
    assert "LEFT JOIN" in small and len(small) < min(len(text), 80)
