"""``millrace.where``: the rows of Spark's ``where``, in their order, with fewer calls."""

from __future__ import annotations

import threading

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import functions as sf

import millrace
from millrace.errors import ExecutionError, InputError, OptionError, PredicateError
from millrace.options import POLICY_NAMES
from millrace.spark.patches import watch
from tests.gate import sampled
from tests.session import changed, write_stream

watch()  # for conditions that are made before `millrace.where` is first looked up

# One of every type that Spark hands to Python, with nulls in each column.
TYPED = """
    SELECT id, n, s, d, f, day, at, local, raw, flag, list, lists, map, record, records, span, times
    FROM (
        SELECT id, if(id % 7 = 0, null, cast(id AS int)) n, if(id % 5 = 0, null, concat('é', id)) s,
            if(id % 3 = 0, null, cast(id / 3 AS decimal(20, 4))) d, if(id % 4 = 0, null, id / 7) f,
            if(id % 6 = 0, null, date_add(DATE'1969-12-30', cast(id AS int))) day,
            if(id % 8 = 0, null, timestamp_micros(id * 86400123457 - 7)) at,
            if(id % 9 = 0, null, cast(timestamp_micros(id * 3600000001) AS timestamp_ntz)) local,
            if(id % 5 = 1, null, cast(cast(id AS string) AS binary)) raw,
            if(id % 3 = 1, null, id % 2 = 0) flag,
            if(id % 7 = 1, null, array(id, null)) list, if(id % 7 = 2, null, array(array(id), null)) lists,
            if(id % 7 = 3, null, map('k', id, 'n', null)) map,
            if(id % 7 = 4, null, named_struct('a', id, 'b', named_struct('c', timestamp_micros(id)))) record,
            if(id % 7 = 5, null, array(named_struct('a', id))) records,
            if(id % 7 = 6, null, make_dt_interval(0, 0, 0, id)) span,
            if(id % 7 = 0, null, array(timestamp_micros(id))) times
        FROM range(40)
    )
"""
COLUMNS = "id n s d f day at local raw flag list lists map record records span times".split()  # noqa: SIM905


@pytest.fixture(scope="module")
def typed(spark):
    return spark.sql(TYPED)


@pytest.fixture(scope="module")
def chained(spark):
    """A DataFrame, conditions by functions of three kinds, and the rows that Spark keeps: null is false."""

    @sf.udf("boolean")
    def even(x):
        return x % 2 == 0 if x % 7 else None

    @sf.pandas_udf("boolean")
    def third(x: pd.Series) -> pd.Series:
        return x % 3 == 0

    @sf.arrow_udf("boolean")
    def sum_above(x: pa.Array, y: pa.Array) -> pa.Array:
        import pyarrow.compute as pc

        return pc.greater(pc.add(x, y), 100)

    df = spark.range(0, 1000, 1, 3).withColumn("y", sf.col("id") + 1)
    conditions = [even(x="id"), third(sf.col("id")), sum_above("id", "y"), "y < 800"]
    plain = df
    for condition in conditions:
        plain = plain.where(condition)
    return df, conditions, plain.collect()


@pytest.mark.parametrize("policy", sampled([None, *POLICY_NAMES], 4))
def test_rows_and_order_are_those_of_sparks_where(chained, policy):
    df, conditions, rows = chained
    frame = millrace.where(df, *conditions, policy=policy)
    assert frame.columns == df.columns
    assert frame.collect() == rows


@pytest.fixture
def elsewhere(spark):
    """Another time zone, of half hours."""
    with changed(spark, {"spark.sql.session.timeZone": "America/St_Johns"}):
        yield


def test_a_plan_of_joins_says_nothing_of_filters(spark):
    """A static plan and its order are of joins; a filter beside is an eddy's."""
    even = millrace.predicate(lambda x: x % 2 == 0, name="even")
    static = {"architecture": "static", "order": ("b", "a")}
    found = millrace.where(spark.range(10), even("id"), options=static)
    assert [row.id for row in found.collect()] == [0, 2, 4, 6, 8]


def test_functions_get_the_values_that_spark_gives_them(spark, typed, elsewhere):
    """Types, nulls and contents of every argument are the same as in a function that Spark calls."""
    seen = spark.sparkContext.accumulator(0)

    def shown(*values):
        return repr([(type(v).__name__, v) for v in values])

    columns = [sf.col(name) for name in COLUMNS]
    keyed = typed.withColumn("told", sf.udf(shown)(*columns))

    def same(told, *values):
        seen.add(1)
        return told == shown(*values)

    frame = millrace.where(keyed, millrace.predicate(same)("told", *COLUMNS))
    assert frame.count() == 40
    assert seen.value == 40


