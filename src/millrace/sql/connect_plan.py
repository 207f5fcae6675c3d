"""Reads how a DataFrame of Spark Connect was made: the second of the two readers beyond PySpark's public API.

The client keeps what was called as a message to the server. Names in it are resolved here as Spark resolves
them, and columns have numbers as those of a classic plan do (:mod:`millrace.spark.plan_reader`). Expressions
are said in the words that the message has for them, so that Spark analyses them under the same settings and
to the same end. What is not known for certain, a name or a function, stays with Spark, and so does all below.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from itertools import count
from math import isfinite
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.connect.dataframe import DataFrame as ConnectFrame
from pyspark.sql.connect.plan import LogicalPlan
from pyspark.sql.connect.proto import (
    Aggregate,
    CallFunction,
    CommonInlineUserDefinedFunction,
    Expression as Sent,
    Join,
    Relation,
    SetOperation,
)
from pyspark.sql.connect.types import proto_schema_to_pyspark_data_type
from pyspark.sql.udf import UserDefinedFunction
from pyspark.sql.utils import get_lit_sql_str
from sqlglot import exp

from millrace.errors import QueryError
from millrace.spark.plan_reader import CALL, COLUMN, TEXT, Expression, Operator, Part, load_function
from millrace.spark.scan_detection import unusual
from millrace.spark.session import SessionConf, explained, facts_of, is_cached, keep
from millrace.sql.expr.functions import ANY_NAMES, VOLATILE_NAMES
from millrace.sql.syntax.edits import plain_quote
from millrace.sql.syntax.parse import Statement, Unsupported, name_span, parse

if TYPE_CHECKING:
    from millrace.sql.syntax.edits import Span

_SETTINGS = {
    "spark.sql.caseSensitive": "false",
    "spark.sql.retainGroupColumns": "true",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.parser.quotedRegexColumnNames": "false",
    "spark.sql.timestampType": "timestamp_ltz",
}
"""Settings under which names and texts are read as here."""
_UNSAYABLE = (exp.Query, exp.Lambda, exp.Placeholder, exp.Parameter, exp.Aliases, exp.Window, exp.Tuple)
_CALLED = re.compile(rf"{TEXT}|\b(\w+)\s*\(")
_ODD = re.compile(r"--|/\*|\b[rx]['\"]|`\s*\(|\.\s*\w+\s*\(", re.IGNORECASE)
"""Comments, raw texts, and names of functions in another form."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAME_PARTS = re.compile(r"(?:`((?:[^`]|``)+)`|([^`.]+))(\.|$)")
_OF_TWO = {
    name: f"({{}} {word} {{}})"
    for name, word in zip(
        ["==", "<=>", "<", ">", "<=", ">=", "+", "-", "*", "/", "%", "&", "|", "^", "and", "or", "like"],
        ["=", "<=>", "<", ">", "<=", ">=", "+", "-", "*", "/", "%", "&", "|", "^", "AND", "OR", "LIKE"],
        strict=True,
    )
}
"""How functions of two arguments are said that are operators; below, of one."""
_OF_ONE = {
    "not": "(NOT {})",
    "negative": "(- {})",
    "isnull": "({} IS NULL)",
    "isnotnull": "({} IS NOT NULL)",
}
_JOINS = {
    Join.JOIN_TYPE_INNER: "INNER",
    Join.JOIN_TYPE_CROSS: "CROSS",
    Join.JOIN_TYPE_LEFT_OUTER: "LEFT OUTER",
    Join.JOIN_TYPE_RIGHT_OUTER: "RIGHT OUTER",
    Join.JOIN_TYPE_FULL_OUTER: "FULL OUTER",
    Join.JOIN_TYPE_LEFT_SEMI: "LEFT SEMI",
    Join.JOIN_TYPE_LEFT_ANTI: "LEFT ANTI",
}
_HINTS = frozenset((
    "broadcast", "broadcastjoin", "mapjoin", "merge", "mergejoin", "shuffle_hash", "shuffle_merge",
    "shuffle_replicate_nl",
))  # fmt: skip
_GENERATORS = frozenset((
    "arrays_zip", "collations", "explode", "explode_outer", "inline", "inline_outer", "json_tuple",
    "posexplode", "posexplode_outer", "session_window", "sql_keywords", "stack", "struct", "variant_explode",
    "variant_explode_outer", "window",
))  # fmt: skip
"""Functions that are no values of a row, or whose value has names of their arguments."""
_RANKS = frozenset(("row_number", "rank", "dense_rank", "lag", "lead", "ntile", "nth_value"))
"""Functions that have one value in a window, whatever order rows come in otherwise."""
_WORDS = frozenset((
    "and", "as", "between", "by", "case", "cast", "char", "dec", "decimal", "distinct", "else", "end",
    "exists", "extract", "filter", "ilike", "in", "interval", "is", "like", "not", "numeric", "or", "rlike",
    "then", "try_cast", "varchar", "when",
))  # fmt: skip
"""Words that a parenthesis may follow and that are no functions."""
_AGGREGATE = "org.apache.spark.sql.catalyst.expressions.aggregate."
_kinds = dict.fromkeys(("sum", "count", "avg", "min", "max"), "AggregateExpression")
"""What functions are, by name: aggregates, or values of a row. Spark is asked for each once."""


class _Unread(Exception):
    """Something is Spark's to read."""


