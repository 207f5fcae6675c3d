"""Answers that outlive the job: nothing is asked twice, and no answer is taken for another function's."""

from __future__ import annotations

import functools
import types
from collections import Counter
from contextlib import closing
from threading import Lock
from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from millrace.errors import ExecutionError
from millrace.limits.client import Client
from millrace.limits.coordinator import Coordinator
from millrace.predicates import KEPT, RAISED, REJECTED, PredicateSpec, Values
from millrace.predicates.asynchronous import AsyncCaller
from millrace.predicates.identity import identity_of
from millrace.predicates.spec import registration_of
from millrace.spark.plain import certain
from millrace.spark.predicates import Applied

LAWS = settings(max_examples=25, deadline=None, derandomize=True)


@pytest.fixture(scope="module")
def coordinator():
    served = Coordinator()
    yield served
    served.close()


@pytest.fixture(scope="module", params=["alone", "shared"])
def job(request, coordinator):
    """Run a job that calls a predicate, within its caller or through the coordinator; returns its outcome."""

    def run(spec: PredicateSpec, values: list[int]):
        connect, name = None, uuid4().hex
        if request.param == "shared":
            connect = functools.partial(Client.connect, coordinator.address, f"{name}/0/0")
            coordinator.register(name, [registration_of(spec)])
        with closing(AsyncCaller(spec, Values(), connect)) as caller:
            return caller.call([pa.array(values, pa.int64())])

    return run


JOBS = st.lists(st.lists(st.integers(0, 9), max_size=12), min_size=1, max_size=4)


@LAWS
@given(JOBS, st.sets(st.integers(0, 9)), st.none() | st.integers(1, 4))
def test_jobs_ask_only_for_what_is_missing(job, tmp_path_factory, jobs, broken, batch):
    """Over any jobs no argument is answered twice; what raised is asked again, with all of its batch."""
    folder, answered, raising = tmp_path_factory.mktemp("answers"), Counter[int](), set(broken)

    async def rows(xs):
        if not raising.isdisjoint(xs):
            raise ValueError(f"no {raising.intersection(xs)}")
        answered.update(xs)
        return [x % 2 == 0 for x in xs]

    async def row(x):
        return (await rows([x]))[0]

    # The counts change with every call, and with them what the function is known by.
    spec = PredicateSpec("p", rows if batch else row, "async", batch=batch, answers=folder, origin=one_of_all)
    right = {x: KEPT if x % 2 == 0 else REJECTED for x in range(10)}
    for values in jobs:
        for x, truth in zip(values, job(spec, values).truth.tolist(), strict=True):
            assert truth == (right[x] if x in answered else RAISED)
    missing = set(right) - set(answered)
    raising.clear()
    assert job(spec, list(right)).truth.tolist() == list(right.values())
    assert answered == Counter(list(right))
    assert len(missing) >= len(broken)
    assert job(spec, list(right)).calls == 0


async def one_of_all(x):
    return x


def truthful(x):
    return x > 3


async def with_helper(x):
    return truthful(x)


async def two(x, y=0, z=0):
    return x > y + z


def capturing(limit):
    async def above(x):
        return x > limit

    return above


def test_another_function_has_answers_of_its_own(monkeypatch):
    """Code, captured values, helpers, names of arguments, and what is made of null tell functions apart."""

    def known_by(function):
        return spec(function).fingerprint()

    def spec(function):
        return PredicateSpec("p", function, "async", answers="somewhere")

    by_name = [Applied.of(spec(two), ("a",), {name: "b"}).spec.fingerprint() for name in ("y", "z")]
    named = Applied.of(spec(with_helper), (), {"x": "a"}).spec
    others = [known_by(with_helper), known_by(capturing(1)), known_by(capturing(2)), known_by(two)]
    others += [certain(spec(two)).fingerprint(), *by_name, named.fingerprint()]
    assert len(set(others)) == len(others)
    assert others[:2] == [known_by(with_helper), known_by(capturing(1))]
    monkeypatch.setitem(with_helper.__globals__, "truthful", lambda x: x > 4)
    # The helper is found through the function that passes arguments on, too.
    assert not {known_by(with_helper), named.fingerprint()} & set(others)
    lock = Lock()  # cannot be pickled, and so not told apart from another one
    assert known_by(capturing(lock)) != known_by(capturing(lock))


def test_only_the_planning_process_says_where_answers_are(coordinator, tmp_path):
    """A task of a run that is not known there fails, rather than asking what nobody keeps."""
    spec = PredicateSpec("p", one_of_all, "async", answers=tmp_path)
    connect = functools.partial(Client.connect, coordinator.address, "gone/0/0")
    made = AsyncCaller(spec, Values(), connect)
    with closing(made) as caller, pytest.raises(ExecutionError, match="'gone' is not known"):
        caller.call([pa.array([1])])


def captured(*values):
    def known(x):
        return x in values

    return identity_of(known, "known")


def in_code(items):
    made = {"__name__": "m"}
    exec(f"def known(x): return x in {{{items}}}", made)
    return identity_of(made["known"], "known")


@functools.cache
def kept(x):
    return x > 1


def test_what_calls_a_function_is_known_by_what_that_does(monkeypatch):
    """Pickle knows a partial function, a method and a cached function by names alone."""

    def made(body):
        return types.FunctionType(compile(body, "m", "eval"), {"__name__": "m"}, "known")

    for wrapped in (functools.partial, lambda function: types.MethodType(function, 3)):
        texts = [identity_of(wrapped(made(body)), "known") for body in ("1 + x", "1 + x", "2 + x")]
        assert texts[0] == texts[1] != texts[2]
    inner = [functools.partial(made(body)) for body in ("1 + x", "1 + x", "2 + x")]
    texts = [identity_of(capturing(each), "above") for each in inner]
    assert texts[0] == texts[1] != texts[2]
    named = [identity_of(functools.partial(two, y=made(body)), "two") for body in ("1 + x", "1 + x", "2 + x")]
    assert named[0] == named[1] != named[2]
    before = identity_of(kept, "kept")
    assert before == identity_of(kept, "kept")
    monkeypatch.setattr(kept.__wrapped__, "__code__", (lambda x: x > 2).__code__)
    assert before != identity_of(kept, "kept")


def test_sets_have_no_order():
    """Captured or in the code: another process has them in another one. Values may hold themselves."""
    one, other = {0, 8}, {8, 0}
    assert list(one) != list(other)
    texts = [captured(each, {"a": [frozenset(each)]}) for each in (one, other, {0})]
    assert texts[0] == texts[1] != texts[2]
    assert in_code("0, 8") == in_code("8, 0") != in_code("0, 9")
    holding = [[1], {"a": 1}, {"b": {1}}]
    holding[0].append(holding[0])
    for each in holding[1:]:
        each["self"] = [each]
    assert len({captured(each) for each in holding * 2}) == 3
