"""Find the blocks of one SELECT, and take them."""

from __future__ import annotations

from sqlglot import exp

from millrace.block import Block, Input
from millrace.errors import MillraceError
from millrace.expressions import Call, ColumnRef, columns_of, relations_of
from millrace.front.binding import Constants, bind, constants_of, is_asked, lookup_input, lookup_of
from millrace.front.clause import Clause
from millrace.front.coercion import comparison_type
from millrace.front.components import split
from millrace.front.conjuncts import Conjunct, Sorted, pushable, sort_conjuncts, volatile
from millrace.front.context import Context, Taken
from millrace.front.from_clause import read_chain
from millrace.front.leave import Leave
from millrace.front.predicates import Translator, conjuncts, constant_operands, unwrap
from millrace.front.relations import Member, input_of, member_of
from millrace.front.rewrite import Rewriting
from millrace.front.semijoins import Semijoin, semijoins
from millrace.spark.execute import execute
from millrace.spark.values import spark_values
from millrace.spec import Equality, JoinSpec, OutputColumn, RelationSpec


def take_blocks(context: Context, select: exp.Select) -> list[exp.Expr] | None:
    """Take what can be taken of a SELECT's FROM; note the reason where nothing can.

    Returns:
        The conditions that are in its WHERE now, None when it is as it was.
    """
    scope = context.resolver.scope_of(select)
    try:
        asked = any(s.kind == "table" and s.table is not None and s.table.lookup for s in scope.sources)
        chain = read_chain(context.statement, scope, 1 if asked else 2)
        if chain is None:
            return None
        clause = Clause(context, chain)
        rewriting = _take(clause)
    except Leave as leave:
        context.reasons.append(f"{_where(context, select)}: {leave}")
        return None
    return None if rewriting is None else rewriting.commit()


def _where(context: Context, select: exp.Select) -> str:
    start = select.args.get("from_")
    if start is None or not context.statement.has_span(start):
        return "a FROM clause"
    shown = context.shown(context.statement.span(start))
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _take(clause: Clause) -> Rewriting | None:
    context, chain = clause.context, clause.chain
    _find_members(clause)
    members = clause.members
    if len(members) < 2 and not any(lookup_of(member) for member in members.values()):
        return None
    found = _conjuncts(clause)
    translator = Translator(clause.lookup, context.constants, context.ansi)
    unscanned = {alias for alias, member in members.items() if lookup_of(member) is not None}
    sorted_ = sort_conjuncts(found, translator, context.text_of, unscanned)
    _add_using(clause, sorted_)
    groups = _groups(clause, sorted_)
    sorted_.place_calls(groups)
    if not groups:
        context.reasons.append(
            f"{_where(context, clause.scope.select)}: its relations are linked by conditions that "
            "only Spark evaluates"
        )
        return None
    inside = {alias for group in groups for alias in group}
    for conjunct in [c for c in sorted_.used if c.single is not None and c.single not in inside]:
        sorted_.used.remove(conjunct)
        sorted_.above.append(conjunct)
    _check_outer(clause, sorted_)
    rewriting = Rewriting(context, chain, sorted_)
    rewriting.know([members[alias] for alias in inside])
    for group in groups:
        _assemble(clause, group, sorted_, rewriting)
    return rewriting


def _find_members(clause: Clause) -> None:
    """Collect the relations that a block may take; the others stay where they are."""
    context, chain = clause.context, clause.chain
    inner = [link for link in chain.links[: chain.movable] if link.kind == "inner"]
    if len(inner) < 2 and not any(
        s.kind == "table" and s.table and s.table.lookup for k in inner for s in k.sources
    ):
        where = _where(context, clause.scope.select)
        context.reasons.append(f"{where}: no two relations joined by an inner join")
        return
    seen: set[str] = set()
    for source in clause.scope.sources:
        if source.alias is not None and source.alias in seen:
            raise Leave(f"two relations are named {source.alias}")
        seen.add(source.alias or "")
    for link in inner:
        try:
            member = member_of(context, link)
        except Leave as leave:
            context.reasons.append(str(leave))
            if link.using or link.natural:
                link.fixed = True
            continue
        clause.members[member.alias] = member
    _resolve_using(clause)


