"""A query's text becomes a plan: names are bound, blocks of joins found, and Spark runs the rest as written.

The invariant: a block that is taken gives the rows that Spark gives for the same text. What is not surely so
is left to Spark, with a reason that ``explain()`` tells. The door loads neither PySpark nor sqlglot.
"""
