"""What a user's predicate is: a Python function, how it is to be called, and how often again.

The library for repeating calls is loaded only where one is to be repeated: it takes asyncio with it, and most
tasks need neither.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

from millrace import limits
from millrace.errors import OptionError, PredicateError, near
from millrace.limits.budget import Budget, Cost, budget_of
from millrace.limits.registration import Registration
from millrace.limits.secrets import Secrets
from millrace.predicates.cascade import Score
from millrace.predicates.identity import identity_of
from millrace.predicates.service import Service
from millrace.predicates.truth import Truths, strict

Kind = Literal["row", "pandas", "arrow", "pandas_iter", "arrow_iter", "async"]
KINDS: tuple[str, ...] = ("row", "pandas", "arrow", "async")
"""What a user may name; the two others are PySpark's functions over iterators of batches."""

FIRST_WAIT = 0.1
LONGEST_WAIT = 30.0
"""Seconds between attempts: random, up to these bounds, doubling from the first to the longest."""

_LIMITS = ("max_in_flight", "per_second", "tokens_per_minute", "max_requests", "max_cost")


@dataclass(frozen=True)
class PredicateSpec:
    """A predicate; travels to the tasks inside Spark's closures.

    Attributes:
        name: What reports, plans and errors call it.
        function: Gets one value per argument and returns True, False or None (kind ``row`` and,
            as a coroutine, ``async``); or one pandas Series (``pandas``), one Arrow array
            (``arrow``) or, for ``async`` with ``batch``, one list per argument, and returns as
            many truth values. The ``_iter`` kinds get an iterator of batches and return one.
        kind: Which of these.
        deterministic: False pins it to its place among the predicates.
        on_error: ``"fail"`` fails the query, ``"null"`` takes a raising row's truth as null.
        batch: At most this many rows a call, for kinds that take several; None leaves it open and
            calls an ``async`` function once a row.
        retries: How often a raising call is repeated.
        timeout: Seconds an ``async`` call may take; None lets it take for ever.
        max_in_flight: For ``async``: calls under way at once, over all tasks of the job.
        per_second: For ``async``: calls started per second, over all tasks of the job.
        dedupe: For ``async``: ask once per job for equal arguments.
        max_requests: For ``async``: calls in all, repeated ones included.
        max_cost: For ``async``: what all calls may cost.
        cost: What a call costs: a number, or a function of its arguments and its answer.
        sure: A cheap score, and from which score on a row passes without a call (a cascade's second stage).
        truths: How results become truths; of no meaning for ``async``, whose results have to be truth values.
        tokens_per_minute: For ``async``: that all calls take together, of functions that tell what each took
            (:class:`millrace.predicates.service.Answered`).
        limit_group: For ``async``: shares limits and budget with all that name the same, in all queries of
            the process.
        secrets: For ``async``: environment variables of the planning process, whose values the function is
            opened with, a :class:`millrace.predicates.service.Service`.
        answers: For ``async``: a folder, or a ``.sqlite`` file, where answers outlive the job; equal
            arguments are then asked once, as with ``dedupe``. None keeps them for the job at most.
        origin: The user's function, where ``function`` only passes arguments on to it.
        changed: What such functions change about arguments or answers, one text each.

    Raises:
        OptionError: A setting is unknown, out of range or of no use for the kind.
    """

    name: str
    function: Callable[..., Any]
    kind: Kind = "row"
    deterministic: bool = True
    on_error: Literal["fail", "null"] = "fail"
    batch: int | None = None
    retries: int = 0
    timeout: float | None = None
    max_in_flight: int | None = None
    per_second: float | None = None
    dedupe: bool = False
    max_requests: int | None = None
    max_cost: float | None = None
    cost: float | Cost | None = None
    sure: tuple[Score, float] | None = None
    truths: Truths = strict
    tokens_per_minute: float | None = None
    limit_group: str | None = None
    secrets: tuple[str, ...] = ()
    answers: Path | None = None
    origin: Callable[..., Any] | None = None
    changed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise PredicateError(
                f"predicate {self.name!r} is a {type(self.function).__name__}, not a function"
            )
        if self.kind not in (*KINDS, "pandas_iter", "arrow_iter"):
            raise OptionError(f"predicate {self.name!r} has kind {self.kind!r}: {near(self.kind, KINDS)}")
        if self.on_error not in ("fail", "null"):
            raise OptionError(f"predicate {self.name!r}: on_error is 'fail' or 'null', got {self.on_error!r}")
        coroutine = is_coroutine(self.function)
        if coroutine and self.kind != "async":
            raise PredicateError(
                f"predicate {self.name!r} is a coroutine function (async def) but its kind is {self.kind!r}: "
                "declare it with kind='async'"
            )
        if self.kind == "async" and not coroutine:
            raise PredicateError(
                f"predicate {self.name!r} has kind 'async' but is no coroutine function: write it as "
                "'async def', or give it another kind"
            )
        where = f"predicate {self.name!r}"
        check_whole(where, self, batch=1, max_in_flight=1)
        check_whole(where, self, 1000, retries=0)
        check_above_zero(where, self, "timeout", "per_second", "tokens_per_minute")
        self._answers()
        if self.batch is not None and self.kind == "row":
            raise OptionError(
                f"predicate {self.name!r}: batch is of no use for kind 'row', which gets single rows"
            )
        if self.kind == "async" or self.retries:
            limits.check_libraries(f"predicate {self.name!r}, which is async or has retries,")
        budget_of(f"predicate {self.name!r}", self.max_requests, self.max_cost, self.cost)
        self._group()
        for setting in (*_LIMITS, "timeout", "dedupe"):
            if self.kind != "async" and getattr(self, setting):
                raise OptionError(
                    f"predicate {self.name!r}: {setting} needs kind='async'; a call of kind {self.kind!r} "
                    "cannot be interrupted or made to wait"
                )

    def _group(self) -> None:
        if self.limit_group is None:
            return
        if type(self.limit_group) is not str or not self.limit_group:
            raise OptionError(
                f"predicate {self.name!r}: limit_group is {self.limit_group!r}, expected a name"
            )
        if not any(getattr(self, setting) for setting in _LIMITS):
            raise OptionError(
                f"predicate {self.name!r}: limit_group {self.limit_group!r} has nothing to share: give "
                f"{', '.join(_LIMITS[:-1])} or {_LIMITS[-1]} as well"
            )

    def _answers(self) -> None:
        if self.answers is None:
            return
        path: object = self.answers
        if not isinstance(path, str | Path) or not str(path):
            raise OptionError(
                f"predicate {self.name!r}: answers is {path!r}, expected the path of a folder, or of a file "
                "that ends in .sqlite"
            )
        if self.kind != "async" or not self.deterministic:
            raise OptionError(
                f"predicate {self.name!r}: answers are kept of predicates with kind='async' that are "
                "deterministic: of others the next run might get what they would not say again"
            )
        object.__setattr__(self, "answers", Path(path))
        object.__setattr__(self, "dedupe", True)  # what is kept is known by its arguments

    def through(self, function: Callable[..., Any], change: str) -> PredicateSpec:
        """Return the predicate with a function that calls the one it has.

        Args:
            function: The new one; its answers are known by the user's own, and by the change.
            change: What it changes, as text that differs for different changes.
        """
        origin = self.function if self.origin is None else self.origin
        return replace(self, function=function, origin=origin, changed=(*self.changed, change))

    def fingerprint(self) -> str:
        """Return what its kept answers are known by; to be called where the query is planned.

        In a task the function has been unpickled, and may have lost what it names.
        """
        origin = self.function if self.origin is None else self.origin
        own = origin.identity if isinstance(origin, Service) else identity_of(origin, self.name)
        secrets = Secrets.of_environment(self.secrets, f"predicate {self.name!r}")
        parts = [own, *self.changed, *secrets.values().values()]
        return blake2b(json.dumps(["predicate", *parts]).encode(), digest_size=16).hexdigest()

    @property
    def limited(self) -> bool:
        """Whether its tasks have to agree with each other on when, or whether, to call it."""
        own = (self.max_in_flight, self.per_second, self.tokens_per_minute)
        shared = self.dedupe or bool(self.secrets) or bool(self.budget[0])
        return shared or any(each is not None for each in own)

    @property
    def budget(self) -> tuple[Budget, Cost | None]:
        """What its calls may cost, and the function that tells what one has."""
        return budget_of(f"predicate {self.name!r}", self.max_requests, self.max_cost, self.cost)