def _resolve_using(clause: Clause) -> None:
    """Make USING and NATURAL lists of columns, and hide the right side's columns, as Spark does."""
    chain = clause.chain
    by_source = {id(m.source): m for m in clause.members.values()}
    left: list[Member | None] = []
    for number, link in enumerate(chain.links):
        member = by_source.get(id(link.sources[0])) if len(link.sources) == 1 else None
        if link.natural:
            if member is None or any(m is None for m in left):
                raise Leave("a NATURAL join with a relation whose columns are not known")
            if link.kind != "inner" or number >= chain.movable:
                raise Leave("a NATURAL outer join")
            shown = [m for m in left if m is not None]
            names = [f.name.lower() for f in member.fields]
            link.using = tuple(n for n in names if any(m.shows(n) for m in shown))
        if link.using:
            # An outer USING hides the right side's column too, but Spark resolves it by itself.
            for source in link.sources:
                source.hidden.update(link.using)
        left.append(member)


def _check_outer(clause: Clause, found: Sorted) -> None:
    """Refuse conditions above a block that may not move above a RIGHT or FULL join."""
    if not clause.chain.whole and found.above:
        raise Leave("a condition of an inner join that only Spark evaluates, below a RIGHT or FULL join")


def _conjuncts(clause: Clause) -> list[Conjunct]:
    """Return the conjuncts of inner ONs, and of WHERE where filters may move."""
    context, chain = clause.context, clause.chain
    nodes: list[exp.Expr] = []
    for link in chain.links[: chain.movable]:
        if link.kind == "inner" and not link.fixed:
            for on in link.ons:
                if volatile(on):
                    raise Leave("a condition of a join that may differ between two calls")
                nodes += conjuncts(on)
    if chain.whole and chain.where is not None:
        nodes += conjuncts(chain.where)
    operands = [c for node in nodes for c in (*constant_operands(node), *context.calls.arguments(node))]
    context.constants.prepare(operands)
    values = spark_values(context.spark)
    translator = Translator(clause.lookup, context.constants, context.ansi)
    result = []
    for node in nodes:
        inner = unwrap(node)
        if isinstance(inner, exp.Boolean) and inner.this is True:
            continue
        text = context.text_of(node)
        if text is None:
            raise Leave("a condition in a form that Millrace does not read")
        reads, foreign = _reads(clause, node)
        predicate = translator.predicate(node)
        if predicate is None:
            predicate = context.calls.in_block(node, clause.lookup, context.constants, values)
        result.append(Conjunct(node, text, reads, foreign, predicate, pushable(node)))
    return result


def _reads(clause: Clause, node: exp.Expr) -> tuple[frozenset[str], frozenset[int]]:
    """Return the members a condition reads, and the numbers of links of other relations it reads.

    What lies outside of this FROM clause, or is not known, has the number -1.
    """
    members = {id(m.source): m.alias for m in clause.members.values()}
    numbers = {id(s): n for n, link in enumerate(clause.chain.links) for s in link.sources}
    reads: set[str] = set()
    foreign: set[int] = set()
    for column in node.find_all(exp.Column):
        found = clause.context.find(column)
        own = clause.context.resolver.scope_at(column) is clause.scope
        if found is not None and found.scope is clause.scope and own:
            if id(found.source) in members:
                reads.add(members[id(found.source)])
            else:
                foreign.add(numbers.get(id(found.source), -1))
        elif own:
            foreign.add(-1)
    return frozenset(reads), frozenset(foreign)


def _add_using(clause: Clause, found: Sorted) -> None:
    """Add the equalities of USING between members."""
    by_source = {id(m.source): m for m in clause.members.values()}
    left: list[Member] = []
    for link in clause.chain.links[: clause.chain.movable]:
        member = by_source.get(id(link.sources[0])) if len(link.sources) == 1 else None
        if member is not None:
            for name in link.using:
                other = next((m for m in left if m.shows(name)), None)
                if other is None:
                    raise Leave(f"USING({name}) over columns that are not known")
                a, b = other.field(name), member.field(name)
                kind = comparison_type(a.type, b.type, ansi=clause.context.ansi)
                if kind is None or not (a.comparable and b.comparable):
                    raise Leave(f"USING({name}) over columns that only Spark compares")
                refs = (ColumnRef(other.alias, a.name), ColumnRef(member.alias, b.name))
                found.equalities.append((Equality(*refs, kind), None))
            left.append(member)


