"""What this process, Spark's driver and its tasks reach: each other's files, object stores, the coordinator.

They may run on different machines, and tasks may have other credentials, or none. So each is tried once a
session, in the process that it is about.
"""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark.errors import PySparkException

from millrace.errors import MillraceError, first_line
from millrace.parquet.remote import NoConnection, Remote
from millrace.spark.failures import is_sparks
from millrace.spark.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_UNREACHED: WeakKeyDictionary[Any, dict[Remote, str | None]] = WeakKeyDictionary()
_SEEN: WeakKeyDictionary[SparkSession, dict[bool, bool]] = WeakKeyDictionary()


@dataclass(frozen=True)
class _Attempt:
    """Runs in a task."""

    attempt: Callable[[], str | None]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row: why it failed."""
        for _ in batches:
            pass  # Spark wants all to be read
        yield pa.RecordBatch.from_arrays([pa.array([self.attempt()], pa.string())], ["why"])


def tried(spark: SparkSession, attempt: Callable[[], str | None]) -> str | None:
    """Let a task try something, and return why that failed: what it says itself, or Spark of its job."""
    try:
        one = spark.range(0, 1, 1, 1).mapInArrow(_Attempt(attempt), "why string")
        return one.collect()[0][0]  # type: ignore[no-any-return]
    except Exception as error:
        if not is_sparks(error):
            raise
        return first_line(error)


def own_address(driver: str) -> str:
    """Return this machine's address on the way to Spark's driver."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((driver, 9))  # sends nothing: it only chooses the way
        return str(probe.getsockname()[0])


def unreached(spark: SparkSession, store: Remote, path: str) -> str | None:
    """Return why a store cannot be read directly, None where it can; each store is tried once a session.

    A task tries it too, unless storage options give the tasks all that this process has.

    Args:
        spark: The session.
        store: The store.
        path: Anything in it.
    """
    known = _UNREACHED.setdefault(spark, {})
    if store not in known:
        why = _why(store, path)
        known[store] = f"this process does not reach {store.root}: {why}" if why else None
        if why is None and not store.options:
            why = _why_tasks(spark, store, path)
            known[store] = f"tasks do not reach {store.root}: {why}" if why else None
    return known[store]


def _why(store: Remote, path: str) -> str | None:
    try:
        store.info(path)
    except (MillraceError, NoConnection) as error:
        return str(error)
    return None


def _why_tasks(spark: SparkSession, store: Remote, path: str) -> str | None:
    return tried(spark, partial(_why, store, path))


def shares_disks(spark: SparkSession) -> bool:
    """Return whether Spark's driver has this machine's files; a Spark Connect server may run elsewhere."""
    return not is_connect(spark) or _sees(spark, schemeless=False)


def paths_are_local(spark: SparkSession) -> bool:
    """Return whether Spark, too, takes a path without a scheme for one of this machine's files."""
    return _sees(spark, schemeless=True)


def _sees(spark: SparkSession, *, schemeless: bool) -> bool:
    """Tell whether Spark finds a new file of this machine; asked once a session."""
    known = _SEEN.setdefault(spark, {})
    if schemeless not in known:
        with tempfile.TemporaryDirectory(prefix="millrace-") as folder:
            file = Path(folder) / "seen.txt"
            file.touch()
            path = str(file) if schemeless else file.as_uri()
            try:
                found = spark.read.text(path).inputFiles()
            except PySparkException:
                found = []
        known[schemeless] = any(uri.startswith("file:") for uri in found)
    return known[schemeless]
