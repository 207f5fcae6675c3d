"""Three made-up streams joined by one eddy: what each micro-batch took, and in which orders tuples went.

python examples/streams.py   (pip install '.[streams]' in a clone)
"""

from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

import millrace

TEXT = """
    SELECT o.order_id, p.t AS paid_at, s.t AS sent_at
    FROM orders o JOIN payments p ON p.order_id = o.order_id JOIN shipments s ON s.order_id = o.order_id
    WHERE p.t BETWEEN o.t AND o.t + INTERVAL 30 SECONDS
      AND s.t BETWEEN o.t AND o.t + INTERVAL 30 SECONDS
"""
STATE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def main() -> None:
    """Join 6,000 rows of each stream, 2,000 a micro-batch; half-way payments and shipments change roles."""
    spark = SparkSession.builder.getOrCreate()
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", STATE)
    rows = {"rate": 100, "backlog": 6000, "rows_in_all": 6000, "max_rows": 2000, "drift_at": 30}
    tables = {
        name: millrace.streams.feed(spark, name, **rows) for name in ("orders", "payments", "shipments")
    }
    joined = millrace.sql(TEXT, spark=spark, tables=tables)
    with TemporaryDirectory() as checkpoint:
        stream = joined.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = stream.trigger(availableNow=True).start()
        query.awaitTermination()
    for batch in millrace.streams.report(query).batches:
        print("micro-batch", batch.batch, "has", batch.rows, "rows in,", batch.results, "results")
    print(millrace.streams.report(query))


if __name__ == "__main__":
    main()