@dataclass(frozen=True)
class _Column:
    """A column that a relation gives; of what it is a column, None where that is not known."""

    number: int
    name: str
    qualifier: tuple[str, ...] | None = ()


@dataclass(frozen=True)
class _Scope:
    """What names in an operator above a relation mean.

    Attributes:
        operator: What reads the relation.
        columns: What it gives.
        plans: The columns of each DataFrame on the way here, by its number, wherever it stands.
        direct: The same of those whose rows the operator above reads: they come before others.
        hides: Whether a join by name has left out columns, which Spark still finds.
    """

    operator: Operator
    columns: tuple[_Column, ...]
    plans: dict[int, tuple[tuple[_Column, ...], ...]] = field(default_factory=dict)
    direct: tuple[tuple[int, tuple[_Column, ...]], ...] = ()
    hides: bool = False

    def find(self, parts: Sequence[str], plan: int | None = None) -> tuple[_Column, Sequence[str]]:
        """Return which column a name means, and the fields that it takes of that."""
        among = [each for number, each in self.direct if number == plan]
        among = [self.columns] if plan is None else among
        matches = [
            match
            for columns in among or self.plans.get(plan or 0, ())
            for match in self._matches(columns, parts)
            if match[0].number in self.operator.output
        ]
        if len(matches) != 1:
            raise _Unread
        return matches[0]

    @staticmethod
    def _matches(among: Sequence[_Column], parts: Sequence[str]) -> list[tuple[_Column, Sequence[str]]]:
        lower = [part.lower() for part in parts]
        if len(parts) > 1 and any(
            each.qualifier is None or (len(parts) > 2 and len(each.qualifier) > 1) for each in among
        ):
            raise _Unread
        found = [
            each
            for each in among
            if len(parts) > 1
            and each.qualifier
            and [each.qualifier[-1].lower(), each.name.lower()] == lower[:2]
        ]
        fields = parts[2:]
        if not found:
            found, fields = [each for each in among if each.name.lower() == lower[0]], parts[1:]
        return [(each, fields) for each in found]


class _Part(LogicalPlan):
    """A part of a message as the plan of a DataFrame."""

    def __init__(self, relation: Relation) -> None:
        super().__init__(None)
        self._root_plan_id = relation.common.plan_id
        self._relation = relation

    def plan(self, session: Any) -> Relation:  # PySpark's own
        """Return the message."""
        return self._relation


