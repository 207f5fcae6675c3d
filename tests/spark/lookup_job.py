"""Looks up keys with a task that dies meanwhile; prints what came of it."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path

from pyspark.sql import SparkSession

KEYS, COPIES = 40, 5
UNHARMED = {
    "right": True,
    "died": False,
    "lost": 0,
    "again": 0,
    "progress": [40, 40, 0, 0],
    "streamed": True,
    "cached": [0, 40],
    "requests": 0,
}


def looked_up(spark: SparkSession, folder: str, *, dies: bool) -> dict[str, object]:
    """Ask for each key, with a process that dies meanwhile or not; then again."""
    import millrace

    asked, dead = Path(folder) / "asked", Path(folder) / "dead"

    def find(keys):
        """Answer some keys; the first time that key 17 is among them, kill this process if it is to die."""
        with asked.open("a") as log:
            log.write("".join(f"{key}\n" for key in keys))
        if dies and 17 in keys and not dead.exists():
            dead.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return [{"k": key, "v": f"value {key}"} for key in keys if key % 10]

    table = millrace.lookup(
        "items",
        "k bigint, v string",
        bind=["k"],
        via=millrace.function(find, batch=3, max_in_flight=1, retries=0),
        cache=f"{folder}/cache",
    )
    rows = spark.range(0, KEYS * COPIES, 1, 4).selectExpr("id", f"id % {KEYS} AS k")
    expected = sorted((n, f"value {n % KEYS}") for n in range(KEYS * COPIES) if n % KEYS % 10)
    text = "SELECT r.id, i.v FROM r JOIN i ON r.k = i.k"
    outcome: dict[str, object] = {}

    def count() -> Counter[int]:
        found = Counter(map(int, asked.read_text().split())) if asked.exists() else Counter()
        asked.unlink(missing_ok=True)
        return found

    query = millrace.query(text, spark=spark, tables={"r": rows, "i": table})
    outcome["right"] = sorted(map(tuple, query.df.collect())) == expected
    times = count()
    outcome["died"] = dead.exists()
    outcome["lost"] = KEYS - len(times)
    # Only what was under way when the process died is asked again: at most one request of three keys.
    outcome["again"] = sum(times.values()) - KEYS
    (progress,) = query.lookups()
    outcome["progress"] = [progress.keys, progress.done, progress.failed, progress.in_flight]
    dead.unlink(missing_ok=True)

    streamed = millrace.query(text, spark=spark, tables={"r": rows, "i": table})
    found = [row for batch in streamed.to_batches() for row in zip(*batch.to_pydict().values(), strict=True)]
    outcome["streamed"] = sorted(found) == expected
    outcome["cached"] = [sum(count().values()), streamed.lookups()[0].cached]
    outcome["requests"] = streamed.lookups()[0].requests
    return outcome


def main(folder: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    sys.stdout.write(json.dumps(looked_up(spark, folder, dies=True)) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
