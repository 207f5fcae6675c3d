"""Relations of a block: which can be taken, their columns, and the inputs made of them."""

# ruff: noqa: S608  # SQL is what this module writes

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf
from sqlglot import exp

from millrace.block import FrameInput, ParquetInput
from millrace.front.coercion import Field, field_of
from millrace.front.conjuncts import Sorted, volatile
from millrace.front.context import Context
from millrace.front.from_clause import Link
from millrace.front.leave import Leave
from millrace.front.names import Source
from millrace.front.tables import by_name
from millrace.front.texts import plain_quote, quote
from millrace.spec import RelationSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SIZE = re.compile(r"sizeInBytes=([\d.E+]+) (\w+)(?:, rowCount=([\d.E+]+))?")
_UNITS = {unit: 1024**i for i, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"))}
# Where Spark knows nothing it takes 8 EiB, or what is left of these after a projection or a filter.
_UNKNOWN_BYTES = 1 << 50


@dataclass(eq=False)
class Member:
    """A relation that a block may take.

    Attributes:
        alias: Its name in the block, as the query writes it.
        fields: Its columns in order.
        frame: All its rows, when Spark has analysed it by itself already.
    """

    alias: str
    link: Link
    source: Source
    fields: tuple[Field, ...]
    frame: DataFrame | None = None

    def field(self, lower: str) -> Field:
        """Return a column by its lower-case name."""
        return self._by_name[lower]

    def shows(self, lower: str) -> bool:
        """Tell whether its column of that name is seen by unqualified names."""
        return lower in self._by_name and lower not in self.source.hidden

    def __post_init__(self) -> None:
        self._by_name = by_name(self.fields)


def member_of(context: Context, link: Link) -> Member:
    """Return the relation of an inner link.

    Raises:
        Leave: It has a form that only Spark handles.
    """
    if link.fixed or len(link.sources) != 1:
        raise Leave("a parenthesised join")
    source = link.sources[0]
    node = source.node
    shown = context.shown(link.item)
    if node.args.get("sample"):
        raise Leave(f"TABLESAMPLE of {shown}")
    if source.kind == "opaque" or source.alias is None:
        raise Leave(f"{shown} is a relation that only Spark evaluates")
    if source.kind == "table":
        assert source.table is not None
        if node.args.get("when") or node.args.get("version"):
            raise Leave(f"{shown} is a version of a table")
        frame, fields = None, source.table.fields
    else:
        frame = _derived_frame(context, link, source, shown)
        fields = tuple(field_of(column) for column in frame.schema.fields)
        context.resolver.known[id(source)] = by_name(fields)
    if len(by_name(fields)) != len(fields):
        raise Leave(f"{shown} has two columns of one name")
    alias = node.alias or node.name
    return Member(alias, link, source, fields, frame)


def _derived_frame(context: Context, link: Link, source: Source, shown: str) -> DataFrame:
    """Return a derived table or common table expression as a DataFrame of its own."""
    node = source.node
    short = shown if len(shown) <= 40 else shown[:37] + "..."
    if any(volatile(part) for part in (node, *context.definitions(node))):
        raise Leave(f"{short} may give other rows when it runs again")
    if isinstance(node, exp.Subquery) and context.escapes(node):
        raise Leave(f"{short} reads columns of the query around it")
    prefix = context.with_prefix(node)
    try:
        frame = context.frames.rows(f"{prefix}SELECT * FROM {context.text.render(*link.item)}")
        frame.schema  # noqa: B018  # Spark Connect analyses only now
    except PySparkException as error:
        raise Leave(f"{short} cannot be analysed by itself ({_first_line(error)})") from None
    return frame


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]


