"""The joins of the join state benchmark: what is joined, in which order it arrives, and as SQL."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lab.benchmarks import state_data
from lab.benchmarks.harness import parse_names
from millrace.engine.arrivals.schedule import Schedule
from millrace.engine.expressions import ColumnRef
from millrace.engine.spec import Equality, JoinSpec, RelationSpec

MIGRATE, BUDGET = "migrate", "budget"
"""Cases that are no race of whole joins."""

_LEAST_CHUNK = 100


@dataclass(frozen=True)
class Condition:
    """``column op value``, where ``op`` is ``=`` or ``>``."""

    column: str
    op: str
    value: int | dt.date

    def holds(self, batch: pa.RecordBatch) -> Any:
        """Return for each row whether it holds, as a boolean array."""
        column = batch.column(self.column)
        compare = {"=": pc.equal, ">": pc.greater}[self.op]
        return compare(column, pa.scalar(self.value, column.type))

    def __str__(self) -> str:
        value = f"DATE '{self.value}'" if isinstance(self.value, dt.date) else self.value
        return f"{self.column} {self.op} {value}"


@dataclass(frozen=True)
class Case:
    """A join that is counted.

    Attributes:
        name: Of the case.
        about: What it is, in a few words.
        relations: The columns that are joined, by alias.
        joins: Each the text of an equality.
        files: Returns the paths of the tables by alias, for a scale.
        chunk: Rows of a table that arrive at a time.
        every: Tuples after which routing is decided anew.
        conditions: By alias, applied to what has arrived.
        by_size: Tables arrive at rates in proportion to their sizes, else all at the same rate.
        on_spark: Also run by Spark, and by Millrace on Spark.
        policies: Also run with the migration policies that are not the default.
        repeats: Runs in each round, more than one where a run is short.
        rounds: Take part in no more than so many rounds, where a run is long and for information only.
    """

    name: str
    about: str
    relations: Mapping[str, tuple[str, ...]]
    joins: tuple[str, ...]
    files: Callable[[float], dict[str, str]]
    chunk: int
    every: int
    conditions: Mapping[str, tuple[Condition, ...]]
    by_size: bool = False
    on_spark: bool = False
    policies: bool = False
    repeats: int = 1
    rounds: int | None = None

    def scaled(self, scale: float) -> Case:
        """Return the case with chunks as small as smaller tables need to change as often."""
        factor = min(1.0, scale)
        chunk, every = (max(_LEAST_CHUNK, round(n * factor)) for n in (self.chunk, self.every))
        return replace(self, chunk=chunk, every=every)

    def sql(self, joins: Iterable[str] | None = None) -> str:
        """Return the query, or that of the relations that some of the joins tie together."""
        joins = self.joins if joins is None else tuple(joins)
        taken = [alias for alias in self.relations if any(alias in self.edges[text] for text in joins)]
        conditions = [str(c) for alias in taken for c in self.conditions.get(alias, ())]
        return f"SELECT count(*) FROM {', '.join(taken)} WHERE {' AND '.join([*joins, *conditions])}"

    @cached_property
    def edges(self) -> dict[str, frozenset[str]]:
        """The two aliases of each join."""
        return {text: frozenset(side.relation for side in _sides(text)) for text in self.joins}


@dataclass(frozen=True)
class Arriving:
    """A case with its files."""

    case: Case
    paths: Mapping[str, str]

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Rows of each table."""
        return {alias: pq.read_metadata(path).num_rows for alias, path in self.paths.items()}

    @cached_property
    def spec(self) -> JoinSpec:
        """The block; its estimates are the files' rows, as in a query on the files."""
        kinds = {alias: pq.read_schema(path) for alias, path in self.paths.items()}
        relations = [
            RelationSpec(alias, pa.schema([kinds[alias].field(c) for c in columns]), rows=self.sizes[alias])
            for alias, columns in self.case.relations.items()
        ]
        equalities = []
        for text in self.case.joins:
            left, right = _sides(text)
            equalities.append(Equality(left, right, kinds[left.relation].field(left.column).type))
        return JoinSpec(tuple(relations), tuple(equalities), count_only=True)

    @property
    def schedule(self) -> Schedule:
        """How the tables arrive."""
        weights = tuple(map(float, self.sizes.values())) if self.case.by_size else None
        return Schedule(None, interleaved=True, order=tuple(range(len(self.sizes))), weights=weights)

    def sources(self, most: int | None = None) -> dict[str, Iterator[pa.RecordBatch]]:
        """Return what reads the files, in one thread, by alias.

        Args:
            most: Chunks of each table; all by default.
        """
        return {alias: self._scan(alias, most) for alias in self.paths}

    def _scan(self, alias: str, most: int | None) -> Iterator[pa.RecordBatch]:
        """Yield a record batch for each chunk of a table, an empty one where no row is left of it."""
        columns = list(self.case.relations[alias])
        conditions = self.case.conditions.get(alias, ())
        read = list(dict.fromkeys([*columns, *(c.column for c in conditions)]))
        with pq.ParquetFile(self.paths[alias]) as file:
            chunks = file.iter_batches(self.case.chunk, columns=read, use_threads=False)
            for number, batch in enumerate(chunks):
                if number == most:
                    break
                for condition in conditions:
                    batch = batch.filter(condition.holds(batch))
                yield batch.select(columns)


