"""Joins larger than memory: Grace, hybrid hash, sort-merge and symmetric hash joins, by eddies."""

from millrace.engine.spill.run_of import run_of
from millrace.engine.spill.spilling import SpillingEddy

__all__ = ["SpillingEddy", "run_of"]
