"""Queries that need no planning, because they were planned before and nothing that they rest on has changed.

What is kept is how a query runs, never a row of its result. It is used again for the same text, parameters,
tables and options, if Spark still understands the text as it did (functions, views and settings of its
analysis), the settings that planning asked for are the same, and the files are, with their times and sizes.
Common table expressions, which Spark numbers, are compared in the place of their names. Texts with constants
that depend on the clock ('today') are planned each time. Where only Spark could tell whether rows have
changed, nothing is kept. While somebody holds a query or its DataFrame, the same text is planned again, so
that each has figures of its own; what is derived from one that nobody holds any more shares them with the
next, which starts without any.
"""

from __future__ import annotations

import datetime as dt
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import ref

from pyspark.errors import PySparkException

from millrace.errors import MillraceError
from millrace.options import Options
from millrace.spark.path_tables import PathTable
from millrace.spark.reports import live_board
from millrace.spark.session import default_parallelism
from millrace.sql.blocks.cost_model import is_unworthy
from millrace.sql.plan import PlannedQuery
from millrace.sql.session.errors import Analysis
from millrace.sql.session.tables import Catalog, Table, Tables

_MOST = 64
_COPIES = 3
_PLAIN = (type(None), bool, int, float, str, bytes, Decimal, dt.date, dt.time, dt.timedelta)

_lock = Lock()
# The latest, by key and session: a query keeps its session, so no other one can get its identity.
_kept: OrderedDict[tuple[Hashable, int], list[CachedPlan]] = OrderedDict()


@dataclass(eq=False)
class CachedPlan:
    """A query that was prepared, what it rests on, and what it was lent to."""

    prepared: PlannedQuery
    analysis: Analysis  # what the text meant
    settings: Mapping[tuple[str, str | None], str]  # those that were asked for
    parallelism: int
    tables: tuple[tuple[Table, Hashable], ...]  # with the state of each
    unworthy_seconds: float  # the most that a block saves that was left to Spark for Python's start
    holder: ref[Any]

    @property
    def is_free(self) -> bool:
        """Whether nobody holds it."""
        return self.holder() is None

    def lend(self) -> PlannedQuery:
        """Return it for a caller, who then holds it."""
        for block in self.prepared.taken:
            if block.run.reports is not None:
                block.run.reports.forget()
        # Spark makes a plan of its own for it, and keeps no result of an exchange.
        lent = replace(self.prepared, df=self.prepared.df.where("true"))
        self.holder = ref(lent.df)
        return lent

    def is_valid(self, catalog: Catalog) -> bool:
        """Tell whether it would be prepared in the same way now."""
        frames, conf = catalog.frames, catalog.settings.conf
        try:
            return (
                all(conf.get(*setting) == value for setting, value in self.settings.items())
                and all(catalog.state_of(table, now=True) == state for table, state in self.tables)
                and frames.sql(self.analysis.template).sameSemantics(self.analysis.frame)
                and default_parallelism(frames.spark) == self.parallelism
                and (not self.unworthy_seconds or is_unworthy(frames.spark, self.unworthy_seconds))
            )
        except (PySparkException, MillraceError, OSError):
            return False  # preparing it anew tells what is wrong


def key_of(text: str, args: Mapping[str, Any], tables: Tables, options: Options) -> Hashable | None:
    """Return what two calls for one query have in common, None for what is not to be kept."""
    if not all(isinstance(value, _PLAIN) for value in args.values()):
        return None
    paths = {name: at.path if isinstance(at, PathTable) else at for name, at in tables.items()}
    # A DataFrame is kept with its query, so no other one can get its identity.
    named = ((name, str(at) if isinstance(at, str | Path) else id(at)) for name, at in paths.items())
    # Python takes values for equal that are not the same to Spark: two scales of a decimal, two zeros.
    values = ((name, type(value), repr(value)) for name, value in args.items())
    # Tasks of a query that was planned while nobody looked tell nothing while they run.
    key = (text, tuple(values), tuple(named), options, live_board()[1])
    with suppress(TypeError):
        hash(key)
        return key
    return None


def is_known(key: Hashable | None) -> bool:
    """Tell whether a query has been kept in some session."""
    with _lock:
        return any(key == kept for kept, _ in _kept)


def find(key: Hashable | None, catalog: Catalog) -> CachedPlan | None:
    """Return a query that was kept and that nobody holds, None if there is none or something has changed."""
    place = (key, id(catalog.frames.spark))
    with _lock:
        plan = next((copy for copy in _kept.get(place, ()) if copy.is_free), None)
        if plan is None:
            return None
        plan.holder = ref(catalog)  # so that no other thread takes it
        _kept.move_to_end(place)
    if plan.is_valid(catalog):
        return plan
    with _lock:
        _kept.pop(place, None)
    return None


def keep(
    key: Hashable | None, prepared: PlannedQuery, catalog: Catalog, analyse: Callable[[], Analysis | None]
) -> CachedPlan | None:
    """Keep a query and return it, None if it cannot be told when something that it rests on changes.

    ``analyse`` returns what Spark made of the text, which may have to be asked; None where it cannot be
    compared later.
    """
    if key is None or prepared.filters:
        return None
    states = tuple((table, catalog.state_of(table, now=False)) for table in catalog.used)
    if any(state is None for _, state in states) or (analysis := analyse()) is None:
        return None
    spark, settings = catalog.frames.spark, catalog.settings
    settings.conf.get("spark.sql.shuffle.partitions", "200")  # what blocks are cut into depends on it
    _ = settings.ansi, settings.time_zone  # on these depends what Spark does, whatever was asked
    parallelism, asked = default_parallelism(spark), dict(settings.conf.asked)
    # Until it is lent the catalog holds it, so that no other thread takes it.
    kept = CachedPlan(prepared, analysis, asked, parallelism, states, catalog.unworthy_seconds, ref(catalog))
    with _lock:
        copies = _kept.setdefault((key, id(spark)), [])
        copies.append(kept)
        del copies[:-_COPIES]
        while len(_kept) > _MOST:
            _kept.popitem(last=False)
    return kept
