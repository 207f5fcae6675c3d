"""Calling plain functions: a row, a pandas batch or an Arrow batch at a time."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from millrace.predicates import KEPT, RAISED, REJECTED, PlainValues, PredicateSpec
from millrace.predicates.callers import caller_of

LAWS = settings(max_examples=30, deadline=None, derandomize=True)


class Boom(Exception):
    """What functions raise here."""


def caller(function, kind="row", **how):
    return caller_of(PredicateSpec("p", function, kind, **how), PlainValues(), None, "")


def numbers(*values):
    return [pa.array(values, pa.int64())]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """Repeat at once."""
    monkeypatch.setattr("millrace.predicates.spec.FIRST_WAIT", 0.0)


@LAWS
@given(st.lists(st.sampled_from([True, False, None, "raise", "stop"]), max_size=30))
def test_a_row_that_raises_disturbs_no_other(answers):
    """Every row is called once, in order, whatever the ones before it did, StopIteration included."""
    asked = []

    def one(i):
        asked.append(i)
        if answers[i] == "raise":
            raise Boom(f"row {i}")
        if answers[i] == "stop":
            raise StopIteration
        return answers[i]

    outcome = caller(one).call(numbers(*range(len(answers))))
    codes = {True: KEPT, False: REJECTED, None: REJECTED, "raise": RAISED, "stop": RAISED}
    assert outcome.truth.tolist() == [codes[a] for a in answers]
    assert asked == list(range(len(answers)))
    assert outcome.calls == len(answers)
    kinds = {"raise": "Boom", "stop": "StopIteration"}
    told = {i: failure.kind for i, failure in outcome.failures.items()}
    assert told == {i: kinds[a] for i, a in enumerate(answers) if a in kinds}


def test_a_call_is_repeated_as_often_as_retries_allow():
    """What raises twice passes with two retries and fails with one; every attempt counts as a call.

    The traceback begins in the user's function.
    """
    attempts = []

    def flaky(x):
        attempts.append(x)
        if attempts.count(x) < 3:
            raise Boom(str(x))
        return True

    outcome = caller(flaky, retries=2).call(numbers(1, 2))
    assert outcome.truth.tolist() == [KEPT, KEPT]
    assert outcome.calls == len(attempts) == 6
    attempts.clear()
    outcome = caller(flaky, retries=1).call(numbers(1))
    assert outcome.truth.tolist() == [RAISED]
    failure = outcome.failures[0]
    assert (failure.message, outcome.calls) == ("1", 2)
    assert "in flaky" in failure.traceback and failure.traceback.count("File ") == 1


@pytest.mark.parametrize("kind", ["pandas", "arrow"])
def test_batches_are_cut_to_size(kind):
    """A function gets at most ``batch`` rows at once; one bad batch does not disturb the others."""
    sizes = []

    def many(values):
        sizes.append(len(values))
        if int(values.to_pylist()[0] if kind == "arrow" else values[0]) == 3:
            raise Boom("second batch")
        return values > 4 if kind == "pandas" else pa.array([v > 4 for v in values.to_pylist()])

    outcome = caller(many, kind, batch=3).call(numbers(*range(8)))
    assert sizes == [3, 3, 2]
    assert outcome.truth.tolist() == [REJECTED] * 3 + [RAISED] * 3 + [KEPT] * 2
    assert not outcome.failures  # which of the three is to blame is not known
    assert outcome.calls == 8


@pytest.mark.parametrize("looking_ahead", [False, True])
def test_a_function_over_an_iterator_runs_on_from_batch_to_batch(looking_ahead):
    """What it loads before its loop is loaded once.

    One that looks ahead is started again instead, and so is one that has raised.
    """
    loaded = []

    def over(batches):
        loaded.append(True)
        if looking_ahead:
            batches = list(batches)
        for batch in batches:
            if (batch > 100).any():
                raise Boom("too much")
            yield batch % 2 == 0

    made = caller(over, "pandas_iter")
    for low in (0, 10, 500, 20, 30):
        outcome = made.call(numbers(low, low + 1, low + 2))
        assert outcome.truth.tolist() == ([RAISED] * 3 if low == 500 else [KEPT, REJECTED, KEPT])
    assert made.call(numbers(500)).failures[0].message == "too much"
    assert len(loaded) == (6 if looking_ahead else 2)
    made.close()


def test_missing_values_of_pandas_count_as_rejected():
    """None, NaN and pandas' own missing value, in object and in nullable columns."""
    for given_ in (
        pd.Series([True, None, False], dtype=object),
        pd.Series([True, float("nan"), False], dtype=object),
        pd.Series([True, pd.NA, False], dtype="boolean"),
    ):
        outcome = caller(lambda _, given_=given_: given_, "pandas").call(numbers(1, 2, 3))
        assert outcome.truth.tolist() == [KEPT, REJECTED, REJECTED]