class ConnectPlan:
    """The plan of a DataFrame of Spark Connect, as far as it can be read; see ``AnalysedPlan``.

    Args:
        df: The DataFrame.
    """

    def __init__(self, df: DataFrame) -> None:
        self._df = df
        self._spark: Any = df.sparkSession
        self._message: Relation = df._plan.to_proto(self._spark.client).root  # type: ignore[operator]  # noqa: SLF001  # what this is for
        self._relations: dict[int, Relation] = {}
        self._scopes: dict[int, _Scope] = {}
        self._calls: dict[int, dict[int, Any]] = {}
        self._numbers, self._places, self._called = count(), count(), count()

    @cached_property
    def has_joins(self) -> bool:
        """Whether it joins anything."""
        return "join" in self.kinds

    @cached_property
    def has_calls(self) -> bool:
        """Whether it filters by functions of Python, perhaps."""
        return _joins_or_calls(self._message)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of its operators."""
        return tuple(
            str(each.WhichOneof("rel_type")) for each in _walk(self._message) if isinstance(each, Relation)
        )

    @cached_property
    def root(self) -> Operator:
        """All of it."""
        why = unusual(SessionConf(self._spark), _SETTINGS)
        if why is not None:
            raise QueryError(f"names and texts are read in another way: {why}")
        return self._read(self._message).operator

    @cached_property
    def reads_cache(self) -> bool:
        """Whether Spark has rows of it in its cache."""
        return "InMemoryRelation" in explained(self._df)

    def kept(self, operators: Iterable[Operator]) -> set[int]:
        """Return the places of the operators whose rows Spark keeps in its cache."""
        return {each.place for each in operators if self.reads_cache and is_cached(self.frame(each))}

    unsayable = kept

    def load_functions(self, operator: Operator) -> dict[int, UserDefinedFunction | None]:
        """Return the functions of Python that an operator calls, by the numbers of the calls."""
        return {number: _load(call) for number, call in self._calls.get(operator.place, {}).items()}

    def identity(self, operator: Operator) -> int | None:
        """Return what tells a DataFrame that was read from files from others."""
        relation = self._relations[operator.place]
        return relation.common.plan_id if _is_of_files(relation) else None

    def frame(self, operator: Operator, parts: Mapping[int, Part] | None = None) -> DataFrame:
        """Return a DataFrame of the rows of an operator; parts stand for some below it, by their places."""
        relation, places = self._relations[operator.place], [*_topmost(operator, parts or {})]
        if parts is None or not places:
            return self._frame_of(relation)
        joined = [self._relations[place] for place in places]
        scopes = [self._scopes[id(each)] for each in joined]
        if [scope.operator.place for scope in scopes] != places:
            raise QueryError("its joins stand within what is one step to Spark Connect")
        for message in _walk(relation, joined):
            if any(_is_named_within(message, *each) for each in zip(joined, scopes, strict=True)):
                raise QueryError("what stands above its joins names columns of what was joined")
        whole = Relation()
        whole.CopyFrom(relation)
        copies = [*zip(_walk(relation), _walk(whole), strict=True)]
        for place, old, scope in zip(places, joined, scopes, strict=True):
            (new,) = (copy for each, copy in copies if each is old)
            numbers, frame = parts[place]
            names = {each.number: each.name for each in scope.columns}
            made = Relation()
            made.common.plan_id = old.common.plan_id
            made.to_df.input.CopyFrom(frame._plan.to_proto(self._spark.client).root)  # type: ignore[operator]  # noqa: SLF001
            made.to_df.column_names.extend(names[number] for number in numbers)
            new.CopyFrom(made)
        return ConnectFrame(_Part(whole), self._spark)

    # Relations

    def _read(self, relation: Relation) -> _Scope:
        if id(relation) not in self._scopes:  # a relation is read once more where what is above cannot be
            self._scopes[id(relation)] = self._read_once(relation)
        return self._scopes[id(relation)]

    def _read_once(self, relation: Relation) -> _Scope:
        kind = str(relation.WhichOneof("rel_type"))
        read: Callable[[Relation, Any], _Scope] | None = getattr(self, f"_read_{kind}", None)
        found = None
        if read is not None:
            with suppress(_Unread):
                found = read(relation, getattr(relation, kind))
        if found is None:
            found = self._leaf(relation, kind)
        own = relation.common.plan_id, found.columns
        return replace(found, plans={**found.plans, own[0]: (own[1],)}, direct=(own,))

    def _leaf(self, relation: Relation, kind: str) -> _Scope:
        """Let Spark read it."""
        qualifier: tuple[str, ...] | None = None
        if kind in ("read", "local_relation", "range"):
            name = relation.read.named_table.unparsed_identifier if kind == "read" else ""
            qualifier = tuple(_parts(name)) if name else ()
        frame = self._frame_of(relation)
        columns = tuple(_Column(next(self._numbers), name, qualifier) for name in frame.columns)
        is_streaming = relation.read.is_streaming if _is_of_files(relation) else frame.isStreaming
        given = getattr(relation, kind).ListFields()
        inputs = [
            each for descriptor, each in given if isinstance(each, Relation) and descriptor.name != "root"
        ]
        below = [self._read(each) for each in inputs if _joins_or_calls(each)]
        if kind == "sample" or any(map(_is_volatile, _walk(relation, inputs))):
            below = []  # what it gives is another, in another order of rows
        scope = self._scope(relation, "Relation", below, (), columns, is_streaming=is_streaming)
        return replace(scope, plans={}, hides=False)

    def _frame_of(self, relation: Relation) -> DataFrame:
        """Return a DataFrame of a relation, the same for the same files: it knows its columns."""
        frames = facts_of(self._spark).relations
        key = ("files", relation.common.plan_id)
        if not _is_of_files(relation):
            return ConnectFrame(_Part(relation), self._spark)
        if key not in frames:
            alone = Relation()  # not with all that it is a part of
            alone.CopyFrom(relation)
            keep(frames, key, ConnectFrame(_Part(alone), self._spark))
        return frames[key]

    def _scope(
        self, relation: Relation, kind: str, children: Sequence[_Scope], expressions: Sequence[Expression],
        columns: Sequence[_Column], detail: str = "", *, is_streaming: bool = False,
    ) -> _Scope:  # fmt: skip
        place = next(self._places)
        self._relations[place] = relation
        operator = Operator(
            kind,
            place,
            tuple(child.operator for child in children),
            tuple(expressions),
            tuple(each.number for each in columns),
            tuple(each.name for each in columns),
            detail,
            is_streaming or any(child.operator.is_streaming for child in children),
        )
        plans: dict[int, tuple[tuple[_Column, ...], ...]] = {}
        for child in children:
            for number, known in child.plans.items():
                plans[number] = (*plans.get(number, ()), *known)
        direct = tuple(each for child in children for each in child.direct)
        return _Scope(operator, tuple(columns), plans, direct, any(child.hides for child in children))

    def _names_of(self, relation: Relation, names: Sequence[str | None]) -> list[str]:
        """Return names of columns; Spark knows those of what has none of its own."""
        known = [name for name in names if name is not None]
        return known if len(known) == len(names) else list(self._frame_of(relation).columns)

    def _read_subquery_alias(self, relation: Relation, given: Any) -> _Scope:
        child = self._read(given.input)
        columns = [replace(each, qualifier=(*given.qualifier, given.alias)) for each in child.columns]
        return self._scope(relation, "SubqueryAlias", [child], (), columns)

    def _read_hint(self, relation: Relation, given: Any) -> _Scope:
        if given.name.lower() not in _HINTS:
            raise _Unread
        child = self._read(given.input)
        return self._scope(relation, "ResolvedHint", [child], (), child.columns)

    def _read_filter(self, relation: Relation, given: Any) -> _Scope:
        child = self._read(given.input)
        said = _Sayer(self, child)
        condition = said.say(given.condition)
        if {"AggregateExpression", "WindowExpression"}.intersection(condition.classes):
            raise _Unread
        scope = self._scope(relation, "Filter", [child], [condition], child.columns)
        self._calls[scope.operator.place] = said.calls
        return scope

    def _read_project(self, relation: Relation, given: Any) -> _Scope:
        child = self._read(given.input)
        items: list[tuple[str | None, Sent]] = []
        for each in given.expressions:
            if each.WhichOneof("expr_type") == "unresolved_star":
                items += _starred(each.unresolved_star, child)
            else:
                items.append((None, each))
        return self._project(relation, child, items)

    def _read_with_columns(self, relation: Relation, given: Any) -> _Scope:
        child = self._read(given.input)
        if any(len(each.name) != 1 for each in given.aliases):
            raise _Unread
        made = {each.name[0].lower(): each for each in given.aliases}
        if len(made) < len(given.aliases):
            raise _Unread
        known = {each.name.lower() for each in child.columns}
        items: list[tuple[str | None, Any]] = []
        for column in child.columns:
            put = made.get(column.name.lower())
            items.append((column.name, column) if put is None else (put.name[0], put.expr))
        items += [(each.name[0], each.expr) for name, each in made.items() if name not in known]
        return self._project(relation, child, items)

    def _project(self, relation: Relation, child: _Scope, items: Sequence[tuple[str | None, Any]]) -> _Scope:
        """Return a choice of columns and expressions, by their names, None where they say it themselves."""
        said = _Sayer(self, child)
        found = [_Item.of(item, name, said) for name, item in items]
        names = self._names_of(relation, [each.name for each in found])
        columns = [self._column(each, name) for each, name in zip(found, names, strict=True)]
        classes = {name for each in found for name in each.expression.classes}
        if "AggregateExpression" in classes and "WindowExpression" not in classes:
            return self._scope(relation, "Aggregate", [child], [each.expression for each in found], columns)
        windowed = [
            (column, each)
            for column, each in zip(columns, found, strict=True)
            if "WindowExpression" in each.expression.classes
        ]
        if not windowed:
            return self._scope(relation, "Project", [child], [each.expression for each in found], columns)
        expressions = [each.expression for _, each in windowed]
        if any(not each.expression.is_deterministic or CALL in each.expression.sql for each in found):
            raise _Unread
        added = [column for column, _ in windowed]
        below = self._scope(relation, "Window", [child], expressions, [*child.columns, *added])
        shown = [
            _of_column(column.number) if column in added else each.expression
            for column, each in zip(columns, found, strict=True)
        ]
        return self._scope(relation, "Project", [below], shown, columns)

    def _column(self, item: _Item, name: str) -> _Column:
        return _Column(next(self._numbers), name) if item.column is None else replace(item.column, name=name)

    def _read_drop(self, relation: Relation, given: Any) -> _Scope:
        child = self._read(given.input)
        dropped = {each.lower() for each in given.column_names}
        kept = [each for each in child.columns if each.name.lower() not in dropped]
        for each in given.columns:
            if each.WhichOneof("expr_type") != "unresolved_attribute":
                raise _Unread
            named = each.unresolved_attribute
            plan = named.plan_id if named.HasField("plan_id") else None
            column, fields = child.find(_parts(named.unparsed_identifier), plan)
            if fields:
                raise _Unread
            kept = [other for other in kept if other.number != column.number]
        return self._choice(relation, child, kept)

    def _read_with_columns_renamed(self, relation: Relation, given: Any) -> _Scope:
        child = self._read(given.input)
        if given.rename_columns_map:
            raise _Unread
        columns = child.columns
        for each in given.renames:
            columns = tuple(
                _Column(old.number, each.new_col_name) if old.name.lower() == each.col_name.lower() else old
                for old in columns
            )
        return self._choice(relation, child, columns)

    def _read_to_df(self, relation: Relation, given: Any) -> _Scope:
        child = self._read(given.input)
        if len(given.column_names) != len(child.columns):
            raise _Unread
        pairs = zip(child.columns, given.column_names, strict=True)
        return self._choice(relation, child, [_Column(old.number, name) for old, name in pairs])

    def _choice(self, relation: Relation, child: _Scope, columns: Sequence[_Column]) -> _Scope:
        """Return some columns of a relation; one with a name of its own is another column."""
        own = {each.number: each for each in child.columns}
        shown = [_of_column(each.number) for each in columns]
        columns = [
            each if own[each.number] == each else replace(each, number=next(self._numbers))
            for each in columns
        ]
        return self._scope(relation, "Project", [child], shown, columns)

    def _read_join(self, relation: Relation, given: Any) -> _Scope:
        kind = _JOINS.get(given.join_type)
        if kind is None or given.HasField("join_data_type"):
            raise _Unread
        left, right = self._read(given.left), self._read(given.right)
        is_choice = kind in ("LEFT SEMI", "LEFT ANTI")
        columns = left.columns if is_choice else (*left.columns, *right.columns)
        if not given.using_columns:
            both = self._scope(relation, kind, [left, right], (), (*left.columns, *right.columns))
            on = []
            if given.HasField("join_condition"):
                on = [_Sayer(self, both).say(given.join_condition)]
            if any("AggregateExpression" in each.classes or CALL in each.sql for each in on):
                raise _Unread
            return self._scope(relation, "Join", [left, right], on, columns, kind)
        keys = [(left.find([name])[0], right.find([name])[0]) for name in given.using_columns]
        on = [
            _of_columns(f"({COLUMN}{one.number} = {COLUMN}{other.number})", "EqualTo") for one, other in keys
        ]
        joined = self._scope(relation, "Join", [left, right], on, columns, kind)
        if is_choice:
            shown = [one for one, _ in keys]
            shown += [each for each in columns if each not in shown]
            return self._scope(relation, "Project", [joined], [_of_column(e.number) for e in shown], shown)
        names = [one.name for one, _ in keys]
        first = [other if kind == "RIGHT OUTER" else one for one, other in keys]
        expressions = [_of_column(each.number) for each in first]
        if kind == "FULL OUTER":
            expressions = [
                _of_columns(f"coalesce({COLUMN}{one.number}, {COLUMN}{other.number})", "Coalesce")
                for one, other in keys
            ]
            first = [_Column(next(self._numbers), name) for name in names]
        dropped = {each.number for pair in keys for each in pair}
        rest = [each for each in columns if each.number not in dropped]
        expressions += [_of_column(each.number) for each in rest]
        scope = self._scope(relation, "Project", [joined], expressions, [*first, *rest])
        return replace(scope, hides=True)

    def _read_aggregate(self, relation: Relation, given: Any) -> _Scope:
        if given.group_type != Aggregate.GROUP_TYPE_GROUPBY:
            raise _Unread
        child = self._read(given.input)
        said = _Sayer(self, child)
        keys = [_Item.of(each, None, said) for each in given.grouping_expressions]
        items = [*keys, *(_Item.of(each, None, said) for each in given.aggregate_expressions)]
        if any("WindowExpression" in each.expression.classes for each in items):
            raise _Unread
        names = self._names_of(relation, [each.name for each in items])
        columns = [self._column(each, name) for each, name in zip(items, names, strict=True)]
        expressions = [each.expression for each in (*keys, *items)]
        return self._scope(relation, "Aggregate", [child], expressions, columns)

    def _read_deduplicate(self, relation: Relation, given: Any) -> _Scope:
        if given.within_watermark:
            raise _Unread
        child = self._read(given.input)
        if given.all_columns_as_keys:
            return self._scope(relation, "Distinct", [child], (), child.columns)
        keys = [_of_column(child.find([name])[0].number) for name in given.column_names]
        return self._scope(relation, "Deduplicate", [child], keys, child.columns)

    def _read_sort(self, relation: Relation, given: Any) -> _Scope:
        child = self._read(given.input)
        said = _Sayer(self, child)
        orders = [said.order(each) for each in given.order]
        if any({"AggregateExpression", "WindowExpression"}.intersection(each.classes) for each in orders):
            raise _Unread
        detail = "true" if given.is_global or not given.HasField("is_global") else "false"
        return self._scope(relation, "Sort", [child], orders, child.columns, detail)

    def _read_limit(self, relation: Relation, given: Any) -> _Scope:
        child = self._read(given.input)
        most = Expression(str(given.limit), ("Literal",), is_deterministic=True)
        local = self._scope(relation, "LocalLimit", [child], [most], child.columns)
        return self._scope(relation, "GlobalLimit", [local], [most], child.columns)

    def _read_set_op(self, relation: Relation, given: Any) -> _Scope:
        is_union = given.set_op_type == SetOperation.SET_OP_TYPE_UNION and given.is_all
        if not is_union or given.by_name or given.allow_missing_columns:
            raise _Unread
        left, right = self._read(given.left_input), self._read(given.right_input)
        if len(left.columns) != len(right.columns):
            raise _Unread
        columns = [_Column(next(self._numbers), each.name) for each in left.columns]
        return self._scope(relation, "Union", [left, right], (), columns)

    def next_call(self) -> int:
        """Return the number of another call of a function of Python."""
        return next(self._called)

    def kind_of(self, name: str) -> str:
        """Return what a function is: an aggregate, or a value of a row."""
        if name in _GENERATORS:
            raise _Unread
        if name not in _kinds:
            try:
                rows = self._spark.sql(f"DESCRIBE FUNCTION EXTENDED `{name}`").collect()
            except PySparkException:
                raise _Unread from None
            lines = [row[0] for row in rows if row[0].startswith("Class: org.apache.spark.sql.catalyst.")]
            if not lines:
                raise _Unread  # it is the session's own
            is_aggregate = _AGGREGATE in lines[0]
            if name.endswith("_agg") and not is_aggregate:
                raise _Unread  # an aggregate that Spark keeps elsewhere
            _kinds[name] = "AggregateExpression" if is_aggregate else "Function"
        return _kinds[name]


@dataclass(frozen=True)
class _Item:
    """What a relation gives: an expression, its name where it says one, and which column it is, if any."""

    expression: Expression
    name: str | None
    column: _Column | None = None

    @classmethod
    def of(cls, given: Any, name: str | None, said: _Sayer) -> _Item:
        """Return what a message, or a column, is."""
        if isinstance(given, _Column):
            return cls(_of_column(given.number), given.name, given)
        if given.WhichOneof("expr_type") == "alias":
            if len(given.alias.name) != 1:
                raise _Unread
            return cls(said.say(given.alias.expr), given.alias.name[0])
        if given.WhichOneof("expr_type") == "expression_string":
            expression, own = said.read_text(given.expression_string.expression)
        else:
            expression, own = said.say(given), None
        if own is None and given.WhichOneof("expr_type") == "unresolved_attribute":
            own = _parts(given.unresolved_attribute.unparsed_identifier)[-1]
        column = said.column_of(expression) if name is None else None
        return cls(expression, name or own, column)


class _Sayer:
    """Says expressions over a relation as SQL.

    Attributes:
        calls: Messages of the calls of Python's functions, by the numbers of the calls.
    """

    def __init__(self, plan: ConnectPlan, scope: _Scope) -> None:
        self._plan, self._scope = plan, scope
        self.calls: dict[int, Any] = {}

    def say(self, given: Any) -> Expression:
        """Return a message's expression."""
        classes: list[str] = []
        text = self._say(given, classes)
        return Expression(text, tuple(classes), "Volatile" not in classes)

    def order(self, given: Any) -> Expression:
        """Return a sort order."""
        classes = ["SortOrder"]
        text = self._order(given, classes)
        return Expression(text, tuple(classes), "Volatile" not in classes)

    def column_of(self, expression: Expression) -> _Column | None:
        """Return which column an expression is, if it is one."""
        if expression.classes != ("AttributeReference",):
            return None
        numbers = {f"{COLUMN}{each.number}": each for each in self._scope.columns}
        return numbers.get(expression.sql)

    def _say(self, given: Any, classes: list[str]) -> str:
        kind = str(given.WhichOneof("expr_type"))
        say: Callable[[Any, list[str]], str] | None = getattr(self, f"_say_{kind}", None)
        if say is None:
            raise _Unread
        return say(getattr(given, kind), classes)

    def _say_literal(self, given: Any, classes: list[str]) -> str:
        classes.append("Literal")
        return _literal(given)

    def _say_unresolved_attribute(self, given: Any, classes: list[str]) -> str:
        if given.is_metadata_column:
            raise _Unread
        plan = given.plan_id if given.HasField("plan_id") else None
        return self._name(_parts(given.unparsed_identifier), plan, classes)

    def _name(self, parts: Sequence[str], plan: int | None, classes: list[str]) -> str:
        column, fields = self._scope.find(parts, plan)
        classes += ["GetStructField"] * len(fields)
        classes.append("AttributeReference")
        return ".".join([f"{COLUMN}{column.number}", *map(plain_quote, fields)])

    def _say_alias(self, given: Any, classes: list[str]) -> str:
        return self._say(given.expr, classes)

    def _say_cast(self, given: Any, classes: list[str]) -> str:
        classes.append("Cast")
        kind = given.type_str or _type_text(given.type)
        if not re.fullmatch(r"[\w (),<>:]+", kind) or given.eval_mode not in (
            Sent.Cast.EVAL_MODE_UNSPECIFIED,
            Sent.Cast.EVAL_MODE_TRY,
        ):
            raise _Unread
        cast = "TRY_CAST" if given.eval_mode == Sent.Cast.EVAL_MODE_TRY else "CAST"
        return f"{cast}({self._say(given.expr, classes)} AS {kind})"

    def _say_unresolved_extract_value(self, given: Any, classes: list[str]) -> str:
        classes.append("ExtractValue")
        return f"{self._say(given.child, classes)}[{self._say(given.extraction, classes)}]"

    def _say_unresolved_function(self, given: Any, classes: list[str]) -> str:
        name = given.function_name.lower()
        if given.is_user_defined_function or given.is_internal:
            raise _Unread
        plain, number = not given.is_distinct, len(given.arguments)
        form = (_OF_TWO if number == 2 else _OF_ONE).get(name) if plain and number in (1, 2) else None
        if form is not None:
            classes.append("Operator")
            return form.format(*self._all(given.arguments, classes))
        if name == "in" and plain:
            classes.append("Operator")
            first, *rest = self._all(given.arguments, classes)
            return f"({first} IN ({', '.join(rest)}))" if rest else "false"
        if name == "when" and plain:
            classes.append("CaseWhen")
            parts = self._all(given.arguments, classes)
            branches = zip(parts[::2], parts[1::2], strict=False)
            text = " ".join(f"WHEN {condition} THEN {value}" for condition, value in branches)
            last = f" ELSE {parts[-1]}" if len(parts) % 2 else ""
            return f"CASE {text}{last} END"
        if not re.fullmatch(r"\w+", name):
            raise _Unread
        self._note(name, classes)
        return f"{name}({'DISTINCT ' * given.is_distinct}{', '.join(self._arguments(name, given, classes))})"

    def _arguments(self, name: str, given: Any, classes: list[str]) -> list[str]:
        if [each.WhichOneof("expr_type") for each in given.arguments] == ["unresolved_star"]:
            star = given.arguments[0].unresolved_star
            if name != "count" or given.is_distinct or star.HasField("unparsed_target"):
                raise _Unread
            return ["1"]
        return self._all(given.arguments, classes)

    def _all(self, given: Iterable[Any], classes: list[str]) -> list[str]:
        return [self._say(each, classes) for each in given]

    def _note(self, name: str, classes: list[str]) -> None:
        """Note what a function is."""
        if name in VOLATILE_NAMES | ANY_NAMES - _RANKS:
            classes.append("Volatile")
        classes.append(self._plan.kind_of(name))

    def _say_common_inline_user_defined_function(self, given: Any, classes: list[str]) -> str:
        if given.WhichOneof("function") != "python_udf" or given.is_distinct:
            raise _Unread
        number = self._plan.next_call()
        self.calls[number] = given
        classes += ["PythonUDF"] if given.deterministic else ["PythonUDF", "Volatile"]
        return f"{CALL}{number}({', '.join(self._all(given.arguments, classes))})"

    def _say_window(self, given: Any, classes: list[str]) -> str:
        inner: list[str] = []
        called = self._say(given.window_function, inner)
        classes += ["WindowExpression", *(each for each in inner if each != "AggregateExpression")]
        parts = []
        if given.partition_spec:
            parts.append(f"PARTITION BY {', '.join(self._all(given.partition_spec, classes))}")
        if given.order_spec:
            parts.append(f"ORDER BY {', '.join(self._order(each, classes) for each in given.order_spec)}")
        if given.HasField("frame_spec"):
            parts.append(_frame(given.frame_spec))
        return f"{called} OVER ({' '.join(parts)})"

    def _order(self, given: Any, classes: list[str]) -> str:
        orders = Sent.SortOrder
        way = {orders.SORT_DIRECTION_ASCENDING: "ASC", orders.SORT_DIRECTION_DESCENDING: "DESC"}
        nulls = {orders.SORT_NULLS_FIRST: "NULLS FIRST", orders.SORT_NULLS_LAST: "NULLS LAST"}
        if given.direction not in way or given.null_ordering not in nulls:
            raise _Unread
        return f"{self._say(given.child, classes)} {way[given.direction]} {nulls[given.null_ordering]}"

    def _say_expression_string(self, given: Any, classes: list[str]) -> str:
        expression, _ = self.read_text(given.expression)
        classes += expression.classes
        return f"({expression.sql})"

    def read_text(self, given: str) -> tuple[Expression, str | None]:
        """Return an expression that was written as SQL, and its name where it says one."""
        statement, item = _parsed(given)
        name = item.alias or None
        item = item.this if isinstance(item, exp.Alias) else item
        classes: list[str] = []
        puts: list[tuple[int, int, str]] = []
        for node in item.walk():
            if isinstance(node, _UNSAYABLE) or (isinstance(node, exp.Star) and not _is_counted(node)):
                raise _Unread
            if isinstance(node, exp.Column):
                found = self._name([part.name for part in node.parts], None, classes)
                puts.append((*_span(name_span, node), found))
        for (begin, end), word in statement.names:
            is_put = any(first <= begin and end <= last for first, last, _ in puts)
            is_called = re.match(r"\s*\(", statement.text[end:]) is not None
            if not is_put and not is_called and word in {each.name.lower() for each in self._scope.columns}:
                raise _Unread  # a column that was read as something else
        if isinstance(item, exp.Column):
            return Expression(puts[0][2], tuple(classes), is_deterministic=True), name or item.name
        at, last = _span(statement.span, item)
        for match in _CALLED.finditer(statement.text, at, last):
            if match[1] and match[1].lower() not in _WORDS:
                self._note(match[1].lower(), classes)
        text = ""
        for begin, end, put in sorted(puts):
            text, at = text + statement.text[at:begin] + put, end
        root = "AggregateExpression" if isinstance(item, exp.AggFunc) else "Text"
        if not any(isinstance(node, exp.Column | exp.Func) for node in item.walk()):
            root = "Literal"
        return Expression(text + statement.text[at:last], (root, *classes), "Volatile" not in classes), name


