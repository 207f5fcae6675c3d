"""Made-up streams of orders, payments and shipments.

The invariant: a row depends on the seed and its number alone, so a restart repeats it.
"""
