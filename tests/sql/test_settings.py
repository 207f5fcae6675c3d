"""Settings of a session that change what a text means: the answer is Spark's under each of them."""

from __future__ import annotations

import pytest

from millrace import query
from tests.session import changed
from tests.sql import cases
from tests.sql.answers import WITHOUT_ANSI, attempted
from tests.sql.settings import parsed, register

CASES = cases.read("settings")


@pytest.fixture(scope="module")
def session(spark, tmp_path_factory):
    """A session of its own with the tables and functions."""
    made = spark.newSession()
    register(made, tmp_path_factory.mktemp("settings"))
    return made


@pytest.mark.parametrize(
    ("given", "text"), CASES, ids=[given.removeprefix("spark.sql.") for given, _ in CASES]
)
def test_an_answer_under_a_setting_is_sparks(session, oracle, given, text):
    """Without the setting it is another one, or an error."""
    with changed(session, parsed(given)):
        found = attempted(lambda: query(text, spark=session, options={"take_all": True}).df)
    expected = oracle("settings", text, given)
    assert found == expected
    assert expected != oracle("settings", text)


@pytest.mark.parametrize("given", ["", WITHOUT_ANSI], ids=["ansi", "not ansi"])
@pytest.mark.parametrize("text", [text for _, text in cases.read("coercions")])
def test_both_coercion_rules(spark, files, views, oracle, text, given):
    """With and without ANSI rules, comparisons mean what they mean to Spark, errors included."""
    with changed(spark, parsed(given)):
        found = attempted(lambda: query(text, spark=spark, tables=None if given else files).df)
    assert found == oracle("coercions", text, given)
