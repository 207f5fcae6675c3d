"""Calling predicates: right truths whatever functions do, limits over all callers, and nothing that hangs."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from contextvars import ContextVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import example, given, settings, strategies as st

from millrace.errors import ExecutionError, PredicateError
from millrace.limits.budget import Spending
from millrace.limits.client import Client
from millrace.limits.coordinator import Coordinator
from millrace.limits.registration import Address
from millrace.limits.request import Refused
from millrace.limits.tls import server_context
from millrace.predicates import KEPT, RAISED, REJECTED, PredicateSpec, Values, asynchronous
from millrace.predicates.callers import caller_of
from millrace.predicates.spec import registration_of

LAWS = settings(max_examples=60, deadline=None, derandomize=True)
PATIENCE = 30  # seconds until a test that hangs fails
TRUTH = {True: KEPT, False: REJECTED, None: REJECTED, "raises": RAISED, "stops": RAISED}
ERRORS = {"raises": ValueError, "stops": StopIteration}


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setattr("millrace.limits.policy.FIRST_WAIT", 0.001)


@pytest.fixture(scope="module")
def coordinator():
    """One for all tests; each has namespaces of its own."""
    served = Coordinator()
    yield served
    served.close()


@pytest.fixture(params=["alone", "shared"])
def served(request, coordinator):
    """Limits within the caller, and through a coordinator."""
    return coordinator if request.param == "shared" else None


def caller(function, served=None, run="n", kind="async", **options):
    spec = PredicateSpec("p", function, kind, **options)
    if served is not None:
        served.register(run, [registration_of(spec)])
    connect = served and functools.partial(Client.connect, served.address, f"{run}/0/0")
    return caller_of(spec, Values(), connect)


def call(function, values, served=None, run="n", **options):
    with closing(caller(function, served, run, **options)) as each:
        return each.call([pa.array(values)])


def plain(outcomes):
    """Functions of a row and of batches, by their kinds, and the arguments that they were called for."""
    asked = []

    def one(x):
        asked.append(x)
        if outcomes[x] in ERRORS:
            raise ERRORS[outcomes[x]](f"no {x}")
        return outcomes[x]

    async def row(x):
        await asyncio.sleep(0)
        return one(x)

    async def batch(xs):
        await asyncio.sleep(0)
        return [one(x) for x in xs]

    def series(xs):
        return pd.Series([one(x) for x in xs], dtype=object)

    def array(xs):
        return pa.array([one(x) for x in xs.to_pylist()], pa.bool_())

    return {"row": one, "async": row, "async batch": batch, "pandas": series, "arrow": array}, asked


@LAWS
@example("row", ["stops", True, "raises", None, False], [1, 0, 2, 0, 3, 4], 0, False, None, 1)
@given(
    st.sampled_from(["row", "async", "async batch", "pandas", "arrow"]),
    st.lists(st.sampled_from(list(TRUTH)), min_size=5, max_size=5),
    st.lists(st.integers(0, 4), max_size=30),
    st.integers(0, 2),
    st.booleans(),
    st.none() | st.integers(1, 3),
    st.integers(1, 6),
)
def test_every_row_gets_its_truth(kind, outcomes, values, retries, dedupe, cap, size):
    """Rows have what the function says, failures are told by row, and calls are counted exactly.

    A batch that raises leaves its rows in doubt: they have no failure, unless it is one row.
    """
    functions, asked = plain(outcomes)
    later, alone = kind.startswith("async"), kind in ("row", "async")
    dedupe, size = later and dedupe, 1 if alone else size
    options = {"dedupe": dedupe, "max_in_flight": cap} if later else {}
    options |= {"kind": kind.split()[0], "retries": retries, "batch": None if alone else size}
    result = call(functions[kind], pa.array(values, pa.int64()), **options)
    questions = list(dict.fromkeys(values)) if dedupe else values
    batches = [questions[low : low + size] for low in range(0, len(questions), size)]
    raises = [not ERRORS.keys().isdisjoint(outcomes[x] for x in some) for some in batches]
    batch_of = [(questions.index(x) if dedupe else i) // size for i, x in enumerate(values)]
    expected = [RAISED if raises[n] else TRUTH[outcomes[x]] for n, x in zip(batch_of, values, strict=True)]
    assert (result.truth.tolist(), result.truth.dtype) == (expected, np.int8)
    assert set(result.failures) == {i for i, n in enumerate(batch_of) if raises[n] and len(batches[n]) == 1}
    for i, failure in result.failures.items():
        if outcomes[values[i]] == "stops":  # which Python has other uses for, so that it says nothing
            assert failure.kind == ("RuntimeError" if later else "StopIteration")
        else:
            assert (failure.kind, failure.message) == ("ValueError", f"no {values[i]}")
            assert "in one" in failure.traceback and (kind != "row" or failure.traceback.count("File ") == 1)
    attempts = [
        x for some, often in zip(batches, raises, strict=True) for x in some * (retries + 1 if often else 1)
    ]
    assert result.calls == len(attempts)
    assert not alone or Counter(asked) == Counter(attempts)
    assert kind != "row" or asked == attempts


def test_what_a_batch_left_in_doubt_is_asked_again(served):
    """With dedupe a failed batch is no answer: asked singly, each row gets its own."""
    functions, asked = plain([True, "raises", False])
    each = caller(functions["async batch"], served, "doubt", batch=3, dedupe=True)
    assert each.call([pa.array([0, 1, 2])]).truth.tolist() == [RAISED] * 3
    singly = [each.call([pa.array([x])]) for x in range(3)]
    each.close()
    assert [int(outcome.truth[0]) for outcome in singly] == [KEPT, RAISED, REJECTED]
    assert (singly[1].failures[0].message, sorted(asked)) == ("no 1", [0, 0, 1, 1, 2])


def test_calls_begin_at_the_rate(served):
    """Those of one caller, or of four together, take their time, repeated ones included."""
    began, asked, tasks = [time.monotonic()], Counter(), 4 if served else 1

    async def fails_at_first(x):
        began.append(time.monotonic())
        asked[x] += 1
        if x % 3 == 0 and asked[x] == 1:
            raise ValueError
        return True

    def task(first):
        return call(fails_at_first, range(first, 24, tasks), served, "rate", per_second=100, retries=1)

    with ThreadPoolExecutor(tasks) as pool:
        outcomes = list(pool.map(task, range(tasks)))
    assert sum(outcome.calls for outcome in outcomes) == asked.total() == 24 + 8
    assert all(outcome.truth.all() for outcome in outcomes)
    assert max(began) - began[0] >= 31 / 100 * 0.95


def test_an_answer_that_does_not_come_is_asked_for_again(served):
    """After the last attempt the row has its failure, with the reason; the others have their truths."""
    asked = Counter()

    async def hangs(x):
        asked[x] += 1
        if x == 4 or (x, asked[x]) == (5, 1):
            await asyncio.Event().wait()
        return True

    outcome = call(hangs, range(10), served, "hangs", retries=1, timeout=0.2, max_in_flight=1)
    assert outcome.truth.tolist() == [RAISED if x == 4 else KEPT for x in range(10)]
    assert outcome.calls == asked.total() == 12
    ((row, failure),) = outcome.failures.items()
    assert (row, failure.kind, failure.message) == (4, "TimeoutError", "no answer within 0.2 s")
    assert "in hangs" in failure.traceback


def test_a_failed_call_gives_its_turn_back_while_it_waits():
    """With one turn for all, the others go before the next attempt of the one that failed."""
    order = []

    async def first_fails(x):
        order.append(x)
        if order == [0]:
            raise ValueError
        return True

    assert call(first_fails, list(range(5)), max_in_flight=1, retries=1).truth.all()
    assert order == [0, 1, 2, 3, 4, 0]


@pytest.mark.parametrize(("options", "most"), [({}, asynchronous.WIDTH), ({"max_in_flight": 200}, 200)])
def test_concurrency_is_bounded_without_a_cap(options, most):
    """A task has a bounded number of calls under way, or as many as the cap allows."""
    now = [0, 0]

    async def count(_):
        now[0] += 1
        now[1] = max(now)
        await asyncio.sleep(0.001)
        now[0] -= 1
        return True

    assert call(count, list(range(300)), **options).truth.all()
    assert now == [0, most]


@pytest.mark.parametrize(
    ("value", "batch", "message"),
    [
        (1, None, r"predicate 'p' returned 1 of type int: expected True, False or None"),
        ("yes", None, r"'p' returned 'yes' of type str"),
        ("y" * 500, None, r"'p' returned 'y{79}… of type str"),
        (np.array([True]), None, r"of type ndarray"),
        ([True, False], 3, r"'p' returned 2 truth values for 3 rows"),
        ([True, 0, None], 3, r"'p' returned 0 of type int"),
        (True, 3, r"returned a bool for a batch of 3 rows"),
        ("yes", 3, r"returned a str for a batch of 3 rows"),
    ],
)
def test_what_is_no_truth_value_is_an_error(served, value, batch, message):
    """It is not repeated, and names the predicate, the value and its type; a batch needs one for each row."""
    calls = []

    async def bad(x):
        calls.append(x)
        return value

    with pytest.raises(PredicateError, match=message):
        call(bad, [1, 2, 3][: batch or 1], served, f"bad {message}", retries=3, max_in_flight=1, batch=batch)
    assert len(calls) == 1


@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_numpy_truths_and_any_sequence_will_do(kind):
    """Booleans of numpy count as Python's, and None as false."""

    async def batch(xs, ys):
        assert isinstance(xs, list) and ys == [str(x) for x in xs]
        return kind([np.bool_(x > 1) for x in xs])

    async def row(x):
        return np.bool_(x > 1) if x else None

    each = caller(batch, batch=2)
    assert each.call([pa.array([1, 2, 3]), pa.array(["1", "2", "3"])]).truth.tolist() == [0, 1, 1]
    each.close()
    assert call(row, [0, 1, 2]).truth.tolist() == [0, 0, 1]


