"""Lookups on Spark: each key once a job, wherever it is wanted; services, databases and tasks that fail."""

from __future__ import annotations

import json
import pickle

import pytest

import millrace
from millrace.errors import InputError, MillraceError
from tests.gate import sampled
from tests.spark.shop import KEYS

QUERY = "SELECT r.id, p.v FROM r JOIN p ON r.k = p.k"
COPIES = 4


def rows(spark):
    """Some rows for each key, and one for a key that the shop does not have."""
    return spark.range(0, KEYS * COPIES + 1, 1, 3).selectExpr("id", f"if(id = 0, -1, id % {KEYS}) AS k")


def expected() -> list[tuple[int, str]]:
    return [(n, f"value {n % KEYS}") for n in range(1, KEYS * COPIES + 1)]


def ask(spark, shop, text=QUERY, options=None, **how):
    tables = {"r": rows(spark), "p": shop.table(**how)}
    return millrace.query(text, spark=spark, tables=tables, options=options)


def found(query: millrace.api.query.Query) -> list[tuple[int, str]]:
    return sorted(map(tuple, query.df.collect()))


@pytest.mark.parametrize(
    "options",
    sampled(
        [
            {"cells": 4, "online": True, "batch_size": 3},
            {"cells": 4},
            {"placement": "in_place"},
            {"cells": 3, "architecture": "joins"},
            {"cells": 3, "architecture": "stairs"},
            {"cells": 2, "architecture": "static"},
            {"cells": 1},
        ],
        3,
    ),
    ids=str,
)
def test_each_key_is_asked_once_a_job(spark, shop, options) -> None:
    """One cell or many, in place or dealt by key: right rows, as many requests as keys, four at once."""
    shop.latency = 0.005
    query = ask(spark, shop, options=options)
    assert found(query) == expected()
    assert set(shop.asked.values()) == {1}
    assert len(shop.asked) == KEYS + 1 and shop.most <= 4
    (progress,) = query.lookups()
    assert (progress.keys, progress.done, progress.requests) == (KEYS + 1,) * 3
    modules = [m for _, m in query.report().modules() if m.action == "request"]
    assert sum(m.calls for m in modules) == KEYS + 1


def test_a_budget_drops_answers_and_asks_nobody_again(spark, shop) -> None:
    """Those of a join and of a left join: what was dropped comes from the job's own answers."""
    text = """SELECT r.id, p.v FROM r JOIN q ON r.id = q.id JOIN p ON r.k = p.k
        LEFT JOIN z ON q.id = z.k AND z.v <> p.v"""
    tables = {"r": rows(spark), "q": rows(spark).select("id"), "p": shop.table(), "z": shop.table()}
    options = {"cells": 2, "memory_budget": 4_000, "batch_size": 4}
    query = millrace.query(text, spark=spark, tables=tables, options=options)
    assert found(query) == expected()
    modules = [module for _, module in query.report().modules()]
    built = sum(m.tuples_in for m in modules if (m.name, m.action) == ("SteM(p)", "build"))
    assert built > 2 * KEYS  # each cell by itself may need all of them
    assert "write" in {m.action for m in modules}
    assert all(each.requests == each.keys for each in query.lookups())


def test_a_scan_keeps_to_a_budget(spark, shop) -> None:
    """One that Spark can read is a table like any other, with equal rows once; a service is refused."""
    table = spark.range(KEYS * 2).selectExpr(f"id % {KEYS} AS k", f"concat('value ', id % {KEYS}) AS v")
    options = {"cells": 2, "memory_budget": 4_000, "batch_size": 4}
    query = ask(spark, shop, options=options, scan=table)
    assert found(query) == expected()
    assert not shop.asked and "only its scan is read" in query.explain()
    with pytest.raises(InputError, match="leave memory_budget out, or load"):
        ask(spark, shop, options=options, scan=millrace.http(f"{shop.url}/all"))


