"""A lookup table in a place where no block takes it, replaced by its rows for the keys that can matter.

``o SEMI JOIN prices p ON o.sku = p.sku`` becomes ``o SEMI JOIN r p ON o.sku = p.sku``, where ``r`` are the
rows of ``prices`` for the distinct ``o.sku``: an inner join, which a block takes. Rows of other keys could
not match, so the answer is the same, and Spark runs the semi join. What gives the keys is evaluated twice.

So the keys may be too many, and a query for them may leave out whatever only removes rows; it never misses
one. A table for which there is none is refused by name.
"""

# ruff: noqa: S608  # SQL is what this module writes

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from pyspark.errors import PySparkException
from sqlglot import exp

from millrace.errors import InputError, first_line
from millrace.lookups.table import LookupTable
from millrace.spark.session import explained
from millrace.sql.context import PlanContext, short
from millrace.sql.expr.functions import is_constant, unrepeatable_plan
from millrace.sql.plan import Plan
from millrace.sql.session.tables import Table
from millrace.sql.syntax.edits import plain_quote
from millrace.sql.syntax.parse import Unsupported, compared, function_of, unwrap, where_conjuncts
from millrace.sql.syntax.scopes import (
    FromItem,
    Relation,
    Scope,
    base_tables,
    cte_of,
    definitions,
    is_recursive,
    tables_in,
    with_prefix,
)

KEYS = "__k"
"""Names the values where they are joined with the relation."""

KeyColumns = Sequence[frozenset[str]]
"""For each value that is wanted, the relation's columns (in lower case) any of which gives it."""

Keys = tuple[str, Sequence[exp.Expr]]
"""A query for values, with the columns ``__k0``, ``__k1`` and so on, and the syntax trees that it is of."""

_BARRED = (exp.Query, exp.AggFunc, exp.Window, exp.Star)


