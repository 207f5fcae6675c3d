"""Files: base tuples read by pyarrow, inside the tasks and without Spark.

The invariant: a table's rows, types and nulls are those that Spark reads of the same path, or the table is
left to Spark with a reason. Importers name the modules, for a task loads no more than it reads with.
"""
