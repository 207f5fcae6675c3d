"""A lookup table in a place where no block takes it, replaced by its rows for the keys that can matter.

``o LEFT JOIN prices p ON o.sku = p.sku`` becomes ``o LEFT JOIN r p ON o.sku = p.sku``, where ``r`` are the
rows of ``prices`` for the distinct ``o.sku``: an inner join, which a block takes. Rows of other keys could
not match, so the answer is the same, and Spark runs the outer join. What gives the keys is evaluated twice.
"""

# ruff: noqa: S608  # SQL is what this module writes

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from sqlglot import exp

from millrace.front.coercion import field_of
from millrace.front.context import Context
from millrace.front.keys import KEYS, KeyFinder, Keys
from millrace.front.leave import Leave
from millrace.front.names import Scope, Source
from millrace.front.refusals import Refusal, refusal
from millrace.front.repeatable import check_table
from millrace.front.tables import Table, by_name
from millrace.front.texts import plain_quote, quote
from millrace.front.views import View

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Restriction:
    """Replaces lookup tables of one query.

    Args:
        context: The query.
        scopes: Its SELECTs.
        prepare: Returns the rows of another query over the same tables.
    """

    def __init__(
        self, context: Context, scopes: Mapping[int, Scope], prepare: Callable[[str], DataFrame]
    ) -> None:
        self._context = context
        self._scopes = scopes
        self._prepare = prepare
        self._known = False

    def is_needed(self, node: exp.Table, forced: Mapping[int, list[str]]) -> bool:
        """Tell whether no block takes a lookup table as it stands, by its place or by what was tried."""
        found = self._find(node)
        if found is not None and found[1].kind == "table":
            table = found[1].table
            if table is None or not table.asked:
                return False
        if id(node) in forced or found is None:
            return True
        try:
            return not View.of(self._context, *found).is_inner
        except Leave:
            return False  # a block may still say why

    def apply(self, node: exp.Table, reasons: Sequence[str]) -> None:
        """Replace a lookup table in the query's text.

        Args:
            node: Its place.
            reasons: Why no block takes it.

        Raises:
            Refusal: Nothing gives the values to ask it with.
        """
        table = self._context.catalog.mapped(tuple(part.name for part in node.parts))
        assert table is not None
        assert table.lookup is not None
        why = list(reasons)
        found = self._find(node)
        if found is None or found[1].kind != "table":
            why.append("it has a form that is not looked into, such as a list of column names or TABLESAMPLE")
        elif node.args.get("sample"):
            why.append("TABLESAMPLE")
        else:
            self._know_columns()
            for columns in table.lookup.table.bind:
                try:
                    frame = self._rows(*found, columns)
                except Leave as leave:
                    why.append(str(leave))
                except Refusal as refused:
                    if refused.place != KEYS:
                        raise
                    why.append(f"values for {', '.join(columns)} compare only after a cast of the column")
                except PySparkException as error:
                    why.append(str(error).split("\n", 1)[0])
                else:
                    self._replace(node, found[1], table, frame)
                    return
        declared = table.lookup.table
        raise refusal(self._context.statement, [node], [declared], why)

    def _find(self, node: exp.Table) -> tuple[Scope, Source] | None:
        for scope in self._scopes.values():
            for source in scope.sources:
                if source.node is node:
                    return scope, source
        return None

    def _know_columns(self) -> None:
        """Let Spark tell the columns of derived tables and common table expressions."""
        if self._known:
            return
        self._known = True
        context = self._context
        for scope in self._scopes.values():
            for source in scope.sources:
                if context.resolver.columns(source) is not None or not context.statement.has_span(
                    source.node
                ):
                    continue
                try:
                    item = context.text.render(*context.statement.span(source.node))
                    frame = context.frames.sql(f"{context.with_prefix(source.node)}SELECT * FROM {item}")
                    columns = by_name(tuple(field_of(column) for column in frame.schema.fields))
                except (Leave, PySparkException):
                    continue  # it reads what stands around it, or only Spark can read it
                context.resolver.known[id(source)] = columns
        context.forget()

    def _rows(self, scope: Scope, source: Source, columns: tuple[str, ...]) -> DataFrame:
        """Return the rows of a lookup table that matter in a place, asked by some of its columns."""
        view = View.of(self._context, scope, source)
        filters = view.filters()
        fixed = {name for term in filters for name in view.fixed(term)}
        free = [column for column in columns if column.lower() not in fixed]
        keys: list[Keys] = []
        if free:
            keys = KeyFinder(self._context, self._scopes).find(
                scope, source, [frozenset({column.lower()}) for column in free]
            )
        for each in keys:
            self._check_tables(each.nodes)
        return self._prepare(self._text(source, filters, free, keys))

    def _text(
        self, source: Source, filters: Sequence[exp.Expr], free: Sequence[str], keys: Sequence[Keys]
    ) -> str:
        statement = self._context.statement
        node = source.node
        assert isinstance(node, exp.Table)
        alias = plain_quote(node.alias or node.name)
        name = ".".join(plain_quote(part.name) for part in node.parts)
        prefix = self._prefix([*filters, *(n for each in keys for n in each.nodes)])
        where = [f"({statement.text[slice(*statement.span(term))]}\n)" for term in filters]
        if not free:
            text = f"SELECT {alias}.* FROM {name} AS {alias}"
        else:
            parts = [each.text() for each in keys]
            if not parts:  # nobody reads it
                assert source.table is not None
                kinds = [source.table.columns[column.lower()].type.simpleString() for column in free]
                nulls = [f"CAST(NULL AS {kind}) AS __k{place}" for place, kind in enumerate(kinds)]
                parts = [f"SELECT {', '.join(nulls)} WHERE false"]
            ties = [f"{KEYS}.__k{place} = {alias}.{plain_quote(column)}" for place, column in enumerate(free)]
            union = "\nUNION\n".join(parts)
            text = f"SELECT {alias}.* FROM (\n{union}\n) AS {KEYS} INNER JOIN {name} AS {alias} ON "
            text += " AND ".join(ties)
        return prefix + text + (f" WHERE {' AND '.join(where)}" if where else "")

    def _prefix(self, nodes: Iterable[exp.Expr]) -> str:
        """Return the WITH clause that pieces of the query need, as written."""
        statement = self._context.statement
        needed = {id(cte): cte for node in nodes for cte in self._context.definitions(node)}
        ctes = sorted(needed.values(), key=lambda cte: statement.span(cte)[0])
        names = [cte.alias.lower() for cte in ctes]
        if len(set(names)) != len(names):
            raise Leave("common table expressions that hide each other")
        texts = [statement.text[slice(*statement.span(cte))] for cte in ctes]
        return f"WITH {', '.join(texts)} " if texts else ""

    def _check_tables(self, nodes: Iterable[exp.Expr]) -> None:
        """Refuse tables that are read twice and may differ, as far as Spark's plan shows it."""
        catalog = self._context.catalog
        every = [part for node in nodes for part in (node, *self._context.definitions(node))]
        for node in {id(t): t for part in every for t in part.find_all(exp.Table)}.values():
            if not isinstance(node.this, exp.Identifier):
                continue
            table = catalog.mapped(tuple(part.name for part in node.parts))
            if table is not None and table.parquet is None and table.lookup is None:
                check_table(self._context.frames, table.placeholder or "", table.name)
            elif table is None and not self._is_definition(node):
                name = ".".join(quote(part.name) for part in node.parts)
                check_table(self._context.frames, name, node.name)

    def _is_definition(self, node: exp.Table) -> bool:
        found = self._find(node)
        return found is not None and found[1].cte is not None

    def _replace(self, node: exp.Table, source: Source, table: Table, frame: DataFrame) -> None:
        """Put rows in the place of a table's name."""
        context = self._context
        placeholder = context.frames.place(frame, "r")
        start = node.parts[0].meta["start"]
        assert table.placeholder is not None
        for place, edit in enumerate(context.text.bindings):
            if edit.start == start:
                parts = tuple(
                    part.replace(table.placeholder, placeholder) if isinstance(part, str) else part
                    for part in edit.parts
                )
                context.text.bindings[place] = replace(edit, parts=parts)
        source.table = Table(table.name, frame, None, placeholder)
        context.placed.add(id(node))
