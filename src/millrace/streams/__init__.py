"""Continuous queries: joins of streams, run by eddies whose state lives from one micro-batch to the next."""
