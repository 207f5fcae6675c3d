"""Lookups by a function of the user's: it is called with keys, and what it returns is taken as rows."""

from __future__ import annotations

import inspect
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Unpack

import pyarrow as pa

from millrace.engine.arrays import joined
from millrace.errors import InputError, OptionError
from millrace.limits.policy import LookupOptions, check_options, settings_of
from millrace.limits.secrets import Secrets
from millrace.lookups.rows import RowReader, check_schema
from millrace.lookups.source import Refused, shortened
from millrace.lookups.terms import Terms
from millrace.lookups.threads import Threads
from millrace.lookups.values import Rules, Unfit, shown
from millrace.predicates.identity import identity_of
from millrace.predicates.spec import is_coroutine

SCAN_ROWS = 10_000
"""Rows of a scan in one batch, where the function yields them one by one."""
SCAN_SECONDS = 0.25
"""Fewer, if it takes longer."""

_OF_A_SCAN = ("retries", "timeout")
"""The limits that a scan has."""

_RULES = Rules(native=True)


@dataclass(frozen=True)
class FunctionSource:
    """A function that is asked; made by :func:`function`, where the arguments are explained."""

    kind: ClassVar[str] = "function"
    secrets: ClassVar[tuple[str, ...]] = ()

    fn: Callable[..., Any]
    name: str
    terms: Terms
    can_scan: bool = False
    identity: str = field(default="", repr=False)

    def describe(self) -> str:
        return f"function {self.name}"

    def check(self, schema: pa.Schema, columns: tuple[str, ...], secrets: Secrets) -> None:
        """Check what is declared, without a call; see :meth:`millrace.lookups.source.Source.check`."""
        check_schema(schema, columns)
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
        return FunctionSession(self, schema, columns)