def test_tables_that_only_a_lookup_joins_keep_to_a_budget(spark, shop) -> None:
    text = "SELECT r.id, p.v FROM r JOIN p ON r.k = p.k JOIN q ON p.v = q.v"
    values = spark.range(KEYS).selectExpr("concat('value ', id) AS v")
    tables = {"r": rows(spark), "p": shop.table(), "q": values}
    options = {"cells": 2, "memory_budget": 4_000, "batch_size": 4}
    query = millrace.query(text, spark=spark, tables=tables, options=options)
    assert found(query) == expected()
    assert set(shop.asked.values()) == {1}


def test_an_action_that_samples_first_asks_once(spark, shop) -> None:
    """A global sort computes its input twice: the second time rows come from the job's own answers."""
    query = ask(spark, shop, QUERY + " ORDER BY r.id DESC")
    assert [tuple(row) for row in query.df.collect()] == expected()[::-1]
    assert set(shop.asked.values()) == {1}


@pytest.mark.parametrize("on", ["r.k = p.k", "r.k <= p.k AND r.k >= p.k"])
def test_a_scan_is_read_once_a_job(spark, shop, on) -> None:
    """Eight cells have its rows from one reading, be there an index beside it, which stalls, or none."""
    shop.latency = 60.0
    text = f"SELECT r.id, p.v FROM r JOIN p ON {on}"
    query = ask(spark, shop, text, {"cells": 8}, scan=millrace.http(f"{shop.url}/all"))
    assert found(query) == expected()
    assert shop.scans == 1


def test_indexes_go_on_while_the_scan_stalls(spark, shop) -> None:
    """Nothing ever comes of the one task that reads, and no cell waits for it."""
    shop.stalls = True
    query = ask(spark, shop, options={"cells": 4}, scan=millrace.http(f"{shop.url}/all"))
    assert found(query) == expected()
    assert shop.scans and set(shop.asked.values()) == {1}


def test_faults_that_pass_cost_a_repetition(spark, shop) -> None:
    """Three keys fail once, each in its own way: all rows are right, and only those keys were asked twice."""
    faulty = {3: "reset", 17: "503", 30: "429"}
    shop.behave = lambda key, before: "ok" if before else faulty.get(key, "ok")
    query = ask(spark, shop)
    assert found(query) == expected()
    assert shop.asked == {key: 1 + (key in faulty) for key in (-1, *range(KEYS))}
    (progress,) = query.lookups()
    assert (progress.retried, progress.limited) == (len(faulty), 2)
    assert 0 < progress.p50 <= progress.p95
    assert sum(count for _, count in progress.latencies) == progress.requests == KEYS + 1 + len(faulty)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("wrong type", r"v.*(string|bigint)"),
        ("404", None),
        ("reset", "attempts"),
    ],
)
def test_faults_that_stay_fail_the_query_and_say_why(spark, shop, fault, says) -> None:
    """The error names the lookup, the key and what is wrong; a key that is not there is no error."""
    shop.behave = lambda key, _: fault if key == 5 else "ok"
    query = ask(spark, shop, retries=1)
    if says is None:
        assert found(query) == [row for row in expected() if row[0] % KEYS != 5]
        return
    with pytest.raises(Exception, match=rf"(?s)lookup 'p': key \{{\"k\": 5\}}.*{says}"):
        found(query)
    assert shop.asked[5] <= 2
    (failed,) = query.failed_keys().to_pylist()
    assert (failed["lookup"], json.loads(failed["key"])) == ("p", {"k": 5})


def test_an_estimate_asks_for_a_sample_that_the_cache_keeps(spark, shop, tmp_path) -> None:
    """Distinct keys are counted, a sample of them asked for once, and limits, prices and failures told."""
    shop.latency = 0.01
    shop.behave = lambda key, before: "500" if key == 7 else "ok"
    how = {"cache": tmp_path / "shop.sqlite", "retries": 0, "per_second": 1000.0, "max_cost": 99, "cost": 0.5}
    query = ask(spark, shop, f"{QUERY} WHERE r.id < {KEYS * 2}", **how)
    found = query.estimate(sample=20, seed=3)
    (one,) = found.lookups
    assert (one.keys, one.sampled, one.requests, one.cost) == ((KEYS + 1,) * 2, 20, KEYS + 1, (KEYS + 1) / 2)
    assert sum(shop.asked.values()) == 20 and set(shop.asked.values()) == {1}
    assert 0.01 * (KEYS + 1) / 4 <= 60 * one.minutes < 5
    assert (one.failed, one.cached) == (int(7 in shop.asked), 0)
    again = query.estimate(sample=1000).lookups[0]
    known = 20 - one.failed
    assert (again.sampled, again.cached, again.failed) == (KEYS + 1, known, 1)
    assert sum(shop.asked.values()) == 20 + KEYS + 1 - known
    assert "distinct keys, 41 requests" in str(found) and again.rows == (KEYS - 1) / KEYS


