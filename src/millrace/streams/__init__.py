"""Continuous queries: joins of streams, run by eddies whose state lives from one micro-batch to the next.

The invariant: the log of base tuples in Spark's checkpoint is the state. Hash tables and intermediate tuples
are a cache in the worker, made anew from the log. The door loads neither PySpark nor sqlglot.
"""
