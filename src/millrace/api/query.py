"""What a query became, and what any DataFrame that Millrace returned is asked for: rows, plan, figures."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from millrace.api.samples import estimate_lookups
from millrace.engine.eddy.partial import find_missing
from millrace.engine.figures import CellFigures
from millrace.engine.plan.expressions import Predicate, show
from millrace.errors import ExecutionError, OptionError, QueryError, UnsupportedType
from millrace.options import Options
from millrace.predicates.estimate import CostPreview
from millrace.reports.micro_batch import PREFIX
from millrace.reports.planned import SPARKS_PLAN, BlockShape, Explanation, Planned, now, settings
from millrace.reports.run_report import RunReport
from millrace.spark import frames
from millrace.spark.block import Block, FrameInput, LookupInput, ParquetInput, scan_of
from millrace.spark.coordinator import Limits, Lookups, Registered
from millrace.spark.session import Mode, planned
from millrace.spark.streaming import ReaderPreference, refuse_endless, sender_of, stream_of
from millrace.spark.types import arrow_schema
from millrace.sql.plan import PlannedBlock, PlannedQuery
from millrace.sql.preference import read_preference

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millrace.limits.progress import LookupProgress

_ACTION = "to_batches"
MISSING = "__missing"
"""The column that tells which relations a partial row lacks; null in a complete one."""
_TEXTS = ("lookup", "key", "error", "message")
FAILED_KEYS = pa.schema([*((name, pa.string()) for name in _TEXTS), ("attempts", pa.int64())])
"""The columns of :meth:`Query.failed_keys`."""


class Query(PlannedQuery):
    """A query that is ready to run: :class:`~millrace.sql.plan.PlannedQuery` says what it holds."""

    _estimating: Callable[[int, int, Mapping[str, float] | None], CostPreview] | None = None

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks that eddies run, inner ones first."""
        return tuple(plan.block for plan in self.taken)

    def explain(self, mode: Mode = "simple") -> Explanation:
        """Return every block and filter, what stays with Spark and why, and Spark's own plan.

        See :func:`millrace.explain`.
        """
        return Explanation("\n".join([*self.explain_lines(), SPARKS_PLAN, planned(self.df, mode)]))

    def explain_lines(self) -> list[str]:
        """Return what :meth:`explain` says, but for Spark's own plan."""
        lines: list[str] = []
        for plan in self.taken:
            lines += _explain(plan)
        for filter_ in self.filters:
            first, *rest = filter_.mask.plan.split("\n")
            lines += [f"{filter_.name}: {first}", *rest]
            lines += [f"  stands for {' AND '.join(filter_.calls)}"] if filter_.calls else []
        if not self.taken:
            lines.append(f"no block: Spark runs the {'rest of the' if self.filters else 'whole'} query")
        lines += [f"computed once: {line}" for line in self.shared]
        lines += ["how tables are read", *(f"  {line}" for line in self.stored)] if self.stored else []
        if self.reasons:
            lines.append("left to Spark")
            lines += [f"  {reason}" for reason in self.reasons]
        return [*lines, "text that Spark runs", f"  {self.rewritten}"]

    def show(self, rows: int = 20) -> None:
        """Run the query and print its first rows, as a DataFrame's ``show`` does."""
        self.df.show(rows)

    def __repr__(self) -> str:
        columns = self.df.schema.simpleString().removeprefix("struct")
        parts = f"{len(self.taken)} block(s), {len(self.filters)} filter(s)"
        return f"<Query: {parts}, columns {columns}; .show(), .explain(), .report()>"

    def _repr_html_(self) -> str:
        """Return what notebooks show: the explanation, and behind it the report once there is one."""
        explanation = Explanation("\n".join(self.explain_lines()))._repr_html_()
        try:
            return explanation + self.report()._repr_html_()
        except ExecutionError:
            return explanation

    def estimate(
        self, sample: int = 200, seed: int = 0, prices: Mapping[str, float] | None = None
    ) -> CostPreview:
        """Return what the query's predicates of Python and lookups are expected to take, before you pay.

        The rest of the query is run, without predicates, and a uniform sample of its rows really judged, in
        this process; where a predicate has ``answers`` these are kept. See :func:`millrace.estimate`. Of
        lookups the distinct keys are counted and a sample of them really asked for; where a lookup has a
        ``cache`` their rows are kept. Both have their limits and budgets. Predicates whose rows come from
        lookups are left out, as are lookups whose keys come from lookups: these would have to be paid for.

        >>> query = millrace.query("SELECT … WHERE is_spam(text)", predicates=[is_spam])  # doctest: +SKIP
        >>> print(query.estimate())  # doctest: +SKIP

        Args:
            sample: Rows to judge, and keys to ask for.
            seed: Of the sample.
            prices: Of a predicate's request, by the predicate's name; its own ``cost`` by default.

        Raises:
            QueryError: It has neither, or calls a predicate elsewhere than alone in the outermost WHERE.
            MillraceError: As :func:`millrace.estimate`.
        """
        preview = estimate_lookups(self, sample, seed)
        if preview is None and self._estimating is not None:
            preview = self._estimating(sample, seed, prices)
        if preview is None:
            raise QueryError(
                "the query has no lookup and calls no predicate of Python that could be estimated"
            )
        return preview

    def to_batches(
        self,
        batch_size: int | None = None,
        prefer: str | Sequence[str] | None = None,
        partial: str | Sequence[str] = (),
    ) -> Rows:
        """Run it and yield rows as they come, also with an ORDER BY; see :func:`millrace.to_batches`."""
        _check(batch_size)
        direct, partial = self.direct, _texts("partial", partial)
        wanted = _texts("prefer", prefer)
        plans = [each for each in self.taken if direct is not None and each.block.name == direct.block]
        if direct is None or not plans or not _same_types(self, plans[0].block, direct.columns):
            if prefer is not None or partial:
                raise QueryError(_why_no_preference(self.reasons))
            return Rows(_frame_stream(self.df, self.options, batch_size))
        # The block's own rows, where Spark does nothing above it.
        plan, preference, read = plans[0], None, None
        schema, missing = arrow_schema(self.df.schema), tuple[str, ...]()
        if partial:
            looked_up = {
                alias: [index.columns for index in source.indexes]
                for alias, source in plan.block.inputs.items()
                if isinstance(source, LookupInput) and source.scan is None and not source.sources
            }
            missing = find_missing(plan.block.join, partial, looked_up)
            _check_partial(self.options, schema)
        if prefer is not None or missing:
            _check_preferring(self.options, plan.block)
            join, spark, options = plan.block.join, self.df.sparkSession, self.options
            read = functools.partial(read_preference, join=join, spark=spark, options=options)
            preference = ReaderPreference(read(wanted), missing)
        batches = frames.rows_of_action(_ACTION, self.df, plan.run.stream(preference))
        return Rows(_shaped(batches, direct.columns, schema, batch_size, missing), preference, read)

    def lookups(self) -> list[LookupProgress]:
        """Return how far the query's lookups are, at any time, also while it runs."""
        return [progress for lookups in self._lookups for progress in lookups.progress()]

    @property
    def _lookups(self) -> list[Lookups]:
        return [registered for registered in self._registered if isinstance(registered, Lookups)]

    @property
    def _registered(self) -> list[Registered]:
        """The lookups of its blocks, and the limits of predicates in its blocks and filters."""
        blocks = [registered for plan in self.taken for registered in plan.run.registered]
        return [*blocks, *(filter_.mask.limits for filter_ in self.filters)]

    def failed_keys(self) -> pa.Table:
        """Return the keys that could not be looked up; see :func:`millrace.monitor.failed_keys`.

        With ``on_error="fail"`` the first failure ends the query.
        """
        failed = [key for lookups in self._lookups for key in lookups.failed()]
        rows = [(key.name, key.key, key.kind, key.message, key.attempts) for key in failed]
        return pa.Table.from_pylist(
            [dict(zip(FAILED_KEYS.names, row, strict=True)) for row in rows], FAILED_KEYS
        )

    @property
    def runs(self) -> dict[str, str]:
        """The names of its blocks and filters, by the names of their runs, as Spark's plans have them."""
        blocks = {plan.run.name: plan.block.name for plan in self.taken}
        return blocks | {filter_.mask.reports.sink.run: filter_.name for filter_ in self.filters}

    @property
    def tasks(self) -> dict[str, int]:
        """How many tasks each run has at most, by its name, where that is known."""
        return {plan.run.name: plan.run.tasks for plan in self.taken if plan.run.tasks is not None}

    @property
    def scans(self) -> frames.Scans:
        """What tasks read of files themselves, by the functions of its runs."""
        found = {}
        for plan in self.taken:
            scans = map(scan_of, plan.block.inputs.values())
            found[frames.task_name(plan.run.name)] = tuple(s for s in scans if isinstance(s, ParquetInput))
        return found

    def report(self, executed: DataFrame | None = None) -> RunReport:
        """Return the figures of the latest run of :attr:`df`.

        A filter that no row reached has none. A run that stops early may leave none: then it is the one
        before it.

        Args:
            executed: A DataFrame derived from :attr:`df` whose action it was, which Spark Connect needs to
                know.

        Raises:
            ExecutionError: ``df`` has not run yet, or the option ``report`` is off; or it joins streams, for
                which each query that was started of it has a report of its own.
        """
        if any(name.startswith(PREFIX) for name in self.runs):
            raise ExecutionError(
                "a join of streams has a report for each query that was started of it: "
                "millrace.streams.report(df.writeStream.….start())"
            )
        figures: dict[str, list[CellFigures]] = {}
        for plan in self.taken:
            reports = plan.run.reports
            figures[plan.block.name] = [] if reports is None else reports.figures(executed or self.df)
        nothing: ExecutionError | None = None
        for filter_ in self.filters:
            try:
                figures[filter_.name] = filter_.mask.reports.figures(executed or self.df)
            except ExecutionError as error:
                nothing = error
        if nothing is not None and not figures:
            raise nothing
        return replace(self.status(), blocks=figures)

    def status(self) -> RunReport:
        """Return what is known at any time, without figures: the plan, lookups, budgets."""
        budgets = tuple(spent for registered in self._registered for spent in registered.spent())
        limits = [registered for registered in self._registered if isinstance(registered, Limits)]
        calls = tuple(progress for limit in limits for progress in limit.progress())
        plan = Planned(
            {plan.block.name: _shape(plan.block) for plan in self.taken},
            tuple(self.reasons),
            settings(self.options),
            tuple(text for registered in self._registered for text in registered.weakened_guarantees),
            self.text,
            now(),
        )
        return RunReport({}, plan, tuple(self.lookups()), budgets, calls)


