"""Blocks with sliding windows: random ones, streams of any length, and DuckDB's answer to them."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import duckdb
import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from millrace.engine.expressions import show
from millrace.engine.spec import JoinSpec, RelationSpec, Window
from millrace.options import ARCHITECTURES, MIGRATIONS, POLICY_NAMES, Options
from tests.engine.eddy.blocks import block
from tests.engine.eddy.oracle import Case, cases

TIMES: tuple[pa.DataType, ...] = (
    pa.int64(),
    pa.int16(),
    pa.date32(),
    pa.timestamp("us"),
    pa.timestamp("us", tz="UTC"),
)
"""Every kind of time column."""


@dataclass(frozen=True)
class Windowed(Case):
    """A block with windows, and the tables it reads."""

    def sql(self) -> str:
        """Return the block as a query for DuckDB, in which windows are conjuncts."""
        spec = self.spec
        items = ", ".join(f'{o.source} AS "{o.name}"' for o in spec.output) or "1"
        items = "count(*) AS __count" if spec.count_only else items
        tables = ", ".join(f"t_{r.alias} {r.alias}" for r in spec.relations)
        conjuncts = [str(e) for e in spec.equalities] + [f"({show(p)})" for p in spec.residuals]
        times = {r.alias: number(r) for r in spec.relations if r.window is not None}
        for relation in spec.relations:
            if relation.window is not None:
                own = times[relation.alias]
                latest = f"greatest({', '.join(times.values())})" if len(times) > 1 else own
                conjuncts += [f"{own} IS NOT NULL", f"{latest} - {own} <= {relation.window.length}"]
        where = f" WHERE {' AND '.join(conjuncts)}" if conjuncts else ""
        return f"SELECT {items} FROM {tables}{where}"


def number(relation: RelationSpec) -> str:
    """Return a relation's time as a whole number in its unit, in DuckDB's SQL."""
    assert relation.window is not None
    name = f"{relation.alias}.{relation.window.column}"
    kind = relation.schema.field(relation.window.column).type
    if pa.types.is_timestamp(kind):
        return f"epoch_us({name})"
    return f"({name} - DATE '1970-01-01')::HUGEINT" if pa.types.is_date(kind) else f"{name}::HUGEINT"


def times(ticks: list[int | None], kind: pa.DataType) -> pa.Array:
    """Return ticks, from the epoch on, as times of that type."""
    if pa.types.is_date(kind):
        day = dt.date(1970, 1, 1)
        return pa.array([None if t is None else day + dt.timedelta(days=t) for t in ticks], kind)
    return pa.array(ticks, pa.int64()).cast(kind)


@st.composite
def windowed(draw: st.DrawFn, max_relations: int = 4) -> Windowed:
    """Draw a block in which most relations have a window, of a length that some results outlast."""
    case = draw(cases(max_relations))
    kind = draw(st.sampled_from(TIMES))
    tables: dict[str, pa.Table] = {}
    relations = []
    for relation in case.spec.relations:
        table = case.tables[relation.alias]
        if draw(st.integers(0, 4)) == 0:
            tables[relation.alias] = table
            relations.append(relation)
            continue
        steps = draw(st.lists(st.integers(0, 2), min_size=table.num_rows, max_size=table.num_rows))
        ticks: list[int | None] = [int(t) for t in np.cumsum(steps) + draw(st.integers(-3, 3))]
        if ticks and draw(st.integers(0, 3)) == 0:
            ticks[draw(st.integers(0, len(ticks) - 1))] = None
        table = table.append_column("at", times(ticks, kind))
        tables[relation.alias] = table
        window = Window("at", draw(st.integers(1, 5)))
        relations.append(replace(relation, schema=table.schema, window=window))
    return Windowed(replace(case.spec, relations=tuple(relations)), tables)


@st.composite
def settings_of(draw: st.DrawFn, architectures: tuple[str, ...] = ARCHITECTURES) -> Options:
    """Draw everything that bears on routing and on what is stored."""
    return Options(
        architecture=draw(st.sampled_from(architectures)),
        migration=draw(st.sampled_from([None, *MIGRATIONS])),
        intermediate=draw(st.booleans()),
        policy=draw(st.sampled_from(POLICY_NAMES)),
        batch_size=draw(st.sampled_from([1, 2, 3, 7, 100])),
        reoptimize_every=draw(st.sampled_from([1, 3, 10, 1000])),
        seed=draw(st.integers(0, 3)),
    )


def stream(seed: int, length: int = 4, rows: int = 25) -> Windowed:
    """Return ``a.k = b.k AND b.j = c.j`` over random streams with windows in all three."""
    draw = random.Random(seed)
    tables = {}
    for alias, keys in (("a", "k"), ("b", "kj"), ("c", "j")):
        ticks = np.cumsum([draw.randint(0, 2) for _ in range(rows)])
        columns = {key: pa.array([draw.randint(0, 3) for _ in range(rows)], pa.int64()) for key in keys}
        tables[alias] = pa.table({"at": pa.array(ticks, pa.int64()), **columns})
    return with_windows(block(tables, ["a.k = b.k", "b.j = c.j"]), dict.fromkeys("abc", length))


def with_windows(case: Case, lengths: dict[str, int]) -> Windowed:
    """Return a block with windows on column ``at`` of some relations."""
    relations = tuple(
        replace(r, window=Window("at", lengths[r.alias])) if r.alias in lengths else r
        for r in case.spec.relations
    )
    return Windowed(replace(case.spec, relations=relations), case.tables)


@dataclass(frozen=True)
class Endless:
    """A chain ``a.k = b.k AND b.j = c.j`` over long streams that are made batch by batch.

    Attributes:
        rows: Of each relation, one for each tick.
        length: Of each window.
        chunk: Rows of a batch.
    """

    rows: int
    length: int
    chunk: int

    @property
    def spec(self) -> JoinSpec:
        """The block, which only counts."""
        return with_windows(
            block(
                {alias: pa.Table.from_batches([self.batch(alias, 0, 0)]) for alias in "abc"},
                ["a.k = b.k", "b.j = c.j"],
                count_only=True,
            ),
            dict.fromkeys("abc", self.length),
        ).spec

    def batch(self, alias: str, low: int, high: int) -> pa.RecordBatch:
        """Return rows of a relation: keys are a mixture of the tick, so that each meets about one."""
        ticks = np.arange(low, high, dtype=np.int64)
        seed = np.int64(1 + ord(alias))
        keys = {
            key: (ticks * np.int64(2_654_435_761) + seed * np.int64(97 + i) * ticks // 7) % self.length
            for i, key in enumerate({"a": "k", "b": "kj", "c": "j"}[alias])
        }
        return pa.RecordBatch.from_arrays(
            [pa.array(ticks), *(pa.array(v) for v in keys.values())], names=["at", *keys]
        )

    def source(self, alias: str) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a relation."""
        for low in range(0, self.rows, self.chunk):
            yield self.batch(alias, low, min(low + self.chunk, self.rows))

    def expected(self) -> int:
        """Return DuckDB's count, joining pairs of batches that may meet."""
        # Rows of neighbouring eras alone can meet, so DuckDB need not try all pairs.
        with duckdb.connect() as connection:
            for alias in "abc":
                table = pa.Table.from_batches(self.source(alias))
                era = pa.array(table.column("at").to_numpy() // self.length)
                connection.register(f"t_{alias}", table.append_column("era", era))
            near = " AND ".join(f"abs({x}.at - {y}.at) <= {self.length}" for x, y in ("ab", "bc", "ac"))
            steps = "(VALUES (-1), (0), (1))"
            found = connection.sql(
                f"SELECT count(*) FROM t_a a, t_b b, t_c c, {steps} d(x), {steps} e(y)"
                f" WHERE a.k = b.k AND b.j = c.j AND a.era + x = b.era AND b.era + y = c.era AND {near}"
            ).to_arrow_table()
            return int(found.column(0)[0].as_py())
