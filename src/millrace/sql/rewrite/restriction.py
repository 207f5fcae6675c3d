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
from dataclasses import dataclass

from pyspark.errors import PySparkException
from sqlglot import exp

from millrace.errors import InputError, first_line
from millrace.lookups.table import LookupTable
from millrace.spark.session import explained
from millrace.sql.context import PlanContext, short
from millrace.sql.expr.functions import is_constant, is_strict, unrepeatable_plan
from millrace.sql.plan import Plan
from millrace.sql.session.tables import Lookup, Table
from millrace.sql.syntax.edits import plain_quote
from millrace.sql.syntax.parse import Statement, Unsupported, compared, function_of, unwrap, where_conjuncts
from millrace.sql.syntax.scopes import (
    FromClause,
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

_BARRED = (exp.Query, exp.AggFunc, exp.Window, exp.Star)


@dataclass(frozen=True)
class Keys:
    """A query for values.

    Attributes:
        values: What gives each value that is wanted: an expression, or a name of USING.
        relations: What it reads: relations, and joins as the query has them; nothing for constants.
        where: Its conditions.
    """

    values: tuple[exp.Expr, ...]
    relations: tuple[exp.Expr, ...]
    where: tuple[exp.Expr, ...] = ()

    @property
    def nodes(self) -> tuple[exp.Expr, ...]:
        """The syntax trees that its text is of."""
        return (*self.relations, *self.where, *self.values)

    def text(self, statement: Statement) -> str:
        """Return it as SQL, with the columns ``__k0``, ``__k1`` and so on."""
        values = [
            plain_quote(v.name) if isinstance(v, exp.Identifier) else statement.cut(v) for v in self.values
        ]
        text = "SELECT DISTINCT " + ", ".join(f"{value} AS __k{place}" for place, value in enumerate(values))
        for place, node in enumerate(self.relations):
            begin = ", " if place else "\nFROM "
            text += ("\n" if isinstance(node, exp.Join) else begin) + statement.cut(node)
        terms = [f"({statement.cut(term)}\n)" for term in self.where]  # a comment may end a term
        return text + "\n" + (f"\nWHERE {' AND '.join(terms)}" if terms else "")


class RelationSite:
    """One relation in its FROM clause, and what the conditions there say about it.

    Unsupported where the FROM clause has a form that is not read here.
    """

    def __init__(self, context: PlanContext, scope: Scope, relation: Relation) -> None:
        self.context, self.scope, self.relation = context, scope, relation
        self.clause = _clause_of(scope)
        self.place = self.clause.number(relation)
        self.step = self.clause.steps[self.place]

    def on(self) -> list[exp.Expr]:
        """Return the terms that rows of this relation have to meet to be joined, by an inner or left join."""
        if self.step.free:
            return self.clause.inner_terms
        return self.step.terms if self.step.kind == "left" and self.step.relation is not None else []

    def column(self, node: exp.Expr) -> str | None:
        """Return the lower-case name of this relation's column that an expression is, None if it is none."""
        attribute = self.context.names.attribute(unwrap(node))
        if attribute is None or attribute.relation is not self.relation:
            return None
        return attribute.name.lower()

    def hints(self, wanted: Iterable[frozenset[str]]) -> Iterator[str]:
        """Yield what about this relation's place keeps its columns from being bound."""
        steps, kind = self.clause.steps, self.step.kind
        if self.step.relation is None:
            yield "it stands in a parenthesised join; write that as a derived table, (SELECT … FROM …)"
        if kind in ("right", "full"):
            yield f"a {kind.upper()} JOIN keeps all of its rows"
        behind = [step.kind for step in steps[self.place + 1 :]]
        if "full" in behind:
            yield "a FULL JOIN keeps all of its rows"
        elif self.place == 0 and behind[:1] == ["left"]:
            yield "a LEFT, SEMI or ANTI JOIN keeps all rows of its left side"
        names = frozenset().union(*wanted)
        for term in [*(term for step in steps for term in step.terms), *self.clause.where]:
            inner = unwrap(term)
            if not isinstance(inner, exp.EQ | exp.NullSafeEQ) or not self.context.statement.has_span(term):
                continue
            shown, sides = self.context.shown(term), (inner.this, inner.expression)
            if isinstance(inner, exp.NullSafeEQ):
                if names & set(map(self.column, sides)):
                    yield f"{shown} also asks for null, which no source can be asked for"
                continue
            for side in sides:
                if self.column(side) is None and names & set(map(self.column, side.find_all(exp.Column))):
                    yield f"{shown} compares an expression of the column, not the column itself"

    def partners(self, term: exp.Expr) -> Iterator[tuple[str, exp.Expr]]:
        """Yield a column of this relation with the expression that a term says it is equal to.

        Only expressions are meant whose values can be got without this relation, by running them again.
        """
        for name, other in self._sides(term):
            read = self.context.names.relations_read(other)
            if read is not None and self.relation not in read and _is_repeatable(self.context, other):
                yield name, other

    def _sides(self, term: exp.Expr) -> Iterator[tuple[str, exp.Expr]]:
        inner = unwrap(term)
        if isinstance(inner, exp.EQ):
            for own, other in ((inner.this, inner.expression), (inner.expression, inner.this)):
                if (name := self.column(own)) is not None:
                    yield name, other

    def fixed(self, term: exp.Expr) -> set[str]:
        """Return the columns of this relation that a term limits to values that need no other relation."""
        inner = unwrap(term)
        if not isinstance(inner, exp.In):
            return {name for name, other in self._sides(term) if is_constant(other)}
        query, keys = inner.args.get("query"), [self.column(key) for key in compared(inner)]
        if query is None:
            is_fixed = len(keys) == 1 and bool(inner.expressions) and all(map(is_constant, inner.expressions))
        else:
            is_fixed = not self.context.determinism.unrepeatable(query) and not self.context.escapes(query)
        return {key for key in keys if key is not None} if is_fixed and None not in keys else set()

    def filters(self) -> list[exp.Expr]:
        """Return terms that this relation's rows have to meet, whatever they are joined with."""
        terms = [term for term in self.on() if self._reads_only_this(term)]
        if not self.step.semi:
            # A WHERE that a null does not meet drops the rows that an outer join makes up.
            terms += [term for term in self.clause.where if term not in terms and self.fixed(term)]
        return terms

    def _reads_only_this(self, term: exp.Expr) -> bool:
        if self.fixed(term):
            return True
        read = self.context.names.relations_read(term)
        reads_only_this = set(read or ()) == {self.relation} and term.find(exp.Anonymous) is None
        return reads_only_this and _is_repeatable(self.context, term)


class KeyFinder:
    """Finds the values for relations of one query."""

    def __init__(self, context: PlanContext) -> None:
        self._context = context
        self._names = context.names
        self._under_way: list[Relation] = []

    def find(self, scope: Scope, relation: Relation, wanted: KeyColumns) -> list[Keys]:
        """Return queries whose values together are all that matter; none where no row is ever read.

        Raises:
            Unsupported: There is no such query; the message says why.
        """
        if relation in self._under_way:
            raise Unsupported("it is bound by itself")
        self._under_way.append(relation)
        try:
            site = RelationSite(self._context, scope, relation)
            if any(other.alias == KEYS for other in site.clause.relations()):
                raise Unsupported("")  # it has been tried: the values do not compare with the column
            reasons = list(site.hints(wanted))
            for way in (self._among, self._before, self._behind, self._around, self._outside):
                try:
                    if (queries := way(site, wanted)) is not None:
                        self._check_repeatable(queries)
                        return queries
                except Unsupported as error:
                    reasons.append(str(error))
            raise Unsupported("; ".join(dict.fromkeys(filter(None, reasons))))
        finally:
            self._under_way.pop()

    def _check_repeatable(self, queries: Iterable[Keys]) -> None:
        for node in {id(node): node for keys in queries for node in keys.nodes}.values():
            for part in (node, *definitions(node)):
                why = self._context.determinism.unrepeatable(part)
                if why is not None:
                    raise Unsupported(f"what gives its values may give others when it runs again ({why})")

    # Ways to values; each returns None, or raises Unsupported with a reason, where it leads to none

    def _among(self, site: RelationSite, wanted: KeyColumns) -> list[Keys] | None:
        """Among relations that inner joins join: those that the values read, and what they join."""
        free = _free(site.clause)
        picked = self._pick_in(site, site.on(), wanted, free) if site.step.free else None
        return [self._closure(site.clause, picked, free - {site.place})] if picked else None

    def _before(self, site: RelationSite, wanted: KeyColumns) -> list[Keys] | None:
        """Before a left (or inner) join: the whole left side, but for lookups that nobody needs."""
        item = site.step
        if not site.place or not (item.kind == "left" or site.step.free):
            return None
        terms = site.on() + ([] if item.semi else site.clause.filters)
        picked = self._pick_in(site, terms, wanted, set(range(site.place)))
        if picked is None:
            using: dict[str, exp.Expr] = {name.lower(): exp.to_identifier(name) for name in item.using}
            picked = [using[min(names & set(using))] for names in wanted if names & set(using)]
        return [self._prefix(site, picked)] if len(picked) == len(wanted) else None

    def _behind(self, site: RelationSite, wanted: KeyColumns) -> list[Keys] | None:
        """Behind a RIGHT join, on the side of which every row stays."""
        steps = site.clause.steps
        behind = next((n for n, step in enumerate(steps) if step.kind in ("right", "full")), 0)
        join = steps[behind].join
        if join is None or site.place >= behind or join.side.upper() != "RIGHT" or site.step.semi:
            return None
        picked = self._pick_in(site, steps[behind].terms, wanted, {behind})
        return [Keys(tuple(picked), (join.this,))] if picked else None

    def _around(self, site: RelationSite, wanted: KeyColumns) -> list[Keys] | None:
        """Around a subquery: the relations of a SELECT that it refers to."""
        around: set[Scope] = set()

        def is_outer(node: exp.Expr) -> bool:
            scopes = {f.scope for f in map(self._names.find, node.find_all(exp.Column)) if f}
            if len(scopes) != 1 or site.scope in scopes or not around <= scopes:
                return False
            around.update(scopes)
            return True

        picked = _pick(site, site.on(), wanted, is_outer)
        return [self._of_scope(around.pop(), picked, site.scope.select)] if picked else None

    def _outside(self, site: RelationSite, wanted: KeyColumns) -> list[Keys] | None:
        """Outside of a derived table, common table expression or IN: where its result is joined."""
        select = site.scope.select
        if select.find_ancestor(exp.Select, exp.With) is None:
            return None
        places = [_shown_places(site, names) for names in wanted]
        queries: list[Keys] = []
        for scope, use in _uses(self._context, select):
            if isinstance(use, Relation):
                names = [name.lower() for name in self._names.columns(use)]
                queries += self.find(scope, use, [frozenset(names[p] for p in columns) for columns in places])
                continue
            values = [compared(use)[first] for first, *_ in places]
            if not all(_is_repeatable(self._context, node) for node in values):
                raise Unsupported("IN compares it with something that may differ between two calls")
            queries.append(self._of_scope(scope, values, select))
        return queries

    # Queries

    def _pick_in(
        self, site: RelationSite, terms: Iterable[exp.Expr], wanted: KeyColumns, steps: set[int]
    ) -> list[exp.Expr] | None:
        """Return an expression for each value, constant or over some steps of the FROM clause."""
        return _pick(site, terms, wanted, lambda node: self._places(site.clause, node) <= steps)

    def _places(self, clause: FromClause, node: exp.Expr) -> set[int]:
        """Return the steps of a FROM clause that an expression reads, and -1 if it may read anything else."""
        read = self._names.relations_read(node)
        return {-1} if read is None else {clause.number(relation) for relation in read}

    def _filters(
        self, clause: FromClause, terms: Iterable[exp.Expr], steps: set[int]
    ) -> list[tuple[exp.Expr, set[int]]]:
        """Return the terms over some steps that may be evaluated once more, for the values, with these."""
        reads = ((term, self._places(clause, term)) for term in terms)
        among = [(term, read) for term, read in reads if read and read <= steps]
        plain = [(term, read) for term, read in among if not any(map(function_of, term.walk()))]
        return [(term, read) for term, read in plain if _is_repeatable(self._context, term)]

    def _closure(self, clause: FromClause, picked: Sequence[exp.Expr], free: set[int]) -> Keys:
        """Return the query over the relations that the values read and those that equalities tie to them.

        ``free`` are the steps whose relations may be tied.
        """
        steps = clause.steps
        places = {place for node in picked for place in self._places(clause, node)}
        terms = self._filters(clause, clause.inner_terms, free)
        lookup = self._context.lookup
        asked = {place for place in free - places if _is_asked(map(lookup, steps[place].relations()))}
        ties = [reads for term, reads in terms if isinstance(unwrap(term), exp.EQ) and not reads & asked]
        while more := {place for reads in ties if reads & places for place in reads - places}:
            places |= more
        if len(places) > 1 and any(steps[p].merges for p in places):
            raise Unsupported("relations joined by USING or NATURAL give the values")
        nodes = [steps[p].relations()[0].node for p in sorted(places)]
        return Keys(tuple(picked), tuple(nodes), tuple(term for term, reads in terms if reads <= places))

    def _prefix(self, site: RelationSite, picked: Sequence[exp.Expr]) -> Keys:
        """Return the query over what stands before a relation in its FROM clause."""
        clause = site.clause
        if site.step.clause is not clause:
            raise Unsupported("it stands in a parenthesised join")
        where = ([] if site.step.free else site.on()) + clause.filters
        where = [term for term, _ in self._filters(clause, where, set(range(site.place)))]
        needed = {r for node in (*picked, *where) for r in self._names.relations_read(node) or ()}
        joins: list[exp.Expr] = []
        for item in reversed(clause.items[: site.step.place]):
            if item.content not in needed and not clause.merges and self._is_needless(item):
                continue
            joins.insert(0, item.join or site.scope.select.args["from_"].this)
            needed |= set() if item.on is None else set(self._names.relations_read(item.on) or ())
        return Keys(tuple(picked), tuple(joins), tuple(where))

    def _of_scope(self, scope: Scope, picked: Sequence[exp.Expr], inner: exp.Expr) -> Keys:
        """Return the query over relations of a SELECT around a subquery."""
        node = inner.parent
        while node is not None and node is not scope.select:
            if isinstance(node, exp.From | exp.Join):
                raise Unsupported("it depends on the FROM clause that it stands in")
            node = node.parent
        clause = _clause_of(scope)
        places = {place for node in picked for place in self._places(clause, node)}
        if -1 in places:
            raise Unsupported("a subquery that depends on more than the SELECT around it")
        if places <= (free := _free(clause)):
            return self._closure(clause, picked, free)
        if not all(is_strict(each) and each.find(exp.Div, exp.Mod) is None for each in picked):
            raise Unsupported("an expression over an outer join gives the values")
        read = {r for node in picked for r in self._names.relations_read(node) or ()}
        return Keys(tuple(picked), tuple(r.node for r in clause.relations() if r in read))

    def _is_needless(self, item: FromItem) -> bool:
        """Tell whether a join whose columns nobody reads may be left out; a semi join only to ask less."""
        if item.join is None or item.kind != "left" or not isinstance(item.content, Relation):
            return False
        return not item.semi or _is_asked(map(self._context.catalog.lookup, tables_in(item.join)))


def _is_asked(lookups: Iterable[Lookup | None]) -> bool:
    """Tell whether some lookup table can only be asked by key."""
    return any(lookup is not None and lookup.needs_keys for lookup in lookups)


def _clause_of(scope: Scope) -> FromClause:
    """Return a SELECT's FROM clause; Unsupported where it has a form that is not read here."""
    if scope.clause is None or scope.clause.views:
        raise Unsupported(scope.why or "a FROM clause in a form that Millrace does not read")
    return scope.clause


def _is_repeatable(context: PlanContext, node: exp.Expr) -> bool:
    """Tell whether an expression can be evaluated once more, apart from the query, with the same value."""
    barred = any(isinstance(part, _BARRED) for part in node.walk())
    return not barred and context.statement.has_span(node) and not context.determinism.unrepeatable(node)


def _free(clause: FromClause) -> set[int]:
    """Return the steps that are lone relations joined by inner joins."""
    return {place for place, step in enumerate(clause.steps) if step.free}


def _pick(
    site: RelationSite, terms: Iterable[exp.Expr], wanted: KeyColumns, fits: Callable[[exp.Expr], bool]
) -> list[exp.Expr] | None:
    """Return an expression for each value, of those that terms say it is equal to; constants before others.

    None where one has none that fits.
    """
    pairs = [pair for term in terms for pair in site.partners(term)]
    pairs.sort(key=lambda pair: pair[1].find(exp.Column) is not None)
    picked = []
    for names in wanted:
        best = next((node for name, node in pairs if name in names and fits(node)), None)
        if best is None:
            return None
        picked.append(best)
    return picked


# Where the result columns of a SELECT inside another are joined


def _shown_places(site: RelationSite, names: frozenset[str]) -> list[int]:
    """Return the places in a SELECT's result of a relation's columns.

    Unsupported where it shows none, or rows with other values in them change what it shows of the rest.
    """
    select = site.scope.select
    group, distinct = select.args.get("group"), select.args.get("distinct")
    own = [part for part in select.walk() if part.find_ancestor(exp.Select) is select]
    if any(isinstance(part, exp.Window) for part in own):
        raise Unsupported("a window function around it reads all of its rows")
    if group is None and any(isinstance(part, exp.AggFunc) for part in own):
        raise Unsupported("an aggregate around it reads all of its rows")
    if distinct is not None and distinct.args.get("on"):
        raise Unsupported("DISTINCT ON around it reads all of its rows")
    if group is not None:
        if any(group.args.get(name) for name in ("rollup", "cube", "grouping_sets", "totals", "all")):
            raise Unsupported("GROUP BY with ROLLUP, CUBE or GROUPING SETS reads all of its rows")
        if not names & {site.column(key) for key in group.expressions}:
            raise Unsupported("an aggregate around it reads all of its rows")
    places = [
        place
        for place, result in enumerate(site.context.names.results(site.scope))
        if (shown := result.attribute) and shown.relation is site.relation and shown.name.lower() in names
    ]
    if not places:
        raise Unsupported("the query around it does not show the column that it is asked by")
    return places


def _uses(context: PlanContext, select: exp.Select) -> Iterator[tuple[Scope, Relation | exp.In]]:
    """Yield what reads the result of a SELECT inside another: relations, or ``… IN (SELECT …)``.

    Unsupported where rows of it that are equal to no value there may change others, or the uses are unknown.
    """
    scopes = context.names.scopes
    query: exp.Expr = select
    while True:
        if any(query.args.get(name) for name in ("limit", "offset", "qualify", "sample")):
            raise Unsupported("a LIMIT or QUALIFY around it counts all of its rows")
        parent = query.parent
        # Parentheses around a part of a UNION, or around the query of IN, are nothing of their own.
        is_part = parent and isinstance(parent.parent, exp.SetOperation | exp.In | exp.Subquery | exp.CTE)
        is_bare = is_part and isinstance(parent, exp.Subquery) and not parent.alias
        if not isinstance(parent, exp.SetOperation) and not is_bare:
            break
        query = parent  # type: ignore[assignment]  # never None here
    if isinstance(parent, exp.In) and parent.args.get("query") is query:
        around = parent.find_ancestor(exp.Select)
        if around is None or not any(unwrap(term) is parent for term in where_conjuncts(around)):
            raise Unsupported(
                "IN is not a condition of its own in WHERE, so that all rows of its query matter"
            )
        yield scopes.of(around), parent
    elif isinstance(parent, exp.CTE):
        yield from _of_definition(context, parent)
    elif (relation := scopes.find(parent)) is not None:
        yield relation
    else:
        raise Unsupported("it stands in a subquery whose whole result is read")


def _of_definition(context: PlanContext, cte: exp.CTE) -> Iterator[tuple[Scope, Relation]]:
    root = context.statement.root
    if root is None or is_recursive(cte):
        raise Unsupported("a recursive common table expression")
    uses = [(scope, relation) for scope, relation in context.names.scopes.relations() if relation.cte is cte]
    nodes = {id(relation.node) for _, relation in uses}
    if any(cte_of(node) is cte and id(node) not in nodes for node in tables_in(root)):
        raise Unsupported(
            f"the common table expression {cte.alias} is read in a form that is not looked into"
        )
    yield from uses


class Restriction:
    """Replaces lookup tables of one query.

    ``rows`` plans another query over the same tables, its blocks numbered from a number on.
    """

    def __init__(self, context: PlanContext, rows: Callable[[str, int], Plan]) -> None:
        self._context = context
        self._rows_of = rows

    def is_needed(self, node: exp.Table) -> bool:
        """Tell whether a lookup table stands where no block takes it."""
        try:
            item = self._item(node)
        except Unsupported:
            return False  # a block may still say why
        return item is None or not (item.free or _adds_one(item))

    def is_left_joined(self, node: exp.Table) -> bool:
        """Tell whether a lookup table is what a LEFT join adds, so that a block may take it."""
        try:
            item = self._item(node)
        except Unsupported:
            return False
        return item is not None and _adds_one(item)

    def _item(self, node: exp.Table) -> FromItem | None:
        """Return what a table is in its FROM clause, None where it has a form that is not looked into."""
        where = self._context.names.scopes.find(node)
        return None if where is None else RelationSite(self._context, *where).step

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


def _adds_one(item: FromItem) -> bool:
    """Tell whether it is a LEFT join with a lone relation."""
    return item.is_left and item.relation is not None


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
