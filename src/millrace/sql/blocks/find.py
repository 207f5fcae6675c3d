"""Find the blocks of one SELECT, and plan them."""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from millrace.engine.plan.expressions import Call, ColumnRef, Exists, beside, columns_of, relations_of
from millrace.engine.plan.spec import JoinSpec, RelationSpec
from millrace.errors import InputError
from millrace.spark.block import Input
from millrace.spark.values import SparkValues
from millrace.sql.blocks.access import bind, constants_of, lookup_rows
from millrace.sql.blocks.conditions import Conjunct, SplitConjuncts, as_equality, group_connected, pushable
from millrace.sql.blocks.cost_model import why_not_worth
from millrace.sql.blocks.derived import DerivedColumns
from millrace.sql.blocks.event_times import (
    check_preserved,
    check_streams,
    event_times,
    is_left_join_of_streams,
    together,
)
from millrace.sql.blocks.join_graph import JoinGraph, JoinInput
from millrace.sql.blocks.subqueries import (
    OuterJoins,
    relations_beside,
    take_left_joins,
    take_semi_joins,
    why_joined_as_sets,
)
from millrace.sql.context import PlanContext
from millrace.sql.expr.translate import Translator, constant_operands
from millrace.sql.plan import BlockPlan
from millrace.sql.rewrite.outer_joins import restore_outer_joins
from millrace.sql.rewrite.select import Rewriting
from millrace.sql.syntax.parse import Unsupported, unwrap
from millrace.sql.syntax.scopes import Scope, in_recursion


def take_blocks(context: PlanContext, scope: Scope) -> list[exp.Expr] | None:
    """Take what can be taken of a SELECT's FROM; note the reason where nothing can.

    Returns the conditions that are in its WHERE now, None when it is as it was.
    """
    try:
        rewriting = _take_preserving(context, scope) or _take(context, scope)
        return None if rewriting is None else rewriting.commit()
    except Unsupported as error:
        context.reasons.append(f"{context.where(scope)}: {error}")
        return None


def _take_preserving(context: PlanContext, scope: Scope) -> Rewriting | None:
    """Take a stream LEFT JOIN a stream, as an inner join whose cells add what has no match; None if none is.

    What Spark evaluates above an inner join would drop what has none, so it has to stay with Spark then.
    """
    clause = scope.clause
    if clause is None or not is_left_join_of_streams(context, clause):
        return None
    right = clause.items[1]
    assert right.relation is not None
    right.kind, right.keyword, right.relation.is_nullable, clause.preserves = "inner", "JOIN", True, True
    taken = None
    try:
        check_preserved(context, scope)
        taken = _take(context, scope)
    except (Unsupported, InputError) as error:
        context.reasons.append(f"LEFT JOIN {right.relation.alias}: {error}")
    if taken is None:
        restore_outer_joins(clause, ())
        clause.preserves = False
    return taken


def _take(context: PlanContext, scope: Scope) -> Rewriting | None:
    if scope.clause is None:
        if scope.why and scope.select.args.get("joins"):
            raise Unsupported(scope.why)
        return None
    if scope.select.args.get("joins") and in_recursion(scope.select):
        raise Unsupported("a common table expression that reads itself runs it again and again")
    graph = JoinGraph(context, scope, scope.clause)
    if not _add_inputs(graph):
        return None
    graph.conditions = conditions = _split(graph)
    groups = _groups(graph)
    if restore_outer_joins(graph.source, {id(graph.inputs[a].relation) for group in groups for a in group}):
        return _take(context, scope)
    # Above a join of streams an eddy calls predicates under the limits of the whole job, for new rows only;
    # the same one that looks up, if there are lookups.
    conditions.place_calls([] if graph.streams and not graph.has_lookup(graph.inputs) else groups)
    if not groups:
        raise Unsupported("its relations are linked by conditions that only Spark evaluates")
    check_streams(graph, groups)
    for group in groups:
        _check_complete(graph, group)
    why_not = [why for group in groups if (why := why_not_worth(graph, group)) is not None]
    if len(why_not) == len(groups):
        raise Unsupported("; ".join(why_not))
    inside = {alias for group in groups for alias in group}
    for conjunct in [c for c in conditions.used if c.single is not None and c.single not in inside]:
        conditions.used.remove(conjunct)
        conditions.above.append(conjunct)
    if not graph.source.whole and conditions.above:
        raise Unsupported(
            "a condition of a join that only Spark evaluates, below a RIGHT or FULL join or in one of streams"
        )
    outer = [take_left_joins(graph, group) for group in groups]
    graph.check_certain()
    inputs = [*(graph.inputs[alias] for alias in inside), *graph.outer.values()]
    rewriting = Rewriting(graph, inputs)
    for group, left_joins in zip(groups, outer, strict=True):
        _plan(graph, group, left_joins, rewriting)
    return rewriting


