"""Reads how a DataFrame of classic Spark was made: the first of two readers beyond PySpark's public API.

No public call tells what a DataFrame is made of. Spark's analysed plan does: every operator, every expression
as Catalyst's own SQL, every column by the number of its attribute. A few calls read all of it, because the
JVM applies a function to all operators at once. These functions are composed of method handles, for the JVM
has no class of ours. What is read is data; what runs in its place is made by public API.

Columns are called ``__a12`` in expressions, after the number of their attribute: two columns of one name are
two.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.serializers import CPickleSerializer
from pyspark.sql import DataFrame, functions as sf
from pyspark.sql.udf import UserDefinedFunction

from millrace.spark.session import facts_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMN = "__a"
"""What names of columns begin with; the number of the attribute follows."""
CALL = "__py"
"""What names of calls of Python's functions begin with; the number of the call follows."""

_CATALYST = "org.apache.spark.sql.catalyst."
_EXPRESSION = _CATALYST + "expressions.Expression"
_ATTRIBUTE = _CATALYST + "expressions.AttributeReference"
_ALIAS = _CATALYST + "expressions.Alias"
_NAMED = _CATALYST + "expressions.NamedExpression"
_NUMBER = _CATALYST + "expressions.ExprId"
_REPLACED = _CATALYST + "expressions.InheritAnalysisRules"
_CALL = _CATALYST + "analysis.UnresolvedFunction"
_ORDERED = _CATALYST + "expressions.SortOrder"
_PYTHON = _CATALYST + "expressions.PythonUDF"
_TREE = _CATALYST + "trees.TreeNode"
_QUERY = _CATALYST + "plans.QueryPlan"
_LOGICAL = _CATALYST + "plans.logical.LogicalPlan"
_JOIN = _CATALYST + "plans.logical.Join"
_JOIN_TYPE = _CATALYST + "plans.JoinType"
_SORT = _CATALYST + "plans.logical.Sort"
_FILES = "org.apache.spark.sql.execution.datasources.LogicalRelation"
_RELATION = "org.apache.spark.sql.sources.BaseRelation"
_SEQUENCE, _FUNCTION = "scala.collection.immutable.Seq", "scala.Function1"
_OBJECT, _STRING = "java.lang.Object", "java.lang.String"

