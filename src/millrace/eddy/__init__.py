"""The router, its rules, and the schedule of sources."""

from millrace.eddy.books import peak_memory
from millrace.eddy.eddy import Eddy
from millrace.eddy.schedule import Schedule

__all__ = ["Eddy", "Schedule", "peak_memory"]
