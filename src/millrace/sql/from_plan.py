"""An analysed plan of Spark as the text of a query, so that a pipeline of DataFrames is planned as SQL is.

Operators become SELECTs. Where that changes no row, projections, filters and joins become one: a column that
was computed below a join is written where it is read above. What cannot be said is a relation of the text,
with its rows from Spark. Only columns that something above reads are said at all.
"""

# ruff: noqa: S608  # SQL is what this module writes

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from millrace.spark.plan_reader import CALL, COLUMN, TEXT, Expression, Operator
from millrace.sql.syntax.edits import plain_quote

_NUMBERED = re.compile(rf"{TEXT}|\b{COLUMN}(\d+)\b")
_CALLED = re.compile(rf"{TEXT}|\b{CALL}(\d+)\(")
_SIMPLE = re.compile(r"[\w.]*(?:`(?:[^`]|``)*`[\w.]*)*")
_WITHIN = re.compile(rf"\w+\.{COLUMN}(\d+)")
_ALL = " "
"""What stands behind a SELECT that aggregates all rows."""
_LONGEST = 4_000
"""Characters of an expression at most, after columns are written out in it; beyond, a SELECT is nested."""

_UNSAYABLE = frozenset((
    "ScalarSubquery", "Exists", "InSubquery", "ListQuery", "DynamicPruningSubquery", "LateralSubquery",
    "FunctionTableSubquery", "LambdaFunction", "NamedLambdaVariable", "UnresolvedNamedLambdaVariable",
    "OuterReference", "ScalaUDF", "PythonUDAF", "PythonUDTF", "ScalaAggregator", "ScalaUDAF",
    "InSet", "KnownNullable", "PivotFirst", "GroupingID", "Grouping", "Invoke",
    "StaticInvoke", "NewInstance", "VariableReference",
))  # fmt: skip
"""Classes of expressions whose text Spark does not read back as the same."""

_RANKS = frozenset(("Rank", "DenseRank", "PercentRank", "CumeDist", "NTile"))
"""Functions that are said without what they read, which is the order of their window."""

Needed = frozenset[int]


@dataclass(frozen=True)
class _Item:
    """A relation of a FROM clause: how it is joined to those before, itself, and on what."""

    join: str
    relation: str
    on: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in (self.join, self.relation, self.on and f"ON {self.on}") if part)


@dataclass(frozen=True)
class _Select:
    """A SELECT that more can be said of.

    Attributes:
        columns: What stands for each of its columns, by number.
        modifiers: What stands behind: nothing can then be added without nesting.
        distinct: Whether it keeps one of equal rows.
        inner: Of a derived table as it is, what it is derived from.
    """

    items: tuple[_Item, ...]
    columns: Mapping[int, str]
    where: tuple[str, ...] = ()
    modifiers: str = ""
    distinct: bool = False
    inner: _Select | None = None

    @property
    def is_open(self) -> bool:
        """Whether joins, conditions and columns can be added to it."""
        return not self.modifiers and not self.distinct

    @property
    def is_inner(self) -> bool:
        """Whether it has inner joins alone."""
        return all(item.join in ("", "JOIN") for item in self.items)

    def say(self, columns: Iterable[tuple[int, str]]) -> str:
        """Return the text with some of its columns, each under a name."""
        # A SELECT of nothing is still one of its own columns: of an aggregate there is one row.
        columns = list(columns) or [(number, column(number)) for number in [*self.columns][:1]]
        keeps_rows = self.inner is not None and (
            self.inner.modifiers != _ALL
            or len({number for number, _ in columns}) == len(self.inner.columns)  # one row of their functions
        )
        if self.inner is not None and keeps_rows and not self.inner.distinct and is_plain(self):
            within = [_WITHIN.fullmatch(self.columns[number]) for number, _ in columns]
            if all(within):
                return self.inner.say(
                    (int(match[1]), name) for match, (_, name) in zip(within, columns, strict=True) if match
                )
        shown = ", ".join(f"{self.columns[number]} AS {name}" for number, name in columns) or "1"
        source = " ".join(map(str, self.items))
        where = f" WHERE {' AND '.join(self.where)}" if self.where else ""
        return f"SELECT {'DISTINCT ' * self.distinct}{shown} FROM {source}{where}{self.modifiers}"


@dataclass(eq=False)
class Reading:
    """What a plan says as SQL.

    Attributes:
        relations: What Spark reads for it, by name.
        calls: The operators that call functions of Python, by the numbers of the calls.
    """

    text: str = ""
    relations: dict[str, Operator] = field(default_factory=dict)
    calls: dict[int, Operator] = field(default_factory=dict)
    said: list[Operator] = field(default_factory=list)
    joins: int = 0


