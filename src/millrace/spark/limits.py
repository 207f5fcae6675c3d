"""How the tasks of a job find the coordinator of its limits."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from pyspark import TaskContext
from pyspark.sql import SparkSession

from millrace.engine.expressions import Call
from millrace.limits.budget import Spent
from millrace.limits.registration import Registration
from millrace.options import Options
from millrace.predicates import Caller, PredicateSpec
from millrace.predicates.callers import caller_of
from millrace.predicates.spec import registration_of
from millrace.spark.coordinating import (
    Alone,
    coordinator_at,
    coordinator_of,
    execution_of,
    predicates_of,
    stream_of,
)

if TYPE_CHECKING:
    from millrace.limits.process import CoordinatorProcess
    from millrace.limits.progress import LookupProgress
    from millrace.limits.registration import Address
    from millrace.spark.cluster_coordinator import ClusterCoordinator


@dataclass(frozen=True)
class Registered:
    """The lookups or the predicates of a run, with what holds of their limits; travels to the tasks.

    Attributes:
        scope: What a coordinator knows them by.
        address: Of the coordinator, where keys are claimed, limits kept and secrets known; None where none
            of them needs one, or tasks do not reach it.
        own: What each task keeps for itself where tasks do not reach it, by their numbers.
        weakened_guarantees: A sentence for each of which less is promised then.
    """

    scope: str
    address: Address | None = None
    own: tuple[Registration, ...] = ()
    weakened_guarantees: tuple[str, ...] = ()

    @classmethod
    def register(
        cls,
        coordinator: CoordinatorProcess | ClusterCoordinator | Alone,
        scope: str,
        registrations: Sequence[Registration],
        limited: Iterable[int],
        *,
        released: bool = True,
        **fields: Any,
    ) -> Self:
        """Register with a coordinator, until nothing in this process refers to the result any more.

        ``limited`` are the numbers of registrations that promise something. A stream is not ``released``: it
        runs on when nothing refers to its DataFrame.
        """
        if isinstance(coordinator, Alone):
            own = tuple(map(coordinator.registration, registrations))
            weakened = tuple(coordinator.told(registrations[number]) for number in limited)
            return cls(scope, None, own, weakened, **fields)
        coordinator.register(scope, registrations)
        registered = cls(scope, coordinator.address_of(scope), **fields)
        if released:
            weakref.finalize(registered, coordinator.release, scope).atexit = False
        return registered

    def spent(self) -> list[Spent]:
        """Return what was spent of budgets; in the process that planned the query."""
        return [] if self.address is None else coordinator_at(self.address).spent(self.scope)

    def progress(self) -> list[LookupProgress]:
        """Return what calls have come to, by number; in the process that planned the query."""
        return [] if self.address is None else coordinator_at(self.address).progress(self.scope)


@dataclass(frozen=True)
class Limits(Registered):
    """The limits of a run's predicates."""

    @classmethod
    def of(
        cls, spark: SparkSession, run: str, specs: Mapping[int, PredicateSpec], options: Options
    ) -> Limits:
        """Register predicates, by their numbers in the tasks, if limits of some hold for the whole job.

        Raises:
            InputError: The answers of a predicate cannot be kept where it says; says what to do.
            OptionError: A limit group has other limits, or tasks do not reach a coordinator and a predicate
                has what needs one.
            ExecutionError: The coordinator cannot listen, or is not reached and has to be.
        """
        limited = [number for number, spec in specs.items() if spec.limited]
        if not limited:
            return cls(predicates_of(run))
        registrations = [
            registration_of(specs[number]) if number in specs else Registration("")
            for number in range(max(specs) + 1)
        ]
        return cls.register(coordinator_of(spark, options), predicates_of(run), registrations, limited)

    def progress(self) -> list[LookupProgress]:
        """Return what calls of predicates have come to; in the process that planned the query."""
        return [progress for progress in super().progress() if progress.requests]

    def caller(self, number: int, call: Call) -> Caller:
        """Return what calls a predicate in this task, under the limits of the job that the task is of."""
        spec, address = call.spec, self.address if call.spec.limited else None
        if self.own:
            own = self.own[number]
            spec = replace(
                spec,
                max_in_flight=own.max_in_flight,
                per_second=own.per_second,
                tokens_per_minute=own.tokens_per_minute,
            )
        return caller_of(spec, call.values, address, f"{self.scope}/{_job()}/{number}")


def _job() -> str:
    """Return what this task shares with those that answers hold for: its action, or its stream for ever."""
    context = TaskContext.get()
    stream = None if context is None else stream_of(context)
    return execution_of(context) if stream is None else stream