def test_a_function_that_cannot_be_awaited_is_an_error():
    """A plain function that passes for a coroutine function is found out at its first call."""

    async def declared(x):
        return True

    @functools.wraps(declared)
    def plain_function(x):
        return True

    with pytest.raises(PredicateError, match=r"'p' has kind 'async' but returned a bool"):
        call(plain_function, [1], retries=3)


def test_another_caller_takes_over_what_a_broken_one_leaves(coordinator):
    """A caller that fails gives up its questions at once, not only when it is closed."""

    async def bad(_):
        return "bad"

    async def good(_):
        return True

    broken, fine = (caller(each, coordinator, "left", dedupe=True) for each in (bad, good))
    with pytest.raises(PredicateError):
        broken.call([pa.array([1, 2, 3])])
    with ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(fine.call, [pa.array([1, 2, 3])]).result(PATIENCE)
        pool.submit(fine.close).result(PATIENCE)
    assert outcome.truth.tolist() == [KEPT] * 3
    broken.close()


def test_a_cancelled_function_ends_the_call(served):
    """It is neither a failure of the row nor repeated, and the caller can be used again."""
    calls = []

    async def cancelled(x):
        calls.append(x)
        if len(calls) == 1:
            raise asyncio.CancelledError
        return True

    each = caller(cancelled, served, "cancelled", retries=3, max_in_flight=1)
    with pytest.raises(asyncio.CancelledError):
        each.call([pa.array([1])])
    assert each.call([pa.array([1])]).truth.tolist() == [KEPT]
    assert calls == [1, 1]
    each.close()


