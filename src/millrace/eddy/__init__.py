"""The router, its rules, and the schedule of sources."""

from millrace.eddy.eddy import Eddy, peak_memory
from millrace.eddy.schedule import Schedule

__all__ = ["Eddy", "Schedule", "peak_memory"]