def test_pandas_functions_get_the_series_that_spark_gives_them(typed, elsewhere):
    """Dtypes and contents are those of ``pandas_udf``: Series, and a DataFrame for a struct."""

    def shown(values):
        if isinstance(values, pd.DataFrame):
            return f"{values.dtypes.to_dict()} {values.to_dict('records')}"
        return f"{values.dtype} {[(type(v).__name__, v) for v in values]}"

    @sf.pandas_udf("string")
    def by_spark(*values: pd.Series) -> pd.Series:
        return pd.Series(["\n".join(map(shown, values))] * len(values[0]))

    def same(told, *values):
        wanted = told[0].split("\n")
        differing = [(a, shown(b)) for a, b in zip(wanted, values, strict=True) if a != shown(b)]
        assert not differing
        return told.notna()

    keyed = typed.coalesce(1).withColumn("told", by_spark(*COLUMNS))
    frame = millrace.where(keyed, millrace.predicate(same, kind="pandas")("told", *COLUMNS))
    assert frame.count() == 40


def test_arrow_functions_get_the_arrays_that_spark_gives_them(spark, typed, elsewhere):
    """Arrow types, time zones and values are those of ``arrow_udf``, in filters and within joins."""

    def shown(*values):
        return [" ".join(f"{v.type} {v[i]}" for v in values) for i in range(len(values[0]))]

    @sf.arrow_udf("string")
    def by_spark(*values: pa.Array) -> pa.Array:
        return pa.array(shown(*values))

    def same(told, *values):
        assert told.to_pylist() == shown(*values)
        return told.is_valid()

    checked = millrace.predicate(same, kind="arrow")
    keyed = typed.coalesce(1).withColumn("told", by_spark(*COLUMNS))
    assert millrace.where(keyed, checked("told", *COLUMNS)).count() == 40
    # Within a join nested types do not say whether null is possible inside, and intervals do not pass.
    plain = ["id", "n", "s", "d", "f", "day", "at", "local", "raw", "flag"]
    keyed = typed.select(*plain, by_spark(*plain).alias("told")).localCheckpoint()
    arguments = ", ".join(f"a.{name}" for name in ("told", *plain))
    text = f"SELECT count(*) FROM a JOIN b ON a.id = b.id WHERE same({arguments})"
    query = millrace.query(
        text, spark=spark, tables={"a": keyed, "b": spark.range(40)}, predicates={"same": checked}
    )
    assert query.df.first()[0] == 40
    assert len(query.blocks) == 1
    assert len(query.blocks[0].join.residuals) == 1


def test_a_dear_predicate_behind_a_selective_one_is_asked_for_few_rows(spark):
    """Written the wrong way round, the dear one is still called for little more than it has to.

    The task that starts first has only the order as written; later ones begin with what earlier ones learned.
    """
    calls = spark.sparkContext.accumulator(0)

    @sf.udf("boolean")
    def dear(x):
        import time

        calls.add(1)
        end = time.perf_counter() + 100e-6
        while time.perf_counter() < end:
            pass
        return x % 10 != 3

    @millrace.predicate
    def selective(x):
        return x % 100 == 0

    frame = millrace.where(spark.range(0, 20_000, 1, 8), dear("id"), selective("id"))
    assert frame.count() == 200
    assert calls.value < 2_000
    report = millrace.report(frame)
    evaluated = {m.name: m.evaluated for _, m in report.modules() if m.action == "select"}
    assert evaluated["Predicate(dear(id))"] == calls.value
    assert "selective → dear" in str(report)
    started = [figures.traces[0].changes[0].order for _, figures in report.cells()]
    assert len(started) == 8 and "dear → selective" in started
    assert started.count("selective → dear") >= 3


def test_a_predicate_that_is_not_deterministic_keeps_its_place(spark):
    """Also among conditions that Spark evaluates."""
    calls = spark.sparkContext.accumulator(0)

    def count(x):
        calls.add(1)
        return True

    pinned = sf.udf(count, "boolean").asNondeterministic()
    even = sf.udf(lambda x: x % 2 == 0, "boolean")
    frame = millrace.where(spark.range(100), "id < 80", even("id"), pinned("id"), "id < 10", even("id"))
    assert frame.count() == 5
    assert calls.value == 40


def test_no_predicate_and_native_ones_alone_are_fine(spark):
    df = spark.range(10)
    assert millrace.where(df).count() == 10
    assert millrace.where(df, "id > 4", sf.col("id") < 8).count() == 3
    assert "no predicate" in millrace.explain(millrace.where(df, "id > 4"))