class Rows(Iterator[pa.RecordBatch]):
    """The rows of a query that runs, in batches, as they come; see :func:`to_batches`."""

    def __init__(
        self,
        batches: Generator[pa.RecordBatch],
        preference: ReaderPreference | None = None,
        read: Callable[[Sequence[str]], tuple[Predicate, ...]] | None = None,
    ) -> None:
        self._batches, self._preference, self._read = batches, preference, read

    def __next__(self) -> pa.RecordBatch:
        return next(self._batches)

    def prefer(self, *conditions: str) -> None:
        """Let other rows come first from now on, the most wanted first; without a condition none does.

        Tasks hear of it at once. Rows that they have sent already come all the same.

        Raises:
            QueryError: The rows were asked for without ``prefer=``, or a condition is none that tasks
                evaluate; then what was wanted before still is.
            InputError: A condition names no column that the query reads, or several relations.
            OptionError: A condition is no text.
        """
        if self._preference is None or self._read is None:
            raise QueryError(
                "these rows were asked for without a preference, so their tasks listen to none: ask with "
                "to_batches(prefer=[…]), which may be an empty list"
            )
        self._preference.change(self._read(_texts("prefer", conditions)))

    def close(self) -> None:
        """Take no more rows, and cancel the job if it still runs."""
        self._batches.close()


