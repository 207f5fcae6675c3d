"""The SQL front: queries in, DataFrames out, their inner joins run by eddies."""