def _parsed(given: str) -> tuple[Statement, exp.Expr]:
    """Return an expression that was written as SQL as the only one of a query."""
    if _ODD.search(given):
        raise _Unread
    try:
        statement = parse(f"SELECT {given}")
    except QueryError:
        raise _Unread from None
    root = statement.root
    if not isinstance(root, exp.Select) or [key for key, value in root.args.items() if value] != [
        "expressions"
    ]:
        raise _Unread
    if len(root.expressions) != 1:
        raise _Unread
    return statement, root.expressions[0]


def _is_counted(star: exp.Expr) -> bool:
    """Tell whether a star is the one of ``count(*)``."""
    counts = star.parent
    return isinstance(counts, exp.Count) and not counts.expressions and not any(star.args.values())


def _span(find: Callable[[Any], Span], node: exp.Expr) -> Span:
    try:
        return find(node)
    except Unsupported:
        raise _Unread from None


def _is_of_files(relation: Relation) -> bool:
    return relation.WhichOneof("rel_type") == "read" and relation.read.HasField("data_source")


def _of_columns(text: str, root: str) -> Expression:
    """Return an expression of two columns."""
    return Expression(text, (root, "AttributeReference", "AttributeReference"), is_deterministic=True)


def _of_column(number: int) -> Expression:
    return Expression(f"{COLUMN}{number}", ("AttributeReference",), is_deterministic=True)