def _add_inputs(graph: JoinGraph) -> bool:
    """Add the relations that a block may take; tell whether there are enough of them for one."""
    context, steps = graph.context, graph.source.steps
    movable = [(n, step.relation) for n, step in enumerate(steps) if step.movable and step.relation]
    streams = any(context.is_streaming(relation.node) for _, relation in movable)
    beside = not streams and any(relations_beside(graph))
    alone = beside or any(context.lookup(relation) for _, relation in movable)
    if len(movable) < 2 and not alone:
        if len(steps) > 1:
            raise Unsupported("no two relations joined by an inner join")
        return False
    by_precedence = context.settings.ansi and context.settings.conf.is_on("spark.sql.ansi.relationPrecedence")
    if graph.source.mixed and by_precedence:
        raise Unsupported("commas beside joins, which spark.sql.ansi.relationPrecedence binds otherwise")
    context.names.output(graph.scope)  # all columns have to be known
    for number, relation in movable:
        if (relation.alias or "").lower() in graph.hinted and not context.lookup(relation):
            context.reasons.append(f"{relation.alias} is joined by Spark, as a hint asks for")
            continue
        try:
            join_input = JoinInput.of(context, relation, number, graph.inputs)
        except Unsupported as error:
            context.reasons.append(str(error))
        else:
            graph.inputs[join_input.alias] = join_input
    return len(graph.inputs) > 1 or (alone and bool(graph.inputs))


def _split(graph: JoinGraph) -> SplitConjuncts:
    """Return the conditions of the clause by who evaluates them."""
    context = graph.context
    translator = Translator(context, graph.column)
    conjuncts = _conjuncts(graph, translator)
    split = SplitConjuncts.of(
        conjuncts, translator, lambda alias, node: graph.inputs[alias].condition_text(context, node)
    )
    for pair in graph.inner_keys():
        equality = graph.equality(*map(graph.find_column, pair))
        if equality is not None:
            split.equalities.append(equality)
        else:
            split.above.append(Conjunct(None, *graph.reads_attributes(pair), pair=pair))
    return split


def _conjuncts(graph: JoinGraph, translator: Translator) -> list[Conjunct]:
    """Return the conjuncts of inner ONs, and of WHERE where filters may move."""
    context = graph.context
    conditions = [on for step in graph.source.steps if step.movable for on in step.conditions]
    if any(map(context.determinism.volatile, conditions)):
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
        scanned = any(graph.inputs[alias].is_scanned for alias in reads)
        if predicate is None and not foreign and (len(reads) > 1 or scanned):
            equal = isinstance(inner, exp.EQ) and len(reads) > 1
            with_computed = replace(translator, derived=DerivedColumns(graph, direct=equal).column)
            predicate = with_computed.predicate(node)
            computed = predicate is not None
        if predicate is None:
            predicate = context.calls.in_block(node, graph.column, context.constants.value, values)
        is_pushable = not graph.has_lookup(reads) and pushable(node, context.determinism)
        result.append(Conjunct(node, reads, foreign, predicate, is_pushable, computed))
    return result


def _groups(graph: JoinGraph) -> list[list[str]]:
    """Return the sets of inputs that make blocks.

    Relations that only something above links are no block: inside it they would be a cross
    product, which Spark does not compute either, as it joins by what links them. What nothing
    links at all is a cross product in Spark too, and is taken.
    """
    conditions, inputs = graph.conditions, list(graph.inputs)
    others = set(range(len(graph.source.steps))) - {join_input.step for join_input in graph.inputs.values()}
    within = [*(e.relations for e in conditions.equalities), *map(relations_of, conditions.residuals)]
    above = [c.reads | (c.foreign & others) for c in (*conditions.above, *conditions.calls)]
    for number in others:
        for reads, foreign in map(graph.reads, graph.source.steps[number].conditions):
            above.append(reads | {number} | (foreign & others))
    parts = group_connected(within, inputs)
    complete = {frozenset(part) for part in group_connected([*within, *above], [*inputs, *others])}
    groups = [part for part in parts if frozenset(part) not in complete]
    unlinked = [alias for part in parts if frozenset(part) in complete for alias in part]
    groups = [part for part in [*groups, sorted(unlinked, key=inputs.index)] if len(part) >= 2]
    grouped = {alias for group in groups for alias in group}
    groups += [[alias] for alias in inputs if alias not in grouped and _is_alone(graph, alias)]
    # A lone relation is a block too if conditions ask for matches in others.
    return groups or ([inputs] if len(inputs) == 1 and any(relations_beside(graph)) else [])


def _is_alone(graph: JoinGraph, alias: str) -> bool:
    """Tell whether a relation is a block by itself: a lookup table that Spark cannot scan, or need not."""
    lookup = graph.inputs[alias].lookup
    if lookup is None or lookup.needs_keys:
        return lookup is not None
    filters = graph.conditions.filters.get(alias, ())
    return any(
        all(constants_of(filters, ColumnRef(alias, column), lookup) is not None for column in columns)
        for columns in lookup.table.bind
    )


