"""What users call: sessions, queries, filters and lookups, an enabled session, notebooks, what watches.

The public names are those of :mod:`millrace`, which loads them from here. Whatever a function here returns
has the rows that Spark alone would give; where Millrace has no part in them, ``explain`` says why.
"""
