"""Asking a source in a test: opened, asked and closed in an event loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest

from millrace.limits.secrets import Secrets
from millrace.lookups.source import Refused
from tests.limits.running import PATIENCE


def keys_of(schema: pa.Schema, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Return keys in the schema's types."""
    return pa.RecordBatch.from_pylist(rows, pa.schema([schema.field(name) for name in columns]))


async def fetched(
    source,
    schema: pa.Schema,
    columns: tuple[str, ...],
    keys: list[dict[str, Any]],
    secrets: Secrets | None = None,
) -> pa.RecordBatch:
    """Open a source, ask once and close it."""
    session = source.open(schema, columns, secrets or Secrets())
    try:
        rows = await session.fetch(keys_of(schema, columns, keys))
    finally:
        await session.close()
    assert rows.schema == schema
    rows.validate(full=True)
    return rows


async def scanned(source, schema: pa.Schema, secrets: Secrets | None = None) -> list[pa.RecordBatch]:
    """Open a source, read everything and close it."""
    session = source.open(schema, (), secrets or Secrets())
    try:
        return [batch async for batch in session.scan()]
    finally:
        await session.close()


async def refusal(work: Awaitable[Any]) -> Refused:
    """Return the Refused that a request ends in."""
    with pytest.raises(Refused) as told:
        await work
    return told.value


async def ended(*names: str) -> None:
    """Wait until all threads have ended whose names begin with these."""
    for thread in threading.enumerate():
        if thread.name.startswith(names):
            await asyncio.to_thread(thread.join, PATIENCE)
            assert not thread.is_alive(), thread.name


def failing(call: Callable[[], Any], kind: type[Exception]) -> str:
    """Return the text of the error that a call ends in."""
    with pytest.raises(kind) as told:
        call()
    return str(told.value)
