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

from millrace.sql.syntax.from_clause import FromClause, FromItem, Relation
from millrace.sql.syntax.parse import Unsupported

Columns = Callable[[Relation], tuple[str, ...]]
"""Returns the names of a relation's columns in order; raises Unsupported where they cannot be known."""


@dataclass(frozen=True)
class Attribute:
    """A column that a FROM clause gives out.

    Attributes:
        name: As Spark spells it.
        sources: The relation's column, by its place there; several are coalesced (FULL JOIN … USING).
    """

    name: str
    sources: tuple[tuple[Relation, int], ...]

    @property
    def relation(self) -> Relation | None:
        """The one relation that it is from, None for a coalesced column."""
        return self.sources[0][0] if len(self.sources) == 1 else None


@dataclass(frozen=True)
class Match:
    """What a name means: an attribute, after so many qualifiers, before so many names of struct fields."""

    attribute: Attribute
    qualifier: int
    nested: int


class Unclear(Exception):
    """Several columns may be meant, or only Spark knows which."""


@dataclass(frozen=True)
class Output:
    """The columns of a FROM clause.

    Attributes:
        shown: What ``*`` shows, in order.
        hidden: What is only found with a qualifier, in order.
    """

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
        for among, taken in (
            *((shown, taken) for taken in qualified),
            (shown, 0),
            *((hidden, taken) for taken in qualified),
        ):
            named = among.get(parts[taken], ())
            found = [each for each in named if not taken or _answers(each, tuple(parts[:taken]))]
            if len({each.sources for each in found}) > 1:
                raise Unclear(f"several columns are named {found[0].name}")
            if found:
                return Match(found[0], taken, len(parts) - taken - 1)
        return None

    def star(self, qualifier: tuple[str, ...]) -> list[Attribute]:
        """Return what ``qualifier.*`` shows, hidden columns first; nothing when it names no relation.

        Raises:
            Unclear: Only Spark knows whether a relation is meant.
        """
        return [each for each in (*self.hidden, *self.shown) if _answers(each, qualifier)]


def _by_name(attributes: Sequence[Attribute]) -> dict[str, list[Attribute]]:
    named: dict[str, list[Attribute]] = {}
    for each in attributes:
        named.setdefault(each.name.lower(), []).append(each)
    return named


def _answers(attribute: Attribute, qualifier: tuple[str, ...]) -> bool:
    answer = False if attribute.relation is None else attribute.relation.answers_to(qualifier)
    if answer is None:
        raise Unclear(f"only Spark knows whether {'.'.join(qualifier)} is a table here")
    return answer


@dataclass(frozen=True)
class Joined:
    """What an item makes of the columns on its left.

    Attributes:
        output: All columns then.
        keys: The columns of both sides that USING or NATURAL compares.
    """

    output: Output
    keys: tuple[tuple[Attribute, Attribute], ...] = ()


def output_of(clause: FromClause, columns: Columns, end: int | None = None) -> Output:
    """Return the columns of a clause's items, without its LATERAL VIEWs.

    Args:
        clause: The clause.
        columns: Tells a relation's columns.
        end: How many items, None for all.

    Raises:
        Unsupported: A relation's columns cannot be known.
    """
    steps = joined(clause, columns, end)
    return steps[-1].output if steps else Output()


def joined(clause: FromClause, columns: Columns, end: int | None = None) -> list[Joined]:
    """Return what each of so many items makes of those left of it."""
    steps: list[Joined] = []
    for item in clause.items[:end]:
        own = _content(item, columns)
        steps.append(_join(steps[-1].output, own, item) if steps else Joined(own))
    return steps


def own_output(relation: Relation, columns: Columns) -> Output:
    """Return a relation's own columns."""
    return Output(tuple(Attribute(name, ((relation, n),)) for n, name in enumerate(columns(relation))))


def _content(item: FromItem, columns: Columns) -> Output:
    if isinstance(item.content, FromClause):
        return output_of(item.content, columns)
    return own_output(item.content, columns)


def both(left: Output, right: Output) -> Output:
    """Return the columns of two sides beside each other."""
    return Output(left.shown + right.shown, left.hidden + right.hidden)


def seen_by(clause: FromClause, columns: Columns, place: int) -> Output:
    """Return what the condition of an item sees: both sides, also where one is not shown above.

    Raises:
        Unsupported: A relation's columns cannot be known.
    """
    return both(output_of(clause, columns, place), _content(clause.items[place], columns))


def _join(left: Output, right: Output, item: FromItem) -> Joined:
    names = _common(left, right) if item.natural else list(item.using)
    if not names:
        return Joined(left if item.semi else both(left, right))
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
    there = Counter(each.name for each in right.shown)
    names = []
    for each in left.shown:
        if there[each.name] > 0:
            there[each.name] -= 1
            names.append(each.name)
    return names


def _first(side: Output, name: str) -> Attribute:
    for each in side.shown:
        if each.name.lower() == name.lower():
            return each
    raise Unsupported(f"USING({name}) over a column that is not there")


def _without(side: Output, keys: Sequence[Attribute]) -> tuple[Attribute, ...]:
    return tuple(each for each in side.shown if not any(each is key for key in keys))
