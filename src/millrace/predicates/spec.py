"""What a user's predicate is: a Python function, how it is to be called, and within which limits."""

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
from millrace.limits.policy import SHARED, Limits, schedule
from millrace.limits.registration import Registration
from millrace.limits.secrets import Secrets
from millrace.predicates.cascade import Score
from millrace.predicates.identity import identity_of
from millrace.predicates.service import Service
from millrace.predicates.truth import Truths, strict

Kind = Literal["row", "pandas", "arrow", "pandas_iter", "arrow_iter", "async"]
KINDS: tuple[str, ...] = ("row", "pandas", "arrow", "async")
"""What a user may name; the two others are PySpark's functions over iterators of batches."""


@dataclass(frozen=True)
class PredicateSpec(Limits):
    """A predicate, with its limits; travels to the tasks inside Spark's closures.

    Of the limits all but ``retries`` and ``batch`` are for ``async``, and so are the settings that say so. A
    ``batch`` of None leaves it open, and calls an ``async`` function once a row.

    Attributes:
        name: What reports, plans and errors call it.
        function: Gets one value per argument and returns True, False or None (kind ``row`` and,
            as a coroutine, ``async``); or one pandas Series (``pandas``), one Arrow array
            (``arrow``) or, for ``async`` with ``batch``, one list per argument, and returns as
            many truth values. The ``_iter`` kinds get an iterator of batches and return one.
        kind: Which of these.
        deterministic: False pins it to its place among the predicates.
        on_error: ``"fail"`` fails the query, ``"null"`` takes a raising row's truth as null.
        dedupe: For ``async``: ask once per job for equal arguments.
        sure: A cheap score, and from which score on a row passes without a call (a cascade's second stage).
        truths: How results become truths; of no meaning for ``async``, whose results have to be truth values.
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
    dedupe: bool = False
    sure: tuple[Score, float] | None = None
    truths: Truths = strict
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
        super().__post_init__()
        self._answers()
        if self.batch is not None and self.kind == "row":
            raise OptionError(
                f"predicate {self.name!r}: batch is of no use for kind 'row', which gets single rows"
            )
        if self.retries and self.kind.endswith("_iter"):
            raise OptionError(
                f"predicate {self.name!r}: retries are of no use for kind {self.kind!r}, whose function runs "
                "on from batch to batch: repeat what may fail within it"
            )
        if self.kind == "async" or self.retries:
            limits.check_libraries(f"predicate {self.name!r}, which is async or has retries,")
        for setting in (*SHARED, "timeout", "dedupe"):
            if self.kind != "async" and getattr(self, setting):
                raise OptionError(
                    f"predicate {self.name!r}: {setting} needs kind='async'; a call of kind {self.kind!r} "
                    "cannot be interrupted or made to wait"
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

        Its answers are known by the user's own, and by the change, as text that differs for other changes.
        """
        return replace(self, function=function, origin=self.asked, changed=(*self.changed, change))

    @property
    def asked(self) -> Callable[..., Any]:
        """The user's own function."""
        return self.function if self.origin is None else self.origin

    def fingerprint(self) -> str:
        """Return what its kept answers are known by; to be called where the query is planned.

        In a task the function has been unpickled, and may have lost what it names.
        """
        asked = self.asked
        own = asked.identity if isinstance(asked, Service) else identity_of(asked, self.name)
        secrets = Secrets.of_environment(self.secrets, self.owner)
        parts = [own, *self.changed, *secrets.values().values()]
        return blake2b(json.dumps(["predicate", *parts]).encode(), digest_size=16).hexdigest()

    @property
    def owner(self) -> str:
        return f"predicate {self.name!r}"

    @property
    def limited(self) -> bool:
        """Whether its tasks have to agree with each other on when, or whether, to call it."""
        own = (self.max_in_flight, self.per_second, self.tokens_per_minute)
        shared = self.dedupe or bool(self.secrets) or bool(self.budget)
        return shared or any(each is not None for each in own)


def is_coroutine(function: Callable[..., Any]) -> bool:
    """Return whether calling the function gives something to await."""
    call = getattr(function, "__call__", None)  # noqa: B004  # an object with an async __call__
    return inspect.iscoroutinefunction(inspect.unwrap(function)) or inspect.iscoroutinefunction(call)


def retried(spec: PredicateSpec, before: Callable[[Any], None] = lambda _: None) -> Callable[..., Any]:
    """Return the function of a predicate that is not ``async``, with its retries; ``before`` each wait."""
    if not spec.retries:
        return spec.function
    from tenacity import Retrying

    return Retrying(**schedule(spec), before_sleep=before).wraps(spec.function)


def registration_of(spec: PredicateSpec) -> Registration:
    """Return the registration of a predicate, with the place where its answers are kept, if it has one.

    To the coordinator it is a lookup of one column, the truth. To be called where the query is planned; see
    :meth:`millrace.predicates.PredicateSpec.fingerprint`.
    """
    secrets = Secrets.of_environment(spec.secrets, spec.owner)
    kept = spec.answers is not None
    return spec.registration(spec.name, secrets, spec.fingerprint() if kept else "", spec.answers)
