"""Standing queries: many of them over one join of streams, which one eddy runs for all (CACQ, PSoup).

The invariant: each query gets the rows that it would get alone, whichever others come and go beside it.
"""
