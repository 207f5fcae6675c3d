"""Standing queries: what each wants of the join that it shares with others, and which of them stand.

Queries come and go by changes. These come to a cell as tuples do, as one more source, so that a micro-batch
that is run again has the same queries. They commute: a change may overtake another, may come again, and one
whose file is damaged never comes.

Queries lie in files and in checkpoints, where no pickle should. Constants are written as Arrow writes them,
so that they come back with their types to the bit.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import Any, Literal as OneOf

import pyarrow as pa

from millrace.engine.lineage import BITS
from millrace.engine.plan.expressions import (
    And,
    Column,
    ColumnRef,
    Compare,
    InList,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
    Predicate,
    Truth,
    columns_of,
    relations_of,
    show,
)
from millrace.errors import InputError, StateError
from millrace.limits.chunk import decoded, encoded

FORMAT = 2
"""Version of changes and registries."""

ENVELOPE = pa.schema({"query": pa.int64(), "change": pa.int64(), "rows": pa.int64(), "block": pa.binary()})
"""What cells give out: a block of a query's rows; or, without one, the number of a change that is made."""

Since = OneOf["now", "window"]
State = OneOf["waiting", "running", "leaving"]


@dataclass(frozen=True)
class StandingQuery:
    """A query over the hub's join.

    Attributes:
        id: Its number, which no other query of the hub ever has.
        name: Its name among those that stand.
        select: Its columns, as they were given.
        where: Its conditions, as they were given; None for none.
        since: Whether it begins with the tuples that arrive from now on, or with those of the window.
        sink: The folder that its rows are written to; None for a function.
        state: ``"waiting"`` until a micro-batch begins with it, then ``"running"``; ``"leaving"`` until one
            goes on without it.
        filters: Its conditions over one relation, each an AND of nothing else.
        residuals: Its conditions over several relations.
        columns: Where the columns of its result come from.
        schema: These columns.
    """

    id: int
    name: str
    select: str
    where: str | None
    since: Since
    sink: str | None = None
    state: State = "waiting"
    _: KW_ONLY
    filters: tuple[Predicate, ...] = field(repr=False)
    residuals: tuple[Predicate, ...] = field(repr=False)
    columns: tuple[ColumnRef, ...] = field(repr=False)
    schema: pa.Schema = field(repr=False)

    def of(self, alias: str) -> tuple[Predicate, ...]:
        """Return its conditions over a relation alone."""
        return tuple(each for each in self.filters if relations_of(each) == {alias})

    @property
    def reads(self) -> frozenset[ColumnRef]:
        """The columns that have to be in a result of the join for it."""
        return frozenset((*self.columns, *(ref for p in self.residuals for ref in columns_of(p))))


@dataclass(frozen=True)
class Change:
    """A query that comes, or goes.

    Attributes:
        number: Its place among all changes of a hub, from 1; a query that comes has it too.
        query: What comes; None where one goes.
        gone: The number of the query that goes; None where one comes.
    """

    number: int
    query: StandingQuery | None = None
    gone: int | None = None


@dataclass(frozen=True)
class Admitted:
    """A query that stands, as a cell sees it.

    Attributes:
        slot: The place of its bit in lineages.
        batch: Number of the micro-batch that it came with, counted by the cell.
        watermark: Of that micro-batch, microseconds; None while there was none.
    """

    query: StandingQuery
    slot: int
    batch: int
    watermark: int | None


