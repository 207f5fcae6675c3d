"""A costly predicate behind a cheap score: what it costs is known before, and the score spares calls.

python examples/costly_calls.py
"""

import hashlib

from pyspark.sql import SparkSession, functions as sf

import millrace


@millrace.predicate
def is_complaint(text: str) -> bool:
    """Stand for a model that is paid for by the call."""
    digest = text.encode()
    for _ in range(300):
        digest = hashlib.sha256(digest).digest()
    return "refund" in text or "broken" in text


def angry(text: str) -> float:
    """Guess cheaply: how much of a complaint it looks like."""
    return 2.0 * ("refund" in text) + ("broken" in text or "!" in text)


def main() -> None:
    """Estimate, learn, and filter 5,000 reviews."""
    spark = SparkSession.builder.getOrCreate()
    words = ["all well", "refund!", "broken", "nice!", "fast, thank you"]
    reviews = spark.range(5_000).select(
        "id",
        sf.element_at(sf.array(*map(sf.lit, words)), (sf.col("id") % 5 + 1).cast("int")).alias("text"),
    )
    print(millrace.estimate(reviews, is_complaint("text"), prices={"is_complaint": 0.002}))
    fitted = millrace.cascade(angry, is_complaint, recall=0.9, precision=0.9).learn(
        reviews, "text", sample=500
    )
    complaints = millrace.where(reviews, *fitted("text"))
    print(complaints.count(), "complaints")
    print(millrace.report(complaints))


if __name__ == "__main__":
    main()
