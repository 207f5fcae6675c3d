"""Random blocks with data for them, and DuckDB's answer to compare with."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa
from hypothesis import strategies as st

from millrace.engine.expressions import Call, Column, ColumnRef, Compare, Predicate, show
from millrace.engine.spec import Equality, JoinSpec, OutputColumn, RelationSpec
from millrace.predicates import PredicateSpec

KEY_TYPES: tuple[pa.DataType, ...] = (
    pa.int64(),
    pa.int8(),
    pa.string(),
    pa.float64(),
    pa.float32(),
    pa.decimal128(9, 2),
    pa.decimal128(30, 4),
    pa.date32(),
    pa.timestamp("us", tz="UTC"),
    pa.timestamp("us"),
    pa.bool_(),
    pa.binary(),
)


def key_values(kind: pa.DataType) -> list[Any]:
    """Return a handful of values of the type, few enough to meet, with the nasty ones among them."""
    import datetime as dt
    import decimal

    if pa.types.is_boolean(kind):
        return [True, False]
    if pa.types.is_floating(kind):
        return [0.0, -0.0, math.nan, 1.5, math.inf, -2.0]
    if pa.types.is_decimal(kind):
        return [decimal.Decimal(v).scaleb(-kind.scale) for v in (-150, 0, 1, 100, 99999)]
    if pa.types.is_string(kind):
        return ["", "a", "A", "é", "a ", "ab", "a" * 40]
    if pa.types.is_binary(kind):
        return [b"", b"\x00", b"\x00\x01", b"\xff"]
    if pa.types.is_date32(kind):
        return [dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2026, 2, 28)]
    if pa.types.is_timestamp(kind):
        zone = dt.UTC if kind.tz else None
        return [
            dt.datetime(1960, 1, 1, tzinfo=zone),
            dt.datetime(2024, 3, 31, 1, 30, tzinfo=zone),
            dt.datetime(2024, 3, 31, 1, 30, 0, 1, tzinfo=zone),
        ]
    return [-128, -1, 0, 1, 2, 3, 127]


MACROS = "CREATE MACRO third(x, y := 0) AS ((x::HUGEINT + y) % 3 = 0)"
"""What the user's predicate of the cases is for DuckDB."""


def third(kind: str) -> PredicateSpec:
    """Return the user's predicate of the cases: whether its arguments' sum is a multiple of 3."""

    def rows(*values: int | None) -> bool | None:
        return None if None in values else sum(values) % 3 == 0  # type: ignore[arg-type]

    def arrays(*columns: pa.Array) -> pa.Array:
        return pa.array(list(map(rows, *(c.to_pylist() for c in columns))), pa.bool_())

    return PredicateSpec("third", rows if kind == "row" else arrays, kind)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Case:
    """A block and the tables it reads."""

    spec: JoinSpec
    tables: dict[str, pa.Table]

    def sql(self) -> str:
        """Return the block as a query for DuckDB."""
        items = ", ".join(f'{o.source} AS "{o.name}"' for o in self.spec.output)
        if self.spec.count_only:
            items = "count(*) AS __count"
        tables = ", ".join(
            f"(SELECT DISTINCT * FROM t_{r.alias}) {r.alias}" if r.distinct else f"t_{r.alias} {r.alias}"
            for r in self.spec.relations
        )
        conjuncts = [str(e) for e in self.spec.equalities] + [f"({show(p)})" for p in self.spec.residuals]
        where = f" WHERE {' AND '.join(conjuncts)}" if conjuncts else ""
        beside = "|".join(r.alias for r in self.spec.beside)
        if beside:
            where = re.sub(rf"FROM ({beside})\b", r"FROM t_\1 \1", where)
        return f"SELECT {items} FROM {tables}{where}"

    def expected(self) -> Counter[tuple[Any, ...]]:
        """Return DuckDB's multiset of rows."""
        return answer_of(self.sql(), self.tables)


