"""``millrace.join``: relations and conditions as PySpark users have them, as a query over them.

Conditions that name columns become conditions of the query, so that a block can take them. A ``Column`` does
not tell what it is made of; so one over a single relation filters, or adds a key to, that relation's
DataFrame, and one over several is Spark's to evaluate on the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession

from millrace.api.predicates import where as filtered
from millrace.errors import QueryError, near
from millrace.lookups.table import LookupTable
from millrace.options import StorageOptions
from millrace.spark.path_tables import FORMATS, PathTable, open_path, suffix_of
from millrace.spark.session import SessionConf
from millrace.sql.syntax.edits import plain_quote

HOWS = {
    "inner": "JOIN",
    "cross": "CROSS JOIN",
    "left": "LEFT JOIN",
    "right": "RIGHT JOIN",
    "full": "FULL JOIN",
    "semi": "LEFT SEMI JOIN",
    "anti": "LEFT ANTI JOIN",
}
# PySpark's other names of them.
_SAME = {
    "leftouter": "left", "rightouter": "right", "outer": "full", "fullouter": "full", "leftsemi": "semi",
    "leftanti": "anti",
}  # fmt: skip
# Whose rows come out of a join whatever the others have, so that filtering them before or after it is one.
_KEPT = {"left": slice(1), "right": slice(-1, None), "full": slice(0)}
_FILTERING = ("inner", "cross")
Side = str | Column
Condition = str | Column | tuple[Side, Side]
_Open = Callable[[str | Path], PathTable]


@dataclass
class _Relation:
    """A relation: what the query's table ``alias`` is, its columns, and the keys that were added to it."""

    alias: str
    table: Any
    columns: list[str]
    keys: list[str] = field(default_factory=list)

    def has(self, name: str) -> bool:
        return any(column.lower() == name.lower() for column in self.columns)

    @property
    def frame(self) -> Any:
        if isinstance(self.table, LookupTable):
            return None
        return self.table.frame if isinstance(self.table, PathTable) else self.table

    def computes(self, column: Column) -> bool:
        """Tell whether a Column can be evaluated over it alone."""
        with suppress(PySparkException):
            return self.frame is not None and self.frame.select(column).schema is not None
        return False


@dataclass(frozen=True)
class JoinQuery:
    """A join as a query: what names in its text stand for, and conditions for its result."""

    text: str
    tables: dict[str, Any]
    above: tuple[Column, ...]

    def filter_result(self, result: DataFrame) -> DataFrame:
        """Return the rows of the join's result that pass the conditions for it."""
        try:
            for column in self.above:
                result = result.where(column)
        except PySparkException as error:
            raise QueryError(
                "a condition over several relations cannot be evaluated on the join's result, whose columns "
                f"are {', '.join(result.columns)}: expected columns by name, such as "
                f"col({result.columns[0]!r}), where they are taken from a DataFrame; an equality that joins "
                "two relations is a pair of columns"
            ) from error
        return result


def build_join(
    spark: SparkSession,
    shared: Mapping[str, Any],
    relations: Sequence[object],
    on: Condition | Iterable[Condition],
    where: Side | Iterable[Side],
    how: str,
    select: str | Iterable[str] | None,
    storage: StorageOptions | None = None,
) -> JoinQuery:
    """Return a join as a query; see :func:`millrace.join`. ``shared`` are tables that have names already."""
    plain = str(how).lower().replace("_", "")
    kind = _SAME.get(plain, plain)
    if kind not in HOWS:
        raise QueryError(f"how is {how!r}: {near(str(how), HOWS)}")
    open_table = partial(open_path, spark, settings=SessionConf(spark), storage=storage)
    builder = _JoinBuilder(_relations(spark, shared, relations, open_table), kind)
    conditions, filters = _several(on, "on"), _several(where, "where")
    joined = kind == "cross" or conditions or (kind == "inner" and filters)
    if len(builder.relations) > 1 and not joined:
        raise QueryError(
            f'nothing joins the {len(builder.relations)} relations: expected on=[("o_custkey", "c_custkey"), '
            '…]; all combinations of their rows are how="cross"'
        )
    if len(builder.relations) == 1 and conditions:
        raise QueryError("on joins several relations, and there is one: expected more relations, or where")
    for condition in conditions:
        builder.join(condition)
    for condition in filters:
        builder.filter(condition)
    return builder.build(HOWS[kind], None if select is None else _several(select, "select"))


