"""Every kind of query gives Spark's rows, and the blocks it should give."""

from __future__ import annotations

import pytest

from millrace import query
from tests.gate import sampled
from tests.session import changed
from tests.sql import cases
from tests.sql.answers import (
    SUITES,
    WITHOUT_ANSI,
    answer_of,
    attempted,
    differences,
    recorded,
    register_for_settings,
)
from tests.sql.compare import taken

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


SETTINGS = cases.read("settings")


@pytest.fixture(scope="module")
def session(spark, tmp_path_factory):
    made = spark.newSession()
    register_for_settings(made, tmp_path_factory.mktemp("settings"))
    return made


@pytest.mark.parametrize(
    ("given", "text"), SETTINGS, ids=[given.removeprefix("spark.sql.") for given, _ in SETTINGS]
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


@pytest.mark.parametrize("name", SUITES)
def test_every_case_is_recorded_and_nothing_else(name):
    """If not: ``python -m tests.sql.answers``."""
    assert set(recorded(name)[1]) == set(SUITES[name].questions())


@pytest.mark.nightly
@pytest.mark.parametrize("name", SUITES)
def test_spark_answers_as_it_is_recorded(oracle, name):
    assert differences(name, oracle) == []
