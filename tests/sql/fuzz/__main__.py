"""``python -m tests.sql.fuzz``: random queries on Millrace and on Spark, until they differ."""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.session import session
from tests.sql.fuzz.compare import MODES, Comparison, Result
from tests.sql.fuzz.grammar import query
from tests.sql.fuzz.minimise import minimise


def main() -> int:
    """Run; the exit code says whether everything agreed."""
    given = _arguments()
    settings = dict(each.split("=", 1) for each in given.conf)
    spark = session()
    with tempfile.TemporaryDirectory() as folder:
        failed = _run(given, Comparison(spark, Path(folder), settings))
    spark.stop()
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sql.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first query's seed; the others follow")
    parser.add_argument("--count", type=int, default=200, help="how many queries")
    parser.add_argument(
        "--mode", choices=[*MODES, "all"], default="all", help="how tables are given; all: by seed"
    )
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failure")
    parser.add_argument("--minimise", action="store_true", help="shrink what fails")
    parser.add_argument("--budget", type=int, default=400, help="how many proposals may be tried for each")
    parser.add_argument("--skip", metavar="REGEX", help="leave out queries whose text matches this")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark")
    parser.add_argument("--sql", help="run this query instead")
    return parser.parse_args()


def _run(given: argparse.Namespace, comparison: Comparison) -> int:
    counts: Counter[str] = Counter()
    start = time.monotonic()
    for done, seed in enumerate(range(given.seed, given.seed + given.count), 1):
        mode = mode_of(seed) if given.mode == "all" else given.mode
        text = given.sql or query(random.Random(seed))
        if given.skip and re.search(given.skip, text, re.IGNORECASE):
            continue
        result = comparison.run(text, mode)
        counts.update(tally(result))
        if result.failed:
            _say(report(seed, mode, text, result))
            if given.minimise:
                _say(f"minimal: {smallest(comparison, text, mode, result, given.budget)}\n")
            if not given.keep_going:
                break
        if done % 50 == 0:
            _say(f"… {done} queries, {time.monotonic() - start:.0f} s, {counts['failures']} failures")
        if given.sql:
            break
    _say(summary(counts, time.monotonic() - start))
    return counts["failures"]


def mode_of(seed: int) -> str:
    """Return how a seed's query gets its tables: by paths every other time, which is the fastest."""
    return ("paths", "frames", "paths", "views")[seed % 4]


def tally(result: Result) -> Counter[str]:
    """Return what a result adds to the counts."""
    found = Counter({"queries": 1, result.category: 1})
    found["failures"] += result.failed
    found["taken"] += result.taken
    found["with rows"] += result.rows > 0
    found.update(f"warning: {each}" for each in result.warnings)
    return found


def report(seed: int, mode: str, text: str, result: Result) -> str:
    """Return a failure for a person to read."""
    explained = result.explained.split("Spark's plan", 1)[0].strip()
    return f"\n== seed {seed}, {mode}: {result.category}\n{text}\n-- {result.detail}\n{explained}\n"


def smallest(comparison: Comparison, text: str, mode: str, result: Result, budget: int = 400) -> str:
    """Return a short query that fails in the same way."""

    def fails(smaller: str) -> bool:
        if result.signature[0] != "error" and not comparison.accepts(smaller):
            return False
        return comparison.run(smaller, mode).signature == result.signature

    return minimise(text, fails, budget)


def summary(counts: Counter[str], seconds: float) -> str:
    """Return the counts of a run."""
    total = max(counts["queries"], 1)
    lines = [f"{total} queries in {seconds:.0f} s"]
    lines += [f"  {name}: {count} ({count / total:.1%})" for name, count in sorted(counts.items()) if count]
    return "\n".join(lines)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
