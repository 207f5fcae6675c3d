"""A query's text becomes a plan: what eddies run of it, and the text that Spark runs above.

What Millrace does not take over stays as it was written, so that every query Spark accepts has Spark's rows.
This door loads nothing: the package ``millrace`` loads it at once, to have its own function of this name.
"""
