"""What the eddy routes tuples through."""

from millrace.modules.called import CalledSelection
from millrace.modules.exists import ExistsSelection
from millrace.modules.selection import CompiledSelection, Selection, divide
from millrace.modules.stem import Probe, SteM

__all__ = [
    "CalledSelection",
    "CompiledSelection",
    "ExistsSelection",
    "Probe",
    "Selection",
    "SteM",
    "divide",
]
