"""What plain Spark answers to the cases: recorded by ``python -m tests.sql.answers [SUITE …]``, read here.

A suite is a set of questions about the same tables. Each has a file in ``answers/`` with a line for the
version of Spark that was asked and a line for each question. Texts are the keys, so a case that is changed
has no answer until it is recorded. With another minor version of Spark, Spark is asked instead.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyspark

from lab.bench import tpch_data
from tests.session import changed, session
from tests.sql import cases, lookup_tables, small_tables

FOLDER = Path(__file__).parent / "answers"
WITHOUT_ANSI = "spark.sql.ansi.enabled=false"
MOST = 100
"""Of more rows only their number and a digest are recorded."""


@dataclass(frozen=True)
class Asked:
    """A text, and settings of the session, written ``key=value;key=value``."""

    text: str
    settings: str = ""


@dataclass(frozen=True)
class Answer:
    """An answer, by which answers that differ in anything but the order of rows can be told apart.

    Attributes:
        columns: Name, type and whether it may be null, of each.
        rows: Each as Python writes it: NaN, -0.0, null, decimals and nested values all look different.
        error: What tells errors of Spark apart, if there is one.
    """

    columns: list[list[Any]]
    rows: list[str]
    error: str = ""


def answer_of(frame) -> Answer:
    columns = [[field.name, field.dataType.jsonValue(), field.nullable] for field in frame.schema]
    rows = sorted(repr(tuple(row)) for row in frame.collect())
    if len(rows) > MOST:
        rows = [f"{len(rows)} rows", hashlib.sha256("\n".join(rows).encode()).hexdigest()]
    return Answer(columns, rows)


def attempted(made: Callable[[], Any]) -> Answer:
    """Collect the DataFrame that a function makes, or say which error there is."""
    try:
        return answer_of(made())
    except Exception as error:  # noqa: BLE001  # whatever Spark raises
        return Answer([], [], condition_of(error))


def condition_of(error: Exception) -> str:
    """Return what tells errors of Spark apart, or the name of another error's class."""
    return getattr(error, "getCondition", lambda: None)() or type(error).__name__


@dataclass(frozen=True)
class Suite:
    """Questions, and what makes a session of Spark's that can answer them, given a folder for files."""

    questions: Callable[[], Iterable[Asked]]
    prepare: Callable[[Any, Path], object]


def _predicates(spark, folder: Path) -> None:
    _small(spark, folder)
    for name, function in small_tables.PREDICATES.items():
        spark.udf.register(name, function)


def register_for_settings(spark, folder: Path) -> None:
    """Make the tables views of a session, and functions that have names of Spark's own."""
    for name, text in cases.read("settings_tables"):
        spark.sql(f"SELECT * FROM {text}").write.parquet(str(folder / name))
        small_tables.register(spark, {name: str(folder / name)})
    for name, kind in (("year", "DATE"), ("length", "STRING")):
        spark.sql(f"CREATE TEMPORARY FUNCTION {name}(x {kind}) RETURNS INT RETURN 7")


def _lookups(spark, folder: Path) -> None:
    for name, frame in lookup_tables.plain(spark).items():
        frame.createOrReplaceTempView(name)


def _asked(name: str) -> Callable[[], list[Asked]]:
    return lambda: [Asked(text) for _, text in cases.read(name)]


def _with_and_without(name: str, settings: str = "") -> Callable[[], list[Asked]]:
    """Ask each as it is, and under settings: its head's, if none are given."""
    return lambda: [Asked(text, each) for head, text in cases.read(name) for each in ("", settings or head)]


def _small(spark, folder: Path) -> None:
    small_tables.register(spark, small_tables.write(folder))


SUITES = {name: Suite(_asked(f"small/{name}"), _small) for name in cases.SMALL} | {
    "predicates": Suite(_asked("predicates"), _predicates),
    "lookups": Suite(lambda: map(Asked, lookup_tables.answered().values()), _lookups),
    "coercions": Suite(_with_and_without("coercions", WITHOUT_ANSI), _small),
    "settings": Suite(_with_and_without("settings"), register_for_settings),
    "tpch": Suite(
        lambda: map(Asked, tpch_data.query_texts().values()),
        lambda spark, folder: small_tables.register(spark, tpch_data.ensure(0.01, folder / "sf001")),
    ),
}


@cache
def recorded(name: str) -> tuple[str, dict[Asked, Answer]]:
    """Return the version of Spark that was asked, and its answers."""
    head, *lines = map(json.loads, (FOLDER / f"{name}.jsonl").read_text().splitlines())
    found = {}
    for line in lines:
        asked = Asked(line.pop("query"), line.pop("settings", ""))
        found[asked] = Answer(line.get("columns", []), line.get("rows", []), line.get("error", ""))
    return head["spark"], found


def written(version: str, answers: dict[Asked, Answer]) -> str:
    lines: list[dict[str, Any]] = [{"spark": version}]
    for asked, answer in answers.items():
        line = {"query": asked.text, "settings": asked.settings, **asdict(answer)}
        lines.append(
            {name: value for name, value in line.items() if value or (name == "rows" and not answer.error)}
        )
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


class Oracle:
    """Answers of plain Spark, recorded ones where they are of this version.

    Args:
        spark: Any session; it is only asked for new ones.
        folder: For files of tables, if Spark is asked.
    """

    def __init__(self, spark, folder: Path) -> None:
        self._spark, self._folder = spark, folder
        self._sessions: dict[str, Any] = {}

    def __call__(self, name: str, text: str, given: str = "") -> Answer:
        version, answers = recorded(name)
        if version.split(".")[:2] != pyspark.__version__.split(".")[:2]:
            return self.ask(name, Asked(text, given))
        if Asked(text, given) not in answers:
            raise LookupError(f"{name} has no answer to {text!r}: python -m tests.sql.answers {name}")
        return answers[Asked(text, given)]

    def ask(self, name: str, asked: Asked) -> Answer:
        if name not in self._sessions:
            session, folder = self._spark.newSession(), self._folder / name
            folder.mkdir()
            SUITES[name].prepare(session, folder)
            self._sessions[name] = session
        with changed(self._sessions[name], cases.settings(asked.settings)):
            return attempted(lambda: self._sessions[name].sql(asked.text))

    def record(self, name: str) -> dict[Asked, Answer]:
        return {asked: self.ask(name, asked) for asked in SUITES[name].questions()}


def differences(name: str, oracle: Oracle) -> list[str]:
    """Ask Spark again; return where its answers are not the recorded ones, missing or left over."""
    now, before = oracle.record(name), recorded(name)[1]
    return [
        f"{name}: {asked}\n  recorded: {before.get(asked)}\n  Spark:    {now.get(asked)}"
        for asked in {**now, **before}
        if now.get(asked) != before.get(asked)
    ]


if __name__ == "__main__":
    spark = session()
    with tempfile.TemporaryDirectory() as folder:
        oracle = Oracle(spark, Path(folder))
        for name in sys.argv[1:] or SUITES:
            (FOLDER / f"{name}.jsonl").write_text(written(pyspark.__version__, oracle.record(name)))
    spark.stop()