def _check_preferring(options: Options, block: Block) -> None:
    """Raise for settings with which tuples have a fixed way, or are not in memory."""
    if options.memory_budget is not None and len(block.join.sources) > 1:
        raise OptionError(
            "prefer or partial is given with option memory_budget, under which joins spill whole parts of "
            "their tables: expected one of the two"
        )
    if options.architecture == "static":
        raise OptionError(
            "prefer or partial is given with architecture='static', whose tuples take one way in one order: "
            "expected one of the two"
        )


def _check_partial(options: Options, schema: pa.Schema) -> None:
    """Raise for join state that shows no partial results, and for a column of the same name."""
    if options.architecture not in ("auto", "stems"):
        raise OptionError(
            f"partial is given with architecture={options.architecture!r}, which shows no rows before they "
            "are complete: expected 'stems' or 'auto'"
        )
    if MISSING in schema.names:
        raise QueryError(f"partial adds column {MISSING!r}, which the query has: give its own another name")


def _why_no_preference(reasons: Sequence[str]) -> str:
    left = f" (left to Spark: {'; '.join(reasons)})" if reasons else ""
    return (
        f"prefer or partial is given for rows that come from Spark{left}, which has neither: expected a join "
        "that Millrace runs, and above it nothing but columns; leave out ORDER BY, LIMIT, DISTINCT, "
        "aggregates and computed columns, or leave out prefer and partial"
    )


def _shape(block: Block) -> BlockShape:
    join = block.join
    return BlockShape(
        tuple(relation.alias for relation in join.sources),
        tuple((*e.relations, str(e)) for e in join.equalities),
        tuple(show(each) for each in (*join.residuals, *join.outer)),
    )


