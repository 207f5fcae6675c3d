"""Blocks with data for them, DuckDB's answer to compare with, and strategies that draw all kinds of them."""

from __future__ import annotations

import atexit
import datetime as dt
import decimal
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
from hypothesis import strategies as st

from millrace.engine.plan.expressions import (
    And,
    Call,
    Column,
    ColumnRef,
    Compare,
    Exists,
    IsNull,
    LeftJoin,
    Not,
    Or,
    Predicate,
    show,
)
from millrace.engine.plan.spec import Equality, JoinSpec, OutputColumn, RelationSpec, Window
from millrace.predicates import PredicateSpec

Rows = Counter[tuple[Any, ...]]

MACROS = """
CREATE MACRO third(x, y := 0) AS ((x::HUGEINT + y) % 3 = 0);
CREATE MACRO picky(x, y := 0) AS (abs(x::HUGEINT + y) % 2 = 0);
CREATE MACRO raising(x, y := 0) AS (abs(x::HUGEINT + y) % 4 = 1);
"""
"""What users' predicates of the cases are for DuckDB, and where one of them raises."""


def _moments(zone: dt.timezone | None) -> list[Any]:
    parts = ((1960, 1, 1), (2024, 3, 31, 1, 30), (2024, 3, 31, 1, 30, 0, 1))
    return [dt.datetime(*each, tzinfo=zone) for each in parts]


def _scaled(scale: int) -> list[Any]:
    return [decimal.Decimal(v).scaleb(-scale) for v in (-150, 0, 1, 100, 99999)]


WHOLE = [-128, -1, 0, 1, 2, 3, 127]
REAL = [0.0, -0.0, math.nan, 1.5, math.inf, -2.0]
KEYS: dict[pa.DataType, list[Any]] = {
    pa.int64(): WHOLE,
    pa.int8(): WHOLE,
    pa.string(): ["", "a", "A", "é", "a ", "ab", "a" * 40],
    pa.float64(): REAL,
    pa.float32(): REAL,
    pa.decimal128(9, 2): _scaled(2),
    pa.decimal128(30, 4): _scaled(4),
    pa.date32(): [dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2026, 2, 28)],
    pa.timestamp("us", tz="UTC"): _moments(dt.UTC),
    pa.timestamp("us"): _moments(None),
    pa.bool_(): [True, False],
    pa.binary(): [b"", b"\x00", b"\x00\x01", b"\xff"],
}
"""Of each type of keys a handful of values, few enough to meet, with the nasty ones among them."""


def key_values(kind: pa.DataType) -> list[Any]:
    return KEYS.get(kind, WHOLE)


KINDS = ("row", "pandas", "arrow", "pandas_iter", "arrow_iter")
"""How a user's predicate may be called, asynchronous functions aside."""