def function(
    fn: Callable[..., Any],
    *,
    name: str | None = None,
    scan: bool = False,
    **limits: Unpack[LookupOptions],
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
        scan: It takes no arguments and returns all rows. Of the limits it has ``retries`` and ``timeout``.
        limits: See :class:`millrace.LookupOptions`.

    Raises:
        InputError: It is no function.
        OptionError: A setting is out of its range, or of no use for a scan.
    """
    if not callable(fn):
        raise InputError(f"a lookup by function got a {type(fn).__name__}, not a function")
    if type(scan) is not bool:
        raise OptionError(f"scan is {scan!r}, expected True or False")
    own = getattr(fn, "__qualname__", type(fn).__qualname__)
    check_options("millrace.function", limits, settings_of(function, LookupOptions))
    if scan and (idle := sorted(limits.keys() - _OF_A_SCAN)):
        raise OptionError(
            f"millrace.function: {', '.join(idle)} would do nothing with scan=True, which asks for no keys: "
            f"expected {' and '.join(_OF_A_SCAN)} alone"
        )
    return FunctionSource(fn, name or own, Terms(**limits), scan, identity_of(fn, name or own))


class FunctionSession:
    """An open :class:`FunctionSource`."""

    def __init__(self, source: FunctionSource, schema: pa.Schema, columns: tuple[str, ...]) -> None:
        self._source = source
        self._columns = columns
        self._reader = RowReader(schema, columns, _RULES)
        self._threads = Threads(f"function {source.name}")

    async def fetch(self, keys: pa.RecordBatch) -> pa.RecordBatch:
        """Ask for some keys; see :meth:`millrace.lookups.source.Session.fetch`."""
        many = self._source.terms.batch > 1
        lists = [keys.column(name).to_pylist() for name in self._columns]
        arguments = lists if many else [values[0] for values in lists]
        key = {} if many else {name: keys.column(name)[0] for name in self._columns}
        return self._read_rows(await self._finish(self._call_whole(arguments)), key)

    async def scan(self) -> AsyncGenerator[pa.RecordBatch, None]:
        """Return all rows; see :meth:`millrace.lookups.source.Session.scan`."""
        returned = await self._finish(self._call([], lambda returned: returned))
        step: Callable[[], Awaitable[list[Any]]]
        end: Callable[[], Awaitable[Any]] | None = None
        if inspect.isasyncgen(returned):
            step, end = partial(_take_async, returned), returned.aclose
        else:
            steps = returned if isinstance(returned, Iterator) else iter(_split(returned))
            step = partial(self._threads.run, partial(_take, steps))
            if inspect.isgenerator(returned):
                end = partial(self._threads.run, returned.close)
        try:
            while pieces := await self._finish(step()):
                batch = self._read_rows(pieces, {})
                yield batch
        finally:
            if end is not None:
                with suppress(Exception):  # it is read or broken, and not wanted any more
                    await end()

    async def close(self) -> None:
        """Let go of the threads."""
        self._threads.close()

    async def _call(self, arguments: list[Any], take: Callable[[Any], Any]) -> Any:
        """Call the function; return what ``take`` makes of what it returns, in the same thread."""
        fn = self._source.fn
        if is_coroutine(fn) or inspect.isasyncgenfunction(fn):
            returned = fn(*arguments)
        else:
            returned = await self._threads.run(lambda: take(fn(*arguments)))
        if inspect.isawaitable(returned):
            returned = await returned
            if isinstance(returned, Iterator):
                return await self._threads.run(lambda: take(returned))
        return returned

    async def _call_whole(self, arguments: list[Any]) -> list[Any]:
        returned = await self._call(arguments, _exhaust)
        return [each async for each in returned] if inspect.isasyncgen(returned) else _split(returned)

    async def _finish(self, work: Awaitable[Any]) -> Any:
        """Wait for a call of the function; what it raises is a :class:`Refused`."""
        try:
            return await work
        except Refused:
            raise
        except Exception as error:
            name = type(error).__name__
            said = shortened(f"{self._source.describe()}: {name}: {error}")
            raise Refused(name, said, again=True) from error

    def _read_rows(self, pieces: list[Any], key: Mapping[str, Any]) -> pa.RecordBatch:
        """Return pieces, each a row, a list of rows or a table, as rows of the schema."""
        batches: list[pa.RecordBatch] = []
        rows: list[Any] = []
        try:
            for piece in pieces:
                table = _read_table(piece)
                if table is not None:
                    frame = _is_frame(piece)
                    batches.append(self._reader.read_table(table, key, pandas=frame))
                elif isinstance(piece, Mapping | tuple):
                    rows.append(piece)
                elif isinstance(piece, list):
                    rows.extend(piece)
                elif piece is not None:
                    raise _refuse(piece)
            if rows or not batches:
                batches.append(self._reader.batch(rows, key))
        except Unfit as error:
            said = shortened(f"{self._source.describe()}: {error}")
            raise Refused("unfit answer", said) from None
        return joined(batches)


class _Yielded(list[Any]):
    """Pieces that were yielded one by one."""


def _exhaust(returned: Any) -> Any:
    return _Yielded(returned) if isinstance(returned, Iterator) else returned


def _split(returned: Any) -> list[Any]:
    """Return what a function returned as pieces: a list may be one of rows, or one of tables."""
    if isinstance(returned, _Yielded):
        return returned
    if isinstance(returned, list) and returned and _read_table(returned[0]) is not None:
        return returned
    return [] if returned is None else [returned]


def _refuse(piece: Any) -> Unfit:
    return Unfit(
        "expected None, a dict, a list of dicts or tuples, a PyArrow table or a DataFrame, got "
        f"{shown(piece)}"
    )


def _is_frame(piece: Any) -> bool:
    return type(piece).__module__.partition(".")[0] == "pandas"


def _read_table(piece: Any) -> pa.Table | None:
    """Return a piece as a table, if it is one in some form."""
    if isinstance(piece, pa.Table):
        return piece
    if isinstance(piece, pa.RecordBatch):
        return pa.Table.from_batches([piece])
    if _is_frame(piece) and hasattr(piece, "columns"):
        return pa.Table.from_pandas(piece, preserve_index=False)
    return None


def _count(piece: Any) -> int:
    return 1 if isinstance(piece, Mapping | tuple) or not hasattr(piece, "__len__") else len(piece)


def _take(steps: Iterator[Any]) -> list[Any]:
    """Return the next pieces of a generator, enough for a batch; none at its end."""
    pieces, rows, began = [], 0, time.monotonic()
    for piece in steps:
        pieces.append(piece)
        rows += _count(piece)
        if rows >= SCAN_ROWS or time.monotonic() - began >= SCAN_SECONDS:
            break
    return pieces


async def _take_async(steps: AsyncIterator[Any]) -> list[Any]:
    pieces, rows, began = [], 0, time.monotonic()
    async for piece in steps:
        pieces.append(piece)
        rows += _count(piece)
        if rows >= SCAN_ROWS or time.monotonic() - began >= SCAN_SECONDS:
            break
    return pieces
