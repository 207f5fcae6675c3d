"""The SELECTs of a query, and where in them an expression stands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sqlglot import exp

from millrace.sql.syntax.from_clause import FromClause, Relation, read_from
from millrace.sql.syntax.parse import Statement, Unsupported


@dataclass(eq=False)
class Scope:
    """A SELECT.

    Attributes:
        select: Its syntax tree.
        clause: Its FROM clause, None without one or where it has a form that only Spark handles.
        why: What form that is.
    """

    select: exp.Select
    clause: FromClause | None
    why: str = ""


@dataclass(frozen=True, eq=False)
class Place:
    """Where in a SELECT an expression stands.

    Attributes:
        scope: The SELECT.
        key: The clause: ``"expressions"``, ``"where"``, ``"on"``, ``"order"`` and so on.
        clause: For ON, the clause or group that the join is in; for LATERAL the FROM clause.
        end: For ON the join's number there; for LATERAL how many items and views are seen.
    """

    scope: Scope
    key: str
    clause: FromClause | None = None
    end: int = 0


class Scopes:
    """The SELECTs of one query.

    Args:
        statement: The query.

    Attributes:
        all: Inner ones before outer ones, and in the order of the text.
    """

    def __init__(self, statement: Statement) -> None:
        assert statement.root is not None
        self.all = [_scope(statement, select) for select in _postorder(statement.root)]
        self._by_select = {id(scope.select): scope for scope in self.all}
        self._places: dict[int, Place] = {}  # by the ids of conditions of ON, and of LATERALs
        for scope in self.all:
            for clause in scope.clause.clauses() if scope.clause else ():
                self._note(scope, clause)

    def of(self, select: exp.Expr) -> Scope:
        """Return the scope of a SELECT."""
        return self._by_select[id(select)]

    def relations(self) -> Iterator[tuple[Scope, Relation]]:
        """Yield every relation of every FROM clause that is read here."""
        for scope in self.all:
            for relation in scope.clause.relations() if scope.clause else ():
                yield scope, relation

    def find(self, node: exp.Expr | None) -> tuple[Scope, Relation] | None:
        """Return the relation that a syntax tree is, with its SELECT; None for any other."""
        return next((each for each in self.relations() if each[1].node is node), None)

    def _note(self, scope: Scope, clause: FromClause) -> None:
        for number, item in enumerate(clause.items):
            if item.on is not None:
                self._places[id(item.on)] = Place(scope, "on", clause, number)
            if isinstance(item.content, Relation) and item.content.kind == "lateral":
                self._places[id(item.content.node)] = Place(scope, "lateral", clause, number)
        for number, view in enumerate(clause.views, len(clause.items)):
            self._places[id(view.node)] = Place(scope, "lateral", clause, number)

    def place_of(self, node: exp.Expr) -> Place | None:
        """Return where an expression stands: the SELECT in whose FROM clause its names are looked up first.

        For a SELECT inside another that is the place from which it reads the outer one's columns, None where
        it cannot.
        """
        child, apart, inside = node, False, ""
        while (parent := child.parent) is not None:
            if isinstance(parent, exp.Pivot):
                inside = "pivot"
            elif isinstance(child, exp.Lateral):
                if id(child) in self._places:
                    return replace(self._places[id(child)], key=inside or "lateral")
                inside = "lateral"
            elif isinstance(parent, exp.Join) and child.arg_key == "on":
                if id(child) in self._places and not inside:
                    return self._places[id(child)]
                inside = inside or "on"
            elif isinstance(parent, exp.From | exp.Join | exp.With):
                apart = True
            elif isinstance(parent, exp.SetOperation) and isinstance(child, exp.With):
                apart = False
            elif isinstance(parent, exp.Select):
                if apart and not inside:
                    return self.place_of(parent)
                return Place(self.of(parent), inside or str(child.arg_key))
            child = parent
        return None


def _scope(statement: Statement, select: exp.Select) -> Scope:
    try:
        return Scope(select, read_from(statement, select))
    except Unsupported as leave:
        return Scope(select, None, str(leave))


def _postorder(root: exp.Expr) -> Iterator[exp.Select]:
    """Yield SELECTs after everything inside them; definitions come before their uses."""
    left = [(root, False)]  # no recursion: a condition may have thousands of terms
    while left:
        node, is_done = left.pop()
        if is_done:
            if isinstance(node, exp.Select):
                yield node
            continue
        first = node.args.get("with_")
        children = [child for child in node.iter_expressions() if child is not first]
        left.append((node, True))
        left += [(child, False) for child in reversed(children)]
        if first is not None:
            left.append((first, False))
