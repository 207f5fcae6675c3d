"""The conjuncts of a FROM clause: what each reads, and who evaluates it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field

from sqlglot import exp

from millrace.expressions import Call, Column, Compare, Predicate, relations_of
from millrace.front.predicates import Branches, Translator, conjuncts, disjuncts, unwrap
from millrace.spec import Equality

# Functions whose value differs between two calls, as sqlglot's classes and by name.
_VOLATILE = tuple(
    getattr(exp, name)
    for name in (
        "Rand",
        "Randn",
        "Randstr",
        "Uniform",
        "Uuid",
        "CurrentDate",
        "CurrentTime",
        "CurrentTimestamp",
        "CurrentDatetime",
        "Localtime",
        "Localtimestamp",
        "CurrentUser",
        "SessionUser",
        "MonotonicallyIncreasingId",
    )
    if hasattr(exp, name)
)
_VOLATILE_NAMES = frozenset(
    {
        "current_date",
        "current_timestamp",
        "input_file_block_length",
        "input_file_block_start",
        "input_file_name",
        "java_method",
        "localtimestamp",
        "monotonically_increasing_id",
        "now",
        "rand",
        "randn",
        "random",
        "randstr",
        "reflect",
        "shuffle",
        "spark_partition_id",
        "try_reflect",
        "uniform",
        "unix_timestamp",
        "uuid",
    }
)

VOLATILE = "volatile"
"""Marks, in a function call's ``meta``, a predicate of the caller that is not deterministic."""


def volatile(node: exp.Expr) -> bool:
    """Tell whether an expression or query may give another value on another call."""
    for part in node.walk():
        if isinstance(part, _VOLATILE):
            return True
        if isinstance(part, exp.Func):
            name = part.name if isinstance(part, exp.Anonymous) else part.sql_name()
            if name.lower() in _VOLATILE_NAMES or part.meta.get(VOLATILE):
                return True
    return False


def is_boolean(node: exp.Expr) -> bool:
    """Tell whether an expression can stand alone in WHERE (``NULL`` can only within an AND)."""
    return isinstance(unwrap(node), exp.Predicate | exp.Connector | exp.Not | exp.Boolean)


def pushable(node: exp.Expr) -> bool:
    """Tell whether Spark may evaluate a filter at a relation's scan: builtin, without subqueries.

    Spark itself pushes such filters below its joins, so what they may raise it would raise too.
    """
    if not is_boolean(node):
        return False
    barred = (exp.Query, exp.Anonymous, exp.AnonymousAggFunc, exp.AggFunc, exp.Window, exp.Exists)
    return not any(isinstance(part, barred) for part in node.walk()) and not volatile(node)


@dataclass(eq=False)
class Conjunct:
    """A term of WHERE or of an inner ON.

    Attributes:
        node: Its syntax tree.
        text: Its template text, for Spark.
        reads: Aliases of the movable relations it reads outside of subqueries.
        foreign: It reads something else too: another relation, or a SELECT around this one.
        predicate: The same for Millrace, or None.
        pushable: Spark may evaluate it at the scan of the one relation it reads.
    """

    node: exp.Expr
    text: str
    reads: frozenset[str]
    foreign: frozenset[int]
    predicate: Predicate | None
    pushable: bool

    @property
    def single(self) -> str | None:
        """The relation that it filters, when it reads just one."""
        return next(iter(self.reads)) if len(self.reads) == 1 and not self.foreign else None


@dataclass(eq=False)
class Sorted:
    """Conjuncts by who evaluates them.

    Attributes:
        filters: Per alias, predicates for a direct scan; their conjuncts are consumed by them.
        texts: Per alias, the same and more as SQL, for a scan by Spark.
        spark_only: Aliases with a filter that only Spark evaluates: Spark has to scan these.
        equalities: Edges of the query graph.
        residuals: Other predicates over several relations, and calls, with the conjunct of each.
        calls: Calls of the caller's predicates that a block could evaluate.
        above: Conjuncts that stay in WHERE.
        used: Conjuncts that a block evaluates.
    """

    filters: dict[str, list[Predicate]] = field(default_factory=dict)
    texts: dict[str, list[str]] = field(default_factory=dict)
    spark_only: set[str] = field(default_factory=set)
    equalities: list[tuple[Equality, Conjunct | None]] = field(default_factory=list)
    residuals: list[tuple[Predicate, Conjunct]] = field(default_factory=list)
    calls: list[Conjunct] = field(default_factory=list)
    above: list[Conjunct] = field(default_factory=list)
    used: list[Conjunct] = field(default_factory=list)

    def filter(self, alias: str, predicate: Predicate | None, text: str) -> None:
        """Add a filter of one relation; without a predicate only Spark can apply it."""
        if predicate is None:
            self.spark_only.add(alias)
        else:
            self.filters.setdefault(alias, []).append(predicate)
        self.texts.setdefault(alias, []).append(f"({text})")

    def place_calls(self, groups: Iterable[Iterable[str]]) -> None:
        """Give each call to the block that has all it reads; the others stay in WHERE.

        A call over several relations stays behind a condition that only Spark evaluates: Spark
        calls it for fewer rows then, and it may raise for the others.
        """
        blocks = [set(group) for group in groups]
        waits = any(len(c.reads) > 1 for c in self.above)
        for conjunct in self.calls:
            fits = conjunct.reads and not conjunct.foreign and any(conjunct.reads <= b for b in blocks)
            if not fits or (waits and len(conjunct.reads) > 1) or conjunct.predicate is None:
                self.above.append(conjunct)
                continue
            self.residuals.append((conjunct.predicate, conjunct))
            self.used.append(conjunct)


