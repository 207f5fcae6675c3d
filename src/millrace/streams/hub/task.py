"""A hub's join as its cells get it: the continuous join, with lineages on its tuples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations

import pyarrow as pa

from millrace.engine.plan.expressions import And, Column, ColumnRef, Overlap, relations_of
from millrace.engine.plan.spec import JoinSpec, OutputColumn
from millrace.streams.hub.lineage import columns
from millrace.streams.hub.query import terms
from millrace.streams.task import ContinuousJoin

CHANGES = -3
"""Number, in place of a relation's, of a block that holds a change of the queries."""

ENVELOPE = pa.schema(
    [
        pa.field("query", pa.int64()),
        pa.field("change", pa.int64()),
        pa.field("rows", pa.int64()),
        pa.field("block", pa.binary()),
    ]
)
"""What cells give out: a block of a query's rows; or, without one, the number of a change that is made."""


@dataclass(frozen=True)
class Hub(ContinuousJoin):
    """A continuous join for many queries; ``join`` is what they share.

    With ``keeps_all`` the log has the tuples that no query wants, for queries to come.
    """

    keeps_all: bool = True

    def carrying(self, aliases: tuple[str, ...], words: int, reads: frozenset[ColumnRef]) -> ContinuousJoin:
        """Return the join that an eddy runs: of tuples with lineages.

        Tuples without a query in common do not meet: what no query wants any more leaves the eddy as soon as
        that shows.

        The eddy joins the streams ``aliases``. ``words`` are those of a lineage, and ``reads`` are the
        columns of results that some query reads.
        """
        names = columns(words)
        fields = [pa.field(name, pa.uint64()) for name in names]
        relations = tuple(
            replace(each, schema=pa.schema([*each.schema, *fields]))
            for each in self.join.relations
            if each.alias in aliases
        )
        lineages = {alias: tuple(Column(ColumnRef(alias, name)) for name in names) for alias in aliases}
        residuals = [each for each in self.join.residuals if relations_of(each) <= set(aliases)]
        spans = [relations_of(residual) for residual in residuals]
        for a, b in combinations(aliases, 2):
            overlap, pair = Overlap(lineages[a], lineages[b]), frozenset((a, b))
            if pair in spans:
                # With the others over the same relations: each question by itself takes its time.
                residuals[spans.index(pair)] = And((*terms([residuals[spans.index(pair)]]), overlap))
            else:
                residuals.append(overlap)
        refs = sorted(reads, key=lambda ref: (ref.relation, ref.column))
        output = (*refs, *(each.ref for words_ in lineages.values() for each in words_))
        spec = JoinSpec(
            relations,
            tuple(e for e in self.join.equalities if set(e.relations) <= set(aliases)),
            tuple(residuals),
            tuple(OutputColumn(name_of(ref), ref) for ref in output),
        )
        fields_ = {name: getattr(self, name) for name in ContinuousJoin.__dataclass_fields__}
        streams = tuple(each for each in self.streams if each.alias in aliases)
        return ContinuousJoin(**(fields_ | {"join": spec, "streams": streams}))


def name_of(ref: ColumnRef) -> str:
    """Return what a column is called in results of the shared join."""
    return f"{ref.relation}\0{ref.column}"
