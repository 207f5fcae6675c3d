"""A plan becomes DataFrames, stages and tasks, and the driver's servers stand beside them.

Rows of a join meet in one stage: in place, or behind one exchange by HyperCube shares. The invariant: what is
to run is frozen and pickles, and a task builds all state itself. So Spark may run any task again.
Importers name the modules, for a task loads no more than it runs.
"""
