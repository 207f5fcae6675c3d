"""Calling predicates that are plain functions: a row, a pandas batch or an Arrow batch at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from millrace.errors import PredicateError
from millrace.predicates.calls import RAISED, Caller, Failure, Outcome, Values
from millrace.predicates.cascade import Surely
from millrace.predicates.spec import PredicateSpec, retried
from millrace.predicates.truth import Truth

if TYPE_CHECKING:
    from millrace.limits.fetcher import Connect
    from millrace.limits.request import FetchStats


def caller_of(
    spec: PredicateSpec, values: Values, connect: Connect | None = None, stats: FetchStats | None = None
) -> Caller:
    """Return what calls the predicate in this task; the last two are for ``async``, see AsyncCaller."""
    if spec.kind == "async":
        from millrace.predicates.asynchronous import AsyncCaller  # loads asyncio, which few tasks need

        caller: Caller = AsyncCaller(spec, values, connect, stats)
    else:
        caller = RowCaller(spec, values) if spec.kind == "row" else BatchCaller(spec, values)
    if spec.sure is None:
        return caller
    score, high = spec.sure
    return Surely(caller, score, high, values)


class _Attempts:
    """The function with its retries, counting those."""

    def __init__(self, spec: PredicateSpec) -> None:
        self.extra = 0
        self.function = retried(spec, self._count)

    def _count(self, _: Any) -> None:
        self.extra += 1

    def take(self) -> int:
        """Return how many calls were repetitions since this was asked last."""
        extra, self.extra = self.extra, 0
        return extra


class RowCaller:
    """Calls the function once a row."""

    def __init__(self, spec: PredicateSpec, values: Values) -> None:
        self._spec = spec
        self._values = values
        self._attempts = _Attempts(spec)

    def call(self, columns: list[pa.Array]) -> Outcome:
        """Return the truth of every row; rows that raise have their failure."""
        rows = len(columns[0])
        results: list[Any] = []
        failures: dict[int, Failure] = {}
        try:
            arguments = self._values.objects(columns)
        except (OverflowError, ValueError) as error:  # a value that Python does not have
            return Outcome.in_doubt(error, rows)
        answers = map(self._attempts.function, *arguments)
        while len(results) < rows:
            try:
                results.extend(answers)  # stops at a row that raises, with the answers before it kept
            except Exception as error:  # noqa: BLE001  # whatever a user's function raises
                failures[len(results)] = Failure.of(error)
                results.append(None)
            else:
                if len(results) < rows:  # to a loop, StopIteration from the function is an end
                    failures[len(results)] = Failure("StopIteration", "", "StopIteration\n")
                    results.append(None)
        truth = self._spec.truths(results, rows, self._spec.name)
        truth[list(failures)] = RAISED
        return Outcome(truth, rows + self._attempts.take(), failures)

    def close(self) -> None:
        """Nothing to let go of."""


class BatchCaller:
    """Calls a function over pandas or Arrow columns, for at most ``spec.batch`` rows at once."""

    def __init__(self, spec: PredicateSpec, values: Values) -> None:
        self._spec = spec
        self._values = values
        self._attempts = _Attempts(spec)
        self._iterated = _Iterated(spec) if spec.kind in ("pandas_iter", "arrow_iter") else None

    def call(self, columns: list[pa.Array]) -> Outcome:
        """Return the truth of every row; a call that raises leaves all its rows in doubt."""
        rows = len(columns[0])
        size = self._spec.batch or max(1, rows)
        pieces: list[Truth] = []
        failures: dict[int, Failure] = {}
        calls = 0
        for low in range(0, rows, size):
            piece = [column.slice(low, size) for column in columns]
            expected = len(piece[0])
            try:
                result = self._ask(piece)
            except PredicateError:
                raise
            except Exception as error:  # noqa: BLE001  # whatever a user's function raises
                pieces.append(np.full(expected, RAISED, np.int8))
                if expected == 1:
                    failures[low] = Failure.of(error)
            else:
                pieces.append(self._spec.truths(result, expected, self._spec.name))
            calls += expected * (1 + self._attempts.take())
        truth = np.concatenate(pieces) if pieces else np.empty(0, np.int8)
        return Outcome(truth, calls, failures)

    def close(self) -> None:
        """Let a function over an iterator come to its end."""
        if self._iterated is not None:
            self._iterated.close()

    def _ask(self, columns: list[pa.Array]) -> Any:
        pandas = self._spec.kind.startswith("pandas")
        arguments = self._values.series(columns) if pandas else self._values.arrays(columns)
        if self._iterated is not None:
            return self._iterated.ask(arguments[0] if len(arguments) == 1 else tuple(arguments))
        return self._attempts.function(*arguments)


class _Iterated:
    """A function from an iterator of batches to an iterator of truths, asked one batch at a time.

    It runs on from batch to batch, so that what it loads before its loop is loaded once a task. One
    that looks ahead sees the iterator end, and is started again for the next batch.
    """

    def __init__(self, spec: PredicateSpec) -> None:
        self._name = spec.name
        self._function = spec.function
        self._waiting: deque[Any] = deque()
        self._running: Iterator[Any] | None = None

    def ask(self, argument: Any) -> Any:
        self._waiting.append(argument)
        try:
            for _ in range(2):
                if self._running is None:
                    self._running = self._start()
                for result in self._running:
                    return result
                self._running = None
        except BaseException:
            self.close()
            raise
        self.close()
        raise PredicateError(f"predicate {self._name!r} returned no batch for the batch it was given")

    def _start(self) -> Iterator[Any]:
        running = self._function(self._feed())
        if not isinstance(running, Iterator):
            raise PredicateError(
                f"predicate {self._name!r} returned a {type(running).__name__}, expected an iterator of "
                "batches: write it as a generator, with yield"
            )
        return running

    def close(self) -> None:
        self._waiting.clear()
        running, self._running = self._running, None
        if running is not None and hasattr(running, "close"):
            running.close()

    def _feed(self) -> Iterator[Any]:
        while self._waiting:
            yield self._waiting.popleft()