def read(root: Operator, names: Sequence[str], unsayable: Collection[int] = ()) -> Reading:
    """Return a plan as a query with columns ``names``; Spark reads what is at ``unsayable`` places."""
    reader = _Reader(root, unsayable)
    select = reader.select(root, frozenset(root.output))
    columns = zip(root.output, map(plain_quote, names), strict=True)
    numbers: dict[str, int] = {}

    def renumber(match: re.Match[str]) -> str:
        return column(numbers.setdefault(match[1], len(numbers))) if match[1] else match[0]

    # Spark numbers anew what is made anew: the same pipeline is to be the same text.
    reader.reading.text = _NUMBERED.sub(renumber, select.say(columns))
    return reader.reading


class _Reader:
    def __init__(self, root: Operator, unsayable: Collection[int]) -> None:
        self.reading = Reading()
        self._unsayable = unsayable
        self._count = count()
        names = {name.lower() for each in root.walk() for name in each.names}
        self._end = ""
        while any(re.fullmatch(rf"[td]\d+{self._end}", name) for name in names):
            self._end += "_"  # a column may be called as a relation is

    def select(self, operator: Operator, needed: Needed) -> _Select:
        """Return what an operator gives, of which some columns are needed."""
        say: Callable[[Operator, Needed], _Select | None] | None = getattr(
            self, f"_say_{operator.kind.lower()}", None
        )
        if say is None or operator.place in self._unsayable or not _is_sayable(operator):
            return self._relation(operator)
        said = say(operator, needed)
        if said is None:
            return self._relation(operator)
        self.reading.said.append(operator)
        return said

    # Operators

    def _relation(self, operator: Operator) -> _Select:
        """Let Spark read it."""
        name = f"t{len(self.reading.relations)}{self._end}"
        self.reading.relations[name] = operator
        names = map(plain_quote, relation_names(operator))
        columns = {number: f"{name}.{text}" for number, text in zip(operator.output, names, strict=True)}
        return _Select((_Item("", name),), columns)

    def _say_subqueryalias(self, operator: Operator, needed: Needed) -> _Select | None:
        (child,) = operator.children
        return self.select(child, needed) if operator.output == child.output else None

    _say_view = _say_resolvedhint = _say_subqueryalias

    def _say_project(self, operator: Operator, needed: Needed) -> _Select | None:
        (child,) = operator.children
        items = [
            (number, each)
            for number, each in zip(operator.output, operator.expressions, strict=True)
            if number in needed
        ]
        below = self._open(self.select(child, _numbers(each for _, each in items)))
        columns = {number: _written(each.sql, below.columns) for number, each in items}
        if max(map(len, columns.values()), default=0) > _LONGEST:
            below = self._nested(below)
            columns = {number: _written(each.sql, below.columns) for number, each in items}
        return replace(below, columns=columns)

    def _say_filter(self, operator: Operator, needed: Needed) -> _Select | None:
        (child,) = operator.children
        (condition,) = operator.expressions
        called = [int(match[1]) for match in _CALLED.finditer(condition.sql) if match[1]]
        below = self._open(self.select(child, needed | _numbers([condition])))
        self.reading.calls.update(dict.fromkeys(called, operator))
        return replace(below, where=(*below.where, _written(condition.sql, below.columns, whole=True)))

    def _say_join(self, operator: Operator, needed: Needed) -> _Select | None:
        kind = operator.detail
        first, second = operator.children
        if set(first.output) & set(second.output):
            return None
        needed |= _numbers(operator.expressions)
        sides = [frozenset(side.output) & needed for side in (first, second)]
        if kind in ("INNER", "CROSS", "LEFT OUTER", "LEFT SEMI", "LEFT ANTI"):
            left, right = map(self.select, (first, second), sides)
        elif kind == "RIGHT OUTER":
            right, left = map(self.select, (first, second), sides)
        elif kind == "FULL OUTER":
            left, right = (
                self._nested(self.select(*side)) for side in zip((first, second), sides, strict=True)
            )
        else:
            return None
        self.reading.joins += 1
        left, right = self._open(left), self._open(right)
        if kind in ("LEFT OUTER", "RIGHT OUTER", "FULL OUTER") and not is_plain(right):
            right = self._nested(right)
        if len(right.items) > 1 and (not right.is_inner or kind not in ("INNER", "CROSS")):
            right = self._nested(right)
        columns = {**left.columns, **right.columns}
        on = " AND ".join(_written(each.sql, columns, whole=True) for each in operator.expressions)
        head, *rest = right.items
        if kind in ("LEFT SEMI", "LEFT ANTI"):
            inner = " AND ".join([*right.where, *([on] if on else [])]) or "true"
            exists = f"EXISTS (SELECT 1 FROM {head.relation} WHERE {inner})"
            exists = f"NOT {exists}" if kind == "LEFT ANTI" else exists
            return replace(left, where=(*left.where, exists))
        if kind in ("INNER", "CROSS"):
            joined = [replace(head, join="JOIN"), *rest]
            joined[-1] = replace(joined[-1], on=" AND ".join(t for t in (joined[-1].on, on) if t))
            where = (*left.where, *right.where)
            return _Select((*left.items, *joined), columns, where)
        join = "FULL JOIN" if kind == "FULL OUTER" else "LEFT JOIN"
        return _Select((*left.items, replace(head, join=join, on=on or "true")), columns, left.where)

    def _say_aggregate(self, operator: Operator, needed: Needed) -> _Select | None:
        (child,) = operator.children
        grouped = len(operator.expressions) - len(operator.output)
        keys, items = operator.expressions[:grouped], operator.expressions[grouped:]
        if any(key.classes[0] == "Literal" for key in keys):
            return None  # in GROUP BY a number is a place
        given = list(zip(operator.output, items, strict=True))
        if not keys:  # a SELECT has one row if it aggregates, whatever is read of it
            needed |= {number for number, each in given if "AggregateExpression" in each.classes}
            if not any("AggregateExpression" in each.classes for _, each in given):
                return None
        kept = [(number, each) for number, each in given if number in needed]
        below = self._open(self.select(child, _numbers([*keys, *(each for _, each in kept)])))
        if any(not _reads_columns(below.columns[n]) for n in _numbers(keys)):
            below = self._nested(below)
        by = ", ".join(_written(key.sql, below.columns) for key in keys)
        columns = {number: _written(each.sql, below.columns) for number, each in kept}
        return self._nested(replace(below, columns=columns, modifiers=f" GROUP BY {by}" if by else _ALL))

    def _say_deduplicate(self, operator: Operator, needed: Needed) -> _Select | None:
        """Say what Spark's optimizer makes of it: one row of each group, the first that comes."""
        if operator.is_streaming or not operator.expressions:
            return None
        (child,) = operator.children
        keys = _numbers(operator.expressions)
        below = self._open(self.select(child, needed | keys))
        if any(not _reads_columns(below.columns[n]) for n in keys):
            below = self._nested(below)
        by = ", ".join(below.columns[n] for n in sorted(keys))
        columns = {
            n: text if n in keys else f"first({text})" for n, text in below.columns.items() if n in needed
        }
        return self._nested(replace(below, columns=columns, modifiers=f" GROUP BY {by}"))

    def _say_distinct(self, operator: Operator, _needed: Needed) -> _Select | None:
        (child,) = operator.children  # all of its columns count, whatever is read
        below = self._open(self.select(child, frozenset(child.output)))
        columns = {number: below.columns[number] for number in child.output}
        return replace(below, columns=columns, distinct=True)

    def _say_sort(self, operator: Operator, needed: Needed) -> _Select | None:
        (child,) = operator.children
        if operator.detail != "true" or any(each.classes[1] == "Literal" for each in operator.expressions):
            return None
        below = self._nested(self.select(child, needed | _numbers(operator.expressions)))
        order = ", ".join(_written(each.sql, below.columns) for each in operator.expressions)
        return replace(below, modifiers=f" ORDER BY {order}")

    def _say_globallimit(self, operator: Operator, needed: Needed) -> _Select | None:
        (child,) = operator.children
        if child.kind != "LocalLimit" or not operator.expressions[0].sql.isdecimal():
            return None
        below = self.select(child.children[0], needed)
        if below.distinct or " LIMIT " in below.modifiers:
            below = self._nested(below)
        return replace(below, modifiers=f"{below.modifiers} LIMIT {operator.expressions[0].sql}")

    def _say_window(self, operator: Operator, needed: Needed) -> _Select | None:
        (child,) = operator.children
        added = operator.output[len(child.output) :]
        items = [(n, e) for n, e in zip(added, operator.expressions, strict=False) if n in needed]
        read_here = _numbers(each for _, each in items)
        below = self._nested(self.select(child, frozenset(child.output) & (needed | read_here)))
        columns = {**below.columns, **{n: _written(each.sql, below.columns) for n, each in items}}
        return self._nested(replace(below, columns=columns))

    def _say_union(self, operator: Operator, needed: Needed) -> _Select | None:
        places = [place for place, number in enumerate(operator.output) if number in needed]
        texts = []
        for child in operator.children:
            numbers = [child.output[place] for place in places]
            select = self._open(self.select(child, frozenset(numbers)))
            shown = [(n, column(operator.output[place])) for n, place in zip(numbers, places, strict=True)]
            texts.append(select.say(shown))
        alias = f"d{next(self._count)}{self._end}"
        columns = {operator.output[place]: f"{alias}.{column(operator.output[place])}" for place in places}
        return _Select((_Item("", f"({' UNION ALL '.join(texts)}) AS {alias}"),), columns)

    # SELECTs

    def _open(self, select: _Select) -> _Select:
        return select if select.is_open else self._nested(select)

    def _nested(self, select: _Select) -> _Select:
        """Return it as a derived table."""
        if is_plain(select) and select.items[0].relation.startswith("("):
            return select
        alias = f"d{next(self._count)}{self._end}"
        text = select.say((number, column(number)) for number in select.columns)
        columns = {number: f"{alias}.{column(number)}" for number in select.columns}
        return _Select((_Item("", f"({text}) AS {alias}"),), columns, inner=select)