def input_of(
    context: Context, member: Member, columns: list[Field], found: Sorted
) -> tuple[RelationSpec, ParquetInput | FrameInput, str]:
    """Return the relation's spec, its input, and the filters that Spark applies in its scan.

    ``columns`` are those that the block reads or gives out, in the relation's order.

    Raises:
        Leave: A column has a type that a block cannot carry.
    """
    table = member.source.table
    if table is not None and table.parquet is not None and member.alias not in found.spark_only:
        schema = schema_of(member, columns)
        filters = tuple(dict.fromkeys(found.filters.get(member.alias, ())))
        direct = ParquetInput(table.parquet, tuple(schema.names), filters)
        return RelationSpec(member.alias, schema, rows=table.parquet.rows), direct, ""
    if not columns:
        # Spark needs a column to send; the narrowest that can be sent will do.
        carried = [f for f in member.fields if f.arrow is not None]
        if not carried:
            raise Leave(f"no column of {member.alias} can pass through a join here")
        columns = [min(carried, key=_width)]
    schema = schema_of(member, columns)
    where = " AND ".join(found.texts.get(member.alias, ()))
    try:
        frame = _scan(context, member, columns, where)
    except PySparkException as error:
        raise Leave(f"{member.alias} cannot be read by itself ({_first_line(error)})") from None
    rows, size = estimate(context, frame)
    return RelationSpec(member.alias, schema, rows=rows), FrameInput(frame, size), where


def _scan(context: Context, member: Member, columns: list[Field], where: str) -> DataFrame:
    """Return a relation's columns as a DataFrame, filtered by Spark."""
    # PySpark's mapInArrow looks columns up by name and stumbles over dots and backquotes; the
    # relation's columns go by position, so the DataFrame may call them differently.
    names = [f.name if f.name.isidentifier() else f"__c{place}" for place, f in enumerate(columns)]
    if member.frame is not None and not where:
        pairs = zip(columns, names, strict=True)
        return member.frame.select(*(sf.col(plain_quote(f.name)).alias(name) for f, name in pairs))
    pairs = zip(columns, names, strict=True)
    wanted = ", ".join(f"{quote(f.name)} AS {quote(name)}" for f, name in pairs)
    item = context.text.render(*member.link.item)
    text = f"{context.with_prefix(member.source.node)}SELECT {wanted} FROM {item}"
    if where:
        text += f" WHERE {where}"
    return context.frames.rows(text)


def frame_input(
    context: Context, member: Member, frame: DataFrame, where: str
) -> tuple[FrameInput, int | None]:
    """Return rows of a relation's columns, filtered by Spark, and how many these are by its estimate."""
    names = [f.name if f.name.isidentifier() else f"__c{place}" for place, f in enumerate(member.fields)]
    pairs = zip(member.fields, names, strict=True)
    wanted = ", ".join(f"{quote(f.name)} AS {quote(name)}" for f, name in pairs)
    text = f"SELECT {wanted} FROM {context.frames.place(frame, 't')} AS {quote(member.alias)}"
    made = context.frames.rows(text + (f" WHERE {where}" if where else ""))
    rows, size = estimate(context, made)
    return FrameInput(made, size), rows


def schema_of(member: Member, columns: list[Field]) -> pa.Schema:
    """Return columns of a relation in a block's types; Leave where a block cannot carry one."""
    for field in columns:
        if field.arrow is None:
            raise Leave(
                f"column {member.alias}.{field.name} has type {field.type.simpleString()}, "
                "which cannot pass through a join here"
            )
    return pa.schema([pa.field(f.name, f.arrow) for f in columns])


def _width(field: Field) -> int:
    assert field.arrow is not None
    try:
        return int(field.arrow.bit_width)
    except ValueError:
        return 1 << 20


def estimate(context: Context, frame: DataFrame) -> tuple[int | None, int | None]:
    """Return Spark's own estimate of a DataFrame's rows and bytes, None where it has none."""
    placeholder = context.frames.place(frame, "e")
    try:
        plan = context.frames.sql(f"EXPLAIN COST SELECT * FROM {placeholder}").collect()[0][0]
    except PySparkException:
        return None, None
    match = _SIZE.search(plan)
    if match is None:
        return None, None
    size = int(float(match[1]) * _UNITS.get(match[2], 1))
    if size > _UNKNOWN_BYTES:
        return None, None
    if match[3] is not None:
        return int(float(match[3])), size
    width = 8 + sum(_default_width(f) for f in map(field_of, frame.schema.fields))
    return max(1, size // width), size


def _default_width(field: Field) -> int:
    """Return what Spark takes a value of the type to need, in bytes."""
    if field.arrow is None or pa.types.is_nested(field.arrow):
        return 100
    width = _width(field)
    return 20 if width == 1 << 20 else max(1, width // 8)
