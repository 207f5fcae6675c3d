"""The consumer's side: rows as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Self

import pyarrow as pa

from millrace.limits.registration import Address
from millrace.spark.results.session import ResultSession


class Stream:
    """The rows of one job, in batches, in the order in which they come; made by ``ResultsServer.open``.

    Iterate over it in one thread. Whoever runs the job calls :meth:`finish` or :meth:`fail` from another.

    Args:
        name: Identifies the stream.
        address: Of its server.
        schema: Of its rows.
        session: Where its tasks are.
        within: Calls a function where the session lives.

    Attributes:
        id: Identifies the stream; travels to the tasks.
        address: Of its server; travels to the tasks.
        schema: Of its rows.
    """

    def __init__(
        self,
        name: str,
        address: Address,
        schema: pa.Schema,
        session: ResultSession,
        within: Callable[[Callable[[], None]], None],
    ) -> None:
        self.id = name
        self.address = address
        self.schema = schema
        self._session = session
        self._within = within

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        batch = self._session.waiting.take()
        if batch is None:
            raise StopIteration
        return batch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def finish(self) -> None:
        """Say that the job has succeeded: the iteration ends after the last batch.

        If a task has started that never committed, the iteration raises an ExecutionError instead.
        """
        self._within(self._session.finish)

    def fail(self, error: BaseException) -> None:
        """Say that the job has failed: the iteration raises the error now. No effect on a closed one."""
        self._within(lambda: self._session.end(error))

    def close(self) -> None:
        """Take no more rows: tasks that send still fail, at their next batch."""
        self._within(lambda: self._session.end(None, drop=True))
