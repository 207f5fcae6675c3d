"""What a user sees when a task fails: a few lines, and a class of Millrace's own."""

from __future__ import annotations

import pickle
import sys
import traceback

import pytest
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import functions as sf

import millrace
from millrace.errors import ExecutionError, InputError, MillraceError, PredicateError, ReadError, SetupError
from millrace.spark.worker import translated, worker_task
from tests.gate import sampled

BLOCKS = {"placement": "hypercube"}
MESSAGE = """\
predicate 'p' raised ValueError: no
for the row k=7
Traceback (most recent call last):
ValueError: no"""
CONNECT = f"""\

  An exception was thrown from the Python worker. Please see the stack trace below.
[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "failures.py", line 33, in shortened
    raise error
millrace.errors.ExecutionError: {MESSAGE}

 SQLSTATE: 38000"""
JAVA = f"""\
An error occurred while calling o157.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult:
\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:70)
Caused by: org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] Traceback (most recent call last):
millrace.errors.ExecutionError: {MESSAGE}

 SQLSTATE: 38000
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handle(PythonRunner.scala:1097)
"""
DEBUG = f"""\
Traceback (most recent call last):
millrace.errors.ExecutionError: {MESSAGE}


JVM stacktrace:
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
millrace.errors.ExecutionError: {MESSAGE}

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handle(PythonRunner.scala:1097)
"""
STREAM = f"""\
[STREAM_FAILED] Query [id = 2980cf03] terminated with exception: Traceback (most recent call last):
millrace.errors.ExecutionError: {MESSAGE}

 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: q [id = 2980cf03]
"""


def test_an_error_of_millrace_leaves_its_task_without_frames():
    """Its traceback is a line of the task's entrance, whatever it came through and was raised from."""

    def inner():
        yield 1
        try:
            {}["cause"]
        except KeyError as error:
            raise InputError("a message") from error

    results = worker_task(inner)()
    assert next(results) == 1
    with pytest.raises(InputError) as caught:
        next(results)
    text = "".join(traceback.format_exception(caught.value))
    assert "in inner" not in text
    assert "KeyError" not in text
    assert text.endswith("\nmillrace.errors.InputError: a message\n")


def test_a_task_lets_other_errors_and_its_end_through():
    """Nobody has foreseen them, so their frames are kept; what a task runs is closed where it is given up."""
    closed = []

    def inner():
        try:
            yield 1
            raise KeyError("a bug")
        finally:
            closed.append(True)

    results = worker_task(inner)()
    next(results)
    with pytest.raises(KeyError) as caught:
        next(results)
    assert "in inner" in "".join(traceback.format_exception(caught.value))
    results = worker_task(inner)()
    next(results)
    results.close()
    assert closed == [True, True]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Traceback\n  import pyarrow as pa\nModuleNotFoundError: No module named 'pyarrow'\n", "'pyarrow'"),
        ("ModuleNotFoundError: No module named 'millrace.spark'", "no package 'millrace'"),
        ("ModuleNotFoundError: No module named 'pyarrow._new'", "no package 'pyarrow'"),
        ("[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9", "of another version"),
    ],
)
def test_workers_with_another_python_are_told_as_such(text, words):
    """With the variable to set; what is missing of the user's own is not ours to explain."""
    found = translated(PythonException(message=text))
    assert isinstance(found, SetupError)
    assert words in str(found)
    assert f"{sys.executable}. Set the environment variable PYSPARK_PYTHON" in str(found)
    own = PythonException(
        message=text.replace("pyarrow", "mine").replace("millrace", "m").replace("PYTHON_", "P")
    )
    assert translated(own) is own


@pytest.mark.parametrize("kind", [ExecutionError, PredicateError])
@pytest.mark.parametrize("text", [CONNECT, JAVA, DEBUG, STREAM])
def test_the_tasks_error_is_found_in_whatever_spark_puts_around_it(text, kind):
    """Its class and its message, neither more nor less; what Spark raised is its cause."""
    raised = PythonException(message=text.replace("ExecutionError", kind.__name__))
    found = translated(raised)
    assert isinstance(found, kind)
    assert str(found) == MESSAGE
    assert found.__cause__ is raised