def test_keys_that_would_have_to_be_paid_for_are_not_estimated(spark, shop) -> None:
    """Those of other lookups, and rows of predicates behind lookups; conditions elsewhere make a bound."""
    chained = millrace.lookup("q", "v string, k bigint", bind=["v"], via=millrace.http(f"{shop.url}/{{v}}"))
    tables = {"r": rows(spark), "p": shop.table(), "q": chained, "s": spark.range(3)}
    text = "SELECT r.id FROM r JOIN p ON r.k = p.k JOIN q ON q.v = p.v JOIN s ON r.id = s.id WHERE odd(p.v)"
    odd = millrace.predicate(lambda v: v.endswith("1"), name="odd")
    found = millrace.query(text, spark=spark, tables=tables, predicates=[odd]).estimate(sample=10)
    assert [each.keys for each in found.lookups] == [(0, KEYS + 1)]
    assert len(found.unknown) == 2 and "keys come from other lookups" in found.unknown[0]
    assert "predicates" in found.unknown[1] and "not estimated" in str(found)


def test_secrets_are_seen_by_the_service_alone(spark, shop, monkeypatch, capfd) -> None:
    """A token in a header, one in the URL: not in plan, report, failed keys, error or logs."""
    monkeypatch.setenv("SHOP_TOKEN", "t0ken-of-the-shop")
    monkeypatch.setenv("SHOP_KEY", "k3y/of the shop")
    shop.behave = lambda key, _: "418" if key == 5 else "ok"
    service = millrace.http(
        f"{shop.url}/{{k}}?key=${{SHOP_KEY}}", headers={"Authorization": "Bearer ${SHOP_TOKEN}"}, retries=0
    )
    table = millrace.lookup("p", "k bigint, v string", bind=["k"], via=service)
    query = millrace.query(QUERY, spark=spark, tables={"r": rows(spark), "p": table})
    with pytest.raises(Exception, match="HTTP 418") as raised:
        found(query)
    assert "Bearer t0ken-of-the-shop" in shop.headers
    assert "k3y/of the shop" in shop.queries
    said = [query.explain(), raised.value, query.failed_keys().to_pylist(), query.lookups(), table]
    text = f"{said} {raised.value} {capfd.readouterr()} {pickle.dumps(service).decode('latin-1')}"
    for secret in ("t0ken-of-the-shop", "k3y/of the shop", "k3y%2Fof%20the%20shop"):
        assert secret not in text


def test_what_can_be_known_before_is_told_before(spark) -> None:
    """Nothing runs: a host that is not there, a secret without a value, no way to bind."""
    secret = millrace.http(
        "http://127.0.0.1:9/{k}", headers={"Authorization": "${NOT_SET_ANYWHERE}"}, check=False
    )
    for via, on, message in (
        (millrace.http("http://127.0.0.1:9/{k}"), "r.k = p.k", r"127\.0\.0\.1.*9"),
        (secret, "r.k = p.k", "NOT_SET_ANYWHERE"),
        (millrace.function(lambda k: []), "r.k < p.k", r"p\.k"),
    ):
        tables = {"r": rows(spark), "p": millrace.lookup("p", "k bigint", bind=["k"], via=via)}
        with pytest.raises(MillraceError, match=message):
            millrace.query(f"SELECT * FROM r JOIN p ON {on}", spark=spark, tables=tables)