class RelationSite:
    """One relation in its FROM clause, and where values for its columns come from.

    ``terms`` are what its rows have to meet to be joined; those that do not change no answer.
    """

    def __init__(self, context: PlanContext, scope: Scope, relation: Relation) -> None:
        assert scope.clause is not None
        self._context, self._scope, self._relation, self._clause = context, scope, relation, scope.clause
        steps = self._clause.steps
        self._place = self._clause.number(relation)
        self.step = step = steps[self._place]
        self.terms: list[exp.Expr] = []
        if step.free:
            self.terms += self._clause.inner_terms
        elif step.kind == "left" and step.relation is not None:
            self.terms += step.terms
        # A RIGHT join keeps what stands before it only where its condition is met, and all rows of its own.
        ends = [place for place, each in enumerate(steps) if each.kind in ("right", "full")]
        self._behind = {place for place in ends[:1] if place > self._place and steps[place].kind == "right"}
        self.terms += [term for place in self._behind for term in steps[place].terms]

    def _column(self, node: exp.Expr) -> str | None:
        """Return the lower-case name of this relation's column that an expression is, None if it is none."""
        attribute = self._context.names.attribute(unwrap(node))
        if attribute is None or attribute.relation is not self._relation:
            return None
        return attribute.name.lower()

    def _equal(self, term: exp.Expr) -> Iterator[tuple[str, exp.Expr]]:
        """Yield a column of this relation with what a term says it is equal to."""
        inner = unwrap(term)
        if isinstance(inner, exp.EQ):
            for own, other in ((inner.this, inner.expression), (inner.expression, inner.this)):
                if (name := self._column(own)) is not None:
                    yield name, other

    def _fixed(self, term: exp.Expr) -> set[str]:
        """Return the columns of this relation that a term limits to values that need no other relation."""
        inner = unwrap(term)
        if not isinstance(inner, exp.In):
            return {name for name, other in self._equal(term) if is_constant(other)}
        query, keys = inner.args.get("query"), [self._column(key) for key in compared(inner)]
        if query is None:
            is_fixed = len(keys) == 1 and bool(inner.expressions) and all(map(is_constant, inner.expressions))
        else:
            is_fixed = not self._context.determinism.unrepeatable(query) and not self._context.escapes(query)
        return {key for key in keys if key is not None} if is_fixed and None not in keys else set()

    def filters(self) -> dict[exp.Expr, set[str]]:
        """Return the terms that limit columns of this relation by themselves, with these columns."""
        # A WHERE that a null does not meet drops the rows that an outer join makes up.
        fixed = {term: self._fixed(term) for term in (*self.terms, *self._clause.where)}
        return {term: names for term, names in fixed.items() if names}

    def find(self, wanted: KeyColumns) -> list[Keys]:
        """Return queries whose values together are all that matter; none where no row is ever read.

        Raises:
            Unsupported: There is no such query; the message says why.
        """
        if _is_tried(self._scope):
            raise Unsupported("")
        reasons = [*self._hints(wanted)]
        for find in (self._find_joined, self._find_outside):
            try:
                return find(wanted)
            except Unsupported as error:
                reasons.append(str(error))
        raise Unsupported("; ".join(dict.fromkeys(filter(None, reasons))))

    def _hints(self, wanted: KeyColumns) -> Iterator[str]:
        """Yield what about this relation's place keeps its columns from being bound."""
        steps, kind = self._clause.steps, self.step.kind
        if self.step.relation is None:
            yield "it stands in a parenthesised join; write that as a derived table, (SELECT … FROM …)"
        if kind in ("right", "full"):
            yield f"a {kind.upper()} JOIN keeps all of its rows"
        behind = [step.kind for step in steps[self._place + 1 :]]
        if "full" in behind:
            yield "a FULL JOIN keeps all of its rows"
        elif self._place == 0 and behind[:1] == ["left"]:
            yield "a LEFT, SEMI or ANTI JOIN keeps all rows of its left side"
        names = frozenset().union(*wanted)
        for term in [*(term for step in steps for term in step.terms), *self._clause.where]:
            columns = names & set(map(self._column, term.find_all(exp.Column)))
            columns -= {name for name, _ in self._equal(term)}
            if columns and isinstance(unwrap(term), exp.NullSafeEQ):
                yield f"{self._context.shown(term)} also asks for null, which no source can be asked for"
            elif columns and isinstance(unwrap(term), exp.EQ):
                shown = self._context.shown(term)
                yield f"{shown} compares an expression of the column, not the column itself"

    def _is_repeatable(self, node: exp.Expr) -> bool:
        """Tell whether an expression may be evaluated once more, apart from the query, to the same value."""
        context = self._context
        if any(isinstance(part, _BARRED) for part in node.walk()) or not context.statement.has_span(node):
            return False
        return context.determinism.unrepeatable(node) is None

    def _find_joined(self, wanted: KeyColumns) -> list[Keys]:
        """Return the query for values in its FROM clause, or in that of the SELECT around, if one has all."""
        step, around = self.step, self._scope.select.find_ancestor(exp.Select)
        scopes = [self._scope, *([self._context.names.scopes.of(around)] if around else [])]
        pairs = [pair for term in self.terms for pair in self._equal(term) if self._is_repeatable(pair[1])]
        pairs.sort(key=lambda pair: pair[1].find(exp.Column) is not None)  # constants before others
        if step.free or (step.kind == "left" and step.relation):
            pairs += ((name.lower(), exp.to_identifier(name)) for name in step.using)
        for scope in scopes:
            readable = set().union(*self._reach(scope))
            fitting = [(name, value) for name, value in pairs if self._places(scope, value) <= readable]
            picked = [next((value for name, value in fitting if name in names), None) for names in wanted]
            if None not in picked:
                return [self._query(scope, [value for value in picked if value])]
        raise Unsupported("")

    def _find_outside(self, wanted: KeyColumns) -> list[Keys]:
        """Return those where the result of its SELECT is joined: a derived table, a definition, or IN."""
        select = self._scope.select
        if select.find_ancestor(exp.Select, exp.With) is None:
            raise Unsupported("")
        places = [self._shown_places(names) for names in wanted]
        queries: list[Keys] = []
        for scope, use in _uses(self._context, select):
            if isinstance(use, Relation):
                shown = [name.lower() for name in self._context.names.columns(use)]
                columns = [frozenset(shown[place] for place in several) for several in places]
                queries += RelationSite(self._context, scope, use).find(columns)
                continue
            values = [compared(use)[first] for first, *_ in places]
            if not all(map(self._is_repeatable, values)):
                raise Unsupported("IN compares it with something that may differ between two calls")
            queries.append(self._query(scope, values))
        return queries

    def _places(self, scope: Scope, node: exp.Expr) -> set[int]:
        """Return the steps of a FROM clause that an expression reads, and -1 if it may read anything else."""
        if isinstance(node, exp.Identifier):  # of USING: all that is left of the relation
            return {*range(self._place)} if scope is self._scope else {-1}
        read = self._context.names.relations_read(node)
        return {-1} if read is None or scope.clause is None else {*map(scope.clause.number, read)}

    def _reach(self, scope: Scope) -> tuple[set[int], set[int]]:
        """Return the steps of a FROM clause that can be read alone, and those that can as they are joined."""
        steps, is_own = scope.clause.steps if scope.clause else [], scope is self._scope
        before = {*range(self._place if is_own else len(steps))}
        if any(steps[place].kind in ("right", "full") for place in before):
            return set(), before  # it adds nulls to what is before it
        alone = {place for place, step in enumerate(steps) if step.free}
        return (alone | self._behind) - {self._place} if is_own else alone, before

    def _query(self, scope: Scope, values: Sequence[exp.Expr]) -> Keys:
        """Return the query for values over a FROM clause: its own, or that of a SELECT around.

        It reads what they read alone, with what equalities tie to that, so that they are fewer; where outer
        joins add nulls to it, the clause as it is written.
        """
        context, clause, is_own = self._context, scope.clause, scope is self._scope
        node = self._scope.select.parent
        while not is_own and node is not None and node is not scope.select:
            if isinstance(node, exp.From | exp.Join):
                raise Unsupported("it depends on the FROM clause that it stands in")
            node = node.parent
        places = {place for value in values for place in self._places(scope, value)}
        alone, before = self._reach(scope)
        if clause is None or not (places <= alone or places <= before):
            raise Unsupported("its values come from more than what one FROM clause has before it")
        terms = [*(clause.inner_terms if alone else ()), *(self.step.terms if is_own else ())]
        terms = list(dict.fromkeys(term for term in terms if self._is_repeatable(term)))
        reads = [
            (self._places(scope, term), term) for term in terms if not any(map(function_of, term.walk()))
        ]
        ties = [r for r, term in reads if r <= alone and isinstance(unwrap(term), exp.EQ)]
        tied, asked = set(places), {each for each in alone - places if self._is_lookup(clause.steps[each])}
        while more := {place for r in ties if r & tied and not r & asked for place in r - tied}:
            tied |= more
        # A name of USING means a column of all that is before it.
        is_merged = any(isinstance(value, exp.Identifier) for value in values)
        is_merged |= len(tied) > 1 and tied <= alone and any(clause.steps[place].merges for place in tied)
        is_alone = places <= alone and not is_merged
        if not is_alone and not places <= before:
            raise Unsupported("relations joined by USING or NATURAL give the values")
        nodes: list[exp.Expr]
        if is_alone:
            places = tied
            joined = [clause.steps[place] for place in sorted(places)]
            nodes = [step.join.this if step.join else step.relations()[0].node for step in joined]
        elif is_own and self.step.clause is not clause:
            raise Unsupported("it stands in a parenthesised join")
        else:
            places = before
            items = clause.items[: self.step.place] if is_own else clause.items
            # Without what only rejects rows, for which another lookup would be asked, there are more keys.
            items = [each for each in items if not (each.semi and self._is_lookup(each))]
            nodes = [item.join or scope.select.args["from_"].this for item in items]
        copy, where = partial(_copy, context), [term for read, term in reads if read and read <= places]
        texts = [plain_quote(v.name) if isinstance(v, exp.Identifier) else copy(v) for v in values]
        text = "SELECT DISTINCT " + ", ".join(f"{value} AS __k{place}" for place, value in enumerate(texts))
        text += "\nFROM " + (", " if is_alone else "\n").join(map(copy, nodes)) if nodes else ""
        text += _where(context, where)
        nodes += [*where, *values]
        for part in (part for node in nodes for part in (node, *definitions(node))):
            if why := context.determinism.unrepeatable(part):
                raise Unsupported(f"what gives its values may give others when it runs again ({why})")
        return text, nodes

    def _is_lookup(self, item: FromItem) -> bool:
        """Tell whether an item of a FROM clause is a lookup table without rows for Spark."""
        table = None if item.relation is None else self._context.table(item.relation)
        return table is not None and table.needs_keys

    def _shown_places(self, names: frozenset[str]) -> list[int]:
        """Return the places in its SELECT's result of columns of this relation.

        Unsupported where there are none, or rows with other values in them change what it shows of the rest.
        """
        select = self._scope.select
        group = select.args.get("group")
        own = [part for part in select.walk() if part.find_ancestor(exp.Select) is select]
        if any(isinstance(part, exp.Window) for part in own):
            raise Unsupported("a window function around it reads all of its rows")
        if group is None:
            is_whole = any(isinstance(part, exp.AggFunc) for part in own)
        else:
            kinds = {kind for kind, value in group.args.items() if value}  # such as ROLLUP
            is_whole = kinds != {"expressions"} or not names & set(map(self._column, group.expressions))
        if is_whole:
            raise Unsupported("an aggregate around it reads all of its rows")
        places = [
            place
            for place, result in enumerate(self._context.names.results(self._scope))
            if (shown := result.attribute)
            and shown.relation is self._relation
            and shown.name.lower() in names
        ]
        if not places:
            raise Unsupported("the query around it does not show the column that it is asked by")
        return places


