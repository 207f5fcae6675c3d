"""Standing queries: what each wants of the join that it shares with others, and which of them stand.

Queries come and go by changes. These come to a cell as tuples do, as one more source, so that a micro-batch
that is run again has the same queries. Each says which queries stand from then on, and may bring one: so a
change may overtake another, may come again, and one whose file is damaged never comes. That takes a few
bytes for each of them; of differences alone, cells would have to know for ever which queries have gone.

Queries lie in files and in checkpoints, where no pickle should. Constants are written as Arrow writes them,
so that they come back with their types to the bit.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
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
from millrace.errors import InputError
from millrace.limits.chunk import decoded, encoded

_WHOLE = pa.int64()
ENVELOPE = pa.schema(
    {"query": _WHOLE, "rows": _WHOLE, "block": pa.binary(), "lost": pa.string(), "made": pa.list_(_WHOLE)}
)
"""What cells give out: how many rows a query has, and these in a block if they go to a function; why the last
rows of one that leaves are lost; or the number of the newest change that is made, and behind it those of the
queries that run."""

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
        conditions: Its own ones, each over one relation or several.
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
    conditions: tuple[Predicate, ...] = field(repr=False)
    columns: tuple[ColumnRef, ...] = field(repr=False)
    schema: pa.Schema = field(repr=False)

    def select_conditions(self, alias: str) -> tuple[Predicate, ...]:
        """Return its conditions over a relation alone."""
        return tuple(each for each in self.conditions if relations_of(each) == {alias})

    @property
    def residuals(self) -> tuple[Predicate, ...]:
        """Its conditions over several relations."""
        return tuple(each for each in self.conditions if len(relations_of(each)) > 1)

    @property
    def reads(self) -> frozenset[ColumnRef]:
        """The columns that have to be in a result of the join for it."""
        return frozenset((*self.columns, *(ref for p in self.residuals for ref in columns_of(p))))


@dataclass(frozen=True)
class Change:
    """One change of a hub's queries.

    Attributes:
        number: Its place among all changes, from 1; a query that comes has it too.
        stand: The numbers of the queries that stand after it.
        query: The one that comes; None where one goes.
    """

    number: int
    stand: tuple[int, ...] = ()
    query: StandingQuery | None = None


@dataclass(frozen=True)
class Admitted:
    """A query that stands, as a cell sees it.

    Attributes:
        slot: The place of its bit in lineages.
        batch: Number of the micro-batch that it came with, counted by the cell.
        watermark: Of that micro-batch, microseconds; 0 while there was none.
    """

    query: StandingQuery
    slot: int
    batch: int
    watermark: int


@dataclass(frozen=True)
class Registry:
    """The queries of a cell after some changes.

    Attributes:
        newest: The newest change that has come. Of the queries that stand after it some may be to come.
        queries: Those that have come.
        words: Of a lineage.
        last: The slot that was given last. They are given in turn, so that one is not soon another's.
    """

    newest: Change = Change(0)
    queries: tuple[Admitted, ...] = ()
    words: int = 1
    last: int = -1

    def apply(self, changes: Sequence[Change], batch: int, watermark: int) -> Registry:
        """Return the registry after further changes, in any order; some may have come before.

        ``batch`` is the micro-batch that they come with; its watermark is in microseconds.
        """
        newest = max((self.newest, *changes), key=lambda change: change.number)
        stand = set(newest.stand)
        queries = [each for each in self.queries if each.query.id in stand]
        came = {each.query.id: each.query for each in changes if each.query is not None}
        words, last = self.words, self.last
        for id_ in sorted(came.keys() & stand - {each.query.id for each in queries}):
            words = max(words, len(queries) // BITS + 1)
            slots = {each.slot for each in queries}
            turn = (slot % (words * BITS) for slot in range(last + 1, last + 1 + words * BITS))
            last = next(slot for slot in turn if slot not in slots)
            queries.append(Admitted(came[id_], last, batch, watermark))
        return Registry(newest, tuple(queries), words, last)


_NODES = (And, Column, ColumnRef, Compare, IsNull, Like, Not, Or, Truth)
_CLASSES = {each.__name__: each for each in (*_NODES, StandingQuery, Change, Admitted, Registry)}
"""What is written field by field."""


def to_text(node: Change | Registry) -> str:
    """Return a change or a registry as JSON; raises InputError for a condition that calls a function."""
    return json.dumps(encode(node), separators=(",", ":"))


def read_text(text: str | bytes) -> Any:
    """Return what JSON says, and False for a file that a failure of the machine left empty or cut off."""
    try:
        return decode(json.loads(text))
    except ValueError:
        return False


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
            return Literal(_to_values(constants)[0], constants.type)
        case {"is": "list", "operand": operand, "of": text}:
            constants = _read(text).column(0)
            return InList(decode(operand), _to_values(constants), constants.type)
        case {"is": name, **parts}:
            return _CLASSES[name](**{str(part): decode(each) for part, each in parts.items()})
        case [*nodes]:
            return tuple(map(decode, nodes))
    return node


def _write(rows: pa.Table) -> str:
    return base64.b64encode(encoded(rows)).decode()


def _read(text: str) -> pa.Table:
    return decoded(base64.b64decode(text))


def _to_values(constants: pa.ChunkedArray) -> tuple[Any, ...]:
    """Return constants as conditions have them: instants as numbers, for Python has none after year 9999."""
    is_instant = pa.types.is_timestamp(constants.type)
    return tuple((constants.cast(pa.int64()) if is_instant else constants).to_pylist())
