"""How the tasks of a job find the coordinator of its limits."""

from __future__ import annotations

import ipaddress
import socket
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql import SparkSession

from millrace.errors import OptionError
from millrace.expressions import Call
from millrace.options import Options
from millrace.predicates import Caller, PredicateSpec
from millrace.predicates.callers import caller_of

if TYPE_CHECKING:
    from millrace.coordination import Address, Registration


_STREAM = "sql.streaming.queryId"
"""Local property of tasks that run for a micro-batch: the same for all micro-batches of a query."""


@dataclass(frozen=True)
class Limits:
    """The coordinator as tasks see it; travels to them.

    Attributes:
        run: Identifies the run.
        address: Of the coordinator; None when no predicate needs one.
    """

    run: str
    address: Address | None = None

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
            OptionError: A limit group has other limits.
        """
        if not any(spec.limited for spec in specs.values()):
            return cls(run)
        from millrace.coordination import Coordinator  # loads asyncio, which tasks without limits do not need

        coordinator = Coordinator.started(host_of(spark, options), options.limits_port, options.limits_bind)
        found = cls(run, coordinator.address_of(predicates_of(run)))
        if any(spec.answers is not None or spec.limit_group is not None for spec in specs.values()):
            coordinator.register(predicates_of(run), _registrations(specs))
            weakref.finalize(found, coordinator.release, predicates_of(run)).atexit = False
        return found

    def caller(self, number: int, call: Call) -> Caller:
        """Return what calls a predicate in this task, under the limits of the job that the task is of."""
        address = self.address if call.spec.limited else None
        return caller_of(call.spec, call.values, address, f"{predicates_of(self.run)}/{_job()}/{number}")


def _registrations(specs: Mapping[int, PredicateSpec]) -> list[Registration]:
    """Return what the coordinator has to know of predicates before their tasks join."""
    from millrace.coordination import Registration
    from millrace.predicates.registering import registration_of

    found = [Registration("") for _ in range(max(specs) + 1)]
    for number, spec in specs.items():
        found[number] = registration_of(spec)
    return found


def _job() -> str:
    """Return what this task shares with those that limits and answers hold for: its stage, or its stream."""
    context = TaskContext.get()
    if context is None:
        return "0"
    return context.getLocalProperty(_STREAM) or str(context.stageId())


def predicates_of(run: str) -> str:
    """Return what the sessions of a run's predicates are known by, beside those of its lookups."""
    return f"{run}-predicates"


def host_of(spark: SparkSession, options: Options) -> str:
    """Return the address under which executors reach this process.

    On classic Spark that is the driver's, which they reach anyway; on Spark Connect this machine's
    own on the way to Spark's.
    """
    if options.limits_host is not None:
        return options.limits_host
    driver = str(spark.conf.get("spark.driver.host", "127.0.0.1"))
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((driver, 9))  # sends nothing: it only chooses the way
            own = str(probe.getsockname()[0])
    except OSError as error:
        raise OptionError(
            f"cannot find out how executors reach this process (Spark's driver is at {driver!r}: {error}): "
            "set the option limits_host"
        ) from None
    return "127.0.0.1" if ipaddress.ip_address(own).is_loopback else own
