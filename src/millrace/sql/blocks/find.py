"""Find the blocks of one SELECT, and plan them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sqlglot import exp

from millrace.engine.expressions import Call, ColumnRef, columns_of, relations_of
from millrace.engine.spec import Equality, JoinSpec, RelationSpec
from millrace.spark.values import SparkValues
from millrace.sql.blocks.components import split
from millrace.sql.blocks.conditions import Conjunct, SplitConjuncts, pushable, sort_conditions
from millrace.sql.blocks.cost_model import why_not_worth
from millrace.sql.blocks.event_times import (
    check_streams,
    event_times,
    same_streams,
    together,
    with_same_columns,
)
from millrace.sql.blocks.join_graph import JoinGraph
from millrace.sql.blocks.join_inputs import JoinInput, condition_text, member_of, rows_of
from millrace.sql.blocks.semi_joins import SemiJoins, asked, semijoins
from millrace.sql.expr.derived import DerivedColumns
from millrace.sql.expr.translate import Translator, constant_operands
from millrace.sql.expr.types import comparison_type
from millrace.sql.lookups.binding import bind, constants_of, lookup_rows
from millrace.sql.names.outputs import Attribute
from millrace.sql.planner.context import PlanContext
from millrace.sql.planner.plan import BlockPlan, Rows
from millrace.sql.rewrite.select import Rewriting
from millrace.sql.syntax.ctes import in_recursion
from millrace.sql.syntax.from_clause import Relation
from millrace.sql.syntax.parse import Unsupported, unwrap
from millrace.sql.syntax.scopes import Scope


def take_blocks(context: PlanContext, scope: Scope) -> list[exp.Expr] | None:
    """Take what can be taken of a SELECT's FROM; note the reason where nothing can.

    Returns:
        The conditions that are in its WHERE now, None when it is as it was.
    """
    try:
        rewriting = _take(context, scope)
        return None if rewriting is None else rewriting.commit()
    except Unsupported as leave:
        context.reasons.append(f"{context.where(scope)}: {leave}")
        return None


def _take(context: PlanContext, scope: Scope) -> Rewriting | None:
    if scope.clause is None:
        if scope.why and scope.select.args.get("joins"):
            raise Unsupported(scope.why)
        return None
    if scope.select.args.get("joins") and in_recursion(scope.select):
        raise Unsupported("a common table expression that reads itself runs it again and again")
    graph = _members(context, scope)
    if graph is None:
        return None
    found = _sorted(graph)
    groups = _groups(graph, found) or _lone(graph)
    # Above a join of streams an eddy calls predicates under the limits of the whole job, for new rows only;
    # the same one that looks up, if there are lookups.
    streams = graph.streams
    found.place_calls([] if streams and not _looks_up(graph, graph.members) else groups)
    if not groups:
        raise Unsupported("its relations are linked by conditions that only Spark evaluates")
    check_streams(graph, groups)
    for group in groups:
        _check_complete(graph, group, found)
    why_not = [why for group in groups if (why := why_not_worth(graph, group)) is not None]
    if len(why_not) == len(groups):
        raise Unsupported("; ".join(why_not))
    inside = {alias for group in groups for alias in group}
    for conjunct in [c for c in found.used if c.single is not None and c.single not in inside]:
        found.used.remove(conjunct)
        found.above.append(conjunct)
    if not graph.source.whole and found.above:
        raise Unsupported(
            "a condition of an inner join that only Spark evaluates, below a RIGHT or FULL join"
        )
    graph.check_certain()
    members = [graph.members[alias] for alias in inside]
    rewriting = Rewriting(graph, found, members, streaming=bool(streams))
    for group in groups:
        _assemble(graph, group, found, rewriting)
    return rewriting


def _members(context: PlanContext, scope: Scope) -> JoinGraph | None:
    """Return the relations that a block may take; the others stay where they are."""
    source = scope.clause
    assert source is not None
    graph = JoinGraph(context, scope, source)
    free = [(n, step.relation) for n, step in enumerate(graph.steps) if step.movable and step.relation]
    alone = any(context.lookup(relation) for _, relation in free) or any(asked(graph))
    if len(free) < 2 and not alone:
        if len(graph.steps) > 1:
            raise Unsupported("no two relations joined by an inner join")
        return None
    if source.mixed and context.settings.precedence:
        raise Unsupported("commas beside joins, which spark.sql.ansi.relationPrecedence binds otherwise")
    context.names.output(scope)  # all columns have to be known
    hinted = _hinted(scope.select)
    for number, relation in free:
        try:
            _check_hints(context, relation, hinted)
            member = member_of(context, relation, number, list(graph.members))
        except Unsupported as leave:
            context.reasons.append(str(leave))
        else:
            graph.members[member.alias] = member
    return graph if len(graph.members) > 1 or (alone and graph.members) else None


def _check_hints(context: PlanContext, relation: Relation, hinted: set[str]) -> None:
    if (relation.alias or "").lower() in hinted and not context.lookup(relation):
        raise Unsupported(f"{relation.alias} is joined by Spark, as a hint asks for")


def _hinted(select: exp.Select) -> set[str]:
    """Return the relations that hints name, in lower case: Spark is to join them as the user chose."""
    hint = select.args.get("hint")
    tables = [] if hint is None else [t for each in hint.find_all(exp.JoinHint) for t in each.expressions]
    return {table.name.lower() for table in tables}


def _sorted(graph: JoinGraph) -> SplitConjuncts:
    """Return the conditions of the clause by who evaluates them."""
    context = graph.context
    translator = Translator(context, graph.lookup)
    unscanned = {alias for alias, member in graph.members.items() if member.lookup}

    def text_of(alias: str, node: exp.Expr) -> str | None:
        return condition_text(context, graph.members[alias], node)

    found = _conjuncts(graph, translator)
    result = sort_conditions(found, translator, text_of, unscanned)
    for left, right in graph.merged():
        equality = _equality(graph, left, right)
        if equality is not None:
            result.equalities.append(equality)
            continue
        reads, foreign = graph.reads_attributes([left, right])
        result.above.append(Conjunct(None, reads, foreign, None, pair=(left, right)))
    return result


def _conjuncts(graph: JoinGraph, translator: Translator) -> list[Conjunct]:
    """Return the conjuncts of inner ONs, and of WHERE where filters may move."""
    context = graph.context
    conditions = [on for step in graph.steps if step.movable for on in step.conditions]
    if any(map(context.volatility.volatile, conditions)):
        raise Unsupported("a condition of a join that may differ between two calls")
    nodes = graph.source.inner_terms
    operands = [c for node in nodes for c in (*constant_operands(node), *context.calls.arguments(node))]
    context.constants.prepare(operands)
    values = SparkValues(context.settings.time_zone)
    result = []
    for node in nodes:
        inner = unwrap(node)
        if isinstance(inner, exp.Boolean) and inner.this is True:
            continue
        if not context.statement.has_span(node):
            raise Unsupported("a condition in a form that Millrace does not read")
        reads, foreign = graph.reads(node)
        predicate, computed = translator.predicate(node), False
        if predicate is None and not foreign and (len(reads) > 1 or _is_scanned(graph, reads)):
            equal = isinstance(inner, exp.EQ) and len(reads) > 1
            with_computed = replace(translator, derived=DerivedColumns(graph, direct=equal).column)
            predicate = with_computed.predicate(node)
            computed = predicate is not None
        if predicate is None:
            predicate = context.calls.in_block(node, graph.lookup, context.constants, values)
        pushed = pushable(node) and not context.volatility.volatile(node)
        result.append(Conjunct(node, reads, foreign, predicate, pushed, computed))
    return result


def _is_scanned(graph: JoinGraph, reads: frozenset[str]) -> bool:
    """Tell whether a condition is over one relation that tasks would read themselves."""
    table = graph.members[next(iter(reads))].table if len(reads) == 1 else None
    return table is not None and table.lookup is None and table.parquet is not None


def _equality(graph: JoinGraph, left: Attribute, right: Attribute) -> Equality | None:
    """Return an equality of USING as an edge of the query graph, None where Spark has to compare."""
    a, b = graph.member_column(left), graph.member_column(right)
    if a is None or b is None or not (a[1].comparable and b[1].comparable):
        return None
    kind = comparison_type(a[1].type, b[1].type, ansi=graph.context.settings.ansi)
    return None if kind is None else Equality(ColumnRef(a[0], a[1].name), ColumnRef(b[0], b[1].name), kind)


def _groups(graph: JoinGraph, found: SplitConjuncts) -> list[list[str]]:
    """Return the sets of members that make blocks."""
    inside = {member.step for member in graph.members.values()}
    others = {n: f"#{n}" for n in range(len(graph.steps)) if n not in inside}
    within = [*(e.relations for e in found.equalities), *map(relations_of, found.residuals)]
    linking = [*found.above, *found.calls]
    above = [{*c.reads, *(others[n] for n in c.foreign if n in others)} for c in linking]
    for number, step in enumerate(graph.steps):
        for condition in step.conditions if number in others else ():
            reads, foreign = graph.reads(condition)
            above.append({*reads, others[number], *(others[n] for n in foreign if n in others)})
    groups = split(list(graph.members), list(others.values()), within, above)
    taken = {alias for group in groups for alias in group}
    return groups + [
        [alias] for alias, member in graph.members.items() if alias not in taken and _alone(member, found)
    ]


def _check_complete(graph: JoinGraph, group: list[str], found: SplitConjuncts) -> None:
    """Refuse a block that would join without an equality which Spark joins by, and so make more rows.

    Raises:
        Unsupported: It would.
    """
    if _looks_up(graph, group):
        return
    for conjunct in found.above:
        if len(conjunct.reads) < 2 or not conjunct.reads <= set(group):
            continue
        node = None if conjunct.node is None else unwrap(conjunct.node)
        if isinstance(node, exp.EQ | exp.NullSafeEQ) and node.find(exp.Query) is None:
            left, right = (graph.reads(side)[0] for side in (node.this, node.expression))
            if left & right or not (left and right):
                continue
        elif node is not None:
            continue
        raise Unsupported(
            f"only Spark evaluates {graph.shown(conjunct)}, and without it more rows would be joined"
        )


def _looks_up(graph: JoinGraph, aliases: Iterable[str]) -> bool:
    """Tell whether some of the members are lookup tables."""
    return any(graph.members[alias].lookup for alias in aliases)


def _alone(member: JoinInput, found: SplitConjuncts) -> bool:
    """Tell whether a relation is a block by itself: a lookup table that Spark cannot scan, or need not."""
    lookup = member.lookup
    if lookup is None or lookup.asked:
        return lookup is not None
    filters = found.filters.get(member.alias, ())
    return any(
        all(constants_of(filters, ColumnRef(member.alias, column), lookup) is not None for column in columns)
        for columns in lookup.table.bind
    )


def _lone(graph: JoinGraph) -> list[list[str]]:
    """Return the only member as a block if conditions ask for matches in other relations."""
    return [list(graph.members)] if len(graph.members) == 1 and any(asked(graph)) else []


def _check_lone(graph: JoinGraph, found: SplitConjuncts, *, matched: bool) -> None:
    """Refuse a block of one relation where nothing is asked of it, or Spark joins its rows all the same.

    Raises:
        Unsupported: It is so.
    """
    if not matched:
        raise Unsupported("no two relations joined by an inner join")
    nodes = [conjunct.node for conjunct in found.above if conjunct.node is not None]
    if any(graph.context.escapes(query) for node in nodes for query in node.find_all(exp.Query)):
        raise Unsupported("a relation whose rows Spark joins with those of a correlated subquery")


def _beside(
    graph: JoinGraph, group: list[str], found: SplitConjuncts
) -> tuple[list[SemiJoins], list[SemiJoins]]:
    """Take what stands beside a block: what is joined as a set, and what is looked through for matches.

    Joined as sets are relations that may bind a lookup table, those of joins larger than memory, and those of
    joins of streams, whose cells keep what is joined.
    """
    if not graph.source.whole:
        return [], []
    sets = _looks_up(graph, group) or len(graph.streams) > 1
    sets |= graph.context.settings.options.memory_budget is not None
    taken = list(semijoins(graph, group, found, _hinted(graph.scope.select)))
    for each in taken:
        found.used.append(each.conjunct)
        if each.step is None:
            found.above.remove(each.conjunct)
        else:
            found.steps.add(each.step)
    return (taken, []) if sets else ([], taken)


def _assemble(graph: JoinGraph, group: list[str], found: SplitConjuncts, rewriting: Rewriting) -> None:
    """Plan one block: where its rows come from, its join, and its place in the rewritten text."""
    context = graph.context
    members = [graph.members[alias] for alias in group]
    equalities = [e for e in found.equalities if e.left.relation in group]
    residuals = [p for p in found.residuals if relations_of(p) & set(group)]
    joined, matched = _beside(graph, group, found)
    if len(members) == 1 and not members[0].lookup:
        _check_lone(graph, found, matched=bool(joined or matched))
    equalities += [equality for each in joined for equality in each.equalities]
    residuals += [each.asked for each in matched]
    sets = [replace(spec, distinct=True) for each in joined for spec, _ in each.relations]
    # What a scan of a lookup table gives would be read again in every micro-batch.
    streams = [alias for alias in graph.streams if alias in group]
    binding = bind(members, sets, equalities, found.filters, scans=not streams)
    equalities, residuals = binding.equalities, [*residuals, *binding.residuals]
    ends = [ref for equality in equalities for ref in equality.ends]
    plain = {ColumnRef(m.alias, f.name) for m in members for f in m.columns}
    piece = rewriting.piece(members, [ref for ref in ends if ref in plain])
    output = piece.output
    times = event_times(graph, group)
    clocks = set() if times is None else {ColumnRef(*each) for each in times.columns.items()}
    read = {*ends, *clocks, *(ref for p in residuals for ref in columns_of(p)), *(o.source for o in output)}
    roles = same_streams(graph, times, found)
    for same in roles:
        read |= with_same_columns(same, read)
    specs: list[RelationSpec] = []
    rows: dict[str, Rows] = {}
    for member in members:
        columns = [f for f in member.every if ColumnRef(member.alias, f.name) in read]
        if member.alias in binding.indexes:
            indexes = binding.indexes[member.alias]
            spec, rows[member.alias] = lookup_rows(
                context, member, columns, found, indexes, scans=not streams
            )
        else:
            in_cells = times is not None and member.alias in times.columns
            spec, rows[member.alias] = rows_of(context, member, columns, found, in_cells=in_cells)
        specs.append(spec)
    rows |= {other.alias: rows[lead.alias] for lead, *others in roles for other in others}
    specs += [*sets, *(constants.spec for constants in binding.constants)]
    extras = [extra for each in (*joined, *matched) for extra in each.relations]
    extras += [(constants.spec, constants.rows) for constants in binding.constants]
    rows |= {spec.alias: given for spec, given in extras}
    # A user's function need not be hashable, so calls are not compared.
    others = dict.fromkeys(p for p in residuals if not isinstance(p, Call))
    calls = [p for p in residuals if isinstance(p, Call)]
    joint = tuple(others) if times is None else tuple(together(others))
    join = JoinSpec(
        tuple(specs),
        tuple(dict.fromkeys(equalities)),
        (*joint, *calls),
        output,
        piece.counting,
        tuple(spec for each in matched for spec, _ in each.relations),
    )
    native = [c for c in found.above if context.calls.of(c.node) is None]
    above = tuple(graph.shown(conjunct) for conjunct in native)
    result = None if piece.counting else rewriting.result(piece)
    stream = streams[0] if len(streams) == 1 else None
    plan = BlockPlan(piece.name, join, rows, result, above, piece.aggregate, times, stream)
    rewriting.plans.append(plan)