@pytest.mark.parametrize(
    "error",
    [
        ValueError(CONNECT),
        PythonException(message="Traceback (most recent call last):\nValueError: no\n"),
        PythonException(message="millrace.errors.NoSuchError: no"),
        PythonException(message="ValueError: it said millrace.errors.InputError: no"),
        PredicateError("already ours"),
        PythonException(message="ModuleNotFoundError: No module named 'numpy.nothing'"),
    ],
)
def test_other_errors_stay_as_they_are(error):
    """What is not Spark's, or not of a task of ours, is not for us to change.

    A part that a library never had is the user's mistake; parts of ours tell of another version.
    """
    assert translated(error) is error


def failing(frame, kind: type[MillraceError]) -> str:
    """Run a DataFrame whose tasks fail; return the message of the error that they raise."""
    with pytest.raises(kind) as told:
        frame.collect()
    with pytest.raises(kind) as derived:
        frame.select("*").collect()
    raised = derived.value.__context__
    assert isinstance(raised, PythonException)
    text, found = str(raised), str(derived.value)
    assert text.count("millrace/spark/") == 1  # where it left the task
    assert found == str(told.value) and found in text
    assert len(text.splitlines()) <= len(found.splitlines()) + 4
    return found


def picky(x):
    if x % 10 == 7:
        raise ValueError(f"not {x % 10}")
    return True


SEEN = """\
predicate 'picky' raised ValueError: not 7
for the row {row}, which nothing else rejects; with on_error='null' such rows count as not passing
Traceback (most recent call last):
  File "{file}", line {line}, in picky
    raise ValueError(f"not {{x % 10}}")
ValueError: not 7"""


def seen(row: str) -> str:
    return SEEN.format(row=row, file=__file__, line=picky.__code__.co_firstlineno + 2)


def test_a_predicate_that_raises_is_told_in_a_few_lines(spark):
    """What failed, for which row, what would work, and the user's own lines; with values if they may be.

    In a filter, in a query's filter, and within a join, where tasks exchange blocks.
    """
    df, own = spark.range(0, 10, 1, 1), {"picky": millrace.predicate(picky)}
    assert failing(millrace.where(df, own["picky"]("id")), ExecutionError) == seen("id=7")
    masked = millrace.where(df, millrace.predicate(picky)("id"), options={"mask_values": True})
    assert failing(masked, ExecutionError) == seen("id=***")
    tables = {"a": df, "b": spark.range(0, 10, 1, 2)}
    for text, row in (
        ("SELECT a.id FROM a JOIN b ON a.id = b.id WHERE picky(a.id)", "a.id=7"),
        ("SELECT id FROM a WHERE picky(id)", "id=7"),
    ):
        query = millrace.query(text, spark=spark, tables=tables, predicates=own, options=BLOCKS)
        assert len(query.blocks) == ("JOIN" in text)
        assert failing(query.df, ExecutionError) == seen(row)


@pytest.mark.filterwarnings("ignore:toPandas attempted Arrow")
@pytest.mark.parametrize(
    "action",
    sampled(
        [
            lambda df: df.count(),
            lambda df: df.show(),
            lambda df: df.first(),
            lambda df: df.toPandas(),
            lambda df: df.toArrow(),
            lambda df: list(df.toLocalIterator()),
            lambda df: df.write.format("noop").mode("overwrite").save(),
            lambda df: df.groupBy("id").count().where("count > 0").collect(),
            lambda df: df[df.id > 1].cache().na.fill(0).toPandas(),
            lambda df: df.join(df.sparkSession.range(9), "id").select("id").write.mode("append").csv("never"),
        ],
        3,
    ),
)
def test_actions_raise_millraces_errors(spark, action):
    """So that ``except MillraceError`` is enough; what Spark raised is at hand."""
    frame = millrace.where(spark.range(0, 10, 1, 1), millrace.predicate(picky)("id"))
    with pytest.raises(ExecutionError, match="not 7") as told:
        action(frame)
    assert isinstance(told.value.__context__, PySparkException | Py4JError)
    assert isinstance(frame, type(spark.range(1))) and millrace.explain(frame.limit(1))