def as_equality(predicate: Predicate) -> Equality | None:
    """Return ``a.x = b.y`` as an edge of the query graph, None for any other predicate."""
    match predicate:
        case Compare("=", Column(left), Column(right), kind) if left.relation != right.relation:
            return Equality(left, right, kind)
    return None


def links_by_null_safe_equality(predicate: Predicate) -> bool:
    """Tell whether it is ``a.x <=> b.y``, which Spark joins by hashing and a block could not."""
    match predicate:
        case Compare("<=>", Column(left), Column(right), _):
            return left.relation != right.relation
    return False


def sort_conjuncts(
    found: Iterable[Conjunct],
    translator: Translator,
    text_of: Callable[[exp.Expr], str | None],
    unscanned: Container[str] = (),
) -> Sorted:
    """Decide for every conjunct whether a scan, the block or Spark above the block evaluates it.

    ``unscanned`` are aliases of relations that Spark does not scan, so that only a block filters them.
    """
    result = Sorted()
    for conjunct in found:
        if isinstance(conjunct.predicate, Call):
            result.calls.append(conjunct)
            continue
        alias = conjunct.single
        scanned = conjunct.pushable and alias not in unscanned
        if alias is not None and (conjunct.predicate is not None or scanned):
            result.filter(alias, conjunct.predicate, conjunct.text)
            result.used.append(conjunct)
            continue
        _imply(conjunct, translator, text_of, result)
        if conjunct.predicate is None or conjunct.foreign or len(conjunct.reads) < 2:
            result.above.append(conjunct)
            continue
        equality = as_equality(conjunct.predicate)
        if equality is not None:
            result.equalities.append((equality, conjunct))
            result.used.append(conjunct)
        elif links_by_null_safe_equality(conjunct.predicate):
            result.above.append(conjunct)
        else:
            predicate: Predicate | None = conjunct.predicate
            if isinstance(unwrap(conjunct.node), exp.Or):
                branches, _ = _branches(conjunct.node, translator, text_of)
                predicate = branches.rest()
                # Shared filters and equalities are there already, by what the OR implies.
                for term in branches.common():
                    if len(relations_of(term)) > 1 and as_equality(term) is None:
                        result.residuals.append((term, conjunct))
            if predicate is not None:
                result.residuals.append((predicate, conjunct))
            result.used.append(conjunct)
    return result


def _branches(
    node: exp.Expr, translator: Translator, text_of: Callable[[exp.Expr], str | None]
) -> tuple[Branches, dict[Predicate, str]]:
    """Return the branches of an OR, and the SQL text of each term."""
    texts: dict[Predicate, str] = {}
    branches = []
    for branch in disjuncts(node):
        terms = []
        for term in conjuncts(branch):
            predicate, text = translator.predicate(term), text_of(term)
            if predicate is not None and text is not None:
                terms.append(predicate)
                texts.setdefault(predicate, text)
        branches.append(tuple(terms))
    return Branches(tuple(branches)), texts


def _imply(
    conjunct: Conjunct,
    translator: Translator,
    text_of: Callable[[exp.Expr], str | None],
    result: Sorted,
) -> None:
    """Add what an OR over several relations implies: shared equalities, filters of one relation."""
    if not isinstance(unwrap(conjunct.node), exp.Or):
        return
    branches, texts = _branches(conjunct.node, translator, text_of)
    for term in branches.common():
        equality = as_equality(term)
        aliases = relations_of(term)
        if equality is not None:
            result.equalities.append((equality, None))
        elif len(aliases) == 1:
            result.filter(next(iter(aliases)), term, texts[term])
    for alias in sorted(conjunct.reads):
        implied = branches.single(alias)
        if implied is not None:
            result.filter(alias, implied, _implied_text(branches, texts, alias))


def _implied_text(branches: Branches, texts: dict[Predicate, str], alias: str) -> str:
    parts = []
    for branch in branches.branches:
        terms = [f"({texts[term]})" for term in branch if relations_of(term) == {alias}]
        parts.append("(" + " AND ".join(terms) + ")")
    return " OR ".join(dict.fromkeys(parts))
