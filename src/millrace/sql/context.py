"""One query while it is being planned: what all steps share, and what they have found so far."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import types as t
from sqlglot import exp

from millrace.errors import first_line
from millrace.sql.blocks.predicates import Calls
from millrace.sql.expr.constants import Constants
from millrace.sql.expr.functions import Determinism
from millrace.sql.expr.types import Field, field_of
from millrace.sql.names import Names
from millrace.sql.plan import BlockPlan, Direct, FilterPlan, Plan
from millrace.sql.session.tables import Catalog, Lookup, Table
from millrace.sql.syntax.edits import EditedText, Span
from millrace.sql.syntax.parse import Statement, Unsupported
from millrace.sql.syntax.scopes import Relation, Scope, base_tables, with_prefix, within

if TYPE_CHECKING:
    from millrace.spark.predicates import Predicate


class PlanContext:
    """One query on its way to a plan. Spark is only asked: nothing is made in the session.

    Attributes:
        aggregates: Whether tasks may aggregate the rows of blocks.
        placed: Ids of the syntax trees of relations that a block took.
    """

    def __init__(
        self,
        statement: Statement,
        text: EditedText,
        catalog: Catalog,
        predicates: Mapping[str, Predicate],
        first: int,
        *,
        aggregates: bool,
    ) -> None:
        self.aggregates = aggregates
        self.statement = statement
        self.text = text
        self.frames = catalog.frames
        self.catalog = catalog
        self.settings = catalog.settings
        self.names = Names(self)
        self.calls = Calls(statement, predicates)
        self.constants = Constants(self)
        self.determinism = Determinism(predicates, catalog.frames)
        self.blocks: list[BlockPlan] = []
        self.filters: list[FilterPlan] = []
        self.parts: list[tuple[str, Plan]] = []
        self.reasons: list[str] = []
        self.placed: set[int] = set()
        self.direct: Direct | None = None
        self.shared: list[str] = []
        self._first = first
        self._replaced: dict[int, Table] = {}
        self._streaming: dict[int, bool] = {}

    def plan(self) -> Plan:
        return Plan(
            self.text.edited((0, len(self.text.text))),
            tuple(self.blocks),
            tuple(self.filters),
            tuple(dict.fromkeys(self.reasons)),
            self.direct,
            tuple(self.parts),
            tuple(self.shared),
        )

    # Tables

    def replace(self, node: exp.Table, table: Table) -> None:
        """Let another table stand in a place."""
        self._replaced[id(node)] = table

    def _table(self, node: exp.Table) -> Table:
        return self._replaced.get(id(node)) or self.catalog.of(node)

    def table(self, relation: Relation) -> Table | None:
        """Return the base table that a relation is, None for any other relation."""
        return self._table(relation.node) if relation.kind == "table" else None  # type: ignore[arg-type]

    def lookup(self, relation: Relation) -> Lookup | None:
        """Return the lookup table that a relation is, None for any other relation."""
        table = self.table(relation)
        return None if table is None else table.lookup

    def describe(self, relation: Relation) -> tuple[Field, ...]:
        """Return the columns that Spark says a relation has; Unsupported where it cannot analyse it alone."""
        shown = short(self.shown(relation.node))
        if relation.kind in ("cte", "query") and self.escapes(relation.node):
            raise Unsupported(f"{shown} reads columns of the query around it")
        whole = self.whole(relation, self.text.bound)
        try:
            schema = self.schema(whole)
        except PySparkException as error:
            raise Unsupported(f"{shown} cannot be analysed by itself ({first_line(error)})") from None
        return tuple(map(field_of, schema.fields))

    def schema(self, template: str) -> t.StructType:
        """Return the columns that a template gives; Spark's errors come out unchanged."""
        return self.catalog.analyse(template, alike=True).schema

    def whole(self, relation: Relation, text: Callable[[Span], str]) -> str:
        """Return a query for all columns of a relation; ``text`` gives out the pieces of this one."""
        prefix = with_prefix(self.statement, relation.node, text)
        return f"{prefix}SELECT * FROM {text(relation.item)}"  # noqa: S608

    def escapes(self, node: exp.Expr) -> bool:
        """Tell whether a query reads columns of a SELECT around it, and so cannot run by itself."""
        parts = list(within(node))
        inside = {id(part) for part in parts if isinstance(part, exp.Select)}
        columns = (self.names.find(part) for part in parts if isinstance(part, exp.Column))
        return any(column is not None and id(column.scope.select) not in inside for column in columns)

    def has_block(self, node: exp.Expr) -> bool:
        """Tell whether a block took a relation in a query; definitions that it reads do not count."""
        return any(id(part) in self.placed for part in within(node))

    def is_streaming(self, node: exp.Expr) -> bool:
        """Tell whether a relation or query reads rows that never end."""
        if id(node) not in self._streaming:
            self._streaming[id(node)] = any(self._table(table).is_streaming for table in base_tables(node))
        return self._streaming[id(node)]

    # Text

    def shown(self, node: exp.Expr) -> str:
        """Return a piece of the query on one line, for explanations."""
        if not self.statement.has_span(node):
            return node.sql(dialect="spark")
        return self.statement.shown(node)

    def where(self, scope: Scope) -> str:
        """Return the beginning of a FROM clause, for explanations."""
        start = scope.select.args.get("from_")
        return "a FROM clause" if start is None else short(self.shown(start), 60)

    # Generated names

    @cached_property
    def stem(self) -> str:
        """What generated names begin with: nothing in the query or in its tables does."""
        texts = {self.statement.text.lower()}
        texts |= {field.name.lower() for table in self.catalog.used for field in table.fields}
        stems = ("__mr" if not number else f"__mr_{number}_" for number in itertools.count())
        return next(stem for stem in stems if not any(stem in text for text in texts))

    def next_block(self, more: int = 0) -> int:
        """Return the number of the next block but so many."""
        return self._first + len(self.blocks) + sum(part.size for _, part in self.parts) + more


def short(text: str, most: int = 40) -> str:
    """Return a text cut to so many characters."""
    return text if len(text) <= most else text[: most - 3] + "..."
