"""Calling a user's function for rows, and taking what it returns."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa

from millrace.lookups.arrow_rows import batch_of
from millrace.lookups.function import FunctionSource
from millrace.lookups.json_rows import RowReader
from millrace.lookups.refused import Refused, shortened
from millrace.lookups.strict import Rules, Unfit, shown
from millrace.lookups.threads import Threads
from millrace.predicates.spec import is_coroutine

SCAN_ROWS = 10_000
"""Rows of a scan in one batch, where the function yields them one by one."""
SCAN_SECONDS = 0.25
"""Fewer, if it takes longer."""

_RULES = Rules(native=True)


class FunctionSession:
    """An open :class:`FunctionSource`."""

    def __init__(self, source: FunctionSource, schema: pa.Schema, columns: tuple[str, ...]) -> None:
        self._source = source
        self._schema = schema
        self._columns = columns
        self._reader = RowReader(schema, columns, _RULES)
        self._threads = Threads(f"function {source.name}")

    async def fetch(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        """Ask for some keys; see :meth:`millrace.lookups.source.Session.fetch`."""
        many = self._source.terms.batch > 1
        lists = [keys.column(name).to_pylist() for name in self._columns]
        arguments = lists if many else [values[0] for values in lists]
        key = {} if many else {name: keys.column(name)[0] for name in self._columns}
        pieces = await self._in_time(self._all(arguments))
        return self._batch(pieces, key)

    async def scan(self) -> AsyncIterator[pa.RecordBatch]:
        """Return all rows; see :meth:`millrace.lookups.source.Session.scan`."""
        returned = await self._in_time(self._returned([]))
        if inspect.isasyncgen(returned):
            try:
                while pieces := await self._in_time(_next_of(returned)):
                    batch = self._batch(pieces, {})
                    if batch.num_rows:
                        yield batch
            finally:
                with suppress(Exception):  # it is read or broken, and not wanted any more
                    await returned.aclose()
            return
        steps = returned if isinstance(returned, Iterator) else iter(_pieces_of(returned))
        try:
            while pieces := await self._in_time(self._threads.run(lambda: _next(steps))):
                batch = self._batch(pieces, {})
                if batch.num_rows:
                    yield batch
        finally:
            if inspect.isgenerator(returned):
                with suppress(Exception):
                    await self._threads.run(returned.close)

    async def close(self) -> None:
        """Let go of the threads."""
        self._threads.close()

    async def _returned(self, arguments: list[Any]) -> Any:
        """Call the function; return what it returns, which may be a generator."""
        fn = self._source.fn
        if is_coroutine(fn):
            returned = await fn(*arguments)
        elif inspect.isasyncgenfunction(fn):
            returned = fn(*arguments)
        else:
            returned = await self._threads.run(lambda: fn(*arguments))
            if inspect.isawaitable(returned):
                returned = await returned
        return returned

    async def _all(self, arguments: list[Any]) -> list[Any]:
        """Call the function; return all that it returns or yields."""
        returned = await self._returned(arguments)
        if inspect.isasyncgen(returned):
            return [each async for each in returned]
        if isinstance(returned, Iterator):
            return await self._threads.run(lambda: list(returned))
        return _pieces_of(returned)

    async def _in_time(self, work: Awaitable[Any]) -> Any:
        """Wait for a call of the function; what it raises is a :class:`Refused`."""
        seconds = self._source.terms.timeout
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await work
        except Refused:
            raise
        except Exception as error:
            if limit.expired():
                said = f"{self._source.describe()}: no answer within {seconds:g} s"
                raise Refused("timeout", said, again=True) from None
            name = type(error).__name__
            said = shortened(f"{self._source.describe()}: {name}: {error}")
            raise Refused(name, said, again=True) from error

    def _batch(self, pieces: list[Any], key: Mapping[str, Any]) -> pa.RecordBatch:
        """Return pieces, each a row, a list of rows or a table, as rows of the schema."""
        batches: list[pa.RecordBatch] = []
        rows: list[Any] = []
        try:
            for piece in pieces:
                table = _table(piece)
                if table is not None:
                    frame = _is_frame(piece)
                    batches.append(batch_of(table, self._schema, key, _RULES, pandas=frame))
                elif isinstance(piece, Mapping | tuple):
                    rows.append(piece)
                elif isinstance(piece, list):
                    rows.extend(piece)
                elif piece is not None:
                    raise _unknown(piece)
            if rows or not batches:
                batches.append(self._reader.batch(rows, key))
        except Unfit as error:
            said = shortened(f"{self._source.describe()}: {error}")
            raise Refused("unfit answer", said) from None
        return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _pieces_of(returned: Any) -> list[Any]:
    """Return what a function returned as pieces: a list may be one of rows, or one of tables."""
    if isinstance(returned, list) and returned and _table(returned[0]) is not None:
        return returned
    return [] if returned is None else [returned]


def _unknown(piece: Any) -> Unfit:
    return Unfit(
        "expected None, a dict, a list of dicts or tuples, a PyArrow table or a DataFrame, got "
        f"{shown(piece)}"
    )


def _is_frame(piece: Any) -> bool:
    return type(piece).__module__.partition(".")[0] == "pandas"


def _table(piece: Any) -> pa.Table | None:
    """Return a piece as a table, if it is one in some form."""
    if isinstance(piece, pa.Table):
        return piece
    if isinstance(piece, pa.RecordBatch):
        return pa.Table.from_batches([piece])
    if _is_frame(piece) and hasattr(piece, "columns"):
        return pa.Table.from_pandas(piece, preserve_index=False)
    return None


def _size(piece: Any) -> int:
    return 1 if isinstance(piece, Mapping | tuple) or not hasattr(piece, "__len__") else len(piece)


def _next(steps: Iterator[Any]) -> list[Any]:
    """Return the next pieces of a generator, enough for a batch; none at its end."""
    pieces, rows, began = [], 0, time.monotonic()
    for piece in steps:
        pieces.append(piece)
        rows += _size(piece)
        if rows >= SCAN_ROWS or time.monotonic() - began >= SCAN_SECONDS:
            break
    return pieces


async def _next_of(steps: AsyncIterator[Any]) -> list[Any]:
    pieces, rows, began = [], 0, time.monotonic()
    async for piece in steps:
        pieces.append(piece)
        rows += _size(piece)
        if rows >= SCAN_ROWS or time.monotonic() - began >= SCAN_SECONDS:
            break
    return pieces
