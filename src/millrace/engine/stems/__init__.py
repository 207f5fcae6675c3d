"""SteMs: a relation's tuples, the indexes over them, what has ended, and what is asked again.

Invariant: tuples that match meet once, by their timestamps.
"""