def _starred(star: Any, scope: _Scope) -> list[tuple[None, Any]]:
    """Return the columns that a star stands for."""
    if scope.hides and (star.HasField("plan_id") or star.unparsed_target):
        raise _Unread
    if star.HasField("plan_id"):
        found = scope.plans.get(star.plan_id, ())
        among = found[0] if len(found) == 1 else ()
    elif star.unparsed_target:
        target = star.unparsed_target.removesuffix(".*").lower()
        if any(each.qualifier is None or "." in target for each in scope.columns):
            raise _Unread
        among = tuple(e for e in scope.columns if e.qualifier and e.qualifier[-1].lower() == target)
    else:
        among = scope.columns
    numbers = {each.number for each in scope.columns}
    if not among or any(each.number not in numbers for each in among):
        raise _Unread
    return [(None, each) for each in among]


def _parts(name: str) -> list[str]:
    """Return the parts of a name with dots."""
    parts, at = [], 0
    while at < len(name):
        match = _NAME_PARTS.match(name, at)
        if match is None:
            raise _Unread
        parts.append(match[1].replace("``", "`") if match[1] else match[2])
        at = match.end()
    if not parts or name.endswith("."):
        raise _Unread
    return parts


def _joins_or_calls(relation: Relation) -> bool:
    """Tell whether a relation joins anything, or calls functions."""
    return any(isinstance(each, Join | CommonInlineUserDefinedFunction) for each in _walk(relation))


