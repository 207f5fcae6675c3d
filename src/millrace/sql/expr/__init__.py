"""Expressions: Spark's types, constants, predicates and values."""