def test_columns_are_called_as_the_parameters(spark):
    """Those that have no name of their own, also where others are given by name."""
    apart = millrace.predicate(lambda left, least: left > least, name="apart")
    frame = millrace.where(spark.range(3), apart(sf.col("id") + 1, least="id"))
    assert "apart(left, id)" in millrace.explain(frame)


def _lock():
    lock = threading.Lock()

    def locked(x):
        with lock:
            return True

    return locked


async def _coroutine(x):
    return True


@pytest.mark.parametrize(
    ("make", "kind", "parts"),
    [
        (lambda p: p(lambda x: True, name="one")("id", "id"), PredicateError, ["'one'", "2 arguments"]),
        (lambda p: p(lambda x: True, name="one")("id", z="id"), PredicateError, ["'one'", "'z'"]),
        (lambda p: p(lambda x: True)("idd"), InputError, ["'idd'", "'id'"]),
        (lambda p: p(lambda x: True)(3), PredicateError, ["3", "columns"]),
        (lambda p: p(lambda x: True, name="one"), PredicateError, ["one('column')"]),
        (lambda p: sf.udf(lambda x: 1, "int")("id"), PredicateError, ["int", "boolean"]),
        (lambda p: p(_lock())("id"), PredicateError, ["'locked'", "does not pickle"]),
        (lambda p: p(_coroutine), PredicateError, ["'_coroutine'", "kind='async'"]),
        (lambda p: p(lambda x: True, kind="async"), PredicateError, ["async def"]),
        (lambda p: p(_coroutine, kind="async", max_in_flight=0), OptionError, ["max_in_flight", "0"]),
        (lambda p: p(_coroutine, kind="async", per_second=0), OptionError, ["per_second", "0"]),
        (lambda p: p(_coroutine, kind="async", per_second=-1.0), OptionError, ["per_second"]),
        (lambda p: p(_coroutine, kind="async", timeout=0), OptionError, ["timeout"]),
        (lambda p: p(lambda x: True, max_in_flight=3), OptionError, ["max_in_flight", "kind='async'"]),
        (lambda p: p(lambda x: True, kind="rows"), OptionError, ["'rows'", "'row'"]),
        (lambda p: p(lambda x: True, retries=-1), OptionError, ["retries"]),
        (lambda p: p(lambda x: True, kind="pandas", batch=0), OptionError, ["batch"]),
        (lambda p: p(lambda x: True, batch=5), OptionError, ["batch"]),
        (lambda p: p(lambda x: x, kind="arrow_iter", retries=1), OptionError, ["retries", "'arrow_iter'"]),
        (lambda p: p(lambda x: True, on_error="skip"), OptionError, ["on_error"]),
        (lambda p: 3, PredicateError, ["3"]),
        (lambda p: p("text"), PredicateError, ["str", "function"]),
        (lambda p: "no_such_column > 3", InputError, ["no_such_column"]),
    ],
)
def test_bad_input_is_told_before_anything_runs(spark, make, kind, parts):
    with pytest.raises(kind) as caught:
        millrace.where(spark.range(3), make(millrace.predicate))
    for part in parts:
        assert part in str(caught.value)


def test_what_is_no_dataframe_or_not_ours_is_refused(spark):
    """Clear errors for the first argument, a policy's name, and for reports of other DataFrames."""
    with pytest.raises(InputError, match="DataFrame"):
        millrace.where([1, 2], "x > 3")
    with pytest.raises(OptionError, match="lottery"):
        millrace.where(spark.range(3), "id > 1", policy="lotery")
    with pytest.raises(InputError, match="nothing is known of this DataFrame"):
        millrace.report(spark.range(3))
    frame = millrace.where(spark.range(3), millrace.predicate(lambda x: True)("id"))
    with pytest.raises(ExecutionError, match="no figures yet"):
        millrace.report(frame)


def test_a_stream_is_filtered_as_a_table_is(spark, tmp_path):
    spark.range(0, 100, 1, 2).write.parquet(f"{tmp_path}/in")
    stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(f"{tmp_path}/in")
    kept = millrace.where(stream, millrace.predicate(lambda x: x % 2 == 0)("id"), sf.col("id") > 9)
    write_stream(kept, tmp_path)
    rows = sorted(row.id for row in spark.read.parquet(f"{tmp_path}/out").collect())
    assert rows == list(range(10, 100, 2))
    assert millrace.report(kept).totals.output_tuples > 0