def _is_volatile(message: Any) -> bool:
    """Tell whether a message calls what is another at each evaluation, or may."""
    match message:
        case Sent.UnresolvedFunction(function_name=name) | CallFunction(function_name=name):
            return name.lower() in VOLATILE_NAMES | {"distributed_sequence_id"}
        case Sent.ExpressionString(expression=text):
            return any(f"{name}(" in re.sub(r"[\s`]", "", text.lower()) for name in VOLATILE_NAMES)
        case CommonInlineUserDefinedFunction(deterministic=deterministic):
            return not deterministic
    return False


def _is_named_within(message: Any, relation: Relation, scope: _Scope) -> bool:
    """Tell whether a message above a relation may name what only those below it have."""
    match message:
        case Sent.UnresolvedAttribute(unparsed_identifier=name) | Sent.UnresolvedStar(unparsed_target=name):
            plan = message.plan_id if message.HasField("plan_id") else relation.common.plan_id
            is_below = plan in scope.plans and plan != relation.common.plan_id
            return is_below or ("." in name and any(each.qualifier != () for each in scope.columns))
        case Sent.ExpressionString(expression=text):
            return "." in text and any(each.qualifier != () for each in scope.columns)
    return False


def _topmost(operator: Operator, places: Collection[int]) -> Iterator[int]:
    """Yield those of some places that stand below an operator, and below no other of them."""
    for child in operator.children:
        yield from [child.place] if child.place in places else _topmost(child, places)