def _several(conditions: Any, name: str) -> list[Any]:
    sides = conditions if isinstance(conditions, tuple) and len(conditions) == 2 else (conditions,)
    if all(isinstance(side, str | Column) for side in sides):
        return [conditions]
    if not isinstance(conditions, Iterable):
        raise QueryError(
            f"join's {name} is given as {type(conditions).__name__}: expected a condition, or a list of them"
        )
    return list(conditions)


def _relations(
    spark: SparkSession, shared: Mapping[str, Any], relations: Sequence[object], open_table: _Open
) -> list[_Relation]:
    first = relations[0] if len(relations) == 1 else None
    if isinstance(first, Mapping):
        named = [(str(name), relation) for name, relation in first.items()]
    else:
        named = [(_name(relation, place), relation) for place, relation in enumerate(relations)]
    if not named:
        raise QueryError(
            "join needs at least one relation: expected DataFrames, names or paths, or a mapping"
        )
    result: list[_Relation] = []
    for name, relation in named:
        while any(name.lower() == other.alias.lower() for other in result):
            name += "_"
        table = _table(spark, shared, relation, open_table)
        columns = table.schema.names if isinstance(table, LookupTable) else table.columns
        result.append(_Relation(name, table, list(columns)))
    return result


def _name(relation: object, place: int) -> str:
    name = ""
    if isinstance(relation, LookupTable):
        name = relation.name
    elif isinstance(relation, str | Path):
        name = Path(relation).name.split(".")[0] if _is_path(relation) else str(relation).rsplit(".", 1)[-1]
    return name or f"t{place + 1}"


def _is_path(name: str | Path) -> bool:
    return isinstance(name, Path) or "/" in name or suffix_of(name) in (".parquet", *FORMATS)


def _table(spark: SparkSession, shared: Mapping[str, Any], relation: object, open_table: _Open) -> Any:
    if isinstance(relation, str) and not _is_path(relation):
        named = next((table for name, table in shared.items() if name.lower() == relation.lower()), None)
        relation = spark.table(relation) if named is None else named
    if isinstance(relation, str | Path):
        return open_table(relation)
    if not isinstance(relation, LookupTable) and not hasattr(relation, "mapInArrow"):
        raise QueryError(
            f"join is given a {type(relation).__name__}: expected DataFrames, lookup tables, names of "
            "tables, paths of Parquet, CSV or JSON data, or one mapping of names to these"
        )
    return relation


