"""How the tasks of a job find the coordinator of its limits."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql import SparkSession

from millrace.engine.expressions import Call
from millrace.limits.budget import Spent
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
    from millrace.limits.progress import LookupProgress
    from millrace.limits.registration import Address, Registration


@dataclass(frozen=True)
class Limits:
    """The coordinator of predicates' limits as tasks see it; travels to them.

    Attributes:
        run: Identifies the run.
        address: Of the coordinator; None when no predicate needs one, or tasks do not reach it.
        alone: What tasks go by then.
        weakened_guarantees: Which promises are weaker then, a sentence for each predicate.
    """

    run: str
    address: Address | None = None
    alone: Alone | None = None
    weakened_guarantees: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, spark: SparkSession, run: str, specs: Mapping[int, PredicateSpec], options: Options
    ) -> Limits:
        """Start the coordinator in this process if some predicate's limits hold for the whole job.

        Args:
            spark: The session.
            run: Identifies the run.
            specs: The predicates, by their numbers in the tasks.
            options: Settings of the run.

        Raises:
            InputError: The answers of a predicate cannot be kept where it says; says what to do.
            OptionError: A limit group has other limits, or tasks do not reach a coordinator and a predicate
                has what needs one.
            ExecutionError: The coordinator cannot listen, or is not reached and has to be.
        """
        if not any(spec.limited for spec in specs.values()):
            return cls(run)
        registrations = _registrations(specs)
        coordinator = coordinator_of(spark, options)
        if isinstance(coordinator, Alone):
            limited = [registrations[number] for number, spec in specs.items() if spec.limited]
            for each in limited:
                coordinator.registration(each)
            return cls(run, None, coordinator, tuple(map(coordinator.told, limited)))
        found = cls(run, coordinator.address_of(predicates_of(run)))
        coordinator.register(predicates_of(run), registrations)
        weakref.finalize(found, coordinator.release, predicates_of(run)).atexit = False
        return found

    def spent(self) -> list[Spent]:
        """Return what was spent of budgets; in the process that planned the query."""
        if self.address is None:
            return []
        return coordinator_at(self.address).spent(predicates_of(self.run))

    def progress(self) -> list[LookupProgress]:
        """Return what calls of predicates have come to; in the process that planned the query."""
        if self.address is None:
            return []
        return [
            each for each in coordinator_at(self.address).progress(predicates_of(self.run)) if each.requests
        ]

    def caller(self, number: int, call: Call) -> Caller:
        """Return what calls a predicate in this task, under the limits of the job that the task is of."""
        spec, address = call.spec, self.address if call.spec.limited else None
        if self.alone is not None:
            own = self.alone.registration(registration_of(spec))
            spec = replace(
                spec,
                max_in_flight=own.max_in_flight,
                per_second=own.per_second,
                tokens_per_minute=own.tokens_per_minute,
            )
        return caller_of(spec, call.values, address, f"{predicates_of(self.run)}/{_job()}/{number}")


def _registrations(specs: Mapping[int, PredicateSpec]) -> list[Registration]:
    """Return what the coordinator has to know of predicates before their tasks join."""
    from millrace.limits.registration import Registration

    found = [Registration("") for _ in range(max(specs) + 1)]
    for number, spec in specs.items():
        found[number] = registration_of(spec)
    return found


def _job() -> str:
    """Return what this task shares with those that answers hold for: its action, or its stream for ever."""
    context = TaskContext.get()
    stream = None if context is None else stream_of(context)
    return execution_of(context) if stream is None else stream