def test_a_row_leaves_nothing_in_the_context_of_others(served):
    """What a function sets there would make truths depend on which rows came before."""
    seen = ContextVar("seen", default=0)

    async def is_alone(x):
        before = seen.get()
        seen.set(x)
        await asyncio.sleep(0)
        return before == 0

    assert call(is_alone, range(1, 40), served, "alone", max_in_flight=2).truth.tolist() == [KEPT] * 39


def test_what_a_function_refuses_is_told_in_its_words(served):
    """Whatever caused it: that may say more than anybody should hear."""

    async def closed(x):
        try:
            return {}["inner"]
        except KeyError as error:
            raise Refused("HTTP 503", "the shop is closed today") from error

    assert "the shop is closed today" in call(closed, [1], served, "closed").failures[0].message


def test_an_interrupt_ends_the_call(hearing, served):
    """Ctrl-C while calls are under way comes through, and closing is clean."""

    async def interrupted(x):
        if x == 3:
            os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    each = caller(interrupted, served, "interrupted", retries=3, max_in_flight=10, dedupe=True)
    with pytest.raises(KeyboardInterrupt):
        each.call([pa.array(range(5))])
    each.close()


def test_one_event_loop_serves_all_calls():
    """What the function keeps open between calls works on, and what it left running is ended by close."""
    loops, endings = set(), []

    async def linger():
        try:
            await asyncio.Event().wait()
        finally:
            endings.append("ended")

    async def keeping(x):
        loops.add(asyncio.get_running_loop())
        if x == 0:
            keeping.task = asyncio.create_task(linger())
        return True

    each = caller(keeping)
    for x in range(3):
        each.call([pa.array([x])])
    assert len(loops) == 1 and not endings
    each.close()
    each.close()
    assert endings == ["ended"] and loops.pop().is_closed()