TEXT = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`(?:[^`]|``)*`"
"""A pattern of what is quoted in SQL: a text, or a name."""

_DAYS = re.compile(rf"{TEXT}|(\bextractansiintervaldays\()")
"""A function that only Spark can call, behind what is quoted."""
_NAME = re.compile(rf"\b{COLUMN}\d+\b")
_CALLED = re.compile(rf"\b{CALL}\d+\(")
_ORDER = re.compile(r" (ASC|DESC) NULLS (FIRST|LAST)$")
_names = threading.Lock()
_OPERATOR_END, _PART_END, _ITEM_END, _FIELD_END = "\x1e", "\x1c", "\x1f", "\x1d"

Part = tuple[Sequence[int], DataFrame]
"""What stands for an operator: the numbers of its columns that are there, and a DataFrame with these."""


@dataclass(frozen=True)
class Expression:
    """An expression of an operator.

    Attributes:
        sql: Catalyst's text, without an alias; columns are called by their numbers.
        classes: The names of Catalyst's classes in it, from the root on, left to right.
        is_deterministic: Whether it is the same at each evaluation.
    """

    sql: str
    classes: tuple[str, ...]
    is_deterministic: bool


@dataclass(frozen=True, eq=False)
class Operator:
    """An operator of an analysed plan.

    Attributes:
        kind: The name of Catalyst's class.
        place: Its number, from the root on, children from left to right.
        children: What it reads.
        expressions: Its own, in Catalyst's order.
        output: The numbers of the columns that it gives.
        names: What these are called.
        detail: Of a join its type in Catalyst's words, such as ``LEFT OUTER``; of an order whether it is that
            of all rows, ``true`` or ``false``; of files what tells them from others that were read.
        is_streaming: Whether its rows never end.
    """

    kind: str
    place: int
    children: tuple[Operator, ...]
    expressions: tuple[Expression, ...]
    output: tuple[int, ...]
    names: tuple[str, ...]
    detail: str
    is_streaming: bool

    def walk(self) -> Iterator[Operator]:
        """Yield it and all below."""
        yield self
        for child in self.children:
            yield from child.walk()


class AnalysedPlan:
    """The analysed plan of a classic DataFrame; what Spark has cached stands in it as a relation.

    Args:
        df: The DataFrame.

    Raises:
        py4j.protocol.Py4JError: This version of Spark has other classes.
    """

    def __init__(self, df: DataFrame) -> None:
        self._spark = df.sparkSession
        execution = df._jdf.queryExecution()  # noqa: SLF001  # what this module is for
        self._plan: Any = execution.analyzed() if df.isStreaming else execution.withCachedData()
        facts = facts_of(self._spark)
        if facts.plan_functions is None:
            facts.plan_functions = _Functions(self._spark)
        self._functions = facts.plan_functions
        self._loaded: dict[int, dict[int, UserDefinedFunction | None]] = {}

    @cached_property
    def has_joins(self) -> bool:
        """Whether it joins anything."""
        return bool(self._plan.containsPattern(self._functions.join))

    @cached_property
    def has_calls(self) -> bool:
        """Whether it calls functions of Python."""
        return bool(self._plan.containsPattern(self._functions.call))

    @cached_property
    def _texts(self) -> list[tuple[str, ...]]:
        """The parts of what its operators are, in the order of their places."""
        texts = self._plan.map(self._functions.operator).mkString(_OPERATOR_END).split(_OPERATOR_END)
        return [tuple(text.split(_PART_END)) for text in texts]

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of its operators, in the order of their places."""
        return tuple(kind for kind, *_ in self._texts)

    @property
    def reads_cache(self) -> bool:
        """Whether Spark has rows of it in its cache."""
        return "InMemoryRelation" in self.kinds

    @cached_property
    def root(self) -> Operator:
        """All of it."""
        return _build(enumerate(self._texts))

    def kept(self, _operators: Iterable[Operator]) -> set[int]:
        """Return the places of operators whose rows Spark has in its cache: none, they are relations."""
        return set()

    def unsayable(self, operators: Iterable[Operator]) -> set[int]:
        """Return the places of the operators whose expressions Spark does not read back as they are.

        A text leaves out what some functions were made with, and Spark reads it under today's settings.
        """
        checked = [each for each in operators if any(map(_is_computed, each.expressions))]
        alone = [each for each in checked if each.kind in ("Aggregate", "Window")]
        together = [each for each in checked if each not in alone]
        unlike = (
            set() if self._reads_back(together) else {e.place for e in together if not self._reads_back([e])}
        )
        return unlike | {each.place for each in alone if not self._reads_back([each])}

    def _reads_back(self, operators: Sequence[Operator]) -> bool:
        """Tell whether the texts of some operators mean their expressions; of one, if it groups or ranks."""
        if not operators:
            return True
        functions, kind = self._functions, operators[0].kind
        groups: list[str] = []
        texts = []
        for operator in operators:
            own: Sequence[Expression] = operator.expressions
            if kind == "Aggregate":
                keys = own[: len(own) - len(operator.output)]
                groups = sorted({name for key in keys for name in _NAME.findall(key.sql)})
            elif kind == "Window":
                own = own[: len(operator.output) - len(operator.children[0].output)]
            texts.append([_ORDER.sub("", each.sql) for each in own])
        shown = [f"{text} AS c{n}" for n, text in enumerate(text for own in texts for text in own)]
        with self._registered(operators):
            try:
                frame = (
                    self._columns.groupBy(*groups).agg(*map(sf.expr, shown))
                    if kind == "Aggregate"
                    else self._columns.selectExpr(*shown)
                )
            except PySparkException:
                return False
        plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
        kinds = plan.map(functions.kind).mkString(",").split(",")
        place = kinds.index("Window") if kind == "Window" else 0
        made = plan.map(functions.itself).apply(place).expressions()
        if kind == "Aggregate":
            made = made.takeRight(len(texts[0]))
        for operator, each in zip(operators, map(len, texts), strict=True):
            given = self._operators.apply(operator.place).expressions().take(each)
            if not given.map(functions.meaning).equals(made.take(each).map(functions.meaning)):
                return False
            made = made.drop(each)
        return True

    @contextmanager
    def _registered(self, operators: Sequence[Operator]) -> Iterator[None]:
        """Have the session know the functions of Python that operators call, by the numbers of the calls."""
        called = {f"{CALL}{each.resultId().id()}": each for op in operators for each in self._calls(op)}
        session = self._spark._jsparkSession  # noqa: SLF001
        with _names if called else nullcontext():  # another thread may read the same plan
            try:
                for name, call in called.items():
                    session.udf().registerPython(name, self._functions.again(call))
                yield
            finally:
                for name in called:
                    session.sessionState().catalog().dropTempFunction(name, True)

    @cached_property
    def _columns(self) -> DataFrame:
        """No rows with all columns under their numbers."""
        functions = self._functions
        outputs = self._plan.map(functions.attributes).flatMap(functions.itself)
        columns = outputs.distinctBy(functions.number).map(functions.renamed)
        session = self._spark._jsparkSession  # noqa: SLF001
        return DataFrame(functions.dataset.ofRows(session, functions.relation.apply(columns)), self._spark)

    def load_functions(self, operator: Operator) -> dict[int, UserDefinedFunction | None]:
        """Return the functions of Python that an operator calls, by the numbers of the calls.

        One that cannot be read here is None: Spark sends large ones beside its plans, and others may need
        what only workers have.
        """
        if operator.place not in self._loaded:
            self._loaded[operator.place] = {
                call.resultId().id(): self._load(call) for call in self._calls(operator)
            }
        return self._loaded[operator.place]

    def _calls(self, operator: Operator) -> Iterator[Any]:
        if not any(_CALLED.search(each.sql) for each in operator.expressions):
            return
        for expression in self._sequence(self._operators.apply(operator.place).expressions()):
            for node in self._sequence(expression.map(self._functions.itself)):
                if node.nodeName() == "PythonUDF":
                    yield node

    def _load(self, call: Any) -> UserDefinedFunction | None:
        """Return the function behind a call, as Spark would send it to its workers."""
        command = bytes(call.func().command().toArray(self._functions.byte))
        return load_function(command, call.name(), call.evalType(), is_deterministic=call.udfDeterministic())

    @staticmethod
    def _sequence(sequence: Any) -> Iterator[Any]:
        return (sequence.apply(place) for place in range(sequence.size()))

    def identity(self, operator: Operator) -> int | None:
        """Return what tells files that were read from others; None of what is no files."""
        return int(operator.detail) if operator.kind == "LogicalRelation" else None

    def frame(self, operator: Operator, parts: Mapping[int, Part] | None = None) -> DataFrame:
        """Return a DataFrame of the rows of an operator; parts stand for some below it, by their places."""
        plan = self._over(operator, parts or {})
        session = self._spark._jsparkSession  # noqa: SLF001
        return DataFrame(self._functions.dataset.ofRows(session, plan), self._spark)

    def _over(self, operator: Operator, parts: Mapping[int, Part]) -> Any:
        node = self._operators.apply(operator.place)
        if operator.place in parts:
            numbers, frame = parts[operator.place]
            return self._functions.under_numbers(node, [operator.output.index(n) for n in numbers], frame)
        if not any(below.place in parts for below in operator.walk()):
            return node
        children = [self._over(child, parts) for child in operator.children]
        return node.withNewChildren(self._functions.sequence(children))

    @cached_property
    def _operators(self) -> Any:
        return self._plan.map(self._functions.itself)


def load_function(
    command: bytes, name: str, eval_type: int, *, is_deterministic: bool
) -> UserDefinedFunction | None:
    """Return a function of Python from what is sent of it to workers, None where it cannot be read here."""
    try:
        function, returns = CPickleSerializer().loads(command)  # type: ignore[no-untyped-call]
    except Exception:  # noqa: BLE001  # code of the user's runs
        return None
    return UserDefinedFunction(function, returns, name, eval_type, deterministic=is_deterministic)


def _is_computed(expression: Expression) -> bool:
    return expression.classes != ("AttributeReference",)


def _build(pieces: Iterator[tuple[int, tuple[str, ...]]]) -> Operator:
    """Return the operator that comes next, with what is below it."""
    place, (kind, arity, expressions, output, names, detail, streaming) = next(pieces)
    return Operator(
        kind,
        place,
        tuple(_build(pieces) for _ in range(int(arity))),
        tuple(map(_expression, _items(expressions))),
        tuple(map(int, _items(output))),
        tuple(_items(names)),
        detail,
        streaming == "true",
    )


def _items(text: str) -> list[str]:
    return text.split(_ITEM_END)[:-1]


def _expression(text: str) -> Expression:
    is_deterministic, classes, sql = text.split(_FIELD_END, 2)
    sql = _DAYS.sub(lambda match: "date_part('DAY', " if match[1] else match[0], sql)
    return Expression(sql, tuple(classes.split(",")), is_deterministic == "true")


class _Functions:
    """Functions of the JVM from an operator to a text, made once a session."""

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark._jvm  # noqa: SLF001
        self._gateway: Any = spark.sparkContext._gateway  # noqa: SLF001
        self._lang, self._invoke = jvm.java.lang, jvm.java.lang.invoke
        self._handles = self._invoke.MethodHandles
        self._lookup = self._handles.publicLookup()
        self._loader = self._lang.Thread.currentThread().getContextClassLoader()
        patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
        self.join, self.call = patterns.JOIN(), patterns.PYTHON_UDF()
        self.byte = jvm.scala.reflect.ClassTag.Byte()
        self.dataset = jvm.org.apache.spark.sql.classic.Dataset
        identity = self._handles.identity(self._class(_OBJECT))
        kind = self._method(_TREE, "nodeName", _STRING)
        name = self._method(_NAMED, "name", _STRING)
        self._concat = self._method(_STRING, "concat", _STRING, _STRING)
        digits = self._then(self._method(_NUMBER, "id", "long"), self._text("long"))
        number = self._then(self._method(_NAMED, "exprId", _NUMBER), digits)
        # An attribute under its number, without the name of its relation.
        prefixed = self._then(number, self._with(self._concat, 0, COLUMN))
        renaming = self._method(_ATTRIBUTE, "withName", _ATTRIBUTE, _STRING)
        renaming = self._both(renaming, identity, prefixed)
        self.nothing = getattr(jvm.scala.collection.immutable, "Nil$").__getattr__("MODULE$")
        unqualified = self._method(_ATTRIBUTE, "withQualifier", _ATTRIBUTE, _SEQUENCE)
        unqualified = self._with(unqualified, 1, self.nothing)
        # A function that Spark has replaced keeps its arguments where nothing is renamed: it is said anew.
        companion = getattr(jvm.org.apache.spark.sql.catalyst.analysis, "UnresolvedFunction$")
        call = self._method(f"{_CALL}$", "apply", _CALL, _STRING, _SEQUENCE, "boolean")
        call = self._with(call.bindTo(companion.__getattr__("MODULE$")), 2, False)  # not distinct
        called = self._then(self._method(_PYTHON, "resultId", _NUMBER), digits)
        call_number = self._then(called, self._with(self._concat, 0, CALL))
        pretty = self._method(_EXPRESSION, "prettyName", _STRING)
        parameters = self._method(_REPLACED, "parameters", _SEQUENCE)
        children = self._method(_TREE, "children", _SEQUENCE)
        renamed = identity
        for kind_, made in (
            (_PYTHON, self._both(call, call_number, children)),
            (_REPLACED, self._both(call, pretty, parameters)),
            (_ATTRIBUTE, self._then(renaming, unqualified)),
        ):
            renamed = self._if_instance(kind_, made, renamed)
        partial = getattr(jvm.scala, "PartialFunction$").__getattr__("MODULE$")
        transform = self._method(_TREE, "transform", _TREE, "scala.PartialFunction")
        plain = self._then(
            self._if_instance(_ALIAS, self._method(_ALIAS, "child", _EXPRESSION), identity),
            self._with(transform, 1, partial.fromFunction(self._function(renamed))),
        )
        sql = self._then(plain, self._method(_EXPRESSION, "sql", _STRING))
        classes = self._then(
            plain,
            self._with(self._method(_TREE, "map", _SEQUENCE, _FUNCTION), 1, self._function(kind)),
            self._with(self._method(_SEQUENCE, "mkString", _STRING, _STRING), 1, ","),
        )
        deterministic = self._then(
            self._method(_EXPRESSION, "deterministic", "boolean"), self._text("boolean")
        )
        expressions = self._method(_QUERY, "expressions", _SEQUENCE)
        output = self._method(_QUERY, "output", _SEQUENCE)
        joined = self._then(
            self._method(_JOIN, "joinType", _JOIN_TYPE), self._method(_JOIN_TYPE, "sql", _STRING)
        )
        no_text = self._handles.constant(self._class(_STRING), "")
        no_text = self._handles.dropArguments(no_text, 0, self._array(self._lang.Class, self._class(_OBJECT)))
        ordered = self._if_instance(_ORDERED, self._method(_ORDERED, "child", _EXPRESSION), identity)
        aliased = self._if_instance(_ALIAS, self._method(_ALIAS, "child", _EXPRESSION), ordered)
        self.itself = self._function(identity)
        self.meaning = self._function(
            self._then(aliased, self._method(_EXPRESSION, "canonicalized", _EXPRESSION))
        )
        self.attributes = self._function(output)
        self.number = self._function(number)
        self.renamed = self._function(renamed)
        self.relation = getattr(
            jvm.org.apache.spark.sql.catalyst.plans.logical, "LocalRelation$"
        ).__getattr__("MODULE$")
        self._lists = jvm.java.util.ArrayList
        self._functions_of_python = jvm.org.apache.spark.sql.execution.python.UserDefinedPythonFunction
        self.kind = self._function(kind)
        arity = self._then(children, self._method(_SEQUENCE, "length", "int"), self._text("int"))
        fields = self._fields(_FIELD_END, deterministic, classes, sql)
        whole = self._then(self._method(_SORT, "global", "boolean"), self._text("boolean"))
        streaming = self._then(self._method(_LOGICAL, "isStreaming", "boolean"), self._text("boolean"))
        same = self._then(
            self._method(_FILES, "relation", _RELATION),
            self._lookup.findStatic(
                self._class("java.lang.System"), "identityHashCode", self._type("int", _OBJECT)
            ),
            self._text("int"),
        )
        self.operator = self._function(
            self._fields(
                _PART_END,
                kind,
                arity,
                self._then(expressions, self._each(fields)),
                self._then(output, self._each(number)),
                self._then(output, self._each(name)),
                self._if_instance(
                    _JOIN, joined, self._if_instance(_SORT, whole, self._if_instance(_FILES, same, no_text))
                ),
                streaming,
            )
        )

    def sequence(self, values: Iterable[Any]) -> Any:
        """Return values as a sequence of Scala's."""
        return self._gateway.jvm.PythonUtils.toSeq(list(values))

    def under_numbers(self, node: Any, places: Sequence[int], frame: DataFrame) -> Any:
        """Return the plan of a DataFrame whose columns stand for some of an operator's."""
        plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
        given, wanted = plan.output(), node.output()
        catalyst = self._gateway.jvm.org.apache.spark.sql.catalyst
        none = self._gateway.jvm.scala.Option.apply(None)
        columns = []
        for number, place in enumerate(places):
            column = wanted.apply(place)
            named = column.name(), column.exprId(), column.qualifier()
            columns.append(catalyst.expressions.Alias(given.apply(number), *named, none, self.nothing))
        return catalyst.plans.logical.Project(self.sequence(columns), plan)

    def again(self, call: Any) -> Any:
        """Return what Spark makes the same call of."""
        translated: list[Any] = [self._lists(), self._lists()]  # to expressions of Spark's: none
        return self._functions_of_python(
            call.name(), call.func(), call.dataType(), call.evalType(), call.udfDeterministic(), *translated
        )

    # Handles

    def _class(self, name: str) -> Any:
        box = {"int": "Integer", "long": "Long", "boolean": "Boolean"}.get(name)
        if box is not None:
            return getattr(self._lang, box).TYPE
        return self._lang.Class.forName(name, True, self._loader)  # Java has no names

    def _array(self, kind: Any, *values: Any) -> Any:
        array = self._gateway.new_array(kind, len(values))
        for place, value in enumerate(values):
            array[place] = value
        return array

    def _type(self, result: str, *arguments: str) -> Any:
        classes = self._array(self._lang.Class, *map(self._class, arguments))
        return self._invoke.MethodType.methodType(self._class(result), classes)

    def _method(self, owner: str, name: str, result: str, *arguments: str) -> Any:
        return self._lookup.findVirtual(self._class(owner), name, self._type(result, *arguments))

    def _text(self, kind: str) -> Any:
        """Return what makes a text of a primitive value."""
        return self._lookup.findStatic(self._class(_STRING), "valueOf", self._type(_STRING, kind))

    def _with(self, handle: Any, place: int, value: Any) -> Any:
        """Return a handle with one of its arguments given."""
        return self._handles.insertArguments(handle, place, self._array(self._lang.Object, value))

    def _taking(self, handle: Any, argument: str, result: str = _STRING) -> Any:
        return handle.asType(self._type(result, argument))

    def _then(self, first: Any, *others: Any) -> Any:
        """Return one function after another."""
        for other in others:
            given = first.type().returnType()
            other = other.asType(other.type().changeParameterType(0, given))
            first = self._handles.filterReturnValue(first, other)
        return first

    def _if_instance(self, owner: str, then: Any, otherwise: Any) -> Any:
        test = self._method("java.lang.Class", "isInstance", "boolean", _OBJECT).bindTo(self._class(owner))
        then, otherwise = (self._taking(each, _OBJECT, _OBJECT) for each in (then, otherwise))
        return self._handles.guardWithTest(test, then, otherwise)

    def _fields(self, end: str, *handles: Any) -> Any:
        """Return what makes one text of several, of the same value, with something between them."""
        made = handles[0]
        for handle in handles[1:]:
            made = self._both(self._concat, self._then(made, self._with(self._concat, 1, end)), handle)
        return made

    def _both(self, handle: Any, first: Any, second: Any) -> Any:
        """Return a function of two values of what two functions make of one."""
        first_class, second_class = handle.type().parameterArray()
        parts = [
            each.asType(self._invoke.MethodType.methodType(kind, self._class(_OBJECT)))
            for each, kind in ((first, first_class), (second, second_class))
        ]
        handle = self._handles.filterArguments(handle, 0, self._array(self._invoke.MethodHandle, *parts))
        whole = self._invoke.MethodType.methodType(handle.type().returnType(), self._class(_OBJECT))
        return self._handles.permuteArguments(handle, whole, self._array(self._gateway.jvm.int, 0, 0))

    def _each(self, handle: Any) -> Any:
        """Return what makes one text of a sequence, in which each item has an end."""
        ended = self._then(self._taking(handle, _OBJECT), self._with(self._concat, 1, _ITEM_END))
        texts = self._with(self._method(_SEQUENCE, "map", _OBJECT, _FUNCTION), 1, self._function(ended))
        whole = self._with(self._method(_SEQUENCE, "mkString", _STRING, _STRING), 1, "")
        return self._then(texts, whole)

    def _function(self, handle: Any) -> Any:
        proxies = self._invoke.MethodHandleProxies
        return proxies.asInterfaceInstance(self._class(_FUNCTION), self._taking(handle, _OBJECT, _OBJECT))
