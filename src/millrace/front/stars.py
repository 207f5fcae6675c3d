"""``*`` and ``t.*`` as lists of columns, in Spark's order."""

from __future__ import annotations

from sqlglot import exp

from millrace.front.from_clause import Chain
from millrace.front.leave import Leave
from millrace.front.names import Source
from millrace.front.relations import Member
from millrace.front.texts import quote

# A column of a member by its name, or text before ``.*`` of a relation that stays.
Item = tuple[Member | str, str]


def expand(chain: Chain, members: dict[int, Member]) -> list[tuple[exp.Expr, list[Item]]]:
    """Return the stars among a SELECT's items that show a member's columns, with those columns.

    ``members`` are the relations that blocks take, by the id of their source.

    Raises:
        Leave: A star stands where it cannot be written out.
    """
    result: list[tuple[exp.Expr, list[Item]]] = []
    select = chain.scope.select
    for item in select.expressions:
        if isinstance(item, exp.Star):
            _plain(item)
            result.append((item, _everything(chain, members)))
        elif isinstance(item, exp.Column) and isinstance(item.this, exp.Star):
            _plain(item.this)
            qualifier = tuple(part.name.lower() for part in item.parts[:-1])
            source = next((s for s in chain.scope.sources if s.answers_to(qualifier)), None)
            if source is None:
                # A struct's fields, or a relation of a form that stays with Spark.
                raise Leave("a star over something other than a relation")
            if id(source) in members:
                result.append((item, _of_member(chain, members, members[id(source)])))
    _check_inner_stars(chain, {id(item) for item, _ in result})
    return result


def _plain(star: exp.Star) -> None:
    if any(star.args.values()):
        raise Leave("a star with EXCEPT or REPLACE")


def _of_member(chain: Chain, members: dict[int, Member], member: Member) -> list[Item]:
    names = [f.name for f in member.fields]
    if not _merges(chain):
        return [(member, name) for name in names]
    # USING moves its columns to the front; the ones it hides come before all others.
    hidden: list[Item] = [(member, n) for n in names if n.lower() in member.source.hidden]
    return hidden + [item for item in _everything(chain, members) if item[0] is member]


def _merges(chain: Chain) -> bool:
    return any(link.using or link.natural for link in chain.links)


def _everything(chain: Chain, members: dict[int, Member]) -> list[Item]:
    merged = _merges(chain)
    items: list[Item] = []
    for link in chain.links:
        if link.semi:
            continue
        if merged and (len(link.sources) != 1 or id(link.sources[0]) not in members or link.kind != "inner"):
            raise Leave("a star over USING or NATURAL joins of which some stay with Spark")
        for source in link.sources:
            member = members.get(id(source))
            if member is None:
                items.append((_name(source), "*"))
                continue
            new: list[Item] = [(member, f.name) for f in member.fields]
            if link.using:
                keys = [i for name in link.using for i in items if i[1].lower() == name]
                items = keys + [i for i in items if i not in keys]
                new = [i for i in new if i[1].lower() not in link.using]
            items += new
    return items


def _name(source: Source) -> str:
    if source.alias is None:
        raise Leave("a star over a relation without a name")
    return quote(source.node.alias or source.node.name)


def _check_inner_stars(chain: Chain, known: set[int]) -> None:
    """Refuse stars inside expressions, ``count(*)`` aside."""
    select = chain.scope.select
    for star in select.find_all(exp.Star):
        owner: exp.Expr = star.parent if isinstance(star.parent, exp.Column) else star
        if id(owner) in known or owner.parent is select:
            continue
        if star.find_ancestor(exp.Select) is select and not isinstance(star.parent, exp.Count):
            raise Leave("a star inside an expression")