def _groups(clause: Clause, found: Sorted) -> list[list[str]]:
    """Return the sets of members that make blocks."""
    chain = clause.chain
    others = {n: f"#{n}" for n, link in enumerate(chain.links) if not _is_member(clause, n)}
    within = [{e.left.relation, e.right.relation} for e, _ in found.equalities]
    within += [set(relations_of(p)) for p, _ in found.residuals]
    linking = [*found.above, *found.calls]
    above = [{*c.reads, *(others[n] for n in c.foreign if n in others)} for c in linking]
    for number, link in enumerate(chain.links):
        if number in others and link.join is not None and link.join.args.get("on") is not None:
            reads, foreign = _reads(clause, link.join.args["on"])
            above.append({*reads, others[number], *(others[n] for n in foreign if n in others)})
    groups = split(list(clause.members), list(others.values()), within, above)
    inside = {alias for group in groups for alias in group}
    return groups + [
        [alias] for alias in clause.members if alias not in inside and _alone(clause, alias, found)
    ]


def _alone(clause: Clause, alias: str, found: Sorted) -> bool:
    """Tell whether a relation is a block by itself: a lookup table that Spark cannot scan, or need not."""
    member = clause.members[alias]
    lookup = lookup_of(member)
    if lookup is None or is_asked(member):
        return lookup is not None
    filters = found.filters.get(alias, ())
    return any(
        all(constants_of(filters, ColumnRef(alias, column), lookup) is not None for column in columns)
        for columns in lookup.table.bind
    )


def _is_member(clause: Clause, number: int) -> bool:
    link = clause.chain.links[number]
    return any(m.link is link for m in clause.members.values())


def _assemble(clause: Clause, group: list[str], found: Sorted, rewriting: Rewriting) -> None:
    """Make one block: its inputs, its join, and its place in the rewritten text."""
    context = clause.context
    members = [clause.members[alias] for alias in group]
    equalities = [e for e, _ in found.equalities if e.left.relation in group]
    residuals = [p for p, _ in found.residuals if relations_of(p) & set(group)]
    calls = [p for p in residuals if isinstance(p, Call)]
    joined = list(semijoins(clause, group, found)) if clause.chain.whole else []
    for semijoin in joined:
        found.above.remove(semijoin.conjunct)
        found.used.append(semijoin.conjunct)
        equalities += semijoin.equalities
    binding = bind(context, members, [each.spec for each in joined], equalities, found.filters)
    equalities, residuals = binding.equalities, [*residuals, *binding.residuals]
    piece = rewriting.piece(members)
    counting = rewriting.counts_only(piece)
    if not counting and not piece.names:
        rewriting.keep_one(piece, [ref for ref in _ends(equalities) if ref.relation in group])
    output = (
        ()
        if counting
        else tuple(OutputColumn(name, ColumnRef(alias, column)) for name, alias, column in piece.outputs)
    )
    read = set(_ends(equalities))
    read |= {ref for p in residuals for ref in columns_of(p)} | {o.source for o in output}
    specs: list[RelationSpec] = []
    inputs: dict[str, Input] = {}
    scans: list[tuple[str, str]] = []
    for member in members:
        columns = [f for f in member.fields if ColumnRef(member.alias, f.name) in read]
        given: Input
        if member.alias in binding.indexes:
            indexes, where = binding.indexes[member.alias], ""
            spec, given = lookup_input(context, member, columns, found, indexes)
        else:
            spec, given, where = input_of(context, member, columns, found)
        specs.append(spec)
        inputs[member.alias] = given
        if where:
            scans.append((member.alias, where))
    extras: list[Semijoin | Constants] = [*joined, *binding.constants]
    for extra in extras:
        specs.append(extra.spec)
        inputs[extra.spec.alias] = extra.input
    join = JoinSpec(
        tuple(specs),
        tuple(dict.fromkeys(equalities)),
        # A user's function need not be hashable, so calls are not compared.
        (*dict.fromkeys(p for p in residuals if not isinstance(p, Call)), *calls),
        output,
        counting,
    )
    block = Block(f"b{rewriting.number(piece)}", join, inputs)
    try:
        run = execute(context.spark, block, context.options)
    except MillraceError as error:
        raise Leave(str(error)) from None
    rewriting.place(piece, run.frame, counting=counting)
    native = [c for c in found.above if context.calls.of(c.node) is None]
    above = tuple(context.shown(context.statement.span(c.node)) for c in native)
    rewriting.taken.append(Taken(block, run, above, tuple(scans)))


def _ends(equalities: list[Equality]) -> list[ColumnRef]:
    return [ref for equality in equalities for ref in (equality.left, equality.right)]
