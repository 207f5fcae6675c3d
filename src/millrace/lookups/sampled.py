"""Asking a source for a sample of keys, in this process, before a query does: what its answers take."""

from __future__ import annotations

import math
import threading
from dataclasses import replace

import pyarrow as pa

from millrace.limits.client import Client
from millrace.limits.clock import WallClock
from millrace.limits.lookup_session import LookupSession
from millrace.limits.secrets import Secrets
from millrace.lookups.index import LookupIndex
from millrace.lookups.loop import Loop
from millrace.lookups.table import IndexSpec
from millrace.predicates.estimate import LookupEstimate


def estimate_of(spec: IndexSpec, keys: pa.RecordBatch, least: int, most: int) -> LookupEstimate:
    """Ask for some keys on the lookup's own terms, and return what many are expected to take.

    Its cache has the answers then. What the index does on errors does not matter here: failed keys are
    counted. ``keys`` are distinct, without nulls; ``least`` and ``most`` say how many there will be.

    Raises:
        InputError: A secret has no value in this process's environment, or the cache cannot be used.
        BudgetError: The lookup's budget is not enough for the sample.
        ExecutionError: The source does not answer at all.
    """
    secrets = Secrets.of_environment(spec.source.secrets, f"lookup {spec.name!r}")
    session = LookupSession(spec.registration(secrets))
    rows = 0

    async def connect() -> Client:
        return Client.local(session)

    def keep(found: pa.RecordBatch) -> pa.RecordBatch:
        nonlocal rows
        rows += found.num_rows
        return found

    loop, woken = Loop(), threading.Event()
    index = LookupIndex(replace(spec, on_error="skip"), keep, loop, connect, WallClock())
    index.wake_by(woken)
    try:
        index.submit(keys)
        while index.pending:
            index.poll()
            woken.wait(0.05)
            woken.clear()
        index.close()
        progress, spending = session.progress(), session.permits.spending
        made = index.figures()
    finally:
        loop.close()
        session.close()
    terms, asked = spec.source.terms, max(1, progress.requests)
    requests = math.ceil(most / terms.batch)
    seconds = requests * made.seconds / asked / terms.max_in_flight
    if terms.per_second is not None:
        seconds = max(seconds, requests / terms.per_second)
    return LookupEstimate(
        spec.name,
        (least, most),
        keys.num_rows,
        requests,
        seconds / 60,
        requests * spending.cost / asked,
        rows / max(1, keys.num_rows - progress.failed),
        progress.failed,
        progress.cached,
    )
