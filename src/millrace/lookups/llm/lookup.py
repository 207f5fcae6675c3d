"""A language model as a lookup: what it reads out of each row's values, in declared columns."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
from pyarrow import types as t

from millrace.errors import OptionError
from millrace.limits.secrets import Secrets
from millrace.lookups.llm.endpoint import Endpoint, Model, Prompt, make_object_schema
from millrace.lookups.rows import RowReader, check_schema
from millrace.lookups.source import Answered, Refused, check_mentions
from millrace.lookups.terms import Terms
from millrace.lookups.values import Rules, Unfit, has_decimals

_SYSTEM = (
    "You extract data. Answer each with one JSON object with exactly the asked fields; null where the text "
    "does not say."
)


@dataclass(frozen=True)
class ModelSource:
    """A model that is asked for rows, one for each key; made by :func:`millrace.models.lookup`."""

    kind: ClassVar[str] = "llm"
    can_scan: ClassVar[bool] = False

    model: Model
    prompt: Prompt
    terms: Terms

    @property
    def secrets(self) -> tuple[str, ...]:
        return self.model.secrets

    def describe(self) -> str:
        return self.model.describe()

    @property
    def identity(self) -> str:
        """What it asks, as text without secrets."""
        # Answers that were paid for are kept under it: it outlives names of functions.
        return f"llm_lookup {self.model.asks} {self.prompt.text}"

    def check(self, schema: pa.Schema, columns: tuple[str, ...], secrets: Secrets) -> None:
        """Check what is declared, without a request; see :meth:`millrace.lookups.source.Source.check`."""
        check_schema(schema, columns)
        if not columns:
            raise OptionError(f"{self.describe()} is no scan: bind the columns of its prompt")
        check_mentions("the prompt", self.prompt.columns, columns, "it")

    def open(self, schema: pa.Schema, columns: tuple[str, ...], secrets: Secrets) -> ModelSession:
        """Return a session; it connects with its first request."""
        return ModelSession(self, schema, columns, secrets)


class ModelSession:
    """An open :class:`ModelSource`."""

    def __init__(
        self, source: ModelSource, schema: pa.Schema, columns: tuple[str, ...], secrets: Secrets
    ) -> None:
        self._source = source
        self._schema = schema
        self._wanted = pa.schema([field for field in schema if field.name not in columns])
        self._reader = RowReader(self._wanted, (), Rules(absent="null", scrub=secrets.scrub))
        exact = any(map(has_decimals, self._wanted.types))
        self._endpoint = Endpoint(source.model, secrets, source.terms.max_in_flight, exact=exact)
        self._item = make_object_schema({field.name: _json_type(field.type) for field in self._wanted})
        self._system = f"{_SYSTEM} The fields: {', '.join(f'{f.name} ({f.type})' for f in self._wanted)}."

    async def fetch(self, keys: pa.RecordBatch) -> Answered:
        """Ask for some keys; see :meth:`millrace.lookups.source.Session.fetch`."""
        questions = list(map(self._source.prompt.fill, keys.to_pylist()))
        rows, usage = await self._endpoint.ask(self._system, questions, self._item)
        if not all(isinstance(row, dict) for row in rows):
            raise self._endpoint.unfit("an answer is no object", usage)
        try:
            found = self._reader.batch(rows)
        except Unfit as error:
            raise self._endpoint.unfit(str(error), usage) from None
        columns = [
            keys.column(name) if name in keys.schema.names else found.column(name)
            for name in self._schema.names
        ]
        return Answered(pa.RecordBatch.from_arrays(columns, schema=self._schema), usage)

    def scan(self) -> AsyncGenerator[pa.RecordBatch, None]:
        """Never called: it cannot scan."""
        raise Refused("no scan", f"{self._source.describe()} is no scan")

    async def close(self) -> None:
        await self._endpoint.close()


def _json_type(kind: pa.DataType) -> dict[str, Any]:
    """Return the JSON schema of a value that may be null."""
    if t.is_list(kind):
        return {"type": ["array", "null"], "items": _json_type(kind.value_type)}
    if t.is_struct(kind):
        fields = {field.name: _json_type(field.type) for field in kind.fields}
        return {**make_object_schema(fields), "type": ["object", "null"]}
    if t.is_map(kind):
        return {"type": ["object", "null"], "additionalProperties": _json_type(kind.item_type)}
    if t.is_decimal(kind):
        return {"type": ["number", "string", "null"]}
    if t.is_boolean(kind):
        return {"type": ["boolean", "null"]}
    if t.is_integer(kind):
        return {"type": ["integer", "null"]}
    return {"type": ["number", "null"]} if t.is_floating(kind) else {"type": ["string", "null"]}
