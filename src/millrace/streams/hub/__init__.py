"""Standing queries: many of them over one join of streams, which one eddy runs for all (CACQ, PSoup)."""
