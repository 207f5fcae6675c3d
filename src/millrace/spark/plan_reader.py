"""Reads how a DataFrame of classic Spark was made: the first of two readers beyond PySpark's public API.

No public call tells what a DataFrame is made of. Spark's analysed plan does: every operator, every expression
as Catalyst's own SQL, every column by the number of its attribute. A plan has thousands of nodes, and to call
the JVM for each would take long. So a class of the JVM reads them all at once: the compiler that Spark has
for its own code makes it, once. What is read is data; what runs in its place is made by public API.

Expressions call columns after the number of their attribute, ``__a12``, for two may have one name.
"""

from __future__ import annotations

import functools
import json
import re
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyspark.errors import PySparkException
from pyspark.serializers import CPickleSerializer
from pyspark.sql import DataFrame, functions as sf
from pyspark.sql.udf import UserDefinedFunction

COLUMN = "__a"
"""What names of columns begin with; the number of the attribute follows."""
CALL = "__py"
"""What names of calls of Python's functions begin with; the number of the call follows."""

TEXT = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`(?:[^`]|``)*`"
"""A pattern of what is quoted in SQL: a text, or a name."""

_DAYS = re.compile(rf"{TEXT}|(\bextractansiintervaldays\()")
"""A function that only Spark can call, behind what is quoted."""
_NAME = re.compile(rf"\b{COLUMN}\d+\b")
_CALLED = re.compile(rf"\b{CALL}\d+\(")
_ORDER = re.compile(r" (ASC|DESC) NULLS (FIRST|LAST)$")
_names = threading.Lock()

Part = tuple[Sequence[int], DataFrame]
"""What stands for an operator: the numbers of its columns that are there, and a DataFrame with these."""


@dataclass(frozen=True)
class Expression:
    sql: str  # Catalyst's text, without an alias; columns are called by their numbers
    classes: tuple[str, ...]  # names of Catalyst's classes in it, from the root on, left to right
    is_deterministic: bool


@dataclass(frozen=True, eq=False)
class Operator:
    """An operator of an analysed plan; its ``detail`` depends on its kind.

    A join's is its type in Catalyst's words, such as ``LEFT OUTER``. An order's says whether it is that of
    all rows, ``true`` or ``false``. That of files tells them from others that were read.
    """

    kind: str  # the name of Catalyst's class
    place: int  # its number, from the root on, children from left to right
    children: tuple[Operator, ...]
    expressions: tuple[Expression, ...]  # its own, in Catalyst's order
    output: tuple[int, ...]  # the numbers of the columns that it gives
    names: tuple[str, ...]  # of these
    detail: str
    is_streaming: bool

    def walk(self) -> Iterator[Operator]:
        yield self
        for child in self.children:
            yield from child.walk()


class AnalysedPlan:
    """The analysed plan of a classic DataFrame; what Spark has cached stands in it as a relation.

    Py4JError if this version of Spark has other classes.
    """

    def __init__(self, df: DataFrame) -> None:
        self._spark = df.sparkSession
        execution = df._jdf.queryExecution()  # noqa: SLF001  # what this module is for
        self._plan: Any = execution.analyzed() if df.isStreaming else execution.withCachedData()
        self._reader = _compiled(self._spark._jvm)  # noqa: SLF001
        self._loaded: dict[int, dict[int, UserDefinedFunction | None]] = {}

    @cached_property
    def has_joins(self) -> bool:
        return bool(self._reader.joins(self._plan))

    @cached_property
    def has_calls(self) -> bool:
        return bool(self._reader.calls(self._plan))

    @cached_property
    def reads_through_spark(self) -> bool:
        """Whether it calls nothing of Python, and all that it reads are files in formats such as CSV."""
        return bool(self._reader.passes(self._plan))

    @cached_property
    def _read(self) -> list[list[Any]]:
        """A record of each operator, in the order of their places."""
        operators: list[list[Any]] = json.loads(self._reader.read(self._plan))
        return operators

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """In the order of the operators' places."""
        return tuple(kind for kind, *_ in self._read)

    @cached_property
    def root(self) -> Operator:
        return _build(enumerate(self._read))

    def kept(self, _operators: Iterable[Operator]) -> set[int]:
        """Return the places of operators whose rows Spark has in its cache: none, they are relations."""
        return set()

    def unsayable(self, operators: Iterable[Operator]) -> set[int]:
        """Return the places of the operators whose expressions Spark does not read back as they are.

        A text leaves out what some functions were made with, and Spark reads it under today's settings.
        """
        plain = ("AttributeReference",)
        checked = [op for op in operators if any(each.classes != plain for each in op.expressions)]
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
        kind = operators[0].kind
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
        made = next(n for n in self._reader.nodes(plan) if kind != "Window" or n.nodeName() == "Window")
        first = made.expressions().size() - len(texts[0]) if kind == "Aggregate" else 0
        for operator, each in zip(operators, map(len, texts), strict=True):
            if not self._reader.same(self._operators[operator.place], made, first, each):
                return False
            first += each
        return True

    @contextmanager
    def _registered(self, operators: Sequence[Operator]) -> Iterator[None]:
        """Have the session know the functions of Python that operators call, by the numbers of the calls."""
        called = {f"{CALL}{each.resultId().id()}": each for op in operators for each in self._calls(op)}
        session = self._spark._jsparkSession  # noqa: SLF001
        with _names if called else nullcontext():  # another thread may read the same plan
            try:
                for name, call in called.items():
                    session.udf().registerPython(name, self._reader.again(call))
                yield
            finally:
                for name in called:
                    session.sessionState().catalog().dropTempFunction(name, True)

    @cached_property
    def _columns(self) -> DataFrame:
        """No rows with all columns under their numbers."""
        return self._framed(self._reader.columns(self._operators))

    def _framed(self, plan: Any) -> DataFrame:
        session = self._spark._jsparkSession  # noqa: SLF001
        return DataFrame(self._reader.frame(session, plan), self._spark)

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
        yield from self._reader.called(self._operators[operator.place])

    def _load(self, call: Any) -> UserDefinedFunction | None:
        """Return the function behind a call, as Spark would send it to its workers."""
        command = bytes(self._reader.command(call))
        return load_function(command, call.name(), call.evalType(), is_deterministic=call.udfDeterministic())

    def identity(self, operator: Operator) -> int | None:
        """Return what tells files that were read from others; None of what is no files."""
        return int(operator.detail) if operator.kind == "LogicalRelation" else None

    def frame(self, operator: Operator, parts: Mapping[int, Part] | None = None) -> DataFrame:
        """Return a DataFrame of the rows of an operator; parts stand for some below it, by their places."""
        return self._framed(self._over(operator, parts or {}))

    def _over(self, operator: Operator, parts: Mapping[int, Part]) -> Any:
        node = self._operators[operator.place]
        if operator.place in parts:
            numbers, frame = parts[operator.place]
            plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
            return self._reader.under(node, [operator.output.index(n) for n in numbers], plan)
        if not any(below.place in parts for below in operator.walk()):
            return node
        return self._reader.over(node, [self._over(child, parts) for child in operator.children])

    @cached_property
    def _operators(self) -> Any:
        return self._reader.nodes(self._plan)


def load_function(
    command: bytes, name: str, eval_type: int, *, is_deterministic: bool
) -> UserDefinedFunction | None:
    """Return a function of Python from what is sent of it to workers, None where it cannot be read here."""
    try:
        function, returns = CPickleSerializer().loads(command)  # type: ignore[no-untyped-call]
    except Exception:  # noqa: BLE001  # code of the user's runs
        return None
    return UserDefinedFunction(function, returns, name, eval_type, deterministic=is_deterministic)


def _build(operators: Iterator[tuple[int, list[Any]]]) -> Operator:
    """Return the operator that comes next, with what is below it."""
    place, (kind, arity, expressions, output, names, detail, is_streaming) = next(operators)
    return Operator(
        kind,
        place,
        tuple(_build(operators) for _ in range(arity)),
        tuple(_expression(*each) for each in expressions),
        tuple(output),
        tuple(names),
        detail,
        is_streaming,
    )


def _expression(sql: str, classes: list[str], is_deterministic: bool) -> Expression:  # noqa: FBT001  # a record
    sql = _DAYS.sub(lambda match: "date_part('DAY', " if match[1] else match[0], sql)
    return Expression(sql, tuple(classes), is_deterministic)


_READER = """
import java.util.*;
import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.spark.sql.catalyst.analysis.UnresolvedFunction$;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.catalyst.plans.QueryPlan;
import org.apache.spark.sql.catalyst.plans.logical.*;
import org.apache.spark.sql.catalyst.trees.*;
import org.apache.spark.sql.classic.*;
import org.apache.spark.sql.execution.datasources.*;
import org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat;
import org.apache.spark.sql.execution.python.UserDefinedPythonFunction;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

final ObjectMapper mapper = new ObjectMapper();

public boolean joins(QueryPlan plan) { return plan.containsPattern(TreePattern.JOIN()); }

public boolean calls(QueryPlan plan) { return plan.containsPattern(TreePattern.PYTHON_UDF()); }

// Whether nothing is of Python, and all leaves are files in other formats than Parquet.
public boolean passes(QueryPlan plan) {
    if (calls(plan) || plan.containsPattern(TreePattern.PLAN_EXPRESSION())) return false;
    for (Object leaf : list(plan.collectLeaves())) {
        if (!(leaf instanceof LogicalRelation)) return false;
        Object relation = ((LogicalRelation) leaf).relation();
        if (!(relation instanceof HadoopFsRelation)) return false;
        if (((HadoopFsRelation) relation).fileFormat() instanceof ParquetFileFormat) return false;
    }
    return true;
}

// A tree from the root on, children from left to right.
public List nodes(TreeNode root) {
    List nodes = new ArrayList();
    nodes.add(root);
    for (Object child : list(root.children())) nodes.addAll(nodes((TreeNode) child));
    return nodes;
}

public String read(QueryPlan plan) throws Exception {
    List operators = new ArrayList();
    for (Object node : nodes(plan)) {
        LogicalPlan operator = (LogicalPlan) node;
        List expressions = new ArrayList(), output = new ArrayList(), names = new ArrayList();
        for (Object each : list(operator.expressions())) {
            Expression renamed = renamed(unnamed((Expression) each));
            List classes = new ArrayList();
            for (Object inner : nodes(renamed)) classes.add(((TreeNode) inner).nodeName());
            boolean isDeterministic = ((Expression) each).deterministic();
            expressions.add(Arrays.asList(new Object[] {renamed.sql(), classes, isDeterministic}));
        }
        for (Object each : list(operator.output())) {
            output.add(((NamedExpression) each).exprId().id());
            names.add(((NamedExpression) each).name());
        }
        Object detail = "";
        if (node instanceof Join) detail = ((Join) node).joinType().sql();
        if (node instanceof Sort) detail = String.valueOf(((Sort) node).global());
        if (node instanceof LogicalRelation)
            detail = String.valueOf(System.identityHashCode(((LogicalRelation) node).relation()));
        operators.add(Arrays.asList(new Object[] {
            operator.nodeName(), operator.children().size(), expressions, output, names, detail,
            operator.isStreaming()
        }));
    }
    return mapper.writeValueAsString(operators);
}

// Whether the first expressions of an operator mean so many of another's.
public boolean same(QueryPlan operator, QueryPlan other, int first, int count) {
    for (int n = 0; n < count; n++)
        if (!meaning(operator.expressions().apply(n)).equals(meaning(other.expressions().apply(first + n))))
            return false;
    return true;
}

// No rows with all columns of some operators.
public LogicalPlan columns(List operators) {
    Map columns = new LinkedHashMap();
    for (Object each : operators)
        for (Object column : list(((QueryPlan) each).output()))
            columns.putIfAbsent(((NamedExpression) column).exprId().id(), renamed((Expression) column));
    return LocalRelation$.MODULE$.apply(seq(new ArrayList(columns.values())));
}

public Object frame(SparkSession session, LogicalPlan plan) { return Dataset.ofRows(session, plan); }

public Object over(LogicalPlan operator, List children) { return operator.withNewChildren(seq(children)); }

// Rows whose columns stand for some of an operator's.
public LogicalPlan under(LogicalPlan operator, List places, LogicalPlan rows) {
    List columns = new ArrayList();
    for (Object place : places) {
        Attribute own = (Attribute) operator.output().apply(((Integer) place).intValue());
        Attribute given = (Attribute) rows.output().apply(columns.size());
        columns.add(new Alias(
            given, own.name(), own.exprId(), own.qualifier(), scala.Option.empty(), none()));
    }
    return new Project(seq(columns), rows);
}

public List called(QueryPlan operator) {
    List called = new ArrayList();
    for (Object expression : list(operator.expressions()))
        for (Object node : nodes((TreeNode) expression)) if (node instanceof PythonUDF) called.add(node);
    return called;
}

public byte[] command(PythonUDF call) {
    return (byte[]) call.func().command().toArray(scala.reflect.ClassTag$.MODULE$.Byte());
}

// What Spark makes the same call of, translated to no expressions of its own.
public Object again(PythonUDF call) {
    return new UserDefinedPythonFunction(call.name(), call.func(), call.dataType(), call.evalType(),
        call.udfDeterministic(), new ArrayList(), new ArrayList());
}

Expression unnamed(Expression each) { return each instanceof Alias ? ((Alias) each).child() : each; }

Object meaning(Object each) {
    Expression meant = each instanceof SortOrder ? ((SortOrder) each).child() : unnamed((Expression) each);
    return meant.canonicalized();
}

// Attributes under their numbers, without the names of their relations, and calls under theirs.
// A function that Spark has replaced keeps its arguments where nothing is renamed: it is said anew.
Expression renamed(Expression whole) {
    return (Expression) whole.transform(new scala.runtime.AbstractPartialFunction() {
        public boolean isDefinedAt(Object node) { return true; }
        public Object applyOrElse(Object node, scala.Function1 otherwise) {
            if (node instanceof AttributeReference) {
                AttributeReference column = (AttributeReference) node;
                return column.withName(COLUMN + column.exprId().id()).withQualifier(none());
            }
            if (node instanceof InheritAnalysisRules)
                return UnresolvedFunction$.MODULE$.apply(
                    ((Expression) node).prettyName(), ((InheritAnalysisRules) node).parameters(), false);
            if (node instanceof PythonUDF)
                return UnresolvedFunction$.MODULE$.apply(
                    CALL + ((PythonUDF) node).resultId().id(), ((PythonUDF) node).children(), false);
            return node;
        }
    });
}

Seq none() { return seq(new ArrayList()); }

List list(Seq values) { return CollectionConverters.asJava(values); }

Seq seq(List values) { return CollectionConverters.asScala(values).toList(); }
"""
"""Java without generic types, of which Janino knows little; what names begin with is filled in."""


@functools.cache
def _compiled(jvm: Any) -> Any:
    compiler = jvm.org.codehaus.janino.ClassBodyEvaluator()
    compiler.setClassName(f"PlanReader{uuid.uuid4().hex}")  # by name the gateway remembers methods
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    reader = _READER.replace("COLUMN", f'"{COLUMN}"').replace("CALL", f'"{CALL}"')
    return compiler.createInstance(jvm.java.io.StringReader(reader))
