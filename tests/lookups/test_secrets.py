"""Values of secrets are in requests and nowhere else; failures are what they say."""

from __future__ import annotations

import base64
import json
import pickle
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings, strategies as st

from millrace.errors import InputError
from millrace.limits.secrets import Secrets
from millrace.lookups.source import Refused, shortened

LAWS = settings(max_examples=30, deadline=None, derandomize=True)
VALUES = st.text(st.characters(exclude_categories=["Cs"]), min_size=4, max_size=12)

WRITTEN = [
    str,
    lambda value: quote(value),
    lambda value: quote(value, safe=""),
    quote_plus,
    repr,
    json.dumps,
    lambda value: base64.b64encode(value.encode()).decode(),
]


@LAWS
@given(st.lists(VALUES, min_size=1, max_size=3, unique=True), st.sampled_from(WRITTEN))
def test_no_value_is_left_in_a_text(values, written):
    """However a library writes it, its name stands in its place."""
    secrets = Secrets({f"S{i}": value for i, value in enumerate(values)})
    text = " | ".join(f"<{written(value)}>" for value in values)
    scrubbed = secrets.scrub(text)
    for piece, value in zip(scrubbed.split(" | "), values, strict=True):
        assert "${S" in piece
        assert written(value) not in piece.replace("${S", "")


@LAWS
@given(st.text("ab", max_size=30), st.integers(0, 60))
def test_a_text_that_was_cut_has_no_half_of_a_value(filling, end):
    """Where a longer text ends in the middle of a secret, its first half is taken off as well."""
    value = "0123456789"
    text = f"{filling}{value}{filling}{value}"[:end]
    scrubbed = Secrets({"A": value}).scrub_beginning(text)
    assert not set(scrubbed) & set(value)
    assert text.startswith(scrubbed.partition("$")[0])


def test_values_are_not_shown_and_not_pickled():
    """Neither by themselves nor with what hides a part of one."""
    secrets = Secrets({"A": "s3cret"}).hiding("cre", "${A}")
    assert "s3cret" not in repr(secrets) + str(secrets)
    assert secrets.scrub("cre s3cret") == "${A} ${A}"
    assert secrets.names == ("A",) and secrets.values() == {"A": "s3cret"}
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(secrets)
    assert Secrets().scrub("text") == "text"
    # One may be a part of another: the longest is taken out first.
    assert Secrets({"SHORT": "abc", "LONG": "abcdef"}).scrub("abcdef abc") == "${LONG} ${SHORT}"


def test_they_come_from_the_environment(monkeypatch):
    """Of the planning process; what is missing or empty is named."""
    monkeypatch.setenv("MILLRACE_A", "s3cret")
    monkeypatch.setenv("MILLRACE_EMPTY", "")
    assert Secrets.of_environment(["MILLRACE_A"]).fill("${MILLRACE_A}") == "s3cret"
    for name in ("MILLRACE_EMPTY", "MILLRACE_NOT_THERE"):
        with pytest.raises(InputError, match=f"prices needs the secret .*environment variable {name}"):
            Secrets.of_environment(["MILLRACE_A", name], "prices")


def test_a_refusal_travels():
    refused = pickle.loads(pickle.dumps(Refused("HTTP 429", "busy", again=True, wait=2.5)))
    assert vars(refused) == vars(Refused("HTTP 429", "busy", again=True, wait=2.5))
    assert (refused.kind, str(refused)) == ("HTTP 429", "busy")


def test_messages_are_one_short_line():
    """Whatever a service writes into its errors."""
    assert shortened("a\n  b\tc") == "a b c"
    assert shortened("x" * 1000, 10) == "xxxxxxxxx…"