def of_kind(kind: str, one: Callable[..., bool | None]) -> Callable[..., Any]:
    """Return a function of a row's numbers as one that is called in this way."""

    def whole(*columns: Any) -> Any:
        rows = zip(*map(_numbers, columns), strict=True)
        truths = [one(*row) for row in rows]
        return pd.Series(truths, dtype=object) if "pandas" in kind else pa.array(truths, pa.bool_())

    def many(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield whole(*(batch if isinstance(batch, tuple) else (batch,)))

    return {"row": one}.get(kind, many if kind.endswith("iter") else whole)


def _numbers(column: Any) -> list[int | None]:
    """Return the whole numbers of an array or a series, in which nulls are NaN."""
    values = column.to_pylist() if isinstance(column, pa.Array) else column.tolist()
    return [None if v is None or v != v else int(v) for v in values]


def third(*values: int | None) -> bool | None:
    """Whether the sum of numbers is a multiple of 3."""
    return None if None in values else sum(values) % 3 == 0  # type: ignore[arg-type]


def picky(*values: int | None) -> bool | None:
    """Pass even sums, reject odd ones, and raise for half of these."""
    if None in values:
        return None
    total = abs(sum(values))  # type: ignore[arg-type]
    if total % 4 == 1:
        raise ArithmeticError(f"{total} is one of those")
    return total % 2 == 0


USERS = {"third": third, "picky": picky}
"""Users' predicates of the cases, as functions of a row's numbers."""


def calling(name: str, kind: str, aliases: Iterable[str], **how: Any) -> Call:
    """Return a call of one of them, of that kind, with the number ``k0`` of some relations."""
    spec = PredicateSpec(name, of_kind(kind, USERS[name]), kind, **how)  # type: ignore[arg-type]
    return Call(spec, tuple(Column(ColumnRef(alias, "k0")) for alias in aliases))


@dataclass(frozen=True)
class Case:
    spec: JoinSpec
    tables: dict[str, pa.Table]

    def sql(self) -> str:
        """Return the block as a query for DuckDB, in which windows are conjuncts."""
        spec = self.spec
        items = ", ".join(f'{o.source} AS "{o.name}"' for o in spec.output) or "1"
        items = "count(*) AS __count" if spec.count_only else items
        tables = " CROSS JOIN ".join(
            f"(SELECT DISTINCT * FROM t_{r.alias}) {r.alias}" if r.distinct else f"t_{r.alias} {r.alias}"
            for r in spec.relations
        )
        conjuncts = [str(e) for e in spec.equalities] + [f"({show(p)})" for p in spec.residuals]
        times = {r.alias: _time(r) for r in spec.relations if r.window is not None}
        for relation in spec.relations:
            if relation.window is not None:
                own = times[relation.alias]
                latest = f"greatest({', '.join(times.values())})" if len(times) > 1 else own
                conjuncts += [f"{own} IS NOT NULL", f"{latest} - {own} <= {relation.window.length}"]
        where = f" WHERE {' AND '.join(conjuncts)}" if conjuncts else ""
        beside = "|".join(r.alias for r in spec.beside)
        if beside:
            where = re.sub(rf"FROM ({beside})\b", r"FROM t_\1 \1", where)
        for join in spec.outer:
            terms = [*join.keys, *(() if join.condition is None else (join.condition,))]
            on = " AND ".join(f"({show(term)})" for term in terms)
            tables += f" LEFT JOIN t_{join.relation} {join.relation} ON {on}"
        return f"SELECT {items} FROM {tables}{where}"

    def expected(self) -> Rows:
        return answer_of(self.sql(), self.tables)

    def batches(self, chunk: int) -> dict[str, list[pa.RecordBatch]]:
        """Return rows in record batches of at most ``chunk``, of each relation that shares no other's."""
        aliases = [r.alias for r in self.spec.relations if r.same_as is None]
        aliases += [r.alias for r in self.spec.beside]
        return {a: self.tables[a].combine_chunks().to_batches(max_chunksize=chunk) for a in aliases}


def _time(relation: RelationSpec) -> str:
    """Return a relation's time as a whole number in its unit, in DuckDB's SQL."""
    assert relation.window is not None
    name = f"{relation.alias}.{relation.window.column}"
    kind = relation.schema.field(relation.window.column).type
    if pa.types.is_timestamp(kind):
        return f"epoch_us({name})"
    return f"({name} - DATE '1970-01-01')::HUGEINT" if pa.types.is_date(kind) else f"{name}::HUGEINT"


@cache
def _connection() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    connection.execute("SET GLOBAL threads = 1")  # a handful of rows is not worth another
    connection.execute(MACROS)
    atexit.register(_connection.cache_clear)  # while the library can still let go of it
    return connection


def answer_of(sql: str, tables: dict[str, pa.Table]) -> Rows:
    """Return DuckDB's multiset of rows of a query over tables named ``t_`` and an alias."""
    with _connection().cursor() as cursor:
        for alias, table in tables.items():
            cursor.register(f"t_{alias}", table)
        return multiset(cursor.sql(sql).to_arrow_table())


def canonical(value: Any) -> Any:
    """Return a value that Python compares as joins do: NaN equals NaN and -0.0 equals 0.0."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if getattr(value, "tzinfo", None) is not None:
        return value.timestamp()
    return value


def multiset(table: pa.Table) -> Rows:
    return Counter(tuple(canonical(v) for v in row.values()) for row in table.to_pylist())


def block(tables: dict[str, pa.Table], equalities, *, distinct=(), count_only=False) -> Case:
    """Return the block ``a.x = b.y AND …`` over the tables, all columns of which it returns."""
    relations = tuple(RelationSpec(a, t.schema, a in distinct, t.num_rows) for a, t in tables.items())
    pairs = [[_ref(side) for side in text.split("=")] for text in equalities]
    joined = tuple(Equality(a, b, tables[a.relation].schema.field(a.column).type) for a, b in pairs)
    columns = [ColumnRef(a, name) for a, table in tables.items() for name in table.column_names]
    output = () if count_only else tuple(OutputColumn(f"{c.relation}_{c.column}", c) for c in columns)
    return Case(JoinSpec(relations, joined, (), output, count_only), tables)


def _ref(text: str) -> ColumnRef:
    return ColumnRef(*text.strip().split("."))


def compare(op: str, left: str, right: str, kind: pa.DataType) -> Compare:
    """Return ``a.x op b.y``."""
    return Compare(op, Column(_ref(left)), Column(_ref(right)), kind)  # type: ignore[arg-type]


def having(case: Case, *residuals: Predicate) -> Case:
    """Return a block with other residual predicates."""
    return replace(case, spec=replace(case.spec, residuals=residuals))


def with_self_joins(case: Case) -> Case:
    """Let relations that read the same table share its tuples."""
    first: dict[int, str] = {}
    relations = []
    for relation in case.spec.relations:
        lead = first.setdefault(id(case.tables[relation.alias]), relation.alias)
        relations.append(replace(relation, same_as=None if lead == relation.alias else lead))
    return replace(case, spec=replace(case.spec, relations=tuple(relations)))


def with_windows(case: Case, lengths: dict[str, int]) -> Case:
    """Return a block with windows on column ``at`` of some relations."""
    relations = tuple(
        replace(r, window=Window("at", lengths[r.alias])) if r.alias in lengths else r
        for r in case.spec.relations
    )
    return replace(case, spec=replace(case.spec, relations=relations))


# Blocks of every kind


@st.composite
def cases(draw: st.DrawFn, max_relations: int = 5, max_rows: int = 12) -> Case:
    """Draw a block over 1 to ``max_relations`` relations: paths, stars, cycles, products, self-joins."""
    aliases = [f"r{i}" for i in range(draw(st.integers(1, max_relations)))]
    kinds = [pa.int64(), *draw(st.lists(st.sampled_from(list(KEYS)), min_size=1, max_size=2))]
    keys = {f"k{i}": kind for i, kind in enumerate(kinds)}
    tables: dict[str, pa.Table] = {}
    for alias in aliases:
        if tables and draw(st.integers(0, 5)) == 0:
            tables[alias] = tables[draw(st.sampled_from(sorted(tables)))]
            continue
        n = draw(st.integers(0, max(3, max_rows - 2 * len(aliases))))
        columns = {"id": pa.array(range(n), pa.int32())}
        for key, kind in keys.items():
            few = draw(st.permutations(key_values(kind)))[: draw(st.integers(1, 4))]
            columns[key] = _column(draw, kind, few, n)
        tables[alias] = pa.table(columns)
    equalities = []
    for i, alias in enumerate(aliases):
        # Mostly connected, sometimes a product, and now and then another edge that makes a cycle.
        for _ in range(draw(st.sampled_from([0, 1, 1, 1, 1, 2])) if i else 0):
            other, key = draw(st.sampled_from(aliases[:i])), draw(st.sampled_from(sorted(keys)))
            equalities.append(" = ".join(draw(st.permutations([f"{alias}.{key}", f"{other}.{key}"]))))
    residuals: list[Predicate] = []
    if len(aliases) > 1 and draw(st.booleans()):
        one, other = draw(st.permutations(aliases))[:2]
        op = draw(st.sampled_from(["<", "<=", ">", "<>"]))
        residuals.append(compare(op, f"{one}.k0", f"{other}.k0", pa.int64()))
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        read = draw(st.permutations(aliases))[: draw(st.integers(1, 2))]
        residuals.append(calling("third", draw(st.sampled_from(["row", "arrow"])), read))
    case = having(block(tables, equalities, count_only=draw(st.integers(0, 5)) == 0), *residuals)
    shown = st.lists(st.sampled_from(["id", *keys]), max_size=2, unique=True)
    shown_of = {alias: draw(shown) for alias in aliases}
    shown_of[aliases[0]] = shown_of[aliases[0]] or ["id"]
    output = [each for each in case.spec.output if each.source.column in shown_of[each.source.relation]]
    return replace(case, spec=replace(case.spec, output=tuple(output)))


@st.composite
def dense_cases(draw: st.DrawFn, *, rows: int | None = None, count_only: bool = False) -> Case:
    """Draw a path, a star or a cycle of small tables in which almost every tuple has several matches.

    With a number of rows, tables have so many at most, and half of each has the same key.
    """
    numbers = random.Random(draw(st.integers(0, 1 << 30)))
    kind = numbers.choice([pa.int64(), pa.int64(), pa.string()])
    nulls = numbers.choice([0.0, 0.0, 0.3])
    aliases = [f"r{i}" for i in range(numbers.choice([2, 3, 3, 4]))]

    def key(n: int) -> int | None:
        if numbers.random() < nulls:
            return None
        if rows is None:
            return numbers.randint(0, 2)
        return 1 if numbers.random() < 0.5 else numbers.randint(2, n)

    def keys(n: int, kind: pa.DataType) -> pa.Array:
        drawn = [key(n) for _ in range(n)]
        return pa.array([v if v is None else f"k{v}" for v in drawn] if kind == pa.string() else drawn, kind)

    tables: dict[str, pa.Table] = {}
    for alias in aliases:
        if tables and numbers.random() < 0.2:
            tables[alias] = tables[numbers.choice(sorted(tables))]
            continue
        n = numbers.randint(3, 14 - 2 * len(aliases)) if rows is None else numbers.randint(rows // 2, rows)
        columns = {"id": pa.array(range(n), pa.int32()), "k0": keys(n, pa.int64()), "k1": keys(n, kind)}
        tables[alias] = pa.table(columns)
    shape = numbers.choice(["path", "star", "any", "cycle", "cycle"])
    ends = [(i, {"path": i - 1, "star": 0}.get(shape, numbers.randrange(i))) for i in range(1, len(aliases))]
    ends += [(len(aliases) - 1, 0)] * (shape == "cycle")
    equalities = []
    for a, b in ends:
        x = numbers.choice(["k0", "k1"])
        y = numbers.choice(["k0", "k1"]) if kind == pa.int64() else x
        equalities.append(f"{aliases[a]}.{x} = {aliases[b]}.{y}")
    return block(tables, equalities, count_only=count_only)


def _column(draw: st.DrawFn, kind: pa.DataType, values: Sequence[Any], rows: int) -> pa.Array:
    return pa.array(draw(st.lists(st.sampled_from([None, *values]), min_size=rows, max_size=rows)), kind)


NUMBERS: dict[pa.DataType, list[Any]] = {
    pa.int8(): [-1, 0, 1, 110],
    pa.int32(): [-1, 0, 1, 110, 2**24 + 1],
    pa.int64(): [-1, 0, 110, 2**53, 2**53 + 1],
    pa.float32(): [-1.0, -0.0, 0.0, 1.5, math.nan, 16777216.0],
    pa.float64(): [-1.0, 0.0, 1.1, 1.5, math.nan, 2.0**53, 16777217.0],
    pa.decimal128(9, 2): [decimal.Decimal(t) for t in ("-1.00", "0.00", "1.10", "1.50", "110.00")],
    pa.decimal128(22, 4): [decimal.Decimal(t) for t in ("-1", "1.1", "1.1001", "9007199254740993")],
}


def wider(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """Return the type in which DuckDB and Spark compare the two."""
    if left == right:
        return left
    if pa.types.is_floating(left) or pa.types.is_floating(right):
        return pa.float64()
    if not (pa.types.is_decimal(left) or pa.types.is_decimal(right)):
        return max(left, right, key=lambda kind: kind.bit_width)
    digits = {pa.int8(): 3, pa.int32(): 10, pa.int64(): 20}
    sides = [(k.precision, k.scale) if pa.types.is_decimal(k) else (digits[k], 0) for k in (left, right)]
    scale = max(s for _, s in sides)
    return pa.decimal128(max(p - s for p, s in sides) + scale, scale)


@st.composite
def mixed_cases(draw: st.DrawFn) -> Case:
    """Draw relations with two number columns each, of any types, equated and compared in wider types.

    Equalities do not chain across types; one relation's columns may be equated with each other.
    """
    tables: dict[str, pa.Table] = {}
    for alias in "abcd"[: draw(st.integers(2, 4))]:
        n = draw(st.integers(0, 6))
        kinds = [draw(st.sampled_from(list(NUMBERS))) for _ in "xy"]
        columns = [_column(draw, kind, NUMBERS[kind], n) for kind in kinds]
        tables[alias] = pa.table({"id": pa.array(range(n), pa.int32()), "x": columns[0], "y": columns[1]})
    refs = [ColumnRef(alias, name) for alias in tables for name in "xy"]
    kind_of = {ref: tables[ref.relation].schema.field(ref.column).type for ref in refs}

    def compared() -> tuple[ColumnRef, ColumnRef, pa.DataType]:
        left, right = draw(st.permutations(refs))[:2]
        return left, right, wider(kind_of[left], kind_of[right])

    equalities = tuple(Equality(*compared()) for _ in range(draw(st.integers(1, 5))))
    residuals: list[Predicate] = []
    for op in draw(st.lists(st.sampled_from(["<", ">=", "<>"]), max_size=2)):
        left, right, to = compared()
        less = compare(op, str(left), str(right), to)
        either = Or((less, IsNull(Column(draw(st.sampled_from(refs))))))
        residuals.append(draw(st.sampled_from([less, Not(less), either, And((either, Not(Not(less))))])))
    case = block(tables, [])
    return replace(case, spec=replace(case.spec, equalities=equalities, residuals=tuple(residuals)))


@st.composite
def ordered_cases(draw: st.DrawFn) -> Case:
    """Draw relations tied by one to three inequalities, between any of them, and perhaps an equality."""
    kind = draw(st.sampled_from(list(KEYS)))
    tables = {}
    for alias in "abc"[: draw(st.integers(2, 3))]:
        n = draw(st.integers(0, 7))
        columns = {c: _column(draw, kind, key_values(kind), n) for c in "xy"}
        tables[alias] = pa.table({"k": pa.array([i % 3 for i in range(n)], pa.int64()), **columns})
    if draw(st.integers(0, 3)) == 0:
        tables["b"] = tables["a"]
    residuals: list[Predicate] = []
    for _ in range(draw(st.integers(1, 3))):
        one, other = draw(st.permutations(sorted(tables)))[:2]
        left, right = (f"{alias}.{draw(st.sampled_from('xy'))}" for alias in (one, other))
        residuals.append(compare(draw(st.sampled_from(["<", "<=", ">", ">="])), left, right, kind))
    return having(block(tables, draw(st.sampled_from([[], [], ["a.k = b.k"]]))), *residuals)


@st.composite
def set_cases(draw: st.DrawFn) -> Case:
    """Draw a relation joined with one or two that have set semantics, on one or two columns each."""
    sets = (pa.int64(), pa.string(), pa.float64(), pa.decimal128(30, 4), pa.bool_())
    k, j = draw(st.lists(st.sampled_from(sets), min_size=2, max_size=2))

    def table(columns: dict[str, pa.DataType], limit: int) -> pa.Table:
        n = draw(st.integers(0, limit))
        return pa.table({c: _column(draw, kind, key_values(kind)[:3], n) for c, kind in columns.items()})

    tables = {"a": table({"k": k, "j": j}, 8), "d": table({"x": k, "y": j}, 10)}
    equalities = ["a.k = d.x", "d.y = a.j"]
    distinct = ["d"]
    if draw(st.booleans()):
        tables["e"] = table({"z": k}, 8)
        equalities.append(draw(st.sampled_from(["a.k = e.z", "e.z = d.x"])))
        distinct = draw(st.sampled_from([["d", "e"], ["e"]]))
    return block(tables, equalities, distinct=distinct)


@st.composite
def windowed(draw: st.DrawFn, case: Case) -> Case:
    """Give most tables of a case a window, of a length that some results outlast."""
    kind = draw(st.sampled_from(TIMES))
    made: dict[int, tuple[pa.Table, Window | None]] = {}
    tables: dict[str, pa.Table] = dict(case.tables)
    relations = []
    for relation in case.spec.relations:
        table = case.tables[relation.alias]
        if id(table) not in made:
            made[id(table)] = table, None
            if draw(st.integers(0, 4)):
                steps = draw(st.lists(st.integers(0, 2), min_size=table.num_rows, max_size=table.num_rows))
                start = draw(st.integers(-3, 3)) if kind != pa.int64() else draw(st.sampled_from(STARTS))
                ticks: list[int | None] = [start + int(t) for t in np.cumsum(steps)]
                if ticks and draw(st.integers(0, 3)) == 0:
                    ticks[draw(st.integers(0, len(ticks) - 1))] = None
                timed = table.append_column("at", times(ticks, kind))
                made[id(table)] = timed, Window("at", draw(st.integers(1, 5)))
        tables[relation.alias], window = made[id(table)]
        relations.append(replace(relation, schema=tables[relation.alias].schema, window=window))
    return Case(replace(case.spec, relations=tuple(relations)), tables)


STARTS = (-3, 0, 0, 3, -(2**63), 2**63 - 100)
"""Where whole numbers as times begin; differences of any two are compared exactly, and nothing overflows."""

TIMES = (pa.int64(), pa.int16(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC"))
"""Every kind of time column."""


def times(ticks: list[int | None], kind: pa.DataType) -> pa.Array:
    """Return ticks, from the epoch on, as times of that type."""
    if pa.types.is_date(kind):
        day = dt.date(1970, 1, 1)
        return pa.array([None if t is None else day + dt.timedelta(days=t) for t in ticks], kind)
    return pa.array(ticks, pa.int64()).cast(kind)


@st.composite
def cases_beside(draw: st.DrawFn, case: Case | None = None) -> Case:
    """Draw one or two relations beside a block, which may be given, with nulls, duplicates and no rows."""
    case = case or draw(cases(max_relations=3, max_rows=12))
    schema = next(iter(case.tables.values())).schema
    tables, beside = dict(case.tables), list[RelationSpec]()
    asked, outer = list[Predicate](), list[LeftJoin]()
    for alias in draw(st.sampled_from([["e0"], ["e0"], ["e0", "e1"]])):
        n = draw(st.sampled_from([0, 1, 2, 4, 9]))
        columns = []
        for field in schema:
            # Values that the block has, mostly, and few of them, so that some tuples match and some do not.
            known = [v for t in case.tables.values() for v in t[field.name].to_pylist() if v is not None]
            pool = [*known[: draw(st.integers(0, 3))], key_values(field.type)[0]]
            pool += draw(st.sampled_from([[], [], [None]]))
            values = draw(st.lists(st.sampled_from(pool), min_size=n, max_size=n))
            columns.append(pa.array(values, field.type))
        tables[alias] = pa.Table.from_arrays(columns, schema=schema)
        beside.append(RelationSpec(alias, schema, rows=n))
        exists = draw(_exists(alias, case.spec, [join.relation for join in outer]))
        if draw(st.booleans()):
            outer.append(LeftJoin(alias, exists.keys, exists.condition))
        else:
            asked.append(exists)
    joined = [*case.spec.aliases, *(join.relation for join in outer)]
    if draw(st.integers(0, 2)) == 0:
        refs = [ColumnRef(alias, name) for alias in joined for name in schema.names]
        plain = IsNull(Column(draw(st.sampled_from(refs))))
        first, *more = draw(st.permutations([*asked, plain]))
        if len(more) > 0:
            asked = [Or((And((first, more[0])), *more[1:]) if draw(st.booleans()) else (first, *more))]
        else:
            asked = [first]
    if outer and draw(st.booleans()):
        one, other = (f"{draw(st.sampled_from(joined))}.k0" for _ in range(2))
        less = compare(draw(st.sampled_from(["<", ">=", "<>"])), one, other, schema.field("k0").type)
        asked.append(Not(less) if draw(st.booleans()) else less)
    if outer and draw(st.booleans()):
        read = draw(st.sampled_from(joined))
        asked.append(calling("third", draw(st.sampled_from(["row", "arrow"])), [read]))
    residuals = draw(st.sampled_from([[], [], [*case.spec.residuals]]))
    for each in asked:
        residuals.insert(draw(st.integers(0, len(residuals))), each)
    output = case.spec.output
    if not case.spec.count_only:
        shown = [ColumnRef(j.relation, draw(st.sampled_from(schema.names))) for j in outer]
        output += tuple(OutputColumn(f"{ref.relation}_{ref.column}", ref) for ref in shown)
    spec = replace(
        case.spec, residuals=tuple(residuals), output=output, beside=tuple(beside), outer=tuple(outer)
    )
    return Case(spec, tables)


@st.composite
def _exists(draw: st.DrawFn, alias: str, spec: JoinSpec, joined: Sequence[str]) -> Exists:
    """Draw what is asked of a relation beside a block; relations ``joined`` are beside it too."""
    schema = spec.relations[0].schema
    names = draw(st.lists(st.sampled_from(schema.names), min_size=1, max_size=2, unique=True))

    def paired(op: str, name: str) -> Compare:
        outer = draw(st.sampled_from([*spec.aliases, *joined]))
        return compare(op, f"{outer}.{name}", f"{alias}.{name}", schema.field(name).type)

    keys = tuple(paired("=", name) for name in names)
    if draw(st.integers(0, 2)) == 0:
        return Exists(alias, keys[:1], negated=True, null_aware=True)  # a left join asks by the key alone
    condition: Predicate | None = None
    if draw(st.booleans()):
        ops = draw(st.lists(st.sampled_from(["<", "<=", "<>", "="]), min_size=1, max_size=2))
        terms = tuple(paired(op, draw(st.sampled_from(["id", "k0"]))) for op in ops)
        condition = terms[0] if len(terms) == 1 else And(terms)
    return Exists(alias, keys, condition, negated=draw(st.booleans()))
