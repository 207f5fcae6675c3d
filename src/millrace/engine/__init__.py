"""The four papers, without Spark and without a network.

An eddy (``eddy.eddy``) sends batches of tuples through selections, indexes and join state, measures what
each costs and keeps, and changes the order while the query runs. ``eddy.run.Run`` begins it, for one task.

Invariant: whatever is routed, moved or spilled, and however sources interleave, the rows of the answer are
the same.
"""