def answer_of(sql: str, tables: dict[str, pa.Table]) -> Counter[tuple[Any, ...]]:
    """Return DuckDB's multiset of rows of a query over tables named ``t_`` and an alias."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(MACROS)
        for alias, table in tables.items():
            connection.register(f"t_{alias}", table)
        return multiset(connection.sql(sql).to_arrow_table())


def canonical(value: Any) -> Any:
    """Return a value that Python compares as joins do: NaN equals NaN and -0.0 equals 0.0."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if getattr(value, "tzinfo", None) is not None:
        return value.timestamp()
    return value


def multiset(table: pa.Table) -> Counter[tuple[Any, ...]]:
    """Return the rows as a multiset in which NaN equals NaN and -0.0 equals 0.0."""
    return Counter(tuple(canonical(v) for v in row.values()) for row in table.to_pylist())


@st.composite
def cases(draw: st.DrawFn, max_relations: int = 5, max_rows: int = 12) -> Case:
    """Draw a block over 1 to ``max_relations`` relations: paths, stars, cycles, products, self-joins."""
    count = draw(st.integers(1, max_relations))
    aliases = [f"r{i}" for i in range(count)]
    kinds = draw(st.lists(st.sampled_from(KEY_TYPES), min_size=1, max_size=2))
    schema = pa.schema([pa.field("id", pa.int32())])
    for i, kind in enumerate([pa.int64(), *kinds]):
        schema = schema.append(pa.field(f"k{i}", kind))
    tables: dict[str, pa.Table] = {}
    limit = max(3, max_rows - 2 * count)
    for alias in aliases:
        if tables and draw(st.integers(0, 5)) == 0:
            tables[alias] = tables[draw(st.sampled_from(sorted(tables)))]
            continue
        n = draw(st.integers(0, limit))
        columns: list[pa.Array] = [pa.array(range(n), pa.int32())]
        for field in list(schema)[1:]:
            pool = [None, *draw(st.permutations(key_values(field.type)))[: draw(st.integers(1, 4))]]
            values = draw(st.lists(st.sampled_from(pool), min_size=n, max_size=n))
            columns.append(pa.array(values, field.type))
        tables[alias] = pa.Table.from_arrays(columns, schema=schema)
    equalities: list[Equality] = []
    keys = schema.names[1:]
    for i in range(1, count):
        # Mostly connected, sometimes a product, and now and then another edge that makes a cycle.
        for _ in range(draw(st.sampled_from([0, 1, 1, 1, 1, 2]))):
            other = draw(st.integers(0, i - 1))
            key = draw(st.sampled_from(keys))
            pair = (ColumnRef(aliases[i], key), ColumnRef(aliases[other], key))
            left, right = pair if draw(st.booleans()) else pair[::-1]
            equalities.append(Equality(left, right, schema.field(key).type))
    residuals: list[Predicate] = []
    if count > 1 and draw(st.booleans()):
        a, b = draw(st.permutations(aliases))[:2]
        op = draw(st.sampled_from(["<", "<=", ">", "<>"]))
        kind = schema.field("k0").type
        residuals.append(Compare(op, Column(ColumnRef(a, "k0")), Column(ColumnRef(b, "k0")), kind))
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        read = draw(st.permutations(aliases))[: draw(st.integers(1, 2))]
        arguments = tuple(Column(ColumnRef(alias, "k0")) for alias in read)
        residuals.append(Call(third(draw(st.sampled_from(["row", "arrow"]))), arguments))
    relations = [RelationSpec(a, schema, rows=tables[a].num_rows) for a in aliases]
    count_only = draw(st.integers(0, 5)) == 0
    output = (
        []
        if count_only
        else [
            OutputColumn(f"{a}_{c}", ColumnRef(a, c))
            for a in aliases
            for c in draw(st.lists(st.sampled_from(schema.names), min_size=1, max_size=2, unique=True))
        ]
    )
    spec = JoinSpec(tuple(relations), tuple(equalities), tuple(residuals), tuple(output), count_only)
    return Case(spec, tables)
