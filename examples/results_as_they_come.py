"""Rows of a join while its tasks still run, as Arrow batches, and a memory budget for its state.

python examples/results_as_they_come.py
"""

from pyspark.sql import SparkSession

import millrace


def main() -> None:
    """Join 100,000 rows with 50,000 and take the first of the result as they come."""
    spark = SparkSession.builder.getOrCreate()
    tables = {"a": spark.range(0, 100_000), "b": spark.range(0, 100_000, 2)}
    query = millrace.query(
        "SELECT a.id FROM a JOIN b ON a.id = b.id",
        tables=tables,
        options={"take_all": True, "memory_budget": 64_000_000},
    )
    rows = 0
    for number, batch in enumerate(query.to_batches(batch_size=5_000)):
        rows += batch.num_rows
        if number < 3:
            print("a batch of", batch.num_rows, "rows")
    print(rows, "rows in all")


if __name__ == "__main__":
    main()