def _sides(text: str) -> tuple[ColumnRef, ColumnRef]:
    left, right = (ColumnRef(*side.split(".")) for side in text.split(" = "))
    return left, right


def _generated(
    name: str,
    about: str,
    rows: int,
    make: Callable[[int], state_data.Tables],
    relations: Mapping[str, tuple[str, ...]],
    joins: tuple[str, ...],
    **settings: Any,
) -> Case:
    """Return a case on random data, with ``rows`` tuples a table at scale 1."""

    def files(scale: float) -> dict[str, str]:
        size = max(10, round(rows * scale))
        return state_data.kept(f"{make.__name__}-{size}", tuple(relations), lambda: make(size))

    defaults: dict[str, Any] = {"chunk": 16_384, "every": 16_384, "conditions": {}}
    return Case(name, about, relations, joins, files, **(defaults | settings))


def _drift(name: str, rows: int, chunk: int, every: int, repeats: int) -> Case:
    return _generated(
        name,
        "each S joins 5 R and no T, from half-way on no R and 5 T",
        rows,
        state_data.drift,
        {"r": ("a",), "s": ("a", "b"), "t": ("b",)},
        ("r.a = s.a", "s.b = t.b"),
        chunk=chunk,
        every=every,
        on_spark=True,
        policies=True,
        repeats=repeats,
    )


def _fig7(name: str, chunk: int, every: int, **settings: Any) -> Case:
    return Case(
        name,
        f"TPC-H, lineitem by ship date, {chunk:,} rows at a time",
        # An eddy that knows nothing takes what comes first, here what the worst plan does.
        {"lineitem": ("l_orderkey",), "orders": ("o_orderkey", "o_custkey"), "customer": ("c_custkey",)},
        ("customer.c_custkey = orders.o_custkey", "orders.o_orderkey = lineitem.l_orderkey"),
        state_data.fig7,
        chunk,
        every,
        {
            "customer": (Condition("c_nationkey", "=", 1), Condition("c_acctbal", ">", 9000)),
            "lineitem": (Condition("l_shipdate", ">", dt.date(1996, 1, 1)),),
        },
        by_size=True,
        **settings,
    )


CASES: Mapping[str, Case] = {
    case.name: case
    for case in (
        _drift("drift_5m", 5_000_000, 65_536, 50_000, 1),
        _drift("drift_50k", 50_000, 1000, 1000, 3),
        _fig7("fig7", 16_384, 16_384, policies=True),
        _fig7("fig7_1k", 1000, 1000, rounds=3),
        _generated(
            "star5",
            "a hub and four others, of which a hub's tuple joins 0.2 to 3",
            200_000,
            state_data.star,
            {"h": ("k1", "k2", "k3", "k4"), **{f"d{i}": (f"k{i}",) for i in range(1, 5)}},
            tuple(f"h.k{i} = d{i}.k{i}" for i in range(1, 5)),
        ),
        _generated(
            "path5",
            "five in a row, of which a tuple joins 0.2 to 3 of each neighbour",
            200_000,
            state_data.path,
            {"p1": ("k1",), "p2": ("k1", "k2"), "p3": ("k2", "k3"), "p4": ("k3", "k4"), "p5": ("k4",)},
            tuple(f"p{i}.k{i} = p{i + 1}.k{i}" for i in range(1, 5)),
        ),
        _generated(
            "triangle",
            "tuples agree with many others along one edge, from half-way on along the other two",
            100_000,
            state_data.triangle,
            {"r": ("a", "b"), "s": ("b", "c"), "t": ("c", "a")},
            ("r.b = s.b", "s.c = t.c", "t.a = r.a"),
            chunk=4096,
            every=4096,
            repeats=2,
        ),
    )
}
"""The races by name."""

NAMES = (*CASES, MIGRATE, BUDGET)
QUICK = ("drift_5m", "fig7", "triangle", MIGRATE)


def parse_cases(text: str | None) -> tuple[str, ...]:
    """Return the cases in ``"fig7,star5"``; all of None.

    Raises:
        OptionError: One of them is not known.
    """
    return NAMES if text is None else parse_names("cases", text, NAMES)


def needs_spark(names: tuple[str, ...]) -> bool:
    """Tell whether one of the cases is also run by Spark."""
    return any(name in CASES and CASES[name].on_spark for name in names)
