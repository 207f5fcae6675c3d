"""Whether a store is reached from here and from the tasks, which may have other credentials, or none."""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from millrace.errors import MillraceError
from millrace.parquet.remote import NoConnection, Remote
from millrace.spark.attempts import tried

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KNOWN: weakref.WeakKeyDictionary[Any, dict[Remote, str | None]] = weakref.WeakKeyDictionary()


def unreached(spark: SparkSession, store: Remote, path: str) -> str | None:
    """Return why a store cannot be read directly, None where it can; each store is tried once a session.

    A task tries it too, unless storage options give the tasks all that this process has.

    Args:
        spark: The session.
        store: The store.
        path: Anything in it.
    """
    known = _KNOWN.setdefault(spark, {})
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
