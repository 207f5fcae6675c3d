"""What the eddy routes tuples through."""

from millrace.modules.destination import Destination
from millrace.modules.selection import Selection
from millrace.modules.stem import Probe, SteM

__all__ = ["Destination", "Probe", "Selection", "SteM"]
