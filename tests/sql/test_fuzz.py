"""Random queries give Spark's answers, or its refusals."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.gate import examples
from tests.sql.fuzz.compare import MODES, Comparison
from tests.sql.fuzz.grammar import query


@st.composite
def queries(draw: st.DrawFn) -> str:
    """Draw a query, number by number: a smaller one is a plainer one, so that what fails shrinks."""

    def below(count: int) -> int:
        # Of a wide range Hypothesis mostly draws small numbers; here all are as likely.
        hundreds = draw(st.integers(0, (count - 1) // 100))
        return min(100 * hundreds + draw(st.integers(0, min(count - 1, 99))), count - 1)

    return query(below)


@pytest.fixture(scope="module")
def compare(spark, tmp_path_factory):
    """Compare a query once, however often it is drawn."""
    return cache(Comparison(spark, tmp_path_factory.mktemp("fuzz")).difference)


@pytest.mark.law
@pytest.mark.slow
@settings(max_examples=examples(50, 400), suppress_health_check=list(HealthCheck))
@given(queries(), st.sampled_from(MODES))
def test_answers(compare, text, mode):
    """Names and types are Spark's, as are rows where any of the query is joined; refusals are alike."""
    found = compare(text, mode)
    assert not found, f"{text}\n{mode}\n{found}"
