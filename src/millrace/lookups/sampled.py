"""Asking a source for a sample of keys, in this process, before a query does: what its answers take."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

import pyarrow as pa

from millrace.limits.client import Client
from millrace.limits.clock import WallClock
from millrace.limits.lookup_session import LookupSession
from millrace.limits.secrets import Secrets
from millrace.lookups.index import LookupIndex
from millrace.lookups.index_spec import IndexSpec
from millrace.lookups.loop import Loop
from millrace.predicates.estimate import LookupEstimate


@dataclass(frozen=True)
class Sampled:
    """What a sample of keys has taken.

    Attributes:
        keys: That were asked for.
        cached: Of these, known before from the lookup's cache.
        failed: Of these, without an answer.
        rows: That came.
        requests: That were made, repeated ones included.
        seconds: That all requests took together.
        cost: Of all requests.
    """

    keys: int
    cached: int
    failed: int
    rows: int
    requests: int
    seconds: float
    cost: float

    def of(self, spec: IndexSpec, least: int, most: int) -> LookupEstimate:
        """Return what so many keys are expected to take."""
        terms = spec.source.terms
        requests = math.ceil(most / terms.batch)
        made, answered = max(1, self.requests), max(1, self.keys - self.failed)
        seconds = requests * self.seconds / made / terms.max_in_flight
        if terms.per_second is not None:
            seconds = max(seconds, requests / terms.per_second)
        return LookupEstimate(
            spec.name,
            (least, most),
            self.keys,
            requests,
            seconds / 60,
            requests * self.cost / made,
            self.rows / answered,
            self.failed,
            self.cached,
        )


def sampled(spec: IndexSpec, keys: pa.RecordBatch) -> Sampled:
    """Ask for some keys on the lookup's own terms; its cache has the answers then.

    What the index does on errors does not matter here: failed keys are counted. Keys are distinct, without
    nulls.

    Raises:
        InputError: A secret has no value in this process's environment, or the cache cannot be used.
        BudgetError: The lookup's budget is not enough for the sample.
        ExecutionError: The source does not answer at all.
    """
    secrets = Secrets.of_environment(spec.source.secrets, f"lookup {spec.name!r}")
    session = LookupSession(spec.registration(secrets))
    rows = 0

    async def connected() -> Client:
        return Client.local(session)

    def keep(found: pa.RecordBatch) -> pa.RecordBatch:
        nonlocal rows
        rows += found.num_rows
        return found

    loop, woken = Loop(), threading.Event()
    asked = IndexSpec(**{**vars(spec), "on_error": "skip"})
    index = LookupIndex(asked, keep, loop, connected, WallClock())
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
    return Sampled(
        keys.num_rows,
        progress.cached,
        progress.failed,
        rows,
        progress.requests,
        made.seconds,
        spending.cost,
    )
