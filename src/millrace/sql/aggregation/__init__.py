"""Aggregates above a block that begin inside its tasks.

The invariant: partial results of any split of the rows finish, in Spark, to what Spark's own aggregate gives.
"""
