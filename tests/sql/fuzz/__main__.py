"""``python -m tests.sql.fuzz``: random queries on Millrace and on Spark, until they differ."""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.session import session
from tests.sql.fuzz.compare import MODES, Comparison, Result
from tests.sql.fuzz.shrink import by_seed, smallest


def main() -> int:
    """Run; the exit code says whether everything agreed."""
    parser = argparse.ArgumentParser(prog="python -m tests.sql.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the first query; the others follow")
    parser.add_argument("--count", type=int, default=200, help="how many queries")
    parser.add_argument(
        "--mode", choices=sorted({*MODES}), default="", help="how tables are given; by seed if not said"
    )
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failure")
    parser.add_argument("--skip", metavar="REGEX", help="leave out queries whose text matches this")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark")
    parser.add_argument("--sql", help="run this query instead")
    arguments = parser.parse_args()
    spark = session()
    with tempfile.TemporaryDirectory() as folder:
        configured = dict(each.split("=", 1) for each in arguments.conf)
        failures = _run(arguments, Comparison(spark, Path(folder), configured))
    spark.stop()
    return 1 if failures else 0


def _run(arguments: argparse.Namespace, comparison: Comparison) -> int:
    counts: Counter[str] = Counter()
    start = time.monotonic()
    if arguments.sql:
        result = comparison.run(arguments.sql, arguments.mode or MODES[0])
        counts.update(tally(result))
        _say(report(0, arguments.mode, arguments.sql, result))
    for seed in range(arguments.seed, arguments.seed + (0 if arguments.sql else arguments.count)):
        if found := hunt(comparison, seed, arguments.mode, arguments.skip, counts):
            _say(found)
            if not arguments.keep_going:
                break
    total = max(counts["queries"], 1)
    _say(f"{total} queries in {time.monotonic() - start:.0f} s")
    _say("\n".join(f"  {name}: {count} ({count / total:.1%})" for name, count in sorted(counts.items())))
    return counts["failures"]


def hunt(
    comparison: Comparison,
    seed: int,
    mode: str = "",
    skip: str | None = None,
    counts: Counter[str] | None = None,
) -> str:
    """Compare a seed's query; return what is to be said where the answers differ, with a smaller query."""
    choices, text = by_seed(seed)
    mode = mode or MODES[seed % len(MODES)]
    if skip and re.search(skip, text, re.IGNORECASE):
        return ""
    result = comparison.run(text, mode)
    if counts is not None:
        counts.update(tally(result))
    if not result.failed:
        return ""
    small = smallest(choices, lambda text: comparison.run(text, mode).signature == result.signature)
    return f"{report(seed, mode, text, result)}minimal: {small}\n"


def tally(result: Result) -> Counter[str]:
    """Return what a result adds to the counts."""
    found = Counter({"queries": 1, result.category: 1})
    found["failures"] += result.failed
    found["taken"] += result.taken
    found["with rows"] += result.rows > 0
    found.update(f"warning: {each}" for each in result.warnings)
    return found


def report(seed: int, mode: str, text: str, result: Result) -> str:
    """Return a result for a person to read."""
    explained = result.explained.split("Spark's plan", 1)[0].strip()
    return f"\n== seed {seed}, {mode}: {result.category}\n{text}\n-- {result.detail}\n{explained}\n"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