def test_a_coordinator_out_of_reach_fails_the_call():
    """It says where, why and which option; predicates without limits have nothing to agree on."""

    async def yes(_):
        return True

    nowhere = functools.partial(Client.connect, Address("127.0.0.1", 1, "", server_context()[1]), "run/0/0")
    limited, free = (
        caller_of(PredicateSpec("p", yes, "async", **limits), Values(), nowhere)
        for limits in ({"max_in_flight": 1, "retries": 2}, {})
    )
    with closing(limited), pytest.raises(ExecutionError, match=r"127\.0\.0\.1:1\b.*Refused.*`limits_host`"):
        limited.call([pa.array([1])])
    with closing(free):
        assert free.call([pa.array([1])]).truth.tolist() == [KEPT]


def test_what_raises_at_first_may_pass():
    attempts = []

    def flaky(x):
        attempts.append(x)
        if attempts.count(x) < 3:
            raise ValueError
        return True

    outcome = call(flaky, [1, 2], kind="row", retries=2)
    assert (outcome.truth.tolist(), outcome.calls) == ([KEPT, KEPT], 6)


@pytest.mark.parametrize("looking_ahead", [False, True])
def test_a_function_over_an_iterator_runs_on_from_batch_to_batch(looking_ahead):
    """What it loads before its loop is loaded once; one that looks ahead, or has raised, is started again."""
    loaded = []

    def over(batches):
        loaded.append(True)
        if looking_ahead:
            batches = list(batches)
        for batch in batches:
            if (batch > 100).any():
                raise ValueError("too much")
            yield batch % 2 == 0

    made = caller(over, kind="pandas_iter")
    for low in (0, 10, 500, 20, 30):
        outcome = made.call([pa.array([low, low + 1, low + 2])])
        assert outcome.truth.tolist() == ([RAISED] * 3 if low == 500 else [KEPT, REJECTED, KEPT])
    assert made.call([pa.array([500])]).failures[0].message == "too much"
    assert len(loaded) == (6 if looking_ahead else 2)
    made.close()


def test_missing_values_of_pandas_count_as_rejected():
    """None, NaN and pandas' own missing value, in object and in nullable columns."""
    for given_ in (
        pd.Series([True, None, False], dtype=object),
        pd.Series([True, float("nan"), False], dtype=object),
        pd.Series([True, pd.NA, False], dtype="boolean"),
    ):
        outcome = call(lambda _, given_=given_: given_, [1, 2, 3], kind="pandas")
        assert outcome.truth.tolist() == [KEPT, REJECTED, REJECTED]


@pytest.mark.parametrize("waits", [True, pytest.param(False, marks=pytest.mark.broken_rule)])
def test_one_call_alone_tells_the_price_to_all_tasks(coordinator, monkeypatch, waits):
    """Also after calls that raise, which tell none; tasks that wait for no price spend at once."""
    running, crowds, told = [], [], []

    async def priced(x):
        running.append(x)
        if not told:
            crowds.append(len(running))
        for _ in range(50):
            await asyncio.sleep(0)
        running.remove(x)
        if len(crowds) < 3:
            raise ValueError("no price")
        told.append(x)
        return True

    spec = PredicateSpec("priced", priced, "async", max_cost=99.0, cost=lambda *_: 1.0)
    if not waits:
        monkeypatch.setattr(Spending, "may_begin", True)
    coordinator.register(run := f"price {waits}", [registration_of(spec)])

    def call(task: int) -> None:
        connect = functools.partial(Client.connect, coordinator.address, f"{run}/{task % 2}/0")
        with closing(caller_of(spec, Values(), connect)) as one:
            one.call([pa.array(range(10))])

    with ThreadPoolExecutor(4) as tasks:
        list(tasks.map(call, range(4)))
    assert (set(crowds) == {1} and len(crowds) >= 3) == waits
