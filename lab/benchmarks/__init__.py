"""Benchmarks against other engines, each with targets and an A/A control."""