def column(number: int) -> str:
    """Return what the text calls a column."""
    return f"{COLUMN}{number}"


def with_calls(text: str, names: Mapping[int, str]) -> str:
    """Return a text whose calls of Python's functions, by number, have names."""
    return _CALLED.sub(lambda match: f"{names[int(match[1])]}(" if match[1] else match[0], text)


def relation_names(operator: Operator) -> list[str]:
    """Return what the text calls the columns of a relation: their own names where these tell them apart."""
    if len({name.lower() for name in operator.names}) == len(operator.names):
        return list(operator.names)
    return [f"{column(number)}_{place}" for place, number in enumerate(operator.output)]


def with_columns_for(above: Operator, operator: Operator) -> Operator:
    """Return an operator with the columns alone that the one above it reads."""
    if above.kind not in ("Project", "Aggregate"):
        return operator
    read_above = _numbers(above.expressions)
    given = list(zip(operator.output, operator.names, strict=True))
    shown = [(number, name) for number, name in given if number in read_above] or given[:1]
    columns = tuple(Expression(column(n), ("AttributeReference",), is_deterministic=True) for n, _ in shown)
    numbers, names = tuple(n for n, _ in shown), tuple(name for _, name in shown)
    return Operator(
        "Project", operator.place, (operator,), columns, numbers, names, "", operator.is_streaming
    )


