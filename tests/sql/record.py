"""``python -m tests.sql.record``: ask plain Spark all cases, and write the answers to ``answers/``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import pyspark

from tests.session import session
from tests.sql.answers import FOLDER, SUITES, Oracle, recorded, written


def main() -> int:
    """Record, or check what is recorded; the exit code says whether all agrees."""
    parser = argparse.ArgumentParser(prog="python -m tests.sql.record", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)}; all by default")
    parser.add_argument("--check", action="store_true", help="write nothing, and say what differs")
    given = parser.parse_args()
    spark, differing = session(), []
    with tempfile.TemporaryDirectory() as folder:
        oracle = Oracle(spark, Path(folder))
        for name in given.suites or SUITES:
            if given.check:
                differing += differences(name, oracle)
            else:
                text = written(pyspark.__version__, oracle.record(name))
                FOLDER.mkdir(exist_ok=True)
                (FOLDER / f"{name}.jsonl").write_text(text)
    spark.stop()
    sys.stdout.write("".join(f"{each}\n" for each in differing))
    return 1 if differing else 0


def differences(name: str, oracle: Oracle) -> list[str]:
    """Ask Spark again; return where its answers are not the recorded ones, missing or left over."""
    now, before = oracle.record(name), recorded(name)[1]
    return [
        f"{name}: {asked}\n  recorded: {before.get(asked)}\n  Spark:    {now.get(asked)}"
        for asked in {**now, **before}
        if now.get(asked) != before.get(asked)
    ]


if __name__ == "__main__":
    sys.exit(main())
