"""Why a lookup table cannot be asked where a query has it, and what would work."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from millrace.errors import InputError
from millrace.lookups.table import LookupTable
from millrace.sql.planning import Planning, short


class Refusal(InputError):
    """A lookup table stands where nothing gives the values to ask it with.

    Attributes:
        place: The name of the first relation of its FROM clause, in lower case.
    """

    place = ""


def refusal(
    planning: Planning, left: Sequence[tuple[exp.Table, LookupTable]], reasons: Sequence[str]
) -> Refusal:
    """Return the error for lookup tables that nothing binds, in their places."""
    texts = []
    for node, table in left:
        alias = node.alias or node.name
        shown = _place(planning, node)
        texts.append(
            f"lookup table {table.name!r} cannot be asked in {shown!r}: nothing there gives values for "
            f"{table.needs(alias)}"
        )
    why = "; ".join(dict.fromkeys(each for each in reasons if each))
    node, table = left[0]
    first = f"{node.alias or node.name}.{table.bind[0][0]}"
    text = "; ".join(texts) + (f" ({why})" if why else "")
    error = Refusal(
        f"{text}. What would work: an equality with what another relation has (… = {first}, of a type that "
        f"compares without a cast of {first}), as a condition of its own in ON or WHERE; constants "
        f"({first} = …, {first} IN (…)); {first} IN (SELECT …); or a scan for the lookup table"
    )
    select = node.find_ancestor(exp.Select)
    start = None if select is None else select.args.get("from_")
    error.place = "" if start is None else start.this.alias_or_name.lower()
    return error


def _place(planning: Planning, node: exp.Table) -> str:
    """Return the text of the FROM clause or join that a table stands in, on one line."""
    found = node.find_ancestor(exp.From, exp.Join, exp.Query)
    shown = planning.shown(found if isinstance(found, exp.From | exp.Join) else node)
    return short(shown.lstrip(", "), 80)
