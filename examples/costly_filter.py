"""Filters by Python functions: Spark calls each for every row, Millrace the next one for what is left.

python examples/costly_filter.py
"""

import hashlib

from pyspark.sql import SparkSession, functions as sf

import millrace

spark = SparkSession.builder.getOrCreate()  # before the functions: Spark reads their type in a session


@sf.udf("boolean")
def looks_like_spam(text):
    """Stand for something slow: a model, a battery of regular expressions."""
    digest = text.encode()
    for _ in range(100):
        digest = hashlib.sha256(digest).digest()
    return digest[0] < 128


@sf.udf("boolean")
def in_our_language(text):
    """Fast, and rejects most."""
    return text.endswith("7")


def main() -> None:
    """Filter 20,000 texts, and show what was called how often."""
    mails = spark.range(20_000).select(
        sf.concat(sf.lit("mail "), "id").alias("text"), (sf.col("id") % 500).alias("size")
    )
    kept = millrace.where(mails, looks_like_spam("text"), in_our_language("text"), "size < 400")
    print(kept.count(), "mails are kept")
    print(millrace.report(kept))


if __name__ == "__main__":
    main()