def _walk(message: Any, without: Sequence[Relation] = ()) -> Iterator[Any]:
    """Yield a message and all within, without what is in some relations."""
    yield message
    for descriptor, value in message.ListFields():
        if descriptor.message_type is None or descriptor.message_type.GetOptions().map_entry:
            continue
        for each in value if descriptor.is_repeated else [value]:
            if not any(each is relation for relation in without):
                yield from _walk(each, without)


def _type_text(kind: Any) -> str:
    return str(proto_schema_to_pyspark_data_type(kind).simpleString())


def _frame(given: Any) -> str:
    frames = Sent.Window.WindowFrame
    kinds = {frames.FRAME_TYPE_ROW: "ROWS", frames.FRAME_TYPE_RANGE: "RANGE"}
    if given.frame_type not in kinds:
        raise _Unread
    lower, upper = _boundary(given.lower, "PRECEDING"), _boundary(given.upper, "FOLLOWING")
    return f"{kinds[given.frame_type]} BETWEEN {lower} AND {upper}"


def _boundary(given: Any, unbounded: str) -> str:
    match given.WhichOneof("boundary"):
        case "current_row":
            return "CURRENT ROW"
        case "unbounded":
            return f"UNBOUNDED {unbounded}"
    literal = given.value.literal
    value = getattr(literal, str(literal.WhichOneof("literal_type")), None)
    if not isinstance(value, int):
        raise _Unread
    return f"{abs(value)} {'PRECEDING' if value < 0 else 'FOLLOWING'}"