def _is_tried(scope: Scope) -> bool:
    """Tell whether a FROM clause has the values for a table, which do not compare with its columns then."""
    return scope.clause is not None and any(each.alias == KEYS for each in scope.clause.relations())


def _copy(context: PlanContext, node: exp.Expr) -> str:
    """Return a node's text for another query."""
    return context.statement.copy(context.statement.span(node))


def _where(context: PlanContext, terms: Iterable[exp.Expr]) -> str:
    """Return WHERE for terms of the query, nothing for none."""
    texts = [f"({_copy(context, term)}\n)" for term in terms]  # a comment may end a term
    return f"\nWHERE {' AND '.join(texts)}" if texts else ""


def _uses(context: PlanContext, select: exp.Select) -> Iterator[tuple[Scope, Relation | exp.In]]:
    """Yield what reads the result of a SELECT inside another: relations, or ``… IN (SELECT …)``.

    Unsupported where rows of it that are equal to no value there may change others, or the uses are unknown.
    """
    scopes = context.names.scopes
    query: exp.Expr = select
    while True:
        if any(query.args.get(name) for name in ("limit", "offset", "qualify", "sample")):
            raise Unsupported("a LIMIT or QUALIFY around it counts all of its rows")
        parent, relation = query.parent, scopes.find(query)
        # Parentheses around a part of a UNION, or around the query of IN, are nothing of their own.
        if relation is not None or not isinstance(parent, exp.SetOperation | exp.Subquery):
            break
        query = parent
    if relation is not None:
        yield relation
    elif isinstance(parent, exp.In) and parent.args.get("query") is query:
        around = parent.find_ancestor(exp.Select)
        if around is None or not any(unwrap(term) is parent for term in where_conjuncts(around)):
            raise Unsupported(
                "IN is not a condition of its own in WHERE, so that all rows of its query matter"
            )
        yield scopes.of(around), parent
    elif isinstance(parent, exp.CTE):
        uses = [(scope, relation) for scope, relation in scopes.relations() if relation.cte is parent]
        nodes, root = {id(relation.node) for _, relation in uses}, select.root()
        if is_recursive(parent) or any(
            cte_of(node) is parent and id(node) not in nodes for node in tables_in(root)
        ):
            raise Unsupported(
                f"the common table expression {parent.alias} is read in a form that is not looked into"
            )
        yield from uses
    else:
        raise Unsupported("it stands in a subquery whose whole result is read")


