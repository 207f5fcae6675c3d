"""Find the blocks of one SELECT, and plan them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sqlglot import exp

from millrace.engine.expressions import Call, ColumnRef, columns_of, relations_of
from millrace.engine.spec import Equality, JoinSpec, RelationSpec
from millrace.spark.values import SparkValues
from millrace.sql.clause import Clause
from millrace.sql.coercion import comparison_type
from millrace.sql.components import split
from millrace.sql.computed import Computed
from millrace.sql.conditions import Conjunct, Sorted, pushable, sort_conditions
from millrace.sql.ctes import in_recursion
from millrace.sql.event_times import (
    check_streams,
    event_times,
    same_streams,
    together,
    with_same_columns,
)
from millrace.sql.from_clause import Relation
from millrace.sql.lookups.binding import bind, constants_of, lookup_rows
from millrace.sql.members import Member, condition_text, member_of, rows_of
from millrace.sql.outputs import Attribute
from millrace.sql.parse import Leave, unwrap
from millrace.sql.plan import BlockPlan, Rows
from millrace.sql.planning import Planning
from millrace.sql.rewrite import Rewriting
from millrace.sql.scopes import Scope
from millrace.sql.semijoins import Beside, asked, semijoins
from millrace.sql.translate import Translator, constant_operands
from millrace.sql.worth import why_not_worth


def take_blocks(planning: Planning, scope: Scope) -> list[exp.Expr] | None:
    """Take what can be taken of a SELECT's FROM; note the reason where nothing can.

    Returns:
        The conditions that are in its WHERE now, None when it is as it was.
    """
    try:
        rewriting = _take(planning, scope)
        return None if rewriting is None else rewriting.commit()
    except Leave as leave:
        planning.reasons.append(f"{planning.where(scope)}: {leave}")
        return None


def _take(planning: Planning, scope: Scope) -> Rewriting | None:
    if scope.clause is None:
        if scope.why and scope.select.args.get("joins"):
            raise Leave(scope.why)
        return None
    if scope.select.args.get("joins") and in_recursion(scope.select):
        raise Leave("a common table expression that reads itself runs it again and again")
    clause = _members(planning, scope)
    if clause is None:
        return None
    found = _sorted(clause)
    groups = _groups(clause, found) or _lone(clause)
    # Above a join of streams an eddy calls predicates under the limits of the whole job, for new rows only;
    # the same one that looks up, if there are lookups.
    streams = clause.streams
    found.place_calls([] if streams and not _looks_up(clause, clause.members) else groups)
    if not groups:
        raise Leave("its relations are linked by conditions that only Spark evaluates")
    check_streams(clause, groups)
    for group in groups:
        _check_complete(clause, group, found)
    why_not = [why for group in groups if (why := why_not_worth(clause, group)) is not None]
    if len(why_not) == len(groups):
        raise Leave("; ".join(why_not))
    inside = {alias for group in groups for alias in group}
    for conjunct in [c for c in found.used if c.single is not None and c.single not in inside]:
        found.used.remove(conjunct)
        found.above.append(conjunct)
    if not clause.source.whole and found.above:
        raise Leave("a condition of an inner join that only Spark evaluates, below a RIGHT or FULL join")
    clause.check_certain()
    members = [clause.members[alias] for alias in inside]
    rewriting = Rewriting(clause, found, members, streaming=bool(streams))
    for group in groups:
        _assemble(clause, group, found, rewriting)
    return rewriting


def _members(planning: Planning, scope: Scope) -> Clause | None:
    """Return the relations that a block may take; the others stay where they are."""
    source = scope.clause
    assert source is not None
    clause = Clause(planning, scope, source)
    free = [(n, step.relation) for n, step in enumerate(clause.steps) if step.movable and step.relation]
    alone = any(planning.lookup(relation) for _, relation in free) or any(asked(clause))
    if len(free) < 2 and not alone:
        if len(clause.steps) > 1:
            raise Leave("no two relations joined by an inner join")
        return None
    if source.mixed and planning.settings.precedence:
        raise Leave("commas beside joins, which spark.sql.ansi.relationPrecedence binds otherwise")
    planning.names.output(scope)  # all columns have to be known
    hinted = _hinted(scope.select)
    for number, relation in free:
        try:
            _check_hints(planning, relation, hinted)
            member = member_of(planning, relation, number, list(clause.members))
        except Leave as leave:
            planning.reasons.append(str(leave))
        else:
            clause.members[member.alias] = member
    return clause if len(clause.members) > 1 or (alone and clause.members) else None


def _check_hints(planning: Planning, relation: Relation, hinted: set[str]) -> None:
    if (relation.alias or "").lower() in hinted and not planning.lookup(relation):
        raise Leave(f"{relation.alias} is joined by Spark, as a hint asks for")


def _hinted(select: exp.Select) -> set[str]:
    """Return the relations that hints name, in lower case: Spark is to join them as the user chose."""
    hint = select.args.get("hint")
    tables = [] if hint is None else [t for each in hint.find_all(exp.JoinHint) for t in each.expressions]
    return {table.name.lower() for table in tables}


def _sorted(clause: Clause) -> Sorted:
    """Return the conditions of the clause by who evaluates them."""
    planning = clause.planning
    translator = Translator(clause.lookup, planning.constants, planning.settings.ansi)
    unscanned = {alias for alias, member in clause.members.items() if member.lookup}

    def text_of(alias: str, node: exp.Expr) -> str | None:
        return condition_text(planning, clause.members[alias], node)

    found = _conjuncts(clause, translator)
    result = sort_conditions(found, translator, text_of, unscanned)
    for left, right in clause.merged():
        equality = _equality(clause, left, right)
        if equality is not None:
            result.equalities.append(equality)
            continue
        reads, foreign = clause.reads_attributes([left, right])
        result.above.append(Conjunct(None, reads, foreign, None, pair=(left, right)))
    return result


def _conjuncts(clause: Clause, translator: Translator) -> list[Conjunct]:
    """Return the conjuncts of inner ONs, and of WHERE where filters may move."""
    planning = clause.planning
    conditions = [on for step in clause.steps if step.movable for on in step.conditions]
    if any(map(planning.volatility.volatile, conditions)):
        raise Leave("a condition of a join that may differ between two calls")
    nodes = clause.source.inner_terms
    operands = [c for node in nodes for c in (*constant_operands(node), *planning.calls.arguments(node))]
    planning.constants.prepare(operands)
    values = SparkValues(planning.settings.time_zone)
    result = []
    for node in nodes:
        inner = unwrap(node)
        if isinstance(inner, exp.Boolean) and inner.this is True:
            continue
        if not planning.statement.has_span(node):
            raise Leave("a condition in a form that Millrace does not read")
        reads, foreign = clause.reads(node)
        predicate, computed = translator.predicate(node), False
        if predicate is None and not foreign and (len(reads) > 1 or _is_scanned(clause, reads)):
            equal = isinstance(inner, exp.EQ) and len(reads) > 1
            with_computed = replace(translator, computed=Computed(clause, direct=equal).column)
            predicate = with_computed.predicate(node)
            computed = predicate is not None
        if predicate is None:
            predicate = planning.calls.in_block(node, clause.lookup, planning.constants, values)
        pushed = pushable(node) and not planning.volatility.volatile(node)
        result.append(Conjunct(node, reads, foreign, predicate, pushed, computed))
    return result


def _is_scanned(clause: Clause, reads: frozenset[str]) -> bool:
    """Tell whether a condition is over one relation that tasks would read themselves."""
    table = clause.members[next(iter(reads))].table if len(reads) == 1 else None
    return table is not None and table.lookup is None and table.parquet is not None


def _equality(clause: Clause, left: Attribute, right: Attribute) -> Equality | None:
    """Return an equality of USING as an edge of the query graph, None where Spark has to compare."""
    a, b = clause.member_column(left), clause.member_column(right)
    if a is None or b is None or not (a[1].comparable and b[1].comparable):
        return None
    kind = comparison_type(a[1].type, b[1].type, ansi=clause.planning.settings.ansi)
    return None if kind is None else Equality(ColumnRef(a[0], a[1].name), ColumnRef(b[0], b[1].name), kind)


def _groups(clause: Clause, found: Sorted) -> list[list[str]]:
    """Return the sets of members that make blocks."""
    inside = {member.step for member in clause.members.values()}
    others = {n: f"#{n}" for n in range(len(clause.steps)) if n not in inside}
    within = [*(e.relations for e in found.equalities), *map(relations_of, found.residuals)]
    linking = [*found.above, *found.calls]
    above = [{*c.reads, *(others[n] for n in c.foreign if n in others)} for c in linking]
    for number, step in enumerate(clause.steps):
        for condition in step.conditions if number in others else ():
            reads, foreign = clause.reads(condition)
            above.append({*reads, others[number], *(others[n] for n in foreign if n in others)})
    groups = split(list(clause.members), list(others.values()), within, above)
    taken = {alias for group in groups for alias in group}
    return groups + [
        [alias] for alias, member in clause.members.items() if alias not in taken and _alone(member, found)
    ]


def _check_complete(clause: Clause, group: list[str], found: Sorted) -> None:
    """Refuse a block that would join without an equality which Spark joins by, and so make more rows.

    Raises:
        Leave: It would.
    """
    if _looks_up(clause, group):
        return
    for conjunct in found.above:
        if len(conjunct.reads) < 2 or not conjunct.reads <= set(group):
            continue
        node = None if conjunct.node is None else unwrap(conjunct.node)
        if isinstance(node, exp.EQ | exp.NullSafeEQ) and node.find(exp.Query) is None:
            left, right = (clause.reads(side)[0] for side in (node.this, node.expression))
            if left & right or not (left and right):
                continue
        elif node is not None:
            continue
        raise Leave(
            f"only Spark evaluates {clause.shown(conjunct)}, and without it more rows would be joined"
        )


def _looks_up(clause: Clause, aliases: Iterable[str]) -> bool:
    """Tell whether some of the members are lookup tables."""
    return any(clause.members[alias].lookup for alias in aliases)


def _alone(member: Member, found: Sorted) -> bool:
    """Tell whether a relation is a block by itself: a lookup table that Spark cannot scan, or need not."""
    lookup = member.lookup
    if lookup is None or lookup.asked:
        return lookup is not None
    filters = found.filters.get(member.alias, ())
    return any(
        all(constants_of(filters, ColumnRef(member.alias, column), lookup) is not None for column in columns)
        for columns in lookup.table.bind
    )


def _lone(clause: Clause) -> list[list[str]]:
    """Return the only member as a block if conditions ask for matches in other relations."""
    return [list(clause.members)] if len(clause.members) == 1 and any(asked(clause)) else []


def _check_lone(clause: Clause, found: Sorted, *, matched: bool) -> None:
    """Refuse a block of one relation where nothing is asked of it, or Spark joins its rows all the same.

    Raises:
        Leave: It is so.
    """
    if not matched:
        raise Leave("no two relations joined by an inner join")
    nodes = [conjunct.node for conjunct in found.above if conjunct.node is not None]
    if any(clause.planning.escapes(query) for node in nodes for query in node.find_all(exp.Query)):
        raise Leave("a relation whose rows Spark joins with those of a correlated subquery")


def _beside(clause: Clause, group: list[str], found: Sorted) -> tuple[list[Beside], list[Beside]]:
    """Take what stands beside a block: what is joined as a set, and what is looked through for matches.

    Joined as sets are relations that may bind a lookup table, those of joins larger than memory, and those of
    joins of streams, whose cells keep what is joined.
    """
    if not clause.source.whole:
        return [], []
    sets = _looks_up(clause, group) or len(clause.streams) > 1
    sets |= clause.planning.settings.options.memory_budget is not None
    taken = list(semijoins(clause, group, found, _hinted(clause.scope.select)))
    for each in taken:
        found.used.append(each.conjunct)
        if each.step is None:
            found.above.remove(each.conjunct)
        else:
            found.steps.add(each.step)
    return (taken, []) if sets else ([], taken)


def _assemble(clause: Clause, group: list[str], found: Sorted, rewriting: Rewriting) -> None:
    """Plan one block: where its rows come from, its join, and its place in the rewritten text."""
    planning = clause.planning
    members = [clause.members[alias] for alias in group]
    equalities = [e for e in found.equalities if e.left.relation in group]
    residuals = [p for p in found.residuals if relations_of(p) & set(group)]
    joined, matched = _beside(clause, group, found)
    if len(members) == 1 and not members[0].lookup:
        _check_lone(clause, found, matched=bool(joined or matched))
    equalities += [equality for each in joined for equality in each.equalities]
    residuals += [each.asked for each in matched]
    sets = [replace(spec, distinct=True) for each in joined for spec, _ in each.relations]
    # What a scan of a lookup table gives would be read again in every micro-batch.
    streams = [alias for alias in clause.streams if alias in group]
    binding = bind(members, sets, equalities, found.filters, scans=not streams)
    equalities, residuals = binding.equalities, [*residuals, *binding.residuals]
    ends = [ref for equality in equalities for ref in equality.ends]
    plain = {ColumnRef(m.alias, f.name) for m in members for f in m.columns}
    piece = rewriting.piece(members, [ref for ref in ends if ref in plain])
    output = piece.output
    times = event_times(clause, group)
    clocks = set() if times is None else {ColumnRef(*each) for each in times.columns.items()}
    read = {*ends, *clocks, *(ref for p in residuals for ref in columns_of(p)), *(o.source for o in output)}
    roles = same_streams(clause, times, found)
    for same in roles:
        read |= with_same_columns(same, read)
    specs: list[RelationSpec] = []
    rows: dict[str, Rows] = {}
    for member in members:
        columns = [f for f in member.every if ColumnRef(member.alias, f.name) in read]
        if member.alias in binding.indexes:
            indexes = binding.indexes[member.alias]
            spec, rows[member.alias] = lookup_rows(
                planning, member, columns, found, indexes, scans=not streams
            )
        else:
            in_cells = times is not None and member.alias in times.columns
            spec, rows[member.alias] = rows_of(planning, member, columns, found, in_cells=in_cells)
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
    native = [c for c in found.above if planning.calls.of(c.node) is None]
    above = tuple(clause.shown(conjunct) for conjunct in native)
    result = None if piece.counting else rewriting.result(piece)
    stream = streams[0] if len(streams) == 1 else None
    plan = BlockPlan(piece.name, join, rows, result, above, piece.aggregate, times, stream)
    rewriting.plans.append(plan)