def _check_complete(graph: JoinGraph, group: list[str]) -> None:
    """Refuse a block that would join without an equality which Spark joins by, and so make more rows."""
    if graph.has_lookup(group):
        return
    for conjunct in graph.conditions.above:
        if len(conjunct.reads) < 2 or not conjunct.reads <= set(group):
            continue
        node = None if conjunct.node is None else unwrap(conjunct.node)
        if isinstance(node, exp.EQ | exp.NullSafeEQ) and node.find(exp.Query) is None:
            left, right = (graph.reads(side)[0] for side in (node.this, node.expression))
            if left & right or not (left and right):
                continue
        elif node is not None:
            continue
        shown = conjunct.shown(graph.context.shown)
        raise Unsupported(f"only Spark evaluates {shown}, and without it more rows would be joined")


def _check_lone(graph: JoinGraph, *, matched: bool) -> None:
    """Refuse a block of one relation where nothing is asked of it, or Spark joins its rows all the same."""
    if not matched:
        raise Unsupported("no two relations joined by an inner join")
    nodes = [conjunct.node for conjunct in graph.conditions.above if conjunct.node is not None]
    if any(graph.context.escapes(query) for node in nodes for query in node.find_all(exp.Query)):
        raise Unsupported("a relation whose rows Spark joins with those of a correlated subquery")


def _plan(graph: JoinGraph, group: list[str], left_joins: OuterJoins, rewriting: Rewriting) -> None:
    """Plan one block: where its rows come from, its join, and its place in the rewritten text."""
    context, conditions, (outer, on_outer) = graph.context, graph.conditions, left_joins
    inputs = [graph.inputs[alias] for alias in group]
    equalities = [e for e in conditions.equalities if e.left.relation in group]
    residuals = [p for p in conditions.residuals if relations_of(p) & set(group)] + on_outer
    semi_joins = take_semi_joins(graph, group) if graph.source.whole else []
    if len(inputs) == 1 and not inputs[0].lookup:
        _check_lone(graph, matched=bool(semi_joins or outer))
    scans = [scan for _, asked in semi_joins for scan in asked]
    sets: list[RelationSpec] = []
    if why_joined_as_sets(graph, group) is not None:  # each tuple has one partner in them at most
        keys = [key for exists, _ in semi_joins if isinstance(exists, Exists) for key in exists.keys]
        equalities += filter(None, map(as_equality, keys))
        sets = [replace(spec, distinct=True) for spec, _ in scans]
    else:
        residuals += [predicate for predicate, _ in semi_joins]
    # What a scan of a lookup table gives would be read again in every micro-batch.
    streams = [alias for alias in graph.streams if alias in group]
    access = bind(inputs, sets, equalities, conditions.residuals, conditions.filters, scans=not streams)
    equalities, residuals = access.equalities, [*residuals, *access.residuals]
    ends = [ref for equality in equalities for ref in equality.ends]
    output = rewriting.add_output([*inputs, *(relation.input for _, relation in outer)], ends)
    times = event_times(graph, group)
    clocks = set() if times is None else {ColumnRef(*time) for time in times.columns.items()}
    read = {*ends, *clocks, *(ref for p in residuals for ref in columns_of(p))}
    read |= {ref for join, _ in outer for ref in columns_of(join)}
    read |= {column.source for column in output.columns}
    specs: list[RelationSpec] = []
    rows: dict[str, Input] = {}
    for join_input in inputs:
        columns = [f for f in join_input.every if ColumnRef(join_input.alias, f.name) in read]
        if join_input.alias in access.indexes:
            indexes = access.indexes[join_input.alias]
            spec, rows[join_input.alias] = lookup_rows(
                context, join_input, columns, conditions, indexes, scans=not streams
            )
        else:
            is_stream = times is not None and join_input.alias in times.columns
            own = {ref.column for ref in ends if ref.relation == join_input.alias} if is_stream else None
            spec, rows[join_input.alias] = join_input.rows(context, columns, conditions, dealt_by=own)
        specs.append(spec)
    widening = []
    for left_join, relation in outer:
        own = {ref.column for ref in read if ref.relation == relation.alias}
        widening.append(relation.rows({*beside(left_join), *own}))
    specs += [*sets, *(spec for spec, _ in access.constants)]
    rows |= {spec.alias: scan for spec, scan in (*scans, *widening)}
    rows |= {spec.alias: literals for spec, literals in access.constants}
    # A user's function need not be hashable, so calls are not compared.
    others = list(dict.fromkeys(p for p in residuals if not isinstance(p, Call)))
    calls = [p for p in residuals if isinstance(p, Call)]
    join = JoinSpec(
        tuple(specs),
        tuple(dict.fromkeys(equalities)),
        (*(others if times is None else together(others)), *calls),
        output.columns,
        output.counted is not None,
        tuple(spec for spec, _ in (*(() if sets else scans), *widening)),
        tuple(left_join for left_join, _ in outer),
    )
    native = [c for c in conditions.above if context.calls.of(c.node) is None]
    above = tuple(conjunct.shown(context.shown) for conjunct in native)
    stream = streams[0] if len(streams) == 1 else None
    plan = BlockPlan(output.name, join, rows, output.schema, output.aggregate, stream, above, times)
    rewriting.plans.append(plan)
