"""Rewrite one SELECT so that it reads blocks instead of the relations they took.

A block becomes one relation ``__mr0`` whose columns carry their plain names wherever those are
unique, so that unqualified names go on meaning what they meant. Only qualified names, stars and
the FROM and WHERE clauses change, as edits of the original text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlglot import exp

from millrace.expressions import ColumnRef
from millrace.front.conjuncts import Sorted, is_boolean
from millrace.front.context import Context, Taken
from millrace.front.from_clause import Chain
from millrace.front.leave import Leave
from millrace.front.names import Found
from millrace.front.relations import Member
from millrace.front.stars import expand
from millrace.front.texts import Edit, Part, quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_COUNT_BARS = ("group", "having", "distinct", "order", "sort", "cluster", "qualify", "windows", "hint")


# Clauses in which a name means a result column before a column of FROM.
_BY_RESULT = frozenset({"order", "sort", "cluster", "distribute", "having", "qualify"})


@dataclass(eq=False)
class Piece:
    """A block's relation in the rewritten text.

    Attributes:
        alias: Its name, ``__mr0`` and so on, unique in the query.
        members: The relations it stands for, in order.
        names: The output name of each column that somebody above reads, in order.
    """

    alias: str
    members: list[Member]
    names: dict[ColumnRef, str]
    source: str = ""
    counting: bool = False

    @property
    def outputs(self) -> list[tuple[str, str, str]]:
        """``(output name, member alias, column)`` of every output column."""
        return [(name, ref.relation, ref.column) for ref, name in self.names.items()]


class Rewriting:
    """The edits of one SELECT, committed once all of its blocks are made."""

    def __init__(self, context: Context, chain: Chain, found: Sorted) -> None:
        self.taken: list[Taken] = []
        self._context = context
        self._chain = chain
        self._found = found
        self._pieces: list[Piece] = []
        self._edits: list[Edit] = []

    def number(self, piece: Piece) -> int:
        """Return the block's number in the query."""
        return len(self._context.taken) + self._pieces.index(piece)

    def piece(self, members: list[Member]) -> Piece:
        """Return the relation that will stand for the members, with the columns read above them.

        Raises:
            Leave: What reads them cannot be rewritten.
        """
        alias = f"__mr{len(self._context.taken) + len(self._pieces)}"
        piece = Piece(alias, members, {})
        needed = self._needed(members)
        names: dict[str, int] = {}
        for ref in needed:
            lower = ref.column.lower()
            name, number = ref.column, names.get(lower, 0)
            if number:
                name = f"{ref.relation}__{ref.column}"
                while name.lower() in names:
                    name += "_"
            names[lower] = number + 1
            names[name.lower()] = max(1, names.get(name.lower(), 0))
            piece.names[ref] = name
        self._pieces.append(piece)
        self._check(piece)
        return piece

    def counts_only(self, piece: Piece) -> bool:
        """Tell whether the SELECT is nothing but a ``count(*)`` of this block."""
        select = self._chain.scope.select
        whole = all(any(m.link is link for m in piece.members) for link in self._chain.links)
        barred = any(select.args.get(name) for name in _COUNT_BARS)
        items = select.expressions
        if not whole or barred or self._found.above or piece.names or len(items) != 1:
            return False
        count = items[0].unalias()
        if not isinstance(count, exp.Count) or count.expressions:
            return False
        return isinstance(count.this, exp.Star) or (
            isinstance(count.this, exp.Literal) and count.this.name.isdigit()
        )

    def keep_one(self, piece: Piece, preferred: list[ColumnRef]) -> None:
        """Give out one column where none is read, because rows need a column to travel in."""
        if preferred:
            ref = preferred[0]
        else:
            fields = [(m.alias, f) for m in piece.members for f in m.fields]
            carried = [ColumnRef(alias, f.name) for alias, f in fields if f.arrow is not None]
            if not carried:
                raise Leave("no column of the relations can pass through a join here")
            ref = carried[0]
        piece.names[ref] = ref.column

    def place(self, piece: Piece, frame: DataFrame, *, counting: bool) -> None:
        """Say which DataFrame the block's relation is."""
        piece.source = self._context.frames.place(frame, "b")
        piece.counting = counting

    def commit(self) -> list[exp.Expr] | None:
        """Put the edits into the query's text; return what they leave in WHERE, if they change it."""
        self._from()
        for piece in self._pieces:
            self._columns(piece)
        self._stars()
        self._context.text.edits += self._edits
        self._context.taken += self.taken
        self._context.placed |= {id(m.source.node) for p in self._pieces for m in p.members}
        for conjunct in self._found.used:
            if conjunct in self._found.calls:
                self._context.calls.take(conjunct.node)
        return [c.node for c in self._found.above] if self._chain.whole else None

    # What is read above the block

    def _used(self) -> set[int]:
        """Return the ids of all nodes inside conjuncts that a block evaluates."""
        return {id(part) for conjunct in self._found.used for part in conjunct.node.walk()}

    def _reads(self, members: list[Member]) -> Iterator[tuple[exp.Column, Found, Member]]:
        """Yield the column references above the block that mean a column of one of the members."""
        used = self._used()
        by_source = {id(m.source): m for m in members}
        for column in self._chain.scope.select.find_all(exp.Column):
            if id(column) in used or isinstance(column.this, exp.Star):
                continue
            found = self._context.find(column)
            if found is not None and id(found.source) in by_source:
                yield column, found, by_source[id(found.source)]

    def _needed(self, members: list[Member]) -> list[ColumnRef]:
        wanted = {
            ColumnRef(member.alias, member.field(found.column).name)
            for _, found, member in self._reads(members)
        }
        for link in self._chain.links:
            if link.fixed or link.kind != "inner":
                for name in link.using:
                    owner = next((m for m in members if m.shows(name)), None)
                    if owner is not None:
                        wanted.add(ColumnRef(owner.alias, owner.field(name).name))
        for _, columns in self._expansions():
            wanted.update(
                ColumnRef(owner.alias, name)
                for owner, name in columns
                if isinstance(owner, Member) and owner in members
            )
        order = [ColumnRef(m.alias, f.name) for m in members for f in m.fields]
        return [ref for ref in order if ref in wanted]

    def _expansions(self) -> list[tuple[exp.Expr, list[tuple[Member | str, str]]]]:
        members = {id(m.source): m for m in self._members()}
        return expand(self._chain, members)

    def _members(self) -> list[Member]:
        return list(self._all) if self._all else []

    _all: tuple[Member, ...] = ()

    def know(self, members: list[Member]) -> None:
        """Say which relations of the clause some block takes."""
        self._all = tuple(members)

    def _check(self, piece: Piece) -> None:
        select = self._chain.scope.select
        aliases = {item.alias.lower() for item in select.expressions if item.alias}
        naming = _names_matter(select)
        for column, found, member in self._reads(piece.members):
            name = piece.names[ColumnRef(member.alias, member.field(found.column).name)]
            renamed = name.lower() != found.column
            if not found.certain and found.qualifier:
                raise Leave(f"it is not certain what {column.sql(dialect='spark')} means")
            if renamed and not found.qualifier:
                raise Leave(f"column {found.column} of two relations is read by its plain name")
            clash = found.qualifier and column.parts[0].name.lower() in aliases
            if clash and _clause_of(column, select) in _BY_RESULT:
                raise Leave(f"{column.parts[0].name} is both a relation and a result column")
            if any(part.meta.get("start") is None for part in column.parts):
                raise Leave("a column reference in a form that Millrace does not read")
            if renamed and naming and not found.nested and _in_unnamed_item(column, select):
                raise Leave("an unnamed expression over a column name that two relations share")

    # Edits

    def _columns(self, piece: Piece) -> None:
        select = self._chain.scope.select
        for column, found, member in self._reads(piece.members):
            if not found.qualifier:
                continue
            name = piece.names[ColumnRef(member.alias, member.field(found.column).name)]
            parts = column.parts
            start, own = parts[0].meta["start"], parts[found.qualifier]
            if name.lower() == found.column:
                self._edits.append(Edit(start, own.meta["start"], (f"{piece.alias}.",)))
                continue
            end = own.meta["end"] + 1
            self._edits.append(Edit(start, end, (f"{piece.alias}.{quote(name)}",)))
            if column.parent is select and column.arg_key == "expressions" and not found.nested:
                self._edits.append(Edit(end, end, (f" AS {quote(own.name)}",)))

    def _stars(self) -> None:
        where = {m.alias: piece for piece in self._pieces for m in piece.members}
        for node, columns in self._expansions():
            items = []
            for owner, name in columns:
                if isinstance(owner, str):
                    items.append(f"{owner}.*" if name == "*" else f"{owner}.{quote(name)}")
                    continue
                piece = where[owner.alias]
                output = piece.names[ColumnRef(owner.alias, name)]
                item = f"{piece.alias}.{quote(output)}"
                items.append(item if output == name else f"{item} AS {quote(name)}")
            self._edits.append(Edit(*self._context.statement.span(node), (", ".join(items),)))

    def _where(self) -> Iterator[Part]:
        above = self._found.above
        if not above:
            return
        # A lone term need not be boolean by itself: ``NULL``, or a string that AND casts.
        yield " WHERE " if any(is_boolean(c.node) for c in above) else " WHERE true AND "
        for number, conjunct in enumerate(above):
            yield "(" if number == 0 else " AND ("
            yield self._context.statement.span(conjunct.node)
            yield ")"

    def _from(self) -> None:
        chain = self._chain
        parts: list[Part] = ["FROM "]
        done: set[int] = set()
        for link in chain.links:
            piece = next((p for p in self._pieces if any(m.link is link for m in p.members)), None)
            first = len(parts) == 1
            if piece is not None:
                if id(piece) not in done:
                    done.add(id(piece))
                    parts.append(f"{'' if first else ' CROSS JOIN '}{piece.source} AS {piece.alias}")
                continue
            moves = link.kind == "inner" and not link.fixed and chain.links.index(link) < chain.movable
            if first:
                parts.append(link.item)
            elif moves and not link.using:
                parts += [" CROSS JOIN ", link.item]
            else:
                parts += [" ", link.span]
        if chain.whole:
            parts += self._where()
            where = chain.scope.select.args.get("where")
            if where is not None:
                self._edits.append(Edit(*self._context.statement.span(where), ("",)))
        self._edits.append(Edit(*chain.span, tuple(parts)))
        for piece in self._pieces:
            if piece.counting:
                item = chain.scope.select.expressions[0]
                alias = item.alias if isinstance(item, exp.Alias) else "count(1)"
                text = f"coalesce(sum(__count), 0) AS {quote(alias)}"
                self._edits.append(Edit(*self._context.statement.span(item), (text,)))


def _names_matter(select: exp.Select) -> bool:
    """Tell whether somebody can refer to the SELECT's result columns by name."""
    child: exp.Expr = select
    while (parent := child.parent) is not None:
        if isinstance(parent, exp.From | exp.CTE | exp.Lateral):
            return True
        if isinstance(parent, exp.Join):
            return child is parent.this
        if not isinstance(parent, exp.SetOperation | exp.Subquery):
            return False
        child = parent
    return False


def _in_unnamed_item(column: exp.Column, select: exp.Select) -> bool:
    child = _top(column, select)
    if child.arg_key != "expressions" or child is column:
        return False
    return not isinstance(child, exp.Alias | exp.Aliases)


def _clause_of(node: exp.Expr, select: exp.Select) -> str | None:
    return _top(node, select).arg_key


def _top(node: exp.Expr, select: exp.Select) -> exp.Expr:
    """Return the ancestor of a node that stands directly in the SELECT."""
    while node.parent is not None and node.parent is not select:
        node = node.parent
    return node
