"""The router, its rules, and the schedule of sources."""

from millrace.eddy.eddy import Eddy
from millrace.eddy.runs import Run, run_of
from millrace.eddy.schedule import STALLED, Schedule
from millrace.eddy.static import StaticPlan

__all__ = ["STALLED", "Eddy", "Run", "Schedule", "StaticPlan", "run_of"]
