"""Lookups by a function of the user's: called with keys, it returns rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millrace.errors import InputError, OptionError
from millrace.limits.budget import Cost, budget_of
from millrace.limits.secrets import Secrets
from millrace.lookups.json_rows import check_bound, check_types
from millrace.lookups.terms import Terms
from millrace.predicates.identity import identity_of

if TYPE_CHECKING:
    from millrace.lookups.function_session import FunctionSession


@dataclass(frozen=True)
class FunctionSource:
    """A function that is asked; made by :func:`function`, where the arguments are explained."""

    fn: Callable[..., Any]
    name: str
    terms: Terms
    can_scan: bool = False
    identity: str = field(default="", repr=False)

    @property
    def kind(self) -> str:
        return "function"

    @property
    def secrets(self) -> tuple[str, ...]:
        return ()

    def describe(self) -> str:
        return f"function {self.name}"

    def check(self, schema: pa.Schema, columns: tuple[str, ...], secrets: Secrets) -> None:
        """Check what is declared, without a call; see :meth:`millrace.lookups.source.Source.check`."""
        check_types(schema)
        check_bound(columns, schema)
        if not columns and not self.can_scan:
            raise InputError(
                f"{self.describe()} is no scan: declare one that returns all rows with scan=True"
            )
        if columns and self.can_scan:
            raise InputError(
                f"{self.describe()} is declared with scan=True: it takes no keys, and cannot be asked for "
                f"{', '.join(columns)}"
            )

    def open(self, schema: pa.Schema, columns: tuple[str, ...], secrets: Secrets) -> FunctionSession:
        """Return a session; the function is called with its first request."""
        from millrace.lookups.function_session import FunctionSession

        return FunctionSession(self, schema, columns)


def function(
    fn: Callable[..., Any],
    *,
    name: str | None = None,
    scan: bool = False,
    max_in_flight: int = 8,
    per_second: float | None = None,
    retries: int = 3,
    timeout: float = 30.0,
    batch: int = 1,
    max_requests: int | None = None,
    max_cost: float | None = None,
    cost: float | Cost | None = None,
    limit_group: str | None = None,
    circuit_breaker: int | None = 50,
) -> FunctionSource:
    """Return a source that calls a function for the rows of a key, or of several.

    The function gets one value for each bind column, in their order, or with ``batch`` above 1 one list. It
    returns None (no rows), a dict, a list of dicts or of tuples (all columns in the schema's order), a
    PyArrow Table or RecordBatch or a pandas DataFrame; or it is a generator of any of these. With ``batch``
    1, rows may lack the bind columns. Values are taken strictly: one that is not of its column's declared
    type fails the request.

    Args:
        fn: A function, which runs in threads, or a coroutine function, which runs in an event loop. It
            travels to the tasks as functions do in Spark. What it raises is taken as something that may pass;
            to say that it does not, it raises :class:`millrace.lookups.Refused`.
        name: For plans and errors; by default the function's own.
        scan: It takes no arguments and returns all rows.
        max_in_flight: Calls under way at once, over all tasks.
        per_second: Calls started per second, over all tasks; None sets no bound.
        retries: How often a call is repeated that raised.
        timeout: Seconds for one. A function that runs in a thread is not stopped, its result is dropped.
        batch: Keys in one call, at most.
        max_requests: Requests that a query may make in all, repeated ones included; at the limit it stops
            with :class:`millrace.errors.BudgetError`.
        max_cost: What all requests of a query may cost, in the unit of ``cost``.
        cost: What a request costs: a number, or a function of its keys (a list of dictionaries) and its rows
            (a PyArrow RecordBatch).
        limit_group: Shares ``max_in_flight``, ``per_second`` and budget with all lookups and predicates of
            this process that name the same one, in all its queries; they have to give the same limits.
        circuit_breaker: After so many calls in a row, over all tasks, that failed in a way that may pass,
            the source is asked once in a while only. If it has not come back after two minutes, the query
            fails, whatever ``on_error`` is. None to go on asking.

    Raises:
        InputError: It is no function.
        OptionError: A setting is out of its range.
    """
    if not callable(fn):
        raise InputError(f"a lookup by function got a {type(fn).__name__}, not a function")
    if type(scan) is not bool:
        raise OptionError(f"scan is {scan!r}, expected True or False")
    own = getattr(fn, "__qualname__", type(fn).__qualname__)
    budget = budget_of("a lookup by function", max_requests, max_cost, cost)
    terms = Terms(
        max_in_flight,
        per_second,
        retries,
        timeout,
        batch,
        circuit_breaker,
        budget=budget[0],
        cost=budget[1],
        limit_group=limit_group,
    )
    return FunctionSource(fn, name or own, terms, scan, identity_of(fn, name or own))
