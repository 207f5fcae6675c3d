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
from itertools import chain, count
from math import isfinite
from typing import Any

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
from millrace.sql.expr.functions import ANY_NAMES, VOLATILE_NAMES, describe_function
from millrace.sql.expr.types import digits_of
from millrace.sql.session.asking import Frames
from millrace.sql.syntax.edits import Edit, EditedText, escape, plain_quote, unescape
from millrace.sql.syntax.parse import Unsupported, name_span, parse

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
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC).replace(tzinfo=None)
_NAME_PART = r"(?:`((?:[^`]|``)+)`|([^`.]+))"
_OPERATORS = "<=> < > <= >= + - * / % & | ^ AND OR LIKE"
_FORMS = {
    **{(word.lower(), 2): f"({{}} {word} {{}})" for word in _OPERATORS.split()},
    ("==", 2): "({} = {})",
    ("not", 1): "(NOT {})",
    ("negative", 1): "(- {})",
    ("isnull", 1): "({} IS NULL)",
    ("isnotnull", 1): "({} IS NOT NULL)",
}
"""How functions of so many arguments are said that are operators."""
_ORDERS = {
    Sent.SortOrder.SORT_DIRECTION_ASCENDING: "ASC",
    Sent.SortOrder.SORT_DIRECTION_DESCENDING: "DESC",
}
_NULLS = {Sent.SortOrder.SORT_NULLS_FIRST: "NULLS FIRST", Sent.SortOrder.SORT_NULLS_LAST: "NULLS LAST"}
_FRAMES = {
    Sent.Window.WindowFrame.FRAME_TYPE_ROW: "ROWS",
    Sent.Window.WindowFrame.FRAME_TYPE_RANGE: "RANGE",
}
_CASTS = {Sent.Cast.EVAL_MODE_UNSPECIFIED: "CAST", Sent.Cast.EVAL_MODE_TRY: "TRY_CAST"}
_SUFFIXES = {"byte": "Y", "short": "S", "integer": "", "long": "L"}
"""What whole numbers end in, by their types."""
_THROUGH_SPARK = frozenset(("csv", "json", "orc", "text", "xml"))
"""Formats of files that tasks do not read themselves."""
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
        lower = [part.lower() for part in parts]
        among = [self.columns]
        if plan is not None:
            among = [each for number, each in self.direct if number == plan] or [*self.plans.get(plan, ())]
        matches: list[tuple[_Column, Sequence[str]]] = []
        for columns in among:
            qualifiers = [each.qualifier for each in columns]
            if len(parts) > 1 and any(q is None or (len(parts) > 2 and len(q) > 1) for q in qualifiers):
                raise Unsupported
            named = [
                (each, parts[2:])
                for each in columns
                if each.qualifier and [each.qualifier[-1].lower(), each.name.lower()] == lower[:2]
            ]
            matches += named or [(each, parts[1:]) for each in columns if each.name.lower() == lower[0]]
        matches = [match for match in matches if match[0].number in self.operator.output]
        if len(matches) != 1:
            raise Unsupported
        return matches[0]

    def star(self, star: Any) -> Sequence[_Column]:
        """Return the columns that a star stands for."""
        target, plan = star.unparsed_target.removesuffix(".*").lower(), _plan_of(star)
        among = self.columns
        if self.hides and (plan is not None or target):
            raise Unsupported
        if plan is not None:
            found = self.plans.get(plan, ())
            among = found[0] if len(found) == 1 else ()
        elif target:
            if any(each.qualifier is None or "." in target for each in self.columns):
                raise Unsupported
            among = tuple(e for e in self.columns if e.qualifier and e.qualifier[-1].lower() == target)
        if not among or not {each.number for each in among} <= {*self.operator.output}:
            raise Unsupported
        return among


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
    """The plan of a DataFrame of Spark Connect, as far as it can be read; see ``AnalysedPlan``."""

    def __init__(self, df: DataFrame) -> None:
        self._df = df
        self._spark: Any = df.sparkSession
        self._message: Relation = df._plan.to_proto(self._spark.client).root  # type: ignore[operator]  # noqa: SLF001  # what this is for
        self._relations: dict[int, Relation] = {}
        self._scopes: dict[int, _Scope] = {}
        self._calls: dict[int, dict[int, Any]] = {}
        self._numbers, self._places, self.call_numbers = count(), count(), count()

    @cached_property
    def has_joins(self) -> bool:
        return "join" in self.kinds

    @cached_property
    def has_calls(self) -> bool:
        """Whether it joins anything, or calls functions of Python."""
        return _joins_or_calls(self._message)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of its operators."""
        return tuple(
            str(each.WhichOneof("rel_type")) for each in _walk(self._message) if isinstance(each, Relation)
        )

    @cached_property
    def reads_through_spark(self) -> bool:
        """Whether it calls nothing of Python, and all that it reads are files in formats such as CSV."""
        for each in _walk(self._message):
            if isinstance(each, CommonInlineUserDefinedFunction | CallFunction):
                return False
            if not isinstance(each, Relation) or _inputs(getattr(each, str(each.WhichOneof("rel_type")))):
                continue
            if not _is_of_files(each) or each.read.data_source.format.lower() not in _THROUGH_SPARK:
                return False
        return True

    @cached_property
    def root(self) -> Operator:
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
        return {
            number: load_function(
                call.python_udf.command,
                call.function_name,
                call.python_udf.eval_type,
                is_deterministic=call.deterministic,
            )
            for number, call in self._calls.get(operator.place, {}).items()
        }

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
        given = getattr(relation, kind)
        read: Callable[..., _Scope] | None = getattr(self, f"_read_{kind}", None)
        found = None
        if read is not None:
            with suppress(Unsupported, QueryError):
                found = read(relation, given, *map(self._read, _inputs(given)))
        if found is None:
            found = self._leaf(relation, kind)
        own = relation.common.plan_id, found.columns
        return replace(found, plans={**found.plans, own[0]: (own[1],)}, direct=(own,))

    def _leaf(self, relation: Relation, kind: str) -> _Scope:
        """Let Spark read it."""
        qualifier: tuple[str, ...] | None = None
        if kind in ("read", "local_relation", "range"):
            name = relation.read.named_table.unparsed_identifier
            qualifier = tuple(_parts(name)) if name else ()
        frame = self._frame_of(relation)
        columns = tuple(_Column(next(self._numbers), name, qualifier) for name in frame.columns)
        is_streaming = relation.read.is_streaming if _is_of_files(relation) else frame.isStreaming
        inputs = _inputs(getattr(relation, kind))
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
        known = frames.get(key)
        if known is not None:
            return known
        alone = Relation()  # not with all that it is a part of
        alone.CopyFrom(relation)
        return keep(frames, key, ConnectFrame(_Part(alone), self._spark))

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

    def _read_subquery_alias(self, relation: Relation, given: Any, child: _Scope) -> _Scope:
        columns = [replace(each, qualifier=(*given.qualifier, given.alias)) for each in child.columns]
        return self._scope(relation, "SubqueryAlias", [child], (), columns)

    def _read_hint(self, relation: Relation, given: Any, child: _Scope) -> _Scope:
        if given.name.lower() not in _HINTS:
            raise Unsupported
        return self._scope(relation, "ResolvedHint", [child], (), child.columns)

    def _read_filter(self, relation: Relation, given: Any, child: _Scope) -> _Scope:
        said = _Sayer(self, child)
        condition = said.say(given.condition)
        _refuse([condition], "AggregateExpression", "WindowExpression")
        scope = self._scope(relation, "Filter", [child], [condition], child.columns)
        self._calls[scope.operator.place] = said.calls
        return scope

    def _read_project(self, relation: Relation, given: Any, child: _Scope) -> _Scope:
        items: list[tuple[str | None, Any]] = []
        for each in given.expressions:
            is_star = each.WhichOneof("expr_type") == "unresolved_star"
            items += [(None, item) for item in (child.star(each.unresolved_star) if is_star else [each])]
        return self._project(relation, child, items)

    def _read_with_columns(self, relation: Relation, given: Any, child: _Scope) -> _Scope:
        made = {each.name[0].lower(): each for each in given.aliases}
        if len(made) < len(given.aliases) or any(len(each.name) != 1 for each in given.aliases):
            raise Unsupported
        known = {each.name.lower() for each in child.columns}
        items: list[tuple[str | None, Any]] = []
        for column in child.columns:
            put = made.get(column.name.lower())
            items.append((column.name, column) if put is None else (put.name[0], put.expr))
        items += [(each.name[0], each.expr) for name, each in made.items() if name not in known]
        return self._project(relation, child, items)

    def _project(self, relation: Relation, child: _Scope, items: Sequence[tuple[str | None, Any]]) -> _Scope:
        """Return a choice of columns and expressions, by their names, None where they say it themselves."""
        expressions, columns = self._items(relation, _Sayer(self, child), items)
        classes = {name for each in expressions for name in each.classes}
        if "WindowExpression" not in classes:
            kind = "Aggregate" if "AggregateExpression" in classes else "Project"
            return self._scope(relation, kind, [child], expressions, columns)
        _refuse(expressions, "Volatile", "PythonUDF")
        added = {
            column: each
            for column, each in zip(columns, expressions, strict=True)
            if "WindowExpression" in each.classes
        }
        below = self._scope(relation, "Window", [child], [*added.values()], [*child.columns, *added])
        shown = [
            _of_column(column) if column in added else each
            for column, each in zip(columns, expressions, strict=True)
        ]
        return self._scope(relation, "Project", [below], shown, columns)

    def _items(
        self, relation: Relation, said: _Sayer, items: Iterable[tuple[str | None, Any]]
    ) -> tuple[list[Expression], list[_Column]]:
        """Return what a relation gives: expressions, and the columns that they are."""
        found = [said.item(item, name) for name, item in items]
        names = [name for _, name, _ in found if name is not None]
        if len(names) < len(found):
            names = list(self._frame_of(relation).columns)  # Spark knows names that none says
        columns = [
            _Column(next(self._numbers), name) if own is None else replace(own, name=name)
            for (_, _, own), name in zip(found, names, strict=True)
        ]
        return [expression for expression, _, _ in found], columns

    def _read_drop(self, relation: Relation, given: Any, child: _Scope) -> _Scope:
        dropped = {each.lower() for each in given.column_names}
        kept = [each for each in child.columns if each.name.lower() not in dropped]
        for each in given.columns:
            if each.WhichOneof("expr_type") != "unresolved_attribute":
                raise Unsupported
            named = each.unresolved_attribute
            column, fields = child.find(_parts(named.unparsed_identifier), _plan_of(named))
            if fields:
                raise Unsupported
            kept = [other for other in kept if other.number != column.number]
        return self._choice(relation, child, kept)

    def _read_with_columns_renamed(self, relation: Relation, given: Any, child: _Scope) -> _Scope:
        if given.rename_columns_map:
            raise Unsupported
        columns = child.columns
        for each in given.renames:
            columns = tuple(
                _Column(old.number, each.new_col_name) if old.name.lower() == each.col_name.lower() else old
                for old in columns
            )
        return self._choice(relation, child, columns)

    def _read_to_df(self, relation: Relation, given: Any, child: _Scope) -> _Scope:
        if len(given.column_names) != len(child.columns):
            raise Unsupported
        pairs = zip(child.columns, given.column_names, strict=True)
        return self._choice(relation, child, [_Column(old.number, name) for old, name in pairs])

    def _choice(self, relation: Relation, child: _Scope, columns: Sequence[_Column]) -> _Scope:
        """Return some columns of a relation; one with a name of its own is another column."""
        own = {each.number: each for each in child.columns}
        shown = map(_of_column, columns)
        columns = [
            each if own[each.number] == each else replace(each, number=next(self._numbers))
            for each in columns
        ]
        return self._scope(relation, "Project", [child], [*shown], columns)

    def _read_join(self, relation: Relation, given: Any, left: _Scope, right: _Scope) -> _Scope:
        kind = Join.JoinType.Name(given.join_type).removeprefix("JOIN_TYPE_").replace("_", " ")
        if kind == "UNSPECIFIED" or given.HasField("join_data_type"):
            raise Unsupported
        is_choice = kind in ("LEFT SEMI", "LEFT ANTI")
        columns = left.columns if is_choice else (*left.columns, *right.columns)
        if not given.using_columns:
            both = self._scope(relation, kind, [left, right], (), (*left.columns, *right.columns))
            on = [_Sayer(self, both).say(given.join_condition)] if given.HasField("join_condition") else []
            _refuse(on, "AggregateExpression", "PythonUDF")
            return self._scope(relation, "Join", [left, right], on, columns, kind)
        keys = [(left.find([name])[0], right.find([name])[0]) for name in given.using_columns]
        on = [_of_pair("({} = {})", "EqualTo", *pair) for pair in keys]
        joined = self._scope(relation, "Join", [left, right], on, columns, kind)
        shown = [other if kind == "RIGHT OUTER" else one for one, other in keys]
        expressions = [*map(_of_column, shown)]
        if kind == "FULL OUTER":
            expressions = [_of_pair("coalesce({}, {})", "Coalesce", *pair) for pair in keys]
            shown = [_Column(next(self._numbers), one.name) for one, _ in keys]
        dropped = {each.number for pair in keys for each in pair}
        rest = [each for each in columns if each.number not in dropped]
        expressions += map(_of_column, rest)
        scope = self._scope(relation, "Project", [joined], expressions, [*shown, *rest])
        return replace(scope, hides=scope.hides or not is_choice)

    def _read_aggregate(self, relation: Relation, given: Any, child: _Scope) -> _Scope:
        if given.group_type != Aggregate.GROUP_TYPE_GROUPBY:
            raise Unsupported
        items = [(None, each) for each in (*given.grouping_expressions, *given.aggregate_expressions)]
        expressions, columns = self._items(relation, _Sayer(self, child), items)
        _refuse(expressions, "WindowExpression")
        expressions = [*expressions[: len(given.grouping_expressions)], *expressions]
        return self._scope(relation, "Aggregate", [child], expressions, columns)

    def _read_deduplicate(self, relation: Relation, given: Any, child: _Scope) -> _Scope:
        if given.within_watermark:
            raise Unsupported
        if given.all_columns_as_keys:
            return self._scope(relation, "Distinct", [child], (), child.columns)
        keys = [_of_column(child.find([name])[0]) for name in given.column_names]
        return self._scope(relation, "Deduplicate", [child], keys, child.columns)

    def _read_sort(self, relation: Relation, given: Any, child: _Scope) -> _Scope:
        orders = [*map(_Sayer(self, child).order, given.order)]
        _refuse(orders, "AggregateExpression", "WindowExpression")
        detail = "true" if given.is_global or not given.HasField("is_global") else "false"
        return self._scope(relation, "Sort", [child], orders, child.columns, detail)

    def _read_limit(self, relation: Relation, given: Any, child: _Scope) -> _Scope:
        most = _of(str(given.limit), (), "Literal")
        local = self._scope(relation, "LocalLimit", [child], [most], child.columns)
        return self._scope(relation, "GlobalLimit", [local], [most], child.columns)

    def _read_set_op(self, relation: Relation, given: Any, left: _Scope, right: _Scope) -> _Scope:
        is_union = given.set_op_type == SetOperation.SET_OP_TYPE_UNION and given.is_all
        if not is_union or given.by_name or given.allow_missing_columns:
            raise Unsupported
        if len(left.columns) != len(right.columns):
            raise Unsupported
        columns = [_Column(next(self._numbers), each.name) for each in left.columns]
        return self._scope(relation, "Union", [left, right], (), columns)

    def kind_of(self, name: str) -> str:
        """Return what a function is: an aggregate, or a value of a row."""
        if name in _GENERATORS:
            raise Unsupported
        if name not in _kinds:
            lines = describe_function(Frames(self._spark), name)
            classes = [line for line in lines if line.startswith("Class: org.apache.spark.sql.catalyst.")]
            is_aggregate = bool(classes) and _AGGREGATE in classes[0]
            # It is the session's own, or an aggregate that Spark keeps elsewhere.
            if not classes or (name.endswith("_agg") and not is_aggregate):
                raise Unsupported
            _kinds[name] = "AggregateExpression" if is_aggregate else "Function"
        return _kinds[name]


class _Sayer:
    """Says expressions over a relation as SQL; ``calls`` are messages of Python calls, by their numbers."""

    def __init__(self, plan: ConnectPlan, scope: _Scope) -> None:
        self._plan, self._scope = plan, scope
        self.calls: dict[int, Any] = {}

    def item(self, given: Any, name: str | None) -> tuple[Expression, str | None, _Column | None]:
        """Return what a message says, its name where it has one, and which column it is, if any."""
        if isinstance(given, _Column):
            return _of_column(given), given.name, given
        kind = given.WhichOneof("expr_type")
        own: str | None = None
        if kind == "alias":
            if len(given.alias.name) != 1:
                raise Unsupported
            return self.say(given.alias.expr), given.alias.name[0], None
        if kind == "expression_string":
            expression, own = self.read_text(given.expression_string.expression)
        else:
            expression = self.say(given)
        if kind == "unresolved_attribute":
            own = _parts(given.unresolved_attribute.unparsed_identifier)[-1]
        columns = [each for each in self._scope.columns if _of_column(each) == expression]
        is_column = bool(columns) and name is None and own in (None, columns[-1].name)
        return expression, name or own, columns[-1] if is_column else None

    def say(self, given: Any) -> Expression:
        kind = str(given.WhichOneof("expr_type"))
        say: Callable[[Any], Expression] | None = getattr(self, f"_say_{kind}", None)
        if say is None:
            raise Unsupported
        return say(getattr(given, kind))

    def order(self, given: Any) -> Expression:
        if given.direction not in _ORDERS or given.null_ordering not in _NULLS:
            raise Unsupported
        child = self.say(given.child)
        text = f"{child.sql} {_ORDERS[given.direction]} {_NULLS[given.null_ordering]}"
        return _of(text, [child], "SortOrder")

    def _say_literal(self, given: Any) -> Expression:
        return _of(_literal(given), (), "Literal")

    def _say_unresolved_attribute(self, given: Any) -> Expression:
        if given.is_metadata_column:
            raise Unsupported
        return self._name(_parts(given.unparsed_identifier), _plan_of(given))

    def _name(self, parts: Sequence[str], plan: int | None = None) -> Expression:
        column, fields = self._scope.find(parts, plan)
        text = ".".join([f"{COLUMN}{column.number}", *map(plain_quote, fields)])
        return _of(text, (), *["GetStructField"] * len(fields), "AttributeReference")

    def _say_alias(self, given: Any) -> Expression:
        return self.say(given.expr)

    def _say_cast(self, given: Any) -> Expression:
        kind = given.type_str or _type_text(given.type)
        if given.eval_mode not in _CASTS or not re.fullmatch(r"[\w (),<>:]+", kind):
            raise Unsupported
        inner = self.say(given.expr)
        return _of(f"{_CASTS[given.eval_mode]}({inner.sql} AS {kind})", [inner], "Cast")

    def _say_unresolved_extract_value(self, given: Any) -> Expression:
        child, key = self.say(given.child), self.say(given.extraction)
        return _of(f"{child.sql}[{key.sql}]", [child, key], "ExtractValue")

    def _say_unresolved_function(self, given: Any) -> Expression:
        name, is_plain = given.function_name.lower(), not given.is_distinct
        if given.is_user_defined_function or given.is_internal:
            raise Unsupported
        if name == "count" and is_plain and _is_star(given.arguments):
            return _of("count(1)", (), *self._classes(name))
        arguments = [*map(self.say, given.arguments)]
        texts = [each.sql for each in arguments]
        if is_plain and (name, len(texts)) in _FORMS:
            return _of(_FORMS[name, len(texts)].format(*texts), arguments, "Operator")
        if is_plain and name == "in":
            first, *rest = texts
            return _of(f"({first} IN ({', '.join(rest)}))" if rest else "false", arguments, "Operator")
        if is_plain and name == "when":
            branches = zip(texts[::2], texts[1::2], strict=False)
            text = " ".join(f"WHEN {condition} THEN {value}" for condition, value in branches)
            last = f" ELSE {texts[-1]}" if len(texts) % 2 else ""
            return _of(f"CASE {text}{last} END", arguments, "CaseWhen")
        if not re.fullmatch(r"\w+", name):
            raise Unsupported
        text = f"{name}({'DISTINCT ' * given.is_distinct}{', '.join(texts)})"
        return _of(text, arguments, *self._classes(name))

    def _classes(self, name: str) -> list[str]:
        """Return what a function is."""
        is_volatile = name in VOLATILE_NAMES | ANY_NAMES - _RANKS
        return [*["Volatile"] * is_volatile, self._plan.kind_of(name)]

    def _say_common_inline_user_defined_function(self, given: Any) -> Expression:
        if given.WhichOneof("function") != "python_udf" or given.is_distinct:
            raise Unsupported
        number = next(self._plan.call_numbers)
        self.calls[number] = given
        arguments = [*map(self.say, given.arguments)]
        text = f"{CALL}{number}({', '.join(each.sql for each in arguments)})"
        return _of(text, arguments, "PythonUDF", *["Volatile"] * (not given.deterministic))

    def _say_window(self, given: Any) -> Expression:
        called = self.say(given.window_function)
        kept = tuple(name for name in called.classes if name != "AggregateExpression")
        by, order = [*map(self.say, given.partition_spec)], [*map(self.order, given.order_spec)]
        parts = [
            f"{word} {', '.join(each.sql for each in group)}"
            for word, group in (("PARTITION BY", by), ("ORDER BY", order))
            if group
        ]
        if given.HasField("frame_spec"):
            parts.append(_frame(given.frame_spec))
        text = f"{called.sql} OVER ({' '.join(parts)})"
        return _of(text, [replace(called, classes=kept), *by, *order], "WindowExpression")

    def _say_expression_string(self, given: Any) -> Expression:
        expression, _ = self.read_text(given.expression)
        return replace(expression, sql=f"({expression.sql})")

    def read_text(self, given: str) -> tuple[Expression, str | None]:
        """Return an expression that was written as SQL, and its name where it says one."""
        statement = parse(f"SELECT {given}")
        root = statement.root
        if _ODD.search(given) or not isinstance(root, exp.Select) or len(root.expressions) != 1:
            raise Unsupported
        if [key for key, value in root.args.items() if value] != ["expressions"]:
            raise Unsupported
        name, item = root.expressions[0].alias or None, root.expressions[0].unalias()
        if any(isinstance(node, _UNSAYABLE) for node in item.walk()) or not all(
            map(_is_counted, item.find_all(exp.Star))
        ):
            raise Unsupported
        named = {
            name_span(node): self._name([part.name for part in node.parts])
            for node in item.find_all(exp.Column)
        }
        columns = {each.name.lower() for each in self._scope.columns}
        for (begin, end), word in statement.names:
            is_read = any(first <= begin and end <= last for first, last in named)
            if not is_read and word in columns and re.match(r"\s*\(", statement.text[end:]) is None:
                raise Unsupported  # a column that was read as something else
        if isinstance(item, exp.Column):
            return named[name_span(item)], name or item.name
        span = statement.span(item)
        called = (match[1].lower() for match in _CALLED.finditer(statement.text, *span) if match[1])
        classes = [each for name in called if name not in _WORDS for each in self._classes(name)]
        edits = [Edit(*place, (escape(each.sql),)) for place, each in named.items()]
        text = unescape(EditedText(statement.text).with_edits(span, edits))
        root_class = "AggregateExpression" if isinstance(item, exp.AggFunc) else "Text"
        if item.find(exp.Column, exp.Func) is None:
            root_class = "Literal"
        return _of(text, named.values(), root_class, *classes), name


def _of(text: str, parts: Iterable[Expression], *own: str) -> Expression:
    """Return an expression of others, by its own classes."""
    classes = (*own, *chain.from_iterable(part.classes for part in parts))
    return Expression(text, classes, "Volatile" not in classes)


def _of_column(column: _Column) -> Expression:
    return _of(f"{COLUMN}{column.number}", (), "AttributeReference")


def _of_pair(form: str, root: str, *pair: _Column) -> Expression:
    parts = [*map(_of_column, pair)]
    return _of(form.format(*(part.sql for part in parts)), parts, root)


def _refuse(expressions: Iterable[Expression], *classes: str) -> None:
    """Leave expressions to Spark that have something of some class."""
    if any(not set(classes).isdisjoint(each.classes) for each in expressions):
        raise Unsupported


def _is_star(arguments: Sequence[Any]) -> bool:
    """Tell whether arguments are the star of ``count(*)``."""
    stars = [each.unresolved_star for each in arguments if each.WhichOneof("expr_type") == "unresolved_star"]
    return len(stars) == len(arguments) == 1 and not stars[0].HasField("unparsed_target")


def _is_counted(star: exp.Expr) -> bool:
    """Tell whether a star is the one of ``count(*)``."""
    counts = star.parent
    return isinstance(counts, exp.Count) and not counts.expressions and not any(star.args.values())


def _inputs(given: Any) -> list[Relation]:
    """Return the relations that a message reads."""
    fields = given.ListFields()
    return [each for descriptor, each in fields if isinstance(each, Relation) and descriptor.name != "root"]


def _is_of_files(relation: Relation) -> bool:
    return relation.WhichOneof("rel_type") == "read" and relation.read.HasField("data_source")


def _plan_of(named: Any) -> int | None:
    """Return the number of the DataFrame by which something is named, None where it is by none."""
    return named.plan_id if named.HasField("plan_id") else None


def _parts(name: str) -> list[str]:
    """Return the parts of a name with dots."""
    if not re.fullmatch(rf"{_NAME_PART}(?:\.{_NAME_PART})*", name):
        raise Unsupported
    return [quoted.replace("``", "`") or plain for quoted, plain in re.findall(_NAME_PART, name)]


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
    if given.frame_type not in _FRAMES:
        raise Unsupported
    lower, upper = _boundary(given.lower, "PRECEDING"), _boundary(given.upper, "FOLLOWING")
    return f"{_FRAMES[given.frame_type]} BETWEEN {lower} AND {upper}"


def _boundary(given: Any, unbounded: str) -> str:
    kind = given.WhichOneof("boundary")
    if kind in ("current_row", "unbounded"):
        return "CURRENT ROW" if kind == "current_row" else f"UNBOUNDED {unbounded}"
    literal = given.value.literal
    value = getattr(literal, str(literal.WhichOneof("literal_type")), None)
    if not isinstance(value, int):
        raise Unsupported
    return f"{abs(value)} {'PRECEDING' if value < 0 else 'FOLLOWING'}"


def _literal(given: Any) -> str:
    kind = str(given.WhichOneof("literal_type"))
    value = getattr(given, kind)
    match kind:
        case "null":
            text = _type_text(value)
            return "NULL" if text == "void" else f"CAST(NULL AS {text})"
        case "boolean":
            return str(value).lower()
        case "byte" | "short" | "integer" | "long":
            return f"{value}{_SUFFIXES[kind]}"
        case "float" | "double":
            return f"{value!r}{kind[0].upper()}" if isfinite(value) else f"CAST('{value}' AS {kind.upper()})"
        case "string":
            return str(get_lit_sql_str(value))
        case "decimal":
            number = Decimal(value.value)
            if not number.is_finite() or "E" in str(number):
                raise Unsupported
            precision, scale = map(max, digits_of(number), (value.precision, value.scale))
            return f"CAST({number}BD AS DECIMAL({max(precision, scale)},{scale}))"
        case "date":
            return f"DATE '{_moment(value * 86_400_000_000).date()}'"
        case "timestamp":
            return f"TIMESTAMP_LTZ '{_moment(value)}Z'"
        case "timestamp_ntz":
            return f"TIMESTAMP_NTZ '{_moment(value)}'"
    raise Unsupported


def _moment(micros: int) -> datetime:
    try:
        return _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        raise Unsupported from None
