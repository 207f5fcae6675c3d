"""Aggregates above a block that begin inside its tasks."""
