"""Every kind of query gives Spark's rows, and the blocks it should give."""

from __future__ import annotations

import pytest

from millrace import query
from tests.gate import sampled
from tests.sql import cases
from tests.sql.answers import SUITES, answer_of, recorded
from tests.sql.compare import taken
from tests.sql.record import differences

CASES = [pytest.param(*case, id=name) for name, case in cases.small().items()]


@pytest.fixture
def check(spark, oracle):
    """Rows, names, types and nullability are Spark's, and the blocks are the case's."""

    def checked(name, text, blocks, tables):
        found = query(text, spark=spark, tables=tables)
        assert taken(found) == blocks, found.explain()
        assert answer_of(found.df) == oracle(name, text), found.explain()

    return checked


@pytest.mark.parametrize(("name", "text", "blocks"), sampled(CASES[::3]))
def test_files(check, files, name, text, blocks):
    """Tables by path: the tasks read the files themselves."""
    check(name, text, blocks, files)


@pytest.mark.parametrize(("name", "text", "blocks"), sampled(CASES[1::3]))
def test_frames(check, views, name, text, blocks):
    """The same tables as DataFrames: Spark reads them."""
    check(name, text, blocks, views)


@pytest.mark.parametrize(("name", "text", "blocks"), sampled(CASES[2::3]))
def test_views(check, views, name, text, blocks):
    """The same tables as the session's temporary views."""
    check(name, text, blocks, None)


@pytest.mark.parametrize("name", SUITES)
def test_every_case_is_recorded_and_nothing_else(name):
    """If not: ``python -m tests.sql.record``."""
    assert set(recorded(name)[1]) == set(SUITES[name].questions())


@pytest.mark.nightly
@pytest.mark.parametrize("name", SUITES)
def test_spark_answers_as_it_is_recorded(oracle, name):
    """What the other tests compare with is Spark's."""
    assert differences(name, oracle) == []