def _explain(plan: PlannedBlock) -> list[str]:
    join = plan.block.join
    lines = plan.run.plan.split("\n")
    for alias, rows in plan.block.inputs.items():
        if isinstance(rows, FrameInput) and rows.where:
            lines.append(f"  {alias}: Spark filters it by {rows.where}")
    for alias, block_input in plan.block.inputs.items():
        if isinstance(block_input, LookupInput):
            lines += _explain_lookup(alias, block_input)
    if join.count_only:
        lines.append("  only counts rows")
    else:
        lines.append("  gives " + ", ".join(f"{o.source} as {o.name}" for o in join.output))
    spec = plan.block.aggregate
    if spec is not None:
        partials = ", ".join(
            f"{p.how}({'*' if p.value is None else show(p.value)}) as {p.name}" for p in spec.partials
        )
        by = f"by {', '.join(spec.keys)}" if spec.keys else "all to one row"
        lines.append(f"  aggregates them partially {by}: {partials or 'each once'}")
    lines += [f"  Spark evaluates above it: {text}" for text in plan.block.above]
    return lines


def _explain_lookup(alias: str, lookup: LookupInput) -> list[str]:
    """Return how a lookup table is asked, without secrets."""
    lines = [f"  {alias} is looked up"]
    for index in lookup.indexes:
        source = index.source
        text = f"    by {index.describe()} via {source.kind}: {source.describe()}; "
        text += source.terms.describe()
        lines.append(f"{text}; on_error={index.on_error}")
        kept = "for ever" if index.ttl is None else f"for {index.ttl:g} s"
        lines.append("    no cache" if index.cache is None else f"    cache {index.cache}, kept {kept}")
    lines += [f"    scan via {source.kind}: {source.describe()}" for source in lookup.sources]
    if lookup.scan is not None:
        lines.append(
            f"    scan of {'a DataFrame' if isinstance(lookup.scan, FrameInput) else lookup.scan.table.path}"
        )
    if lookup.filters:
        lines.append(f"    keeps rows where {' AND '.join(map(show, lookup.filters))}")
    return lines


# Any DataFrame


def explain(df: DataFrame, mode: Mode = "simple") -> Explanation:
    """Return, as text (in notebooks by parts), what Millrace does for a DataFrame, and what Spark does.

    Args:
        df: One that Millrace returned, or one derived from it.
        mode: Of Spark's plan: ``"simple"`` is the physical one, ``"extended"`` all of them, ``"cost"`` with
            Spark's estimates.

    Raises:
        MillraceError: Millrace has no part in it, or the mode is another.
    """
    handles, why = frames.handles_of(df), ""
    if frames.own_handle(df) is None:
        df = frames.latest_run(df)
        why = frames.why_left(df)
    if len(handles) == 1 and not why:
        lines, df = handles[0].explain_lines(), handles[0].df
    else:
        lines = []
        for number, handle in enumerate(handles, 1):
            lines += [f"part {number} of {len(handles)}", *handle.explain_lines()]
    lines += ["what stands above is left to Spark", f"  {why}"] if why else []
    return Explanation("\n".join([*lines, SPARKS_PLAN, planned(df, mode)]))


def report(df: DataFrame) -> RunReport:
    """Return the figures of the latest run of a DataFrame that Millrace returned, or of one derived from it.

    Raises:
        MillraceError: Millrace has no part in it, it has not run yet, or the option ``report`` is off.
    """
    handles, df = frames.handles_of(df), frames.latest_run(df)
    if len(handles) == 1:
        return handles[0].report(df)
    return RunReport.of_parts([handle.report(df) for handle in handles])


