"""The access benchmark: what it counts is what the service saw; its cases are known by name."""

from __future__ import annotations

import pytest

from lab.benchmarks import access
from lab.benchmarks.access_service import Manners, serving
from millrace.errors import ExecutionError, OptionError


class Silent:
    """A ticker that shows nothing."""

    def says(self, what: str) -> None: ...

    def tick(self) -> None: ...


def test_small_runs_ask_each_key_once(spark) -> None:
    """Right rows on every side, one request for each key, results in the order of the checkpoints."""
    outcome = access.bench(spark, ("naive", "flow"), 0.05, 1, Silent())
    assert outcome.figures["requests_per_key"] == 1
    by_side = {(row["case"], row["side"]): row for row in outcome.rows}
    naive = by_side["naive", "pandas UDF"]
    assert (naive["requests"], naive["in_flight"]) == (naive["rows"], 2)
    assert by_side["naive", "millrace"]["requests"] == naive["keys"]
    flow = by_side["flow", "millrace"]
    moments = [flow[f"{share}_s"] for share in ("first", "quarter", "half", "three_quarters", "all")]
    assert moments == sorted(moments)
    assert set(outcome.targets) <= set(outcome.figures)


def test_refused_requests_do_not_count(spark) -> None:
    """One in fifty is refused and repeated: still one request for each key that is answered."""
    outcome = access.bench(spark, ("busy",), 0.1, 1, Silent())
    (row,) = outcome.rows
    assert row["refused"] > 0
    assert row["requests"] == row["keys"] + row["refused"]
    assert outcome.figures["requests_per_key"] == 1


def test_wrong_rows_are_no_figure(spark) -> None:
    """A side that gives other rows fails the benchmark."""
    rows = access.Rows(10, 2)
    with pytest.raises(ExecutionError, match="not all of them right"):
        rows.check("side", [(n, 0, "") for n in range(20)])


def test_the_service_says_what_it_saw() -> None:
    """It counts from the moment that it is told its manners."""
    import urllib.request

    with serving() as service:
        service.behave(Manners(5, latency=0.0))
        for key in (1, 1, 2):
            urllib.request.urlopen(f"{service.url}/item/{key}").read()
        seen = service.seen()
        assert (seen.requests, seen.distinct, seen.refused, seen.most) == (3, 2, 0, 1)
        service.behave(Manners(5))
        assert service.seen().requests == 0


def test_unknown_cases_are_refused() -> None:
    """The error lists what is near."""
    assert access.parse_cases(None) == access.CASES
    with pytest.raises(OptionError, match="hybrid"):
        access.parse_cases("limit,hybird")
