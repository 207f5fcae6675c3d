"""Limits of coroutine predicates hold for a whole Spark job, seen by the service that is asked."""

from __future__ import annotations

import gc
import threading
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor

import pytest

import millrace
from millrace.errors import ExecutionError
from millrace.limits.process import CoordinatorProcess
from tests.gate import sampled
from tests.limits.service import Service

ROWS, PARTITIONS = 240, 8


@pytest.fixture
def numbers(spark):
    """Numbers in eight partitions, each number of 120 twice."""
    return spark.range(0, ROWS, 1, PARTITIONS).selectExpr("id", "cast(id % 120 as int) as x")


def asking(url, **options):
    """A predicate that asks the service; made here so that it travels to the tasks by value."""

    @millrace.predicate(kind="async", timeout=20.0, **options)
    async def ask(x):
        import aiohttp

        async with aiohttp.ClientSession() as session, session.get(url, params={"x": x}) as response:
            response.raise_for_status()
            return await response.json()

    return ask


def finding(url):
    async def find(x):
        import aiohttp

        async with aiohttp.ClientSession() as session, session.get(url, params={"x": x}) as response:
            return {"name": await response.text()}

    return find


def kept(frame):
    return [row.id for row in frame.collect()]


def test_a_service_that_fails_at_times_loses_no_row(numbers):
    """Arguments are asked once over all tasks, and bad ones again, within the cap; so does the next job."""
    with Service(lambda x, nth: ("429", "500")[x % 2] if nth == 1 and x % 5 == 0 else "yes") as service:
        ask = asking(service.url, dedupe=True, max_in_flight=8, retries=2)
        frame = millrace.where(numbers, ask("x"))
        assert kept(frame) == list(range(ROWS))
        report = millrace.report(frame)
        assert service.asked == Counter({x: 1 + (x % 5 == 0) for x in range(120)})
        assert kept(frame) == list(range(ROWS))
    assert service.asked == Counter({x: 2 + (x % 5 == 0) for x in range(120)})
    (calls,) = report.calls
    assert (calls.name, calls.keys, calls.done, calls.requests, calls.retried) == ("ask", 120, 120, 144, 24)
    assert sum(count for _, count in calls.latencies) == 144 and 0.002 < calls.p50 <= calls.p95 < 20
    assert report.to_pandas("calls").name.tolist() == ["ask"]
    assert "144" in report.to_html() and type(report).from_json(report.to_json()).calls == (calls,)
    assert service.most <= 8


def test_a_failed_job_that_runs_again_asks_nothing_twice(spark, tmp_path):
    """Only what was not answered is asked, by the same DataFrame and by others of the same function."""
    broken = {7}
    with Service(lambda x, _: "500" if x in broken else "yes" if x % 2 else "no") as service:
        ask = asking(service.url, answers=tmp_path, max_in_flight=8)
        rows = spark.range(0, 120, 1, 1).selectExpr("id", "cast(id as int) as x")
        frame = millrace.where(rows, ask("x"))
        assert "answers kept in" in str(millrace.explain(frame))
        with pytest.raises(Exception, match=r"(?s)'ask'.*ClientResponseError.*500"):
            frame.collect()
        broken.clear()
        assert kept(frame) == list(range(1, 120, 2))
        assert service.asked == Counter({x: 2 if x == 7 else 1 for x in range(120)})
        text = "SELECT a.id FROM rows a JOIN rows b ON a.id = b.id WHERE ask(a.x) AND a.id + b.id > 3"
        joined = millrace.sql(text, tables={"rows": rows}, predicates={"ask": ask})
        assert sorted(kept(joined)) == list(range(3, 120, 2))
        assert len(kept(millrace.where(rows, asking(service.url, answers=tmp_path)("x")))) == 60
        assert sum(service.asked.values()) == 121


def test_a_predicate_that_no_text_calls_needs_no_coordinator(spark):
    """A session has predicates for all its queries."""
    ask = asking("http://127.0.0.1:9/", max_in_flight=1)
    away = {"limits_host": "nowhere.invalid", "without_coordinator": "fail"}
    session = millrace.Session(spark, {"a": spark.range(9)}, predicates={"ask": ask}, options=away)
    assert session.sql("SELECT id FROM a JOIN a b USING (id)").count() == 9
    with pytest.raises(ExecutionError, match=r"nowhere\.invalid"):
        session.sql("SELECT id FROM a WHERE ask(id)")