def to_batches(
    df: DataFrame,
    batch_size: int | None = None,
    prefer: str | Sequence[str] | None = None,
    partial: str | Sequence[str] = (),
) -> Rows:
    """Run any DataFrame and yield its rows as they come, while Spark's tasks still run.

    Their order is that in which they come. Closing the iterator, or Ctrl-C, cancels the job.

    >>> rows = query.to_batches(prefer=["o.region = 'EU'", "o.total > 1000"])  # doctest: +SKIP
    >>> first = next(rows)  # doctest: +SKIP
    >>> rows.prefer("c.name LIKE 'A%'")  # doctest: +SKIP

    A preference changes the order of rows alone. Row groups that may hold wanted rows are read first. Of what
    is read wanted rows go first through joins, predicates and lookups; the others wait, in up to 256 MiB of a
    task's memory. The routing policy is ``interactive`` unless you name another (Raman, Deshpande &
    Hellerstein 2003, section 4.1; Raman, Raman & Hellerstein 1999).

    Partial results are rows that have no values yet of the relations that ``partial`` names (the same paper,
    section 3.4). Batches then have a column ``__missing``, a list of all these relations' names, which is
    null for complete rows. A complete row supersedes the partial ones that have its values in all columns of
    other relations, also those that come after it. What nothing has superseded at the end was no row of the
    result: it found no match, or conditions on the missing relations rejected it. So the complete rows are
    the result. Rows whose keys a lookup has answered in a task are complete there at once. Such a query joins
    with SteMs, and routes no tuples by their content, whatever ``by_content`` says.

    Args:
        df: One that Millrace returned, or any other.
        batch_size: Rows in a batch, at most; None leaves batches as they come.
        prefer: Conditions in SQL, the most wanted first, each over columns of one relation that the query
            joins. It may be empty, for :meth:`Rows.prefer` to say more while the query runs.
        partial: Relations that rows need not have to be shown, by their names in the query. Those that are
            not looked up are read side by side with the others. A partial row comes from each task that has
            it, and again from a task that Spark repeats.

    Raises:
        QueryError: ``prefer`` or ``partial`` is given where Spark does more than select columns of one join,
            or a preference is no condition that tasks evaluate.
        OptionError: ``prefer`` or ``partial`` is no text, or given with ``memory_budget`` or a static plan.
        MillraceError: ``batch_size`` is out of range, a column's type cannot be sent, or a preference names
            no column that the query reads; or ``partial`` names no relation of the query, or one without
            which no equalities hold the others together, or a lookup among them gets no keys.
        Exception: What the job raised, once the rows that came before are given out.
    """
    df = frames.running(df)
    query = frames.own_handle(df)
    if isinstance(query, Query):
        return query.to_batches(batch_size, prefer, partial)
    _check(batch_size)
    if _texts("partial", partial) or prefer is not None:
        raise QueryError(_why_no_preference(()))
    return Rows(_frame_stream(df, Options(), batch_size))


def _texts(name: str, given: object) -> Sequence[str]:
    """Return one text, several or none as a sequence; OptionError if it is anything else."""
    texts = () if given is None else [given] if isinstance(given, str) else given
    if not isinstance(texts, Sequence) or not all(isinstance(each, str) for each in texts):
        raise OptionError(f"{name} is {given!r}: expected a text, or a list of texts")
    return texts


def _same_types(query: PlannedQuery, block: Block, columns: Sequence[str]) -> bool:
    try:
        wanted = arrow_schema(query.df.schema)
    except UnsupportedType:
        return False
    schema = block.join.output_schema
    return bool(wanted.types == [schema.field(column).type for column in columns])


def _frame_stream(frame: DataFrame, options: Options, batch_size: int | None) -> Generator[pa.RecordBatch]:
    if frame.isStreaming:
        return refuse_endless()
    schema = arrow_schema(frame.schema)
    names = [f"c{place}" for place in range(len(schema))]
    # Columns may share a name, or have one that Spark's Arrow functions stumble over.
    plain = pa.schema([pa.field(name, f.type) for name, f in zip(names, schema, strict=True)])
    batches = stream_of(frame.sparkSession, options, plain, sender_of(frame.toDF(*names), plain))
    return _shaped(frames.rows_of_action(_ACTION, frame, batches), names, schema, batch_size)


def _check(batch_size: int | None) -> None:
    if batch_size is not None and (type(batch_size) is not int or batch_size < 1):
        raise OptionError(f"batch_size is {batch_size!r}: expected a whole number above 0, or None")


def _shaped(
    batches: Generator[pa.RecordBatch],
    columns: Sequence[str],
    schema: pa.Schema,
    size: int | None,
    missing: Sequence[str] = (),
) -> Generator[pa.RecordBatch]:
    """Yield columns in batches of a size; whoever closes this cancels the job, if it still runs.

    Where relations may be ``missing`` there is one more column, which has them in rows that lack them.
    """
    kind = pa.list_(pa.string())
    if missing:
        fields = [field.with_nullable(True) for field in schema]
        schema = pa.schema([*fields, pa.field(MISSING, kind)])
    with closing(batches):
        for batch in batches:
            arrays = [batch.column(name) for name in columns]
            if missing:
                from millrace.limits.messages import EARLY  # with what tasks that send rows need

                is_early = EARLY in (batch.schema.metadata or {})
                lacking = pa.scalar([*missing] if is_early else None, kind)
                arrays.append(pa.repeat(lacking, batch.num_rows))
            renamed = pa.RecordBatch.from_arrays(arrays, schema=schema)
            step = size or max(1, batch.num_rows)
            for low in range(0, batch.num_rows, step):
                yield renamed.slice(low, step)
