"""Lookup tables in a query: which columns give their keys, also where no block takes the table.

The invariant: a lookup table is asked for every key that can matter to the answer, or refused by name.
"""
