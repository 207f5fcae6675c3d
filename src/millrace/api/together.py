"""``millrace.together``: several queries, whose common joins run once."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import indent
from typing import TYPE_CHECKING, Self

from pyspark.sql import functions as sf
from sqlglot import exp

from millrace.api.query import Query
from millrace.errors import MillraceError
from millrace.options import Options
from millrace.spark.block import PreparedBlock
from millrace.spark.execute import execute
from millrace.spark.frames import Carried, carry, remember
from millrace.spark.session import internal_query
from millrace.sql.blocks.cost_model import is_cut
from millrace.sql.plan import PlannedBlock
from millrace.sql.session.errors import contain
from millrace.sql.syntax.parse import parse
from millrace.sql.together import ALONE, NUMBER, SharedBlock, share, shared_blocks, why_not_shared

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_KEPT = "_millrace_kept"
_log = logging.getLogger("millrace")


class Together(list["DataFrame"]):
    """The DataFrames of :func:`millrace.together`, in the order of their queries; a context manager."""

    def __init__(self, frames: Iterable[DataFrame], kept: Sequence[KeptJoin]) -> None:
        super().__init__(frames)
        self._release = [each.release for each in kept]

    def close(self) -> None:
        """Release what Spark keeps for the queries; their next actions compute it anew."""
        for release in self._release:
            release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class KeptJoin:
    """A shared join, whose rows Spark keeps while something refers to this.

    Attributes:
        handle: What Spark's plans are explained by that have the join.
    """

    def __init__(self, shared: SharedBlock, run: PreparedBlock, options: Options, title: str) -> None:
        self.run = run
        self.rows = run.frame.persist()
        # The handle may outlive this, so it has another DataFrame.
        frame = self.rows.where("true")
        self.handle = Query(frame, (PlannedBlock(shared.block, run),), [], title, options=options, text=title)
        remember(frame, self.handle, self.handle.runs, title)
        self.release = weakref.finalize(self, _unpersist, self.rows)
        self.release.atexit = False


def _unpersist(rows: DataFrame) -> None:
    try:
        with internal_query():
            rows.unpersist()
    except Exception as error:  # noqa: BLE001  # the session may have ended
        _log.debug("rows of a shared join are not released", exc_info=error)


def plan_together(queries: Sequence[Query], options: Options) -> Together:
    """Return the DataFrames of queries that are ready to run, with one join in the place of equal ones."""
    sites: list[tuple[int, PlannedBlock]] = []
    alone: list[list[str]] = [[] for _ in queries]
    for number, query in enumerate(queries):
        why = _why_alone(query)
        alone[number] += [] if why is None else [f"it is not run with other queries: {why}"]
        for planned in query.taken if why is None else ():
            barred = why_not_shared(planned.block)
            if barred is None:
                sites.append((number, planned))
            else:
                alone[number].append(f"{planned.block.name} is not run with other queries: {barred}")
    kept: list[KeptJoin] = []
    given: list[dict[str, SharedRows]] = [{} for _ in queries]
    for group in shared_blocks([planned.block for _, planned in sites]):
        members = [sites[place] for place in group]
        why = ALONE
        if len(members) > 1:
            try:
                kept.append(_keep(f"together{len(kept)}", queries, members, options, given))
                continue
            except Exception as error:  # noqa: BLE001  # each of them runs by itself
                why = str(error) if isinstance(error, MillraceError) else contain(error)
        for number, planned in members:
            alone[number].append(f"{planned.block.name} is not run with other queries: {why}")
    return Together(map(_frame, queries, given, alone), kept)


def _keep(
    name: str,
    queries: Sequence[Query],
    members: Sequence[tuple[int, PlannedBlock]],
    options: Options,
    given: Sequence[dict[str, SharedRows]],
) -> KeptJoin:
    """Return one join for blocks of queries, by the queries' numbers, and give them its rows."""
    shared = share(name, [planned.block for _, planned in members])
    title = f"join for queries {', '.join(str(number + 1) for number, _ in members)}"
    with internal_query():
        run = execute(queries[members[0][0]].df.sparkSession, shared.block, options)
        kept = KeptJoin(shared, run, options, title)
    for place, (number, planned) in enumerate(members):
        given[number][planned.block.name] = SharedRows(kept, shared, place, title)
    return kept


@dataclass(frozen=True)
class SharedRows:
    """The rows of a block that a shared join has for it."""

    kept: KeptJoin
    shared: SharedBlock
    place: int
    title: str

    def frame(self) -> DataFrame:
        """Return them with the columns, types and nullability of the block."""
        columns = [
            sf.col(name).alias(field.name, metadata=field.metadata)
            for name, field in self.shared.columns(self.place)
        ]
        return self.kept.rows.where(sf.col(NUMBER) == self.place).select(columns)

    def explain_as(self, name: str, frame: DataFrame) -> PlannedBlock:
        """Return the block as its query explains and reports it."""
        run, own = self.kept.run, self.shared.shown_conditions(self.place)
        first = f"block {name}: rows of one {self.title}; of these, {own}"
        block = replace(self.shared.members[self.place], name=name)
        return PlannedBlock(block, replace(run, frame=frame, plan=f"{first}\n{indent(run.plan, '  ')}"))


def _frame(query: Query, given: Mapping[str, SharedRows], alone: Sequence[str]) -> DataFrame:
    """Return a query's DataFrame over the rows of shared joins, if it has some."""
    reasons = [*query.reasons, *alone]
    with internal_query():
        if not given:
            handle = Query(**vars(replace(query, reasons=reasons)))
            return remember(query.df, handle, query.runs, query.text)
        assert query.over is not None, "it shares a block, so it has one"
        rows = {name: each.frame() for name, each in given.items()}
        base = query.over(rows)
        taken = tuple(
            given[each.block.name].explain_as(each.block.name, rows[each.block.name])
            if each.block.name in given
            else each
            for each in query.taken
        )
        shared = tuple(f"{name}, with the {each.title}" for name, each in given.items())
        made = replace(
            query, df=base, taken=taken, reasons=reasons, direct=None, shared=(*query.shared, *shared)
        )
        handle = Query(**vars(made))
        frame = base.where("true")  # lets go of what is kept for it when it goes itself, as no handle does
        vars(frame)[_KEPT] = [each.kept for each in given.values()]
        joins = {each.kept.run.name for each in given.values()}
        carry(frame, Carried(frozenset(joins), not query.options.progress, frame.sparkSession))
        own = {run: block for run, block in handle.runs.items() if run not in joins}
        return remember(frame, handle, own, query.text)


def _why_alone(query: Query) -> str | None:
    """Return why nothing of a query is run with others, or None."""
    if not query.taken:
        return "Spark runs all of its joins"
    if query.over is None or query.filters:
        return "it has lookups, or calls predicates of Python"
    root = parse(query.text, {}).root
    if root is None or any(map(is_cut, root.find_all(exp.Select))):
        return "a LIMIT ends it early"
    return None
