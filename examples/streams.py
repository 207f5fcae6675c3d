"""Three made-up streams joined by one eddy: what each micro-batch took, and in which orders tuples went.

python examples/streams.py   (pip install '.[streams]' in a clone)
"""

from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

import millrace

TEXT = """
    SELECT o.id, p.t AS paid_at, s.t AS sent_at
    FROM orders o JOIN payments p ON p.id = o.id JOIN shipments s ON s.id = o.id
    WHERE p.t BETWEEN o.t AND o.t + INTERVAL 1 MINUTE AND s.t BETWEEN o.t AND o.t + INTERVAL 1 MINUTE
"""
# Most payments are of an order that came before, and few shipments; after 4,000 rows they change roles.
ORDERS = {
    "orders": "value",
    "payments": "IF(value % 10 < IF(value < 4000, 9, 2), value - 1500, -value)",
    "shipments": "IF(value % 10 < IF(value < 4000, 2, 9), value - 1500, -value)",
}
STATE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def main() -> None:
    """Join 2,000 rows of each stream a micro-batch, each 20 seconds of event time after the one before."""
    spark = SparkSession.builder.getOrCreate()
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", STATE)
    rows = {"rowsPerBatch": 2000, "advanceMillisPerBatch": 20_000, "startTimestamp": 1_735_689_600_000}
    source = spark.readStream.format("rate-micro-batch").options(**rows).load()
    tables = {
        name: source.selectExpr(f"{order} AS id", "timestamp AS t").withWatermark("t", "5 seconds")
        for name, order in ORDERS.items()
    }
    joined = millrace.sql(TEXT, spark=spark, tables=tables)
    with TemporaryDirectory(ignore_cleanup_errors=True) as checkpoint:
        query = joined.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        while query.lastProgress is None or query.lastProgress.batchId < 4:
            query.awaitTermination(1)
        query.stop()
    for batch in millrace.streams.report(query).batches:
        print("micro-batch", batch.batch, "has", batch.rows, "rows in,", batch.results, "results")
    print(millrace.streams.report(query))


if __name__ == "__main__":
    main()
