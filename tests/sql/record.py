"""``python -m tests.sql.record [SUITE …]``: ask plain Spark the cases, and write what it answers."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pyspark

from tests.session import session
from tests.sql.answers import FOLDER, SUITES, Oracle, recorded, written


def main(suites: list[str]) -> None:
    spark = session()
    with tempfile.TemporaryDirectory() as folder:
        oracle = Oracle(spark, Path(folder))
        for name in suites or SUITES:
            (FOLDER / f"{name}.jsonl").write_text(written(pyspark.__version__, oracle.record(name)))
    spark.stop()


def differences(name: str, oracle: Oracle) -> list[str]:
    """Ask Spark again; return where its answers are not the recorded ones, missing or left over."""
    now, before = oracle.record(name), recorded(name)[1]
    return [
        f"{name}: {asked}\n  recorded: {before.get(asked)}\n  Spark:    {now.get(asked)}"
        for asked in {**now, **before}
        if now.get(asked) != before.get(asked)
    ]


if __name__ == "__main__":
    main(sys.argv[1:])