class Restriction:
    """Replaces lookup tables of one query.

    ``rows`` plans another query over the same tables, its blocks numbered from a number on.
    """

    def __init__(self, context: PlanContext, rows: Callable[[str, int], Plan]) -> None:
        self._context = context
        self._rows_of = rows

    def is_taken(self, node: exp.Table, *, left: bool = False) -> bool:
        """Tell whether a block may take a lookup table; with ``left``, as what a LEFT join adds."""
        where = self._context.names.scopes.find(node)
        step = None if where is None else RelationSite(self._context, *where).step
        if step is None or step.relation is None:
            return False
        return step.is_left or (step.movable and not left)

    def apply(self, node: exp.Table, reasons: Sequence[str]) -> None:
        """Replace a lookup table, which no block takes for these reasons, in the query's text.

        Refuse it where nothing gives the values to ask it with.
        """
        table = self._context.catalog.of(node)
        assert table.lookup is not None
        why = list(reasons)
        where = self._context.names.scopes.find(node)
        if where is not None and _is_tried(where[0]):
            raise _Incomparable
        if where is None or where[1].columns or not where[1].plain:
            why.append("it has a form that is not looked into, such as a list of column names or TABLESAMPLE")
        else:
            for columns in table.lookup.table.bind:
                try:
                    plan = self._rows(*where, table, columns)
                except Unsupported as error:
                    why.append(str(error))
                except _Incomparable:
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
        fixed = frozenset().union(*filters.values())
        free = [column for column in columns if column.lower() not in fixed]
        keys = site.find([frozenset({column.lower()}) for column in free]) if free else []
        if free and not keys:
            if table.stand_in is None:
                raise Unsupported("nothing reads it")
            return self._rows_of(f"SELECT * FROM {table.stand_in}", context.next_block())
        pieces = [node for _, nodes in keys for node in nodes]
        self._check_tables(pieces)
        alias = plain_quote(node.alias or node.name)
        text = with_prefix(statement, [*filters, *pieces], statement.copy)
        text += f"SELECT {alias}.* FROM {'.'.join(plain_quote(part.name) for part in node.parts)}"
        text += f" AS {alias}" if node.alias else ""
        if keys:
            values = "\nUNION\n".join(query for query, _ in keys)
            ties = [f"{KEYS}.__k{place} = {alias}.{plain_quote(column)}" for place, column in enumerate(free)]
            text += f" INNER JOIN (\n{values}\n) AS {KEYS} ON {' AND '.join(ties)}"
        return self._rows_of(text + _where(context, filters), context.next_block())

    def _check_tables(self, nodes: Iterable[exp.Expr]) -> None:
        """Refuse tables that are read twice and may differ, as far as Spark's plan shows it."""
        for node in {id(table): table for part in nodes for table in base_tables(part)}.values():
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