def test_errors_of_functions_are_also_those_of_sparks_api(spark):
    """Code that catches what Spark raises for a function goes on catching it, and may ask it all the same."""
    df = spark.range(0, 10, 1, 1)
    boom = sf.udf(picky, "boolean")
    for frame in (df.filter(boom("id")), millrace.where(df, boom("id"))):
        with pytest.raises(PythonException, match="not 7") as caught:
            frame.collect()
        assert isinstance(caught.value, PySparkException)
        assert caught.value.getCondition() and caught.value.getSqlState() == "38000"
    error = caught.value
    assert isinstance(error, ExecutionError) and type(error).__name__ == "ExecutionError"
    assert str(error) == seen("id=7")
    copied = pickle.loads(pickle.dumps(error))  # our own
    assert (type(copied), str(copied)) == (ExecutionError, str(error))


def test_a_lookup_that_fails_is_told_in_a_few_lines(spark):
    """Which key, why, and what would work."""

    def price(k):
        raise ValueError("no such price")

    table = millrace.lookup("p", "k bigint, v string", bind=["k"], via=millrace.function(price, retries=0))
    frame = millrace.sql(
        "SELECT r.id, p.v FROM r JOIN p ON r.id = p.k", spark=spark, tables={"r": spark.range(1), "p": table}
    )
    message = failing(frame, ExecutionError)
    assert message.startswith("lookup 'p': key {\"k\": 0} could not be looked up after 1 attempt: ")
    assert "ValueError: no such price" in message
    assert "on_error='skip' or 'null'" in message


def test_a_file_that_has_gone_is_told_in_a_few_lines(spark, tmp_path):
    """Also tasks that scan, before the exchange; code that knows Spark alone catches it as Spark's."""
    spark.range(0, 10, 1, 1).write.parquet(str(tmp_path / "t"))
    frame = millrace.sql(
        "SELECT a.id FROM t a JOIN t b ON a.id = b.id",
        spark=spark,
        tables={"t": str(tmp_path / "t")},
        options=BLOCKS,
    )
    for path in (tmp_path / "t").glob("*.parquet"):
        path.unlink()
    assert "reading row group 0 of " in failing(frame, ExecutionError)
    with pytest.raises(Py4JJavaError) as told:
        frame.count()
    assert isinstance(told.value, ReadError)


def _surrogate(k: int) -> dict[str, int]:
    if k == 13:
        raise ValueError("bad \udcff text")
    return {"k": k, "v": 10 * k}


def test_half_a_character_in_a_users_error_hangs_nothing(spark):
    """A lookup that fails or goes on, its failed keys, and predicates: each ends, and the next query runs."""

    @millrace.predicate
    def by_row(k: int) -> bool:
        return _surrogate(k) is not None

    @millrace.predicate(kind="async", retries=0)
    async def awaited(k: int) -> bool:
        return _surrogate(k) is not None

    rows = spark.range(0, 40, 1, 2).selectExpr("cast(id AS int) AS k")
    for ask in (by_row, awaited):
        with pytest.raises(MillraceError, match=r"bad \\udcff text"):
            millrace.where(rows, ask("k")).collect()
    for on_error in ("null", "fail"):
        source = millrace.function(_surrogate, retries=0)
        table = millrace.lookup("names", "k int, v int", ["k"], source, on_error=on_error)
        query = millrace.query(
            "SELECT r.k, v FROM r, n WHERE r.k = n.k", spark=spark, tables={"r": rows, "n": table}
        )
        if on_error == "fail":
            with pytest.raises(ExecutionError, match=r"bad \\udcff text"):
                query.df.collect()
        else:
            wanted = [(k, None if k == 13 else 10 * k) for k in range(40)]
            assert sorted(map(tuple, query.df.collect())) == wanted
        (failed,) = query.failed_keys().to_pylist()
        assert failed["key"] == '{"k": 13}' and r"bad \udcff text" in failed["message"]