def _literal(given: Any) -> str:
    kind = str(given.WhichOneof("literal_type"))
    value = getattr(given, kind)
    match kind:
        case "null":
            text = _type_text(value)
            return "NULL" if text == "void" else f"CAST(NULL AS {text})"
        case "boolean":
            return "true" if value else "false"
        case "byte" | "short" | "integer" | "long":
            return f"{value}{ {'byte': 'Y', 'short': 'S', 'long': 'L'}.get(kind, '') }"
        case "float" | "double":
            if not isfinite(value):
                return f"CAST('{value}' AS {kind.upper()})"
            return f"{value!r}{'F' if kind == 'float' else 'D'}"
        case "string":
            return str(get_lit_sql_str(value))
        case "decimal":
            return _decimal(given.decimal)
        case "date":
            return f"DATE '{_moment(value * 86_400_000_000).date()}'"
        case "timestamp" | "timestamp_ntz":
            moment = _moment(value)
            name, zone = ("TIMESTAMP_LTZ", "Z") if kind == "timestamp" else ("TIMESTAMP_NTZ", "")
            return f"{name} '{moment.replace(tzinfo=None).isoformat(' ')}{zone}'"
    raise _Unread


def _decimal(given: Any) -> str:
    value = Decimal(given.value)
    _, digits, exponent = value.as_tuple()
    if not value.is_finite() or not isinstance(exponent, int) or exponent > 0 or "E" in str(value):
        raise _Unread
    scale = max(-exponent, given.scale)
    precision = max(len(digits), -exponent, given.precision, scale)
    return f"CAST({value}BD AS DECIMAL({precision},{scale}))"


def _moment(micros: int) -> datetime:
    try:
        return _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        raise _Unread from None


def _load(call: Any) -> UserDefinedFunction | None:
    """Return the function behind a call."""
    udf = call.python_udf
    return load_function(udf.command, call.function_name, udf.eval_type, is_deterministic=call.deterministic)