def check_whole(where: str, spec: object, most: int = 1_000_000, **least: int) -> None:
    """Raise an OptionError for a setting that is no whole number from so much to ``most``.

    None will do where it is the default.
    """
    for name, low in least.items():
        value = getattr(spec, name)
        if (type(value) is not int or not low <= value <= most) and value is not getattr(type(spec), name):
            raise OptionError(f"{where}: {name} is {value!r}, expected a whole number from {low} to {most:,}")


def check_above_zero(where: str, spec: object, *names: str) -> None:
    """Raise an OptionError for a setting that is no finite number above 0; a default of None will do."""
    for name in names:
        value = getattr(spec, name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and 0 < value < float("inf")) and value is not getattr(type(spec), name):
            raise OptionError(f"{where}: {name} is {value!r}, expected a number above 0")


def is_coroutine(function: Callable[..., Any]) -> bool:
    """Return whether calling the function gives something to await."""
    call = getattr(function, "__call__", None)  # noqa: B004  # an object with an async __call__
    return inspect.iscoroutinefunction(inspect.unwrap(function)) or inspect.iscoroutinefunction(call)


def schedule(spec: PredicateSpec) -> dict[str, Any]:
    """Return when to repeat and when to stop, as tenacity's classes take it."""
    from tenacity import stop_after_attempt, wait_random_exponential

    return {
        "stop": stop_after_attempt(spec.retries + 1),
        "wait": wait_random_exponential(multiplier=FIRST_WAIT, max=LONGEST_WAIT),
        "reraise": True,
    }


def retried(spec: PredicateSpec, before: Callable[[Any], None] = lambda _: None) -> Callable[..., Any]:
    """Return the predicate's function with its retries, after the last of which it raises.

    Args:
        spec: Of any kind but ``async``.
        before: Called before each wait.
    """
    if not spec.retries:
        return spec.function
    from tenacity import Retrying

    return Retrying(**schedule(spec), before_sleep=before).wraps(spec.function)


def registration_of(spec: PredicateSpec) -> Registration:
    """Return the registration of a predicate, with the place where its answers are kept, if it has one.

    To the coordinator it is a lookup of one column, the truth. To be called where the query is planned; see
    :meth:`millrace.predicates.PredicateSpec.fingerprint`.
    """
    kept = spec.answers is not None
    return Registration(
        spec.name,
        spec.max_in_flight,
        spec.per_second,
        cache=spec.answers,
        fingerprint=spec.fingerprint() if kept else "",
        secrets=Secrets.of_environment(spec.secrets, f"predicate {spec.name!r}").values(),
        budget=spec.budget[0],
        tokens_per_minute=spec.tokens_per_minute,
        group=spec.limit_group,
    )