def is_repeatable(operator: Operator) -> bool:
    """Tell whether an operator gives the same for the same rows, in whatever order and partition."""
    is_same = all(each.is_deterministic for each in operator.expressions)
    return is_same and operator.kind not in ("Sample", "AttachDistributedSequence")


def _is_sayable(operator: Operator) -> bool:
    """Tell whether the expressions of an operator can be said in SQL."""
    is_filter = operator.kind == "Filter"
    return all(
        each.is_deterministic
        and (is_filter or CALL not in each.sql)
        and not _UNSAYABLE.intersection(each.classes)
        and (
            _RANKS.intersection(each.classes)
            or each.classes.count("AttributeReference") == len(list(_found(each.sql)))
        )
        for each in operator.expressions
    )


def is_plain(select: _Select) -> bool:
    """Tell whether a SELECT is a relation as it is."""
    is_relation = len(select.items) == 1 and not select.where and select.is_open
    return is_relation and all(map(_is_name, select.columns.values()))


def _is_name(text: str) -> bool:
    return _SIMPLE.fullmatch(text) is not None and _reads_columns(text)


def _reads_columns(text: str) -> bool:
    """Tell whether a written-out expression reads some column of a relation."""
    return re.search(r"\b[td]\d+_*\.", re.sub(TEXT, "", text)) is not None


def _found(text: str) -> Iterable[int]:
    return (int(match[1]) for match in _NUMBERED.finditer(text) if match[1])


def _numbers(expressions: Iterable[Expression]) -> Needed:
    return frozenset(number for each in expressions for number in _found(each.sql))


def _written(text: str, columns: Mapping[int, str], *, whole: bool = False) -> str:
    """Return an expression with what stands for its columns."""

    def put(match: re.Match[str]) -> str:
        if not match[1]:
            return match[0]
        found = columns[int(match[1])]
        return found if whole_is_column or _is_name(found) else f"({found})"

    whole_is_column = not whole and _NUMBERED.fullmatch(text) is not None
    return _NUMBERED.sub(put, text)