class _Incomparable(InputError):
    """The values that were found for a lookup table do not compare with its columns as they are."""


def refusal(
    context: PlanContext, left: Sequence[tuple[exp.Table, LookupTable]], reasons: Sequence[str]
) -> InputError:
    """Return the error for lookup tables that nothing binds, in their places."""
    text = "; ".join(
        f"lookup table {table.name!r} cannot be asked in {_place(context, node)!r}: nothing there gives "
        f"values for {table.needs(node.alias or node.name)}"
        for node, table in left
    )
    why = "; ".join(dict.fromkeys(filter(None, reasons)))
    text += f" ({why})" if why else ""
    node, table = left[0]
    alias = node.alias or node.name
    if between := table.indexes[0].between:
        return InputError(
            f"{text}. What would work: {alias}.{between} BETWEEN … AND …, or two comparisons, with columns "
            f"of other relations or constants, all of the type of {alias}.{between}: cast those of another; "
            "and equalities for bind columns"
        )
    first = f"{alias}.{table.bind[0][0]}"
    return InputError(
        f"{text}. What would work: an equality with what another relation has (… = {first}, of a type that "
        f"compares without a cast of {first}), as a condition of its own in ON or WHERE; constants "
        f"({first} = …, {first} IN (…)); {first} IN (SELECT …); or a scan for the lookup table"
    )


def _place(context: PlanContext, node: exp.Table) -> str:
    """Return the text of the FROM clause or join that a table stands in, on one line."""
    around = node.find_ancestor(exp.From, exp.Join, exp.Query)
    shown = context.shown(around if isinstance(around, exp.From | exp.Join) else node)
    return short(shown.lstrip(", "), 80)
