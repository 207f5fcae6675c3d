"""The operators of an eddy: each lets one module work, a step at a time.

Invariant: a step returns at most a batch of tuples, and what is left of its work goes back to the eddy.
"""
