"""What all steps of one query share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlglot import exp

from millrace.block import Block
from millrace.front.constants import Constants
from millrace.front.leave import Leave
from millrace.front.names import Found, Resolver, visible_ctes
from millrace.front.parse import Span, Statement
from millrace.front.tables import Catalog
from millrace.front.texts import EditedText, Frames
from millrace.options import Options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millrace.front.calls import Calls
    from millrace.front.functions import Functions
    from millrace.spark.execute import BlockRun
    from millrace.spark.where import Mask


@dataclass(frozen=True)
class Taken:
    """A block that Millrace runs.

    Attributes:
        block: The join and its inputs.
        run: Its DataFrame, its plan and, after a run, its figures.
        above: Conjuncts of its FROM and WHERE that Spark evaluates above it.
        scans: Per relation that Spark scans, the filters it applies, as SQL.
    """

    block: Block
    run: BlockRun
    above: tuple[str, ...] = ()
    scans: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Filter:
    """Predicates that an eddy runs inside Spark's own filter.

    Attributes:
        name: Names it in reports.
        calls: The conditions it stands for, as written; none for a function that Spark calls anywhere.
        mask: Its function, its plan and, after a run, its figures.
    """

    name: str
    calls: tuple[str, ...]
    mask: Mask


@dataclass
class Context:
    """One query on its way through the front.

    Attributes:
        calls: The calls of the caller's predicates.
        functions: Makes functions of the session.
        taken: The blocks so far, inner ones first.
        filters: The filters so far, inner ones first.
        reasons: Why something stayed with Spark.
        placed: Ids of the syntax trees of lookup tables that a block asks.
    """

    spark: SparkSession
    options: Options
    statement: Statement
    text: EditedText
    frames: Frames
    catalog: Catalog
    resolver: Resolver
    constants: Constants
    calls: Calls
    functions: Functions
    ansi: bool = True
    taken: list[Taken] = field(default_factory=list)
    filters: list[Filter] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    placed: set[int] = field(default_factory=set)
    _found: dict[int, Found | None] = field(default_factory=dict)

    def find(self, column: exp.Column) -> Found | None:
        """Return what a column means, looked up once."""
        if id(column) not in self._found:
            self._found[id(column)] = self.resolver.find(column)
        return self._found[id(column)]

    def forget(self) -> None:
        """Look columns up anew: more relations' columns are known now."""
        self._found.clear()

    def text_of(self, node: exp.Expr) -> str | None:
        """Return a node's text as written, with tables bound; None for a node the parser invented."""
        if not self.statement.has_span(node):
            return None
        return self.text.bound(*self.statement.span(node))

    def shown(self, span: Span) -> str:
        """Return a piece of the query on one line, for explanations."""
        return " ".join(self.statement.text[span[0] : span[1]].split())

    def escapes(self, node: exp.Expr) -> bool:
        """Tell whether a query reads columns of a SELECT around it, and so cannot run by itself."""
        inside = {id(select) for select in node.find_all(exp.Select)}
        for column in node.find_all(exp.Column):
            found = self.find(column)
            if found is not None and id(found.scope.select) not in inside:
                return True
        return False

    def with_prefix(self, node: exp.Expr) -> str:
        """Return the WITH clause that a query or relation taken out of its place needs.

        Raises:
            Leave: The definitions cannot be put into one WITH clause.
        """
        needed: dict[int, exp.CTE] = {}
        self._collect(node, needed)
        if not needed:
            return ""
        ctes = sorted(needed.values(), key=lambda cte: self.statement.span(cte)[0])
        names = [cte.alias.lower() for cte in ctes]
        if len(set(names)) != len(names):
            raise Leave("common table expressions that hide each other")
        parts = [self.text.render(*self.statement.span(cte)) for cte in ctes]
        return "WITH " + ", ".join(parts) + " "

    def definitions(self, node: exp.Expr) -> list[exp.CTE]:
        """Return every common table expression that a relation or query reads, directly or not."""
        needed: dict[int, exp.CTE] = {}
        self._collect(node, needed)
        return list(needed.values())

    def _collect(self, node: exp.Expr, needed: dict[int, exp.CTE]) -> None:
        own = {id(cte) for cte in node.find_all(exp.CTE)}
        for table in _tables(node):
            if len(table.parts) != 1 or not isinstance(table.this, exp.Identifier):
                continue
            for cte in visible_ctes(table):
                if cte.alias.lower() != table.name.lower():
                    continue
                if id(cte) not in own and id(cte) not in needed:
                    with_ = cte.find_ancestor(exp.With)
                    if with_ is None or with_.args.get("recursive"):
                        raise Leave("a recursive common table expression")
                    if not self.statement.has_span(cte):
                        raise Leave("a common table expression in a form that is not read here")
                    needed[id(cte)] = cte
                    self._collect(cte, needed)
                break


def _tables(node: exp.Expr) -> Iterator[exp.Table]:
    if isinstance(node, exp.Table):
        yield node
    yield from (t for t in node.find_all(exp.Table) if t is not node)