@dataclass(frozen=True)
class Registry:
    """The queries of a cell after some changes.

    Attributes:
        newest: Number of the newest change that has come.
        missing: Numbers below it of changes that have not come, and are still to be made if they do. That of
            a query that went before it came is not among them.
        queries: Those that stand.
        words: Of a lineage.
        last: The slot that was given last. They are given in turn, so that one is not soon another's.
    """

    newest: int = 0
    missing: tuple[int, ...] = ()
    queries: tuple[Admitted, ...] = ()
    words: int = 1
    last: int = -1

    @property
    def made(self) -> list[int]:
        """The numbers of all changes that make no difference any more; each change that does adds some."""
        missing = set(self.missing)
        return [number for number in range(1, self.newest + 1) if number not in missing]

    def after(self, changes: Iterable[Change], batch: int, watermark: int | None) -> Registry:
        """Return the registry after further changes, in any order; one that has come before is none.

        ``batch`` is the micro-batch that they come with; its watermark is in microseconds.
        """
        registry = self
        for change in sorted(changes, key=lambda each: each.number):
            registry = registry._changed(change, batch, watermark)
        return registry

    def _changed(self, change: Change, batch: int, watermark: int | None) -> Registry:
        missing = {*self.missing, *range(self.newest + 1, change.number + 1)}
        if change.number not in missing:
            return self
        left = tuple(sorted(missing - {change.number, change.gone}))
        registry = replace(self, newest=max(self.newest, change.number), missing=left)
        if change.query is None:
            return replace(registry, queries=tuple(q for q in self.queries if q.query.id != change.gone))
        words = max(self.words, len(self.queries) // BITS + 1)
        slots = {each.slot for each in self.queries}
        turn = (slot % (words * BITS) for slot in range(self.last + 1, self.last + 1 + words * BITS))
        slot = next(slot for slot in turn if slot not in slots)
        came = Admitted(change.query, slot, batch, watermark)
        return replace(registry, queries=(*self.queries, came), words=words, last=slot)


_NODES = (And, Column, ColumnRef, Compare, IsNull, Like, Not, Or, Truth)
_CLASSES = {each.__name__: each for each in (*_NODES, StandingQuery, Change, Admitted, Registry)}
"""What is written field by field."""


def to_text(node: Change | Registry) -> str:
    """Return a change or a registry as JSON.

    Raises:
        InputError: A condition calls a function, or looks for matches.
    """
    return json.dumps({"format": FORMAT, "value": encode(node)}, separators=(",", ":"))


def from_json(fields: Mapping[str, Any], what: str) -> Any:
    """Return what :func:`to_text` was given; ``what`` names it in an error.

    Raises:
        StateError: Another version wrote it.
    """
    check_format(fields, what)
    return decode(fields["value"])


def check_format(fields: Mapping[str, Any], what: str) -> None:
    """Raise StateError unless this version wrote it."""
    if fields.get("format") != FORMAT:
        raise StateError(
            f"{what}: found format {fields.get('format')}, and this version of Millrace reads {FORMAT}: "
            "go on with the version that wrote it, or begin with an empty checkpoint folder"
        )


def encode(node: Any) -> Any:
    """Return a predicate, or what has some, as JSON; raises as :func:`to_text`."""
    match node:
        case None | int() | str():
            return node
        case tuple():
            return [encode(each) for each in node]
        case pa.Schema():
            return {"is": "schema", "of": _write(node.empty_table())}
        case pa.DataType():
            return {"is": "type", "of": _write(pa.schema({"v": node}).empty_table())}
        case Literal(value, kind):
            return {"is": "literal", "of": _write(pa.table({"v": pa.array([value], kind)}))}
        case InList(operand, values, kind):
            constants = pa.table({"v": pa.array(values, kind)})
            return {"is": "list", "operand": encode(operand), "of": _write(constants)}
    name = type(node).__name__
    if name not in _CLASSES:
        raise InputError(f"a standing query cannot have the condition {show(node)}: expected comparisons")
    return {"is": name, **{each.name: encode(getattr(node, each.name)) for each in fields(node)}}


def decode(node: Any) -> Any:
    """Return what :func:`encode` was given."""
    match node:
        case {"is": "schema", "of": text}:
            return _read(text).schema
        case {"is": "type", "of": text}:
            return _read(text).schema.field(0).type
        case {"is": "literal", "of": text}:
            constants = _read(text).column(0)
            return Literal(*_values(constants), constants.type)
        case {"is": "list", "operand": operand, "of": text}:
            constants = _read(text).column(0)
            return InList(decode(operand), _values(constants), constants.type)
        case {"is": name, **parts}:
            return _CLASSES[name](**{str(part): decode(each) for part, each in parts.items()})
        case [*nodes]:
            return tuple(map(decode, nodes))
    return node


def read_json(text: str | bytes) -> Any:
    """Return the JSON of a file; None for a file that a failure of the machine left empty or cut off."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _write(rows: pa.Table) -> str:
    return base64.b64encode(encoded(rows)).decode()


def _read(text: str) -> pa.Table:
    return decoded(base64.b64decode(text))


def _values(constants: pa.ChunkedArray) -> tuple[Any, ...]:
    """Return constants as conditions have them: instants as numbers, for Python has none after year 9999."""
    is_instant = pa.types.is_timestamp(constants.type)
    return tuple((constants.cast(pa.int64()) if is_instant else constants).to_pylist())
