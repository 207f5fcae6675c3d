"""A lookup table in a place where no block takes it, replaced by its rows for the keys that can matter.

``o LEFT JOIN prices p ON o.sku = p.sku`` becomes ``o LEFT JOIN r p ON o.sku = p.sku``, where ``r`` are the
rows of ``prices`` for the distinct ``o.sku``: an inner join, which a block takes. Rows of other keys could
not match, so the answer is the same, and Spark runs the outer join. What gives the keys is evaluated twice.
"""

# ruff: noqa: S608  # SQL is what this module writes

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pyspark.errors import PySparkException
from sqlglot import exp

from millrace.errors import InputError, first_line
from millrace.lookups.table import LookupTable
from millrace.spark.plans import explained
from millrace.sql.context import PlanContext, short
from millrace.sql.expr.determinism import unrepeatable_plan
from millrace.sql.lookups.keys import KEYS, KeyFinder, RelationSite
from millrace.sql.plan import Plan
from millrace.sql.session.tables import Table
from millrace.sql.syntax.edits import plain_quote
from millrace.sql.syntax.parse import Unsupported
from millrace.sql.syntax.scopes import Relation, Scope, base_tables, with_prefix


class Restriction:
    """Replaces lookup tables of one query.

    ``rows`` plans another query over the same tables, its blocks numbered from a number on.
    """

    def __init__(self, context: PlanContext, rows: Callable[[str, int], Plan]) -> None:
        self._context = context
        self._rows_of = rows

    def is_needed(self, node: exp.Table) -> bool:
        """Tell whether a lookup table stands where no block takes it."""
        where = self._context.names.scopes.find(node)
        try:
            return where is None or not RelationSite(self._context, *where).step.free
        except Unsupported:
            return False  # a block may still say why

    def apply(self, node: exp.Table, reasons: Sequence[str]) -> None:
        """Replace a lookup table, which no block takes for these reasons, in the query's text.

        Refuse it where nothing gives the values to ask it with.
        """
        table = self._context.catalog.of(node)
        assert table.lookup is not None
        why = list(reasons)
        where = self._context.names.scopes.find(node)
        if where is None or where[1].columns:
            why.append("it has a form that is not looked into, such as a list of column names or TABLESAMPLE")
        elif node.args.get("sample"):
            why.append("TABLESAMPLE")
        else:
            for columns in table.lookup.table.bind:
                try:
                    plan = self._rows(*where, table, columns)
                except Unsupported as error:
                    why.append(str(error))
                except Refusal as refused:
                    if refused.place != KEYS:
                        raise
                    why.append(f"values for {', '.join(columns)} compare only after a cast of the column")
                except PySparkException as error:
                    why.append(first_line(error))
                else:
                    self._replace(node, table, plan)
                    return
        raise refusal(self._context, [(node, table.lookup.table)], why)

    def _rows(self, scope: Scope, relation: Relation, table: Table, columns: tuple[str, ...]) -> Plan:
        """Return the rows of a lookup table that matter in a place, asked by some of its columns."""
        context, statement, node = self._context, self._context.statement, relation.node
        assert isinstance(node, exp.Table)
        site = RelationSite(context, scope, relation)
        filters = site.filters()
        fixed = {name for term in filters for name in site.fixed(term)}
        free = [column for column in columns if column.lower() not in fixed]
        wanted = [frozenset({column.lower()}) for column in free]
        keys = KeyFinder(context).find(scope, relation, wanted) if free else []
        pieces = [piece for query in keys for piece in query.nodes]
        self._check_tables(pieces)
        alias = plain_quote(node.alias or node.name)
        text = with_prefix(statement, [*filters, *pieces], lambda span: statement.text[slice(*span)])
        text += f"SELECT {alias}.* FROM "
        if free:
            values = "\nUNION\n".join(query.text(statement) for query in keys) or _no_values(table, free)
            text += f"(\n{values}\n) AS {KEYS} INNER JOIN "
        text += f"{'.'.join(plain_quote(part.name) for part in node.parts)} AS {alias}"
        if free:
            ties = [f"{KEYS}.__k{place} = {alias}.{plain_quote(column)}" for place, column in enumerate(free)]
            text += f" ON {' AND '.join(ties)}"
        if filters:
            text += " WHERE " + " AND ".join(f"({statement.cut(term)}\n)" for term in filters)
        return self._rows_of(text, context.next_block())

    def _check_tables(self, nodes: Iterable[exp.Expr]) -> None:
        """Refuse tables that are read twice and may differ, as far as Spark's plan shows it."""
        for node in {id(table): table for each in nodes for table in base_tables(each)}.values():
            table = self._context.catalog.of(node)
            if table.parquet is not None or table.lookup is not None:
                continue
            try:
                why = unrepeatable_plan(explained(table.frame, "EXTENDED"))
            except PySparkException:
                continue
            if why is not None:
                raise InputError(
                    f"table {table.name!r} has to be read twice, for the keys of a lookup table and for its "
                    f"rows, but it may differ the second time ({why} in its plan); write it to files first"
                )

    def _replace(self, node: exp.Table, table: Table, plan: Plan) -> None:
        """Put rows in the place of a table's name."""
        context = self._context
        name = f"r{context.next_block()}_{len(context.parts)}"
        placeholder = context.frames.put(name, table.frame)  # for analysis, until the plan is built
        context.parts.append((name, plan))
        assert table.placeholder is not None
        context.text.rebind(node.parts[0].meta["start"], table.placeholder, placeholder)
        context.replace(node, Table(table.name, table.read, None, placeholder))
        context.placed.add(id(node))


def _no_values(table: Table, columns: Sequence[str]) -> str:
    """Return a query for no values of columns, for a table that nobody reads."""
    kinds = {field.name.lower(): field.type.simpleString() for field in table.fields}
    nulls = [f"CAST(NULL AS {kinds[c.lower()]}) AS __k{place}" for place, c in enumerate(columns)]
    return f"SELECT {', '.join(nulls)} WHERE false"


class Refusal(InputError):
    """A lookup table stands where nothing gives the values to ask it with."""

    place = ""
    """The name of the first relation of its FROM clause, in lower case."""


def refusal(
    context: PlanContext, left: Sequence[tuple[exp.Table, LookupTable]], reasons: Sequence[str]
) -> Refusal:
    """Return the error for lookup tables that nothing binds, in their places."""
    text = "; ".join(
        f"lookup table {table.name!r} cannot be asked in {_place(context, node)!r}: nothing there gives "
        f"values for {table.needs(node.alias or node.name)}"
        for node, table in left
    )
    why = "; ".join(dict.fromkeys(filter(None, reasons)))
    text += f" ({why})" if why else ""
    node, table = left[0]
    first = f"{node.alias or node.name}.{table.bind[0][0]}"
    error = Refusal(
        f"{text}. What would work: an equality with what another relation has (… = {first}, of a type that "
        f"compares without a cast of {first}), as a condition of its own in ON or WHERE; constants "
        f"({first} = …, {first} IN (…)); {first} IN (SELECT …); or a scan for the lookup table"
    )
    select = node.find_ancestor(exp.Select)
    start = None if select is None else select.args.get("from_")
    error.place = "" if start is None else start.this.alias_or_name.lower()
    return error


def _place(context: PlanContext, node: exp.Table) -> str:
    """Return the text of the FROM clause or join that a table stands in, on one line."""
    around = node.find_ancestor(exp.From, exp.Join, exp.Query)
    shown = context.shown(around if isinstance(around, exp.From | exp.Join) else node)
    return short(shown.lstrip(", "), 80)