@pytest.mark.parametrize(
    "text", ["", "SELECT id FROM r WHERE ask(id)", "SELECT id FROM r JOIN n USING (id) WHERE ask(id)"]
)
def test_limits_of_a_stream_outlive_its_dataframe(spark, monkeypatch, text):
    """It runs on when nothing here refers to it; those of another DataFrame go with that."""
    registered, released, register = set(), set(), CoordinatorProcess.register

    def note(self, run, lookups):
        registered.add(run)
        register(self, run, lookups)

    monkeypatch.setattr(
        "millrace.spark.frames._latest", deque(maxlen=0)
    )  # whose figures can still be asked for
    monkeypatch.setattr(CoordinatorProcess, "register", note)
    monkeypatch.setattr(CoordinatorProcess, "release", lambda self, run: released.add(run))
    ask, numbers = asking("http://nowhere", max_in_flight=1), spark.range(9)
    stream = spark.readStream.format("rate").load().withColumnRenamed("value", "id")
    for rows, ends in ((stream, False), (numbers, True)):
        registered.clear()
        if text:
            tables = {"r": rows, "n": numbers}
            query = millrace.query(text, spark=spark, tables=tables, predicates=[ask])
            assert query.taken or query.filters
            del query
        else:
            millrace.where(rows, ask("id"))
        gc.collect()
        assert registered and (registered <= released) is ends


def test_the_sample_of_an_estimate_is_kept(spark, tmp_path):
    """What was paid to know the price is not paid again."""
    with Service(lambda x, _: "yes") as service:
        ask = asking(service.url, answers=tmp_path / "answers.sqlite")
        rows = spark.range(0, 120, 1, 4).selectExpr("id", "cast(id as int) as x")
        millrace.estimate(rows, ask("x"), sample=40)
        assert sum(service.asked.values()) == 40
        assert len(kept(millrace.where(rows, ask("x")))) == 120
    assert service.asked == Counter(dict.fromkeys(range(120), 1))


def twice(given, spark):
    """The shapes of queries over a filter that Spark computes more than once in one action."""
    text = "SELECT id FROM {kept} WHERE x > 3 UNION ALL SELECT max(id) FROM {kept} WHERE x < 90"
    return {
        "self-join": given.alias("a").join(given.alias("b"), "x").select("a.id"),
        "ORDER BY": given.orderBy("id"),
        "UNION ALL": spark.sql(text, kept=given),
    }


@pytest.mark.parametrize("shape", sampled(["self-join", "ORDER BY", "UNION ALL"], 3))
def test_an_action_that_computes_a_filter_twice_asks_once(numbers, spark, shape):
    """The budget and the cap are those of the action too: it needs no more of them than the filter alone."""
    with Service(lambda x, _: "yes" if x % 2 else "no") as service:
        ask = asking(service.url, dedupe=True, max_in_flight=2, max_requests=120)
        rows = twice(millrace.where(numbers, ask("x")), spark)[shape].collect()
    assert rows and all(row.id % 2 for row in rows)
    assert service.asked == Counter(dict.fromkeys(range(120), 1))
    assert service.most <= 2


@pytest.mark.parametrize(
    "cancel", sampled([lambda spark: spark.sparkContext.cancelAllJobs(), lambda spark: spark.interruptAll()])
)
@pytest.mark.parametrize("kind", ["predicate", "lookup"])
def test_an_action_that_is_cancelled_asks_nothing_more(spark, numbers, cancel, kind):
    """What is under way ends, and that is all that a service sees."""
    begun, gate = threading.Semaphore(0), threading.Event()

    def behave(x, _):
        begun.release()
        return "yes"

    with Service(behave, gate) as service:
        url = service.url
        if kind == "predicate":
            frame = millrace.where(numbers, asking(url, dedupe=True, max_in_flight=3)("x"))
        else:
            via = millrace.function(finding(url), max_in_flight=3)
            names = millrace.lookup("names", "x int, name string", bind=["x"], via=via)
            text = "SELECT id, name FROM n JOIN names ON n.x = names.x"
            frame = millrace.sql(text, spark=spark, tables={"n": numbers, "names": names})
        with ThreadPoolExecutor(1) as pool:
            action = pool.submit(frame.collect)
            for _ in range(3):
                assert begun.acquire(timeout=60)
            cancel(spark)
            assert action.exception(timeout=60) is not None
            for each in CoordinatorProcess.all():
                each.progress("")  # who answers this has heard of the end
        gate.set()
        # Needs both cores, so the tasks before it are over.
        assert spark.sparkContext.parallelize(range(2), 2).barrier().mapPartitions(list).count() == 2
        assert sum(service.asked.values()) == 3


def test_two_actions_at_once_share_the_limits_of_their_query(numbers):
    """Each asks anew, and neither goes beyond what the query may do."""
    with Service(lambda *_: "yes") as service, ThreadPoolExecutor(2) as pool:
        frame = millrace.where(numbers, asking(service.url, max_in_flight=1, max_requests=2 * ROWS)("x"))
        assert [len(each) for each in pool.map(kept, (frame, frame))] == [ROWS, ROWS]
    assert service.most == 1 and sum(service.asked.values()) == 2 * ROWS
