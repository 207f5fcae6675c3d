"""The conditions of a FROM clause: what each reads, who evaluates it, and what they link."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from sqlglot import exp

from millrace.engine.plan.expressions import (
    And,
    Call,
    Column,
    Compare,
    Comparison,
    Or,
    Predicate,
    relations_of,
)
from millrace.engine.plan.spec import Equality
from millrace.sql.expr.functions import Determinism
from millrace.sql.expr.translate import Translator
from millrace.sql.names import Attribute
from millrace.sql.syntax.parse import conjuncts, disjuncts, unwrap

Item = TypeVar("Item", bound=Hashable)


def group_connected(edges: Iterable[Iterable[Item]], items: Iterable[Item] = ()) -> list[list[Item]]:
    """Return the connected components of a graph whose edges have any number of ends.

    Components, and the items of each, are in the order in which ``items``, then ``edges`` first name them.
    """
    component_of = {item: {item} for item in items}
    for edge in edges:
        merged = set[Item]().union(*(component_of.setdefault(item, {item}) for item in edge))
        component_of.update(dict.fromkeys(merged, merged))
    components: dict[int, list[Item]] = {}
    for item, component in component_of.items():
        components.setdefault(id(component), []).append(item)
    return list(components.values())


def is_boolean(node: exp.Expr) -> bool:
    """Tell whether an expression can stand alone in WHERE (``NULL`` can only within an AND)."""
    return isinstance(unwrap(node), exp.Predicate | exp.Connector | exp.Not | exp.Boolean)


def pushable(node: exp.Expr, determinism: Determinism) -> bool:
    """Tell whether Spark may evaluate a filter at a relation's scan: builtin, stable, without subqueries.

    Spark itself pushes such filters below its joins, so what they may raise it would raise too.
    """
    barred = (exp.Query, exp.Anonymous, exp.AnonymousAggFunc, exp.AggFunc, exp.Window, exp.Exists)
    stable = is_boolean(node) and not any(isinstance(part, barred) for part in node.walk())
    return stable and not determinism.volatile(node)


@dataclass(eq=False)
class Conjunct:
    """A term of WHERE or of an inner ON, or an equality of USING.

    Attributes:
        node: None for USING.
        reads: Aliases of the inputs that it reads outside of subqueries.
        foreign: Numbers of the other steps of the FROM clause that it reads, -1 for what is outside of it.
        predicate: The same for Millrace, None where only Spark evaluates it.
        pushable: Whether Spark may evaluate it at the scan of the one relation it reads.
        computed: Whether the predicate reads derived columns.
        pair: The columns that USING compares.
    """

    node: exp.Expr | None
    reads: frozenset[str] = frozenset()
    foreign: frozenset[int] = frozenset()
    predicate: Predicate | None = None
    pushable: bool = False
    computed: bool = False
    pair: tuple[Attribute, Attribute] | None = None

    @property
    def single(self) -> str | None:
        """The relation that it filters, when it reads just one."""
        return next(iter(self.reads)) if len(self.reads) == 1 and not self.foreign else None

    def shown(self, text_of: Callable[[exp.Expr], str]) -> str:
        """Return it for explanations."""
        if self.pair is not None:
            return " = ".join(attribute.name for attribute in self.pair)
        assert self.node is not None
        return text_of(self.node)


TextOf = Callable[[str, exp.Expr], str | None]
"""Returns the text of a condition over one relation, as Spark reads it in a scan; None if it has none."""


@dataclass(eq=False)
class SplitConjuncts:
    """Conditions by who evaluates them: a scan, a block, or Spark above the block.

    Attributes:
        filters: Per alias, predicates for a direct scan; their conjuncts are consumed by them.
        texts: Per alias, the same and more as SQL, for a scan by Spark.
        spark_only: Aliases with a filter that only Spark evaluates: Spark has to scan these.
        residuals: Other predicates over several relations, and calls.
        calls: Calls of the caller's predicates that a block could evaluate.
        above: Conjuncts that stay in WHERE.
        used: Conjuncts that a block evaluates.
        steps: Numbers of the steps, SEMI, ANTI and LEFT joins, that a block evaluates.
    """

    filters: dict[str, list[Predicate]] = field(default_factory=dict)
    texts: dict[str, list[str]] = field(default_factory=dict)
    spark_only: set[str] = field(default_factory=set)
    equalities: list[Equality] = field(default_factory=list)
    residuals: list[Predicate] = field(default_factory=list)
    calls: list[Conjunct] = field(default_factory=list)
    above: list[Conjunct] = field(default_factory=list)
    used: list[Conjunct] = field(default_factory=list)
    steps: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, conditions: Iterable[Conjunct], translator: Translator, text_of: TextOf) -> SplitConjuncts:
        split = cls()
        null_safe: list[Conjunct] = []
        for conjunct in conditions:
            if isinstance(conjunct.predicate, Call):
                split.calls.append(conjunct)
                continue
            alias, node = conjunct.single, conjunct.node
            is_filter = conjunct.predicate is not None or conjunct.pushable
            text = text_of(alias, node) if alias is not None and node is not None and is_filter else None
            if alias is not None and text is not None:
                split.add_filter(alias, conjunct.predicate, text)
                split.used.append(conjunct)
                continue
            branches = None if conjunct.computed else _Branching.of(node, translator, text_of)
            if branches is not None:
                branches.imply(conjunct, split)
            if conjunct.predicate is None or conjunct.foreign or len(conjunct.reads) < 2:
                split.above.append(conjunct)
                continue
            equality = as_equality(conjunct.predicate)
            if equality is not None:
                split.equalities.append(equality)
            elif as_equality(conjunct.predicate, "<=>") is not None:
                null_safe.append(conjunct)  # Spark joins by hashing it, and a block could not
                continue
            else:
                split.residuals += [conjunct.predicate] if branches is None else branches.residuals()
            split.used.append(conjunct)
        linked = group_connected(equality.relations for equality in split.equalities)
        for conjunct in null_safe:
            # What nothing else links would be a cross product in a block, and is none in Spark.
            if conjunct.predicate is not None and any(conjunct.reads <= {*part} for part in linked):
                split.residuals.append(conjunct.predicate)
                split.used.append(conjunct)
            else:
                split.above.append(conjunct)
        return split

    def add_filter(self, alias: str, predicate: Predicate | None, text: str) -> None:
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
            else:
                self.residuals.append(conjunct.predicate)
                self.used.append(conjunct)


def as_equality(predicate: Predicate, op: Comparison = "=") -> Equality | None:
    """Return ``a.x = b.y`` as an edge of the join graph, None for any other predicate."""
    match predicate:
        case Compare(compared, Column(left), Column(right), kind):
            return Equality(left, right, kind) if compared == op and left.relation != right.relation else None
    return None


@dataclass(frozen=True)
class _Branching:
    """An OR: its branches as lists of terms, and the text of each term over one relation.

    A term that Spark must judge is dropped. That only makes its branch wider, so whatever follows from the
    branches follows from the OR.
    """

    branches: tuple[tuple[Predicate, ...], ...]
    texts: dict[Predicate, str]

    @classmethod
    def of(cls, node: exp.Expr | None, translator: Translator, text_of: TextOf) -> _Branching | None:
        if node is None or not isinstance(unwrap(node), exp.Or):
            return None
        texts: dict[Predicate, str] = {}
        branches = []
        for branch in disjuncts(node):
            terms = []
            for term in conjuncts(branch):
                predicate = translator.predicate(term)
                if predicate is None:
                    continue
                aliases = relations_of(predicate)
                text = text_of(next(iter(aliases)), term) if len(aliases) == 1 else ""
                if text is None:
                    return None
                terms.append(predicate)
                texts.setdefault(predicate, text)
            branches.append(tuple(terms))
        return cls(tuple(branches), texts)

    def common(self) -> tuple[Predicate, ...]:
        """Return the terms that every branch has: ``(a and b) or (a and c)`` implies ``a``."""
        first, *rest = self.branches
        return tuple(term for term in dict.fromkeys(first) if all(term in branch for branch in rest))

    def rest(self, alias: str | None = None) -> dict[Predicate, str]:
        """Return what each branch says besides the common terms, with its text; nothing if one says no more.

        With ``alias``, only terms over that relation alone count.
        """
        common, rest = self.common(), {}
        for branch in self.branches:
            terms = [x for x in branch if x not in common and (alias is None or relations_of(x) == {alias})]
            if not terms:
                return {}
            text = " AND ".join(f"({self.texts[term]})" for term in terms)
            rest[terms[0] if len(terms) == 1 else And(tuple(terms))] = f"({text})"
        return rest

    def residuals(self) -> list[Predicate]:
        """Return what is left for a block, besides the filters and equalities that the OR implies."""
        common = [p for p in self.common() if len(relations_of(p)) > 1 and as_equality(p) is None]
        rest = self.rest()
        return [*common, Or(tuple(rest))] if rest else common

    def imply(self, conjunct: Conjunct, split: SplitConjuncts) -> None:
        """Add what it implies: shared equalities, filters of one relation."""
        for term in self.common():
            equality, aliases = as_equality(term), relations_of(term)
            if equality is not None:
                split.equalities.append(equality)
            elif len(aliases) == 1:
                split.add_filter(next(iter(aliases)), term, self.texts[term])
        for alias in sorted(conjunct.reads):
            if implied := self.rest(alias):
                predicate = Or(tuple(implied)) if len(implied) > 1 else next(iter(implied))
                split.add_filter(alias, predicate, " OR ".join(implied.values()))
