"""One index of a lookup table, as it travels to the tasks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Literal

import pyarrow as pa

from millrace.limits.registration import Registration
from millrace.limits.secrets import Secrets
from millrace.lookups.source import Source

OnError = Literal["fail", "skip", "null"]
ON_ERROR: tuple[str, ...] = ("fail", "skip", "null")


@dataclass(frozen=True)
class IndexSpec:
    """An index: bind columns of a lookup table, and the source that is asked with values of them.

    Attributes:
        columns: The bind columns.
        schema: All columns of the table, in the types of its rows.
        on_error: What a key comes to that cannot be looked up: ``"fail"`` fails the query, ``"skip"`` takes
            it to have no rows, ``"null"`` to have one row whose other columns are null.
        cache: Where rows outlive the job: a folder, or a ``.sqlite`` file; None for nowhere.
        ttl: Seconds for which they do; None for ever.
    """

    name: str
    columns: tuple[str, ...]
    schema: pa.Schema
    source: Source
    on_error: OnError = "fail"
    cache: Path | None = None
    ttl: float | None = None

    @property
    def keys(self) -> pa.Schema:
        """The bind columns with their types."""
        return pa.schema([self.schema.field(column) for column in self.columns])

    def fingerprint(self, secrets: Secrets) -> str:
        """Return what rows in a cache are known by: they are those of this source, asked for these columns.

        Every secret of the request counts, wherever it stands: a service may answer each of its clients in
        another way. So a new password makes a new cache.
        """
        parts = [self.source.identity, *map(str, (self.columns, self.schema.names, self.schema.types))]
        parts += [secrets.values()[name] for name in self.source.secrets]
        return blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()

    def registration(self, secrets: Secrets, *, stream: bool = False) -> Registration:
        """Return what the planning process registers for this index; answers to a stream outlive its jobs."""
        needed = {name: value for name, value in secrets.values().items() if name in self.source.secrets}
        fingerprint = self.fingerprint(secrets) if stream or self.cache is not None else ""
        terms = self.source.terms
        return terms.registration(self.name, Secrets(needed), fingerprint, self.cache, self.ttl)
