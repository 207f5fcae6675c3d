"""Where tasks do not reach the coordinator: what still holds, what is told, and what is refused."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

import millrace
from millrace.errors import BudgetError, ExecutionError, OptionError
from millrace.limits import shared
from millrace.limits.coordinator import Coordinator
from millrace.limits.drivers import SECRET
from millrace.spark import coordinator
from millrace.spark.frames import Carried
from tests.limits.service import Service
from tests.spark.shop import Shop
from tests.spark.test_limits import asking, kept

NOWHERE = {"limits_host": "192.0.2.1", "limits_bind": "127.0.0.1"}  # an address for documentation: nobody's
ELSEWHERE = {"limits_host": "127.0.0.2"}


@pytest.fixture
def numbers(spark):
    return spark.range(0, 120, 1, 4).selectExpr("id", "int(id % 60) AS x")


def test_limits_are_split_over_tasks_and_that_is_told(numbers):
    """Rows are right, each task keeps its share, and explain() and report() say what is weaker."""
    with Service(lambda x, _: "yes" if x % 3 else "no") as service:
        ask = asking(service.url, max_in_flight=6, per_second=1000, dedupe=True)
        frame = millrace.where(numbers, ask("x"), options=NOWHERE)
        assert kept(frame) == [i for i in range(120) if i % 60 % 3]
    assert service.most <= 6
    assert all(1 <= times <= 4 for times in service.asked.values())
    weaker = "ask: 3 calls at once in each of 2 tasks, 500 calls a second in each of 2 tasks, answers shared"
    assert weaker in str(millrace.explain(frame))
    report = millrace.report(frame)
    assert weaker in str(report) and "192.0.2.1" in report.planned.weaker[0]
    assert weaker in report.to_html()


def test_lookups_go_on_within_each_task(spark, numbers):
    """They ask for each key once a task, and their rows are right."""

    def double(x):
        return {"y": 2 * x}

    via = millrace.function(double, max_in_flight=1)
    prices = millrace.lookup("prices", "x int, y long", bind=["x"], via=via)
    text = "SELECT n.id, p.y FROM numbers n JOIN prices p ON n.x = p.x WHERE n.id < 50"
    query = millrace.query(text, spark=spark, tables={"numbers": numbers, "prices": prices}, options=NOWHERE)
    assert sorted(map(tuple, query.df.collect())) == [(i, 2 * i) for i in range(50)]
    assert "up to 2 calls at once, one in each of 2 tasks, instead of 1" in str(query.explain())
    assert query.lookups() == [] and query.failed_keys().num_rows == 0


@pytest.mark.parametrize(
    ("options", "more", "kind", "message"),
    [
        ({"max_requests": 9}, {}, OptionError, "'ask' has a budget .*, which needs the coordinator"),
        ({"answers": "somewhere"}, {}, OptionError, "'ask' has answers that outlive the job"),
        ({"max_in_flight": 6}, {"without_coordinator": "fail"}, ExecutionError, "without_coordinator='fail'"),
    ],
)
def test_what_nobody_can_promise_is_refused(numbers, options, more, kind, message):
    """Before anything is asked, with the address, what happened there, and the option to set."""
    ask = asking("http://nowhere", **options)
    with pytest.raises(kind, match=rf"(?s)^(?=.*192\.0\.2\.1)(?=.*limits_host).*{message}"):
        millrace.where(numbers, ask("x"), options={**NOWHERE, **more})


def test_an_address_that_is_reached_is_used(numbers):
    """A task has tried it, and nothing is weaker."""
    with Service(lambda *_: "yes") as service:
        ask = asking(service.url, max_in_flight=3, dedupe=True)
        frame = millrace.where(numbers, ask("x"), options={**ELSEWHERE, "without_coordinator": "fail"})
        assert kept(frame) == list(range(120))
    assert service.most <= 3 and set(service.asked.values()) == {1}
    assert "weaker" not in str(millrace.explain(frame))


def test_a_task_that_has_not_come_yet_has_reached_nothing(numbers, monkeypatch):
    """Nobody knows, so nothing is promised; what it says counts as soon as it has come."""
    come = threading.Event()

    def late(*_: object) -> str:
        assert come.wait(20)
        return ""

    monkeypatch.setattr(coordinator, "_PREFLIGHT_SECONDS", 0.01)
    monkeypatch.setattr(coordinator, "try_in_task", late)
    options = {"limits_host": "127.0.0.4", "without_coordinator": "fail"}
    ask = asking("http://nowhere", max_in_flight=3)
    with pytest.raises(ExecutionError, match=r"no task has tried .* reaches this process at 127\.0\.0\.4"):
        millrace.where(numbers, ask("x"), options=options)
    come.set()
    for thread in threading.enumerate():
        if thread.name == "millrace preflight":
            thread.join(20)
    assert "weaker" not in str(millrace.explain(millrace.where(numbers, ask("x"), options=options)))


@pytest.fixture
def elsewhere(monkeypatch):
    """A coordinator that this process joins, and the options that name it."""
    monkeypatch.setenv(SECRET, "s" * 40)
    with closing(Coordinator("127.0.0.2", secret="s" * 40)) as served:
        place = f"127.0.0.2:{served.address.port}"
        yield served, {"coordinator": place, "without_coordinator": "fail"}


def test_tasks_agree_where_the_option_says(spark, numbers, monkeypatch, elsewhere, tmp_path):
    """Limits, budgets, answers and secrets hold as beside this process, and figures come back."""
    monkeypatch.setenv("HUSH", "hush-value")
    served, options = elsewhere
    with Service(lambda *_: "yes") as service:
        ask = asking(service.url, max_in_flight=3, dedupe=True, max_requests=60)
        frame = millrace.where(numbers, ask("x"), options=options)
        assert kept(frame) == list(range(120))
        assert service.most <= 3 and set(service.asked.values()) == {1}
        (spent,) = millrace.report(frame).budgets
        assert (spent.requests, spent.max_requests) == (60, 60)
        short = asking(service.url, dedupe=True, max_requests=59)
        with pytest.raises(BudgetError, match="59 of 59 requests"):
            millrace.where(numbers, short("x"), options=options).collect()

    text = "SELECT n.id, p.v FROM numbers n JOIN p ON n.x % 40 = p.k WHERE n.id < 90"
    with Shop() as shop:
        via = millrace.http(f"{shop.url}/{{k}}", headers={"Authorization": "${HUSH}"})
        cache = tmp_path / "cache.sqlite"
        lookup = millrace.lookup("p", "k bigint, v string", bind=["k"], via=via, cache=cache)
        tables = {"numbers": numbers, "p": lookup}
        for _ in range(2):
            query = millrace.query(text, spark=spark, tables=tables, options=options)
            assert sorted(map(tuple, query.df.collect())) == [(i, f"value {i % 60 % 40}") for i in range(90)]
            assert shop.headers == {"hush-value"} and set(shop.asked.values()) == {1}
    (progress,) = query.lookups()
    assert (progress.keys, progress.cached) == (40, 40) and query.failed_keys().num_rows == 0
    assert sum(batch.num_rows for batch in query.to_batches()) == 90
    assert any(each.secrets for some in served._registrations.values() for each in some)


def test_a_coordinator_elsewhere_that_is_gone_is_told(numbers, elsewhere):
    """A query that used it fails; the next one goes on without, or says where it looked for one."""
    served, options = elsewhere
    with Service(lambda *_: "yes") as service:
        ask = asking(service.url, max_in_flight=2)
        frame = millrace.where(numbers, ask("x"), options=options)
        served.close()
        with pytest.raises(Exception, match=r"cannot reach 127\.0\.0\.2|was lost"):
            frame.collect()
        with pytest.raises(ExecutionError, match=r"127\.0\.0\.2:\d+ is not reached"):
            millrace.where(numbers, ask("x"), options=options)
        weaker = millrace.where(numbers, ask("x"), options={**options, "without_coordinator": "split"})
        assert kept(weaker) == list(range(120)) and "is not reached" in str(millrace.explain(weaker))


def test_an_iterator_that_nobody_wants_may_end_at_any_moment():
    """The garbage collector ends it in whatever thread it runs, also in one that begins or ends actions."""
    end = coordinator._on_action("toLocalIterator", Carried(frozenset({"abandoned"})))
    over = threading.Event()

    def collect() -> None:
        with coordinator._counting, shared._sharing:
            end(GeneratorExit())
        over.set()

    threading.Thread(target=collect, daemon=True).start()
    assert over.wait(20)
