"""Settings of a session that change what a text means: the answer is Spark's under each of them."""

from __future__ import annotations

import pytest

from millrace import query
from tests.session import changed
from tests.sql import cases
from tests.sql.answers import WITHOUT_ANSI, attempted, register_for_settings
from tests.sql.compare import taken

CASES = cases.read("settings")


@pytest.fixture(scope="module")
def session(spark, tmp_path_factory):
    """A session of its own with the tables and functions."""
    made = spark.newSession()
    register_for_settings(made, tmp_path_factory.mktemp("settings"))
    return made


@pytest.mark.parametrize(
    ("given", "text"), CASES, ids=[given.removeprefix("spark.sql.") for given, _ in CASES]
)
def test_an_answer_under_a_setting_is_sparks(session, oracle, given, text):
    """Without the setting it is another one, or an error."""
    with changed(session, cases.settings(given)):
        found = attempted(lambda: query(text, spark=session, options={"take_all": True}).df)
    expected = oracle("settings", text, given)
    assert found == expected
    assert expected != oracle("settings", text)


@pytest.mark.parametrize("given", ["", WITHOUT_ANSI], ids=["ansi", "not ansi"])
@pytest.mark.parametrize(("head", "text"), cases.read("coercions"))
def test_both_coercion_rules(spark, files, views, oracle, head, text, given):
    """With and without ANSI rules, what is compared and added up is Spark's, errors included."""
    blocks = []

    def answered():
        found = query(text, spark=spark, tables=None if given else files)
        blocks.append(taken(found))
        return found.df

    with changed(spark, cases.settings(given)):
        found = attempted(answered)
    assert found == oracle("coercions", text, given)
    assert not head or blocks == [head.split(" / ")[given != ""]]