class _JoinBuilder:
    def __init__(self, relations: list[_Relation], kind: str) -> None:
        self.relations = relations
        self._kind = kind
        self._using: list[str] = []
        self._on: dict[int, list[str]] = {}
        self._where: list[str] = []
        self._above: list[Column] = []

    # Conditions

    def join(self, condition: Condition) -> None:
        match condition:
            case (left, right):
                self._pair(left, right)
            case str() if sum(relation.has(condition) for relation in self.relations) > 1:
                self._using.append(condition)
            case str() if self._kind in _FILTERING:
                self._where.append(condition)
            case Column() if self._kind in _FILTERING:
                self.filter(condition)
            case str() | Column():
                self._match(condition)
            case _:
                raise QueryError(
                    f"join's on has {condition!r}: expected the name of a column that relations share, a "
                    'pair of columns such as ("o_custkey", "c_custkey"), a Column, or a condition in SQL'
                )

    def _match(self, condition: Side) -> None:
        """Add a condition for a match; without one, rows of an outer join still come out."""
        if len(self.relations) != 2:
            raise QueryError(
                f"on has the condition {condition}: with how={self._kind!r} and {len(self.relations)} "
                "relations it is not clear which join it is for: join two at a time, or write the query"
            )
        text = f"({condition})"
        if isinstance(condition, Column):
            owners = self._owners(condition)
            if len(owners) != 1:
                raise QueryError(
                    f"on has {condition}, which is not of one relation: write a pair of columns, or a "
                    "condition in SQL"
                )
            text = self._reference(owners[0], condition)
        self._on.setdefault(1, []).append(text)

    def _pair(self, left: Side, right: Side) -> None:
        pairs = [(a, b) for a, b in product(self._owners(left), self._owners(right)) if a != b]
        if len(pairs) != 1:
            columns = [f"{r.alias} has {', '.join(r.columns[:8])}" for r in self.relations]
            names = [f"{self.relations[a].alias} and {self.relations[b].alias}" for a, b in pairs]
            what = f"may join {'; or '.join(names)}" if names else "joins no two of the relations"
            raise QueryError(
                f"({left}, {right}) {what}: write which, as in ('{self.relations[0].alias}.column', …); "
                f"{'; '.join(columns)}"
            )
        ((a, b),) = pairs
        texts = [self._reference(a, left), self._reference(b, right)]
        self._on.setdefault(max(a, b), []).append(" = ".join(texts))

    def _owners(self, side: Side) -> list[int]:
        if isinstance(side, Column):
            return [n for n, relation in enumerate(self.relations) if relation.computes(side)]
        if not isinstance(side, str):
            raise QueryError(f"join's on has {side!r}: expected the name of a column, or a Column")
        owners = [n for n, relation in enumerate(self.relations) if relation.has(side)]
        alias, dot, name = side.rpartition(".")
        if dot and not owners:
            named = [n for n, r in enumerate(self.relations) if r.alias.lower() == alias.lower()]
            owners = [n for n in named if self.relations[n].has(name)]
        if not owners:
            raise QueryError(
                f"no relation has a column {side!r}: "
                f"{near(name, [column for relation in self.relations for column in relation.columns])}"
            )
        return owners

    def _reference(self, number: int, side: Side) -> str:
        relation = self.relations[number]
        if isinstance(side, Column):
            name = f"__key_{number}_{len(relation.keys)}"
            relation.table = relation.frame.withColumn(name, side)
            relation.keys.append(name)
        else:
            name = side if relation.has(side) else side.rpartition(".")[2]
        return f"{plain_quote(relation.alias)}.{plain_quote(name)}"

    def filter(self, condition: Side) -> None:
        if isinstance(condition, str):
            self._where.append(condition)
            return
        if not isinstance(condition, Column):
            raise QueryError(f"join's where has {condition!r}: expected a Column, or a condition in SQL")
        owners = self._owners(condition)
        kept = range(len(self.relations))[_KEPT.get(self._kind, slice(None))]
        if len(owners) != 1 or owners[0] not in kept:
            self._above.append(condition)
            return
        relation = self.relations[owners[0]]
        relation.table = filtered(relation.frame, condition)

    # The query

    def build(self, keyword: str, select: list[str] | None) -> JoinQuery:
        first, *others = (plain_quote(relation.alias) for relation in self.relations)
        joined = "".join(f" {keyword} {each}{self._on_clause(n)}" for n, each in enumerate(others, 1))
        where = " AND ".join(f"({condition})" for condition in self._where)
        text = f"SELECT {self._items(select)} FROM {first}{joined}"  # noqa: S608  # SQL is what this writes
        text += f" WHERE {where}" if where else ""
        return JoinQuery(text, {r.alias: r.table for r in self.relations}, tuple(self._above))

    def _on_clause(self, number: int) -> str:
        relation, before = self.relations[number], self.relations[:number]
        shared = [name for name in self._using if relation.has(name) and any(r.has(name) for r in before)]
        terms = self._on.get(number, [])
        if shared and terms:
            raise QueryError(
                f"on joins {relation.alias} by {shared[0]!r} and by something else: write {shared[0]!r} as a "
                "pair too"
            )
        if shared:
            return f" USING ({', '.join(map(plain_quote, shared))})"
        return f" ON {' AND '.join(terms)}" if terms else ""

    def _items(self, select: list[str] | None) -> str:
        if select is not None:
            return ", ".join(select)
        shown = self.relations[:1] if self._kind in ("semi", "anti") else self.relations
        keys = [plain_quote(key) for relation in shown for key in relation.keys]
        return f"* EXCEPT ({', '.join(keys)})" if keys else "*"
