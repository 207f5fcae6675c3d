"""Joins larger than memory: Grace, hybrid hash, sort-merge and symmetric hash joins, by eddies.

Invariant: pieces of work share no result, and together they make all of them.
"""
