"""What a FROM clause gives out: its columns in order, each with the relation it is from, as Spark has them.

USING and NATURAL make one column of two and put it in front; the other one is hidden, and only found with its
relation's name before it. Names are looked up as Spark does: first with as many qualifiers as may stand
before a column, then with fewer, at last as a column of whose struct a field is taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from millrace.sql.syntax.parse import Unsupported
from millrace.sql.syntax.scopes import FromClause, FromItem, Relation

Columns = Callable[[Relation], tuple[str, ...]]
"""Returns the names of a relation's columns in order; raises Unsupported where they cannot be known."""


@dataclass(frozen=True)
class Attribute:
    """A column that a FROM clause gives out."""

    name: str  # as Spark spells it
    sources: tuple[tuple[Relation, int], ...]  # by places; several are coalesced (FULL JOIN … USING)

    @property
    def relation(self) -> Relation | None:
        """The one relation that it is from, None for a coalesced column."""
        return self.sources[0][0] if len(self.sources) == 1 else None


@dataclass(frozen=True)
class Match:
    """A resolved name: its first parts qualify an attribute, and its last ones are fields of a struct."""

    attribute: Attribute
    qualifier: int
    nested: int


class Unclear(Exception):
    """Several columns may be meant, or only Spark knows which."""


@dataclass(frozen=True)
class Output:
    """The columns of a FROM clause: what ``*`` shows, and what is only found with a qualifier, in order."""

    shown: tuple[Attribute, ...] = ()
    hidden: tuple[Attribute, ...] = ()

    @cached_property
    def _named(self) -> tuple[dict[str, list[Attribute]], dict[str, list[Attribute]]]:
        """What is shown and what is hidden, by name in lower case."""
        return _by_name(self.shown), _by_name(self.hidden)

    def find(self, parts: Sequence[str]) -> Match | None:
        """Return what a name in lower case means, None when nothing here has that name.

        Raises:
            Unclear: More than one column has that name.
        """
        qualified = range(min(3, len(parts) - 1), 0, -1)
        shown, hidden = self._named
        for among, length in (
            *((shown, length) for length in qualified),
            (shown, 0),
            *((hidden, length) for length in qualified),
        ):
            named = among.get(parts[length], ())
            hits = [hit for hit in named if not length or _answers(hit, tuple(parts[:length]))]
            if len({hit.sources for hit in hits}) > 1:
                raise Unclear(f"several columns are named {hits[0].name}")
            if hits:
                return Match(hits[0], length, len(parts) - length - 1)
        return None

    def star(self, qualifier: tuple[str, ...]) -> list[Attribute]:
        """Return what ``qualifier.*`` shows, hidden columns first; nothing when it names no relation.

        Raises:
            Unclear: Only Spark knows whether a relation is meant.
        """
        return [column for column in (*self.hidden, *self.shown) if _answers(column, qualifier)]


def _by_name(attributes: Sequence[Attribute]) -> dict[str, list[Attribute]]:
    named: dict[str, list[Attribute]] = {}
    for attribute in attributes:
        named.setdefault(attribute.name.lower(), []).append(attribute)
    return named


def _answers(attribute: Attribute, qualifier: tuple[str, ...]) -> bool:
    answer = False if attribute.relation is None else attribute.relation.answers_to(qualifier)
    if answer is None:
        raise Unclear(f"only Spark knows whether {'.'.join(qualifier)} is a table here")
    return answer


@dataclass(frozen=True)
class Joined:
    """What an item makes of the columns on its left, and which of both sides USING or NATURAL compares."""

    output: Output
    keys: tuple[tuple[Attribute, Attribute], ...] = ()


def output_of(clause: FromClause, columns: Columns, end: int | None = None) -> Output:
    """Return the columns of the first ``end`` items and LATERAL VIEWs of a clause, or of all.

    Raises:
        Unsupported: A relation's columns cannot be known.
    """
    steps = joined(clause, columns, end)
    output = steps[-1].output if steps else Output()
    views = clause.views if end is None else clause.views[: max(0, end - len(clause.items))]
    for view in views:
        output = _both(output, _own(view, columns))
    return output


def seen_by(clause: FromClause, columns: Columns, place: int) -> Output:
    """Return what the condition of an item sees: both sides, also where one is not shown above.

    Raises:
        Unsupported: A relation's columns cannot be known.
    """
    return _both(output_of(clause, columns, place), _own(clause.items[place].content, columns))


def joined(clause: FromClause, columns: Columns, end: int | None = None) -> list[Joined]:
    """Return what each of so many items makes of those left of it."""
    steps: list[Joined] = []
    for item in clause.items[:end]:
        own = _own(item.content, columns)
        steps.append(_join(steps[-1].output, own, item) if steps else Joined(own))
    return steps


def _own(content: Relation | FromClause, columns: Columns) -> Output:
    if isinstance(content, FromClause):
        return output_of(content, columns)
    return Output(tuple(Attribute(name, ((content, n),)) for n, name in enumerate(columns(content))))


def _both(left: Output, right: Output) -> Output:
    return Output(left.shown + right.shown, left.hidden + right.hidden)


def _join(left: Output, right: Output, item: FromItem) -> Joined:
    names = _common(left, right) if item.natural else list(item.using)
    if not names:
        return Joined(left if item.semi else _both(left, right))
    pairs = [(_first(left, name), _first(right, name)) for name in names]
    a, b = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    rest, other = _without(left, a), _without(right, b)
    hidden = left.hidden + right.hidden
    if item.semi:
        return Joined(Output((*a, *rest), left.hidden), tuple(pairs))
    match item.kind:
        case "right":
            output = Output((*b, *rest, *other), (*a, *hidden))
        case "full":
            merged = [Attribute(x.name, (*x.sources, *y.sources)) for x, y in pairs]
            output = Output((*merged, *rest, *other), (*a, *b, *hidden))
        case _:
            output = Output((*a, *rest, *other), (*b, *hidden))
    return Joined(output, tuple(pairs))


def _common(left: Output, right: Output) -> list[str]:
    """Return the names that NATURAL joins by: those of both, letter by letter, in the left side's order."""
    there = Counter(attribute.name for attribute in right.shown)
    names = []
    for attribute in left.shown:
        if there[attribute.name] > 0:
            there[attribute.name] -= 1
            names.append(attribute.name)
    return names


def _first(side: Output, name: str) -> Attribute:
    for attribute in side.shown:
        if attribute.name.lower() == name.lower():
            return attribute
    raise Unsupported(f"USING({name}) over a column that is not there")


def _without(side: Output, keys: Sequence[Attribute]) -> tuple[Attribute, ...]:
    return tuple(attribute for attribute in side.shown if not any(attribute is key for key in keys))
