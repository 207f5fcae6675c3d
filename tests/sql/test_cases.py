"""Every kind of query gives Spark's rows, and the blocks it should give."""

from __future__ import annotations

import pytest

from millrace import query
from tests.gate import sampled
from tests.sql import cases
from tests.sql.answers import SUITES, answer_of, recorded
from tests.sql.compare import taken
from tests.sql.record import differences

FORMS = ("files", "frames", "views")
"""Tables by path, which tasks read; DataFrames, which Spark reads; temporary views of the session."""
CASES = [
    pytest.param(*case, FORMS[number % 3], id=f"{name}-{FORMS[number % 3]}")
    for number, (name, case) in enumerate(cases.small().items())
]


@pytest.mark.parametrize(("name", "text", "blocks", "form"), sampled(CASES))
def test_an_answer_is_sparks(spark, oracle, files, views, name, text, blocks, form):
    """In rows, names, types and nullability; and the blocks are the case's."""
    tables = {"files": files, "frames": views, "views": None}[form]
    found = query(text, spark=spark, tables=tables)
    assert taken(found) == blocks, found.explain()
    assert answer_of(found.df) == oracle(name, text), found.explain()


@pytest.mark.parametrize("name", SUITES)
def test_every_case_is_recorded_and_nothing_else(name):
    """If not: ``python -m tests.sql.record``."""
    assert set(recorded(name)[1]) == set(SUITES[name].questions())


@pytest.mark.nightly
@pytest.mark.parametrize("name", SUITES)
def test_spark_answers_as_it_is_recorded(oracle, name):
    """What the other tests compare with is Spark's."""
    assert differences(name, oracle) == []
