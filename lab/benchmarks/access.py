"""Lookups: requests, time and the flow of results, against what is written without them.

Seconds include Spark's job. The flow of results is measured from the first request that the service sees.
The A/A control is Millrace's side a second time in each round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lab.benchmarks import access_database, harness
from lab.benchmarks.access_service import Manners, Service, serving
from lab.benchmarks.access_sides import Rows, Side, by_millrace, by_model, by_udf
from lab.benchmarks.harness import Outcome, Target
from lab.benchmarks.show import Ticker
from millrace.errors import OptionError, near
from millrace.options import Options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CASES = ("limit", "busy", "naive", "flow", "hybrid", "database", "database-large", "llm")
QUICK = ("naive", "flow")
START = 2.0
"""Seconds that a job may take beside its requests."""

AGAIN = "millrace again"
_BATCH = 10
"""Rows of one request to a language model."""

_SHARES = ("first", "quarter", "half", "three_quarters", "all")

TARGETS = {
    "requests_per_key": Target(1, 1),
    "time_limit_ratio": Target(high=1.1),
    "naive_udf_ratio": Target(high=1),
    "first_result_latencies": Target(high=3),
    "half_results_at": Target(high=0.6),
    "hybrid_worst_ratio": Target(high=1.1),
    "llm_requests_ratio": Target(high=1.02),
    "jdbc_ratio": Target(high=1),
    "jdbc_large_ratio": Target(high=1),
    "aa_ratio": Target(0.9, 1.1, informational=True),
}


@dataclass(frozen=True)
class Case:
    """What is asked, of a service with these manners.

    Attributes:
        name: Of ``CASES``.
        rows: That are enriched.
        manners: Of the service.
        in_flight: Requests that may be under way.
        sides: By name; the first is Millrace's.
    """

    name: str
    rows: Rows
    manners: Manners
    in_flight: int
    sides: Mapping[str, Side]

    @property
    def bound(self) -> float:
        """Seconds that the requests take at best, by their latency and how many may be under way."""
        return self.rows.keys * self.manners.latency / self.in_flight


def parse_cases(text: str | None) -> tuple[str, ...]:
    """Return the cases that a list names, all of them for None.

    Raises:
        OptionError: There is no such case.
    """
    names = CASES if text is None else tuple(part.strip() for part in text.split(","))
    for name in names:
        if name not in CASES:
            raise OptionError(f"unknown case {name!r}: {near(name, CASES)}")
    return names


def runs(names: tuple[str, ...], rounds: int) -> int:
    """Return how many runs there are, warm-up not counted."""
    sides = {"busy": 1, "naive": 3, "hybrid": 3, "llm": 1}
    return rounds * sum(sides.get(name, 2) for name in names)


def bench(spark: SparkSession, names: tuple[str, ...], scale: float, rounds: int, ticker: Ticker) -> Outcome:
    """Run the cases.

    Args:
        spark: The session; for the database, with PostgreSQL's JDBC driver.
        names: Of ``CASES``.
        scale: Multiplies the number of keys.
        rounds: Timed rounds of each side.
        ticker: Told of progress.
    """
    done: list[Case] = []
    notes: list[str] = []
    with serving() as service:
        for name in names:
            for case in _cases(spark, service, name, scale, notes):
                _measure(case, service, rounds, ticker)
                done.append(case)
    figures = _figures(done)
    rows = [row for case in done for row in _rows(case)]
    targets = {name: target for name, target in TARGETS.items() if name in figures}
    return Outcome("access", scale, rounds, figures, rows, targets, notes)


def _cases(
    spark: SparkSession, service: Service, name: str, scale: float, notes: list[str]
) -> Iterator[Case]:
    def size(keys: int) -> int:
        return max(10, round(keys * scale))

    def millrace(rows: Rows, in_flight: int, **how: Any) -> Side:
        return Side(by_millrace(spark, rows, service, name, in_flight=in_flight, **how))

    if name == "limit":
        rows = Rows(size(4_000), 4)
        sides = {"millrace": millrace(rows, 32), AGAIN: millrace(rows, 32)}
        yield Case(name, rows, Manners(rows.keys, 0.05), 32, sides)
    elif name == "busy":
        rows = Rows(size(1_000), 4)
        yield Case(name, rows, Manners(rows.keys, 0.05, refuses=50), 32, {"millrace": millrace(rows, 32)})
    elif name == "naive":
        rows = Rows(size(200), 4)
        sides = {
            "millrace": millrace(rows, 32),
            "pandas UDF": Side(by_udf(spark, rows, service, name, cached=False)),
            "pandas UDF with a cache": Side(by_udf(spark, rows, service, name, cached=True)),
        }
        yield Case(name, rows, Manners(rows.keys, 0.05), 32, sides)
    elif name == "flow":
        # Figure 7 of the SteMs paper: 1,000 tuples with 250 values, one lookup at a time.
        rows = Rows(size(250), 4)
        sides = {
            "millrace": millrace(rows, 1, stream=True),
            "index join": millrace(rows, 1, stream=True, options=Options(architecture="joins")),
        }
        yield Case(name, rows, Manners(rows.keys, 0.02), 1, sides)
    elif name == "hybrid":
        # The index is ahead at first, the scan at the end: it begins late, and is fast then.
        rows = Rows(size(1_000), 1)
        manners = Manners(rows.keys, 0.05, delay=4.0 * scale, page=0.01)
        sides = {
            "millrace": millrace(rows, 8, stream=True, scan=True),
            "index alone": millrace(rows, 8, stream=True),
            "scan alone": millrace(rows, 8, stream=True, scan=True, index=False),
        }
        yield Case(name, rows, manners, 8, sides)
    elif name == "llm":
        rows = Rows(size(2_000), 4)
        sides = {"millrace": Side(by_model(spark, rows, service, batch=_BATCH, in_flight=8))}
        yield Case(name, rows, Manners(rows.keys, 0.02), 8, sides)
    else:
        # Spark reads the whole table, lookups ask for keys: how much of it is wanted decides.
        rows = Rows(size(5_000), 10)
        table = size(200_000 if name == "database" else 2_000_000)
        with access_database.items(table) as server:
            sides = {"millrace": Side(access_database.by_lookup(spark, rows, server))}
            if access_database.jdbc_jar() is None:
                notes.append(
                    f"Spark's JDBC is not measured: name PostgreSQL's JDBC driver in {access_database.JAR}"
                )
            else:
                sides["Spark's JDBC"] = Side(access_database.by_jdbc(spark, rows, server))
            yield Case(name, rows, Manners(0), 8, sides)


def _measure(case: Case, service: Service, rounds: int, ticker: Ticker) -> None:
    """Run every side once to warm up and then once a round, in turning order."""
    for number in range(-1, rounds):
        for name in harness.turned(list(case.sides), max(number, 0)):
            side = case.sides[name]
            ticker.says(f"{case.name}: {name}")
            service.behave(case.manners)
            shares: list[tuple[float, ...]] = []
            seconds = harness.timed(_into(shares, side.run))
            if number >= 0:
                side.seconds.append(seconds)
                side.shares += shares
                side.seen.append(service.seen())
                ticker.tick()


def _into(shares: list[tuple[float, ...]], run: Callable[[], tuple[float, ...]]) -> Callable[[], None]:
    return lambda: shares.append(run())


def _figures(done: list[Case]) -> dict[str, float]:
    by_name = {case.name: case for case in done}
    figures: dict[str, float] = {}
    asked = [
        (seen.requests - seen.refused) / case.rows.keys
        for case in done
        if case.name in ("limit", "busy", "naive", "flow")
        for seen in case.sides["millrace"].seen
    ]
    if asked:
        # The one that is farthest from 1.
        figures["requests_per_key"] = max(asked, key=lambda each: abs(each - 1))
    if limit := by_name.get("limit"):
        ours, again = (harness.median(limit.sides[name].seconds) for name in ("millrace", AGAIN))
        figures["time_limit_ratio"] = (ours - START) / limit.bound
        figures["aa_ratio"] = ours / again
    if naive := by_name.get("naive"):
        ours, *others = (harness.median(side.seconds) for side in naive.sides.values())
        figures["naive_udf_ratio"] = ours / others[0]
        figures["cached_udf_ratio"] = ours / others[1]
    if flow := by_name.get("flow"):
        figures["first_result_latencies"] = _at(flow, "millrace", "first") / flow.manners.latency
        figures["half_results_at"] = _at(flow, "millrace", "half") / _at(flow, "millrace", "all")
        figures["half_results_at_index_join"] = _at(flow, "index join", "half") / _at(
            flow, "index join", "all"
        )
    if hybrid := by_name.get("hybrid"):
        figures["hybrid_worst_ratio"] = max(
            _at(hybrid, "millrace", share)
            / min(_at(hybrid, "index alone", share), _at(hybrid, "scan alone", share))
            for share in _SHARES[1:]
        )
    if llm := by_name.get("llm"):
        least = llm.rows.keys / _BATCH
        figures["llm_requests_ratio"] = max(seen.requests / least for seen in llm.sides["millrace"].seen)
    for name, figure in (("database", "jdbc_ratio"), ("database-large", "jdbc_large_ratio")):
        if (database := by_name.get(name)) and len(database.sides) > 1:
            ours, jdbc = (harness.median(side.seconds) for side in database.sides.values())
            figures[figure] = ours / jdbc
    return figures


def _at(case: Case, side: str, share: str) -> float:
    """Return when a share of the results was there, in seconds from the first request: the median."""
    return harness.median([each[_SHARES.index(share)] for each in case.sides[side].shares])


def _rows(case: Case) -> list[dict[str, Any]]:
    rows = []
    for name, side in case.sides.items():
        row: dict[str, Any] = {
            "case": case.name,
            "side": name,
            "rows": case.rows.count,
            "keys": case.rows.keys,
            "median_s": harness.median(side.seconds),
            "spread": harness.spread(side.seconds),
        }
        if not case.name.startswith("database"):
            row["requests"] = round(harness.median([seen.requests for seen in side.seen]))
            row["refused"] = round(harness.median([seen.refused for seen in side.seen]))
            row["in_flight"] = max(seen.most for seen in side.seen)
        if side.shares[0]:
            row |= {f"{share}_s": _at(case, name, share) for share in _SHARES}
        rows.append(row)
    return rows
