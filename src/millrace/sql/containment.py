"""Faults of Millrace's own: a query that Spark can answer is answered, and the log says what went wrong."""

from __future__ import annotations

import logging

from millrace.errors import MillraceWarning, first_line

is_strict = False
"""Whether faults are raised all the same. Tests set it, so that they see them."""

_log = logging.getLogger("millrace")


def contain(error: Exception) -> str:
    """Log an error that nobody expected, with its traceback; return why Spark runs the query instead.

    Raises:
        Exception: The error itself, where faults are not to be contained, or where it is a warning that the
            user wants to be an error.
    """
    if is_strict or isinstance(error, MillraceWarning):
        raise error
    _log.error("a fault in planning; Spark runs the query as written", exc_info=error)
    return f"a fault in planning, which the log has: {type(error).__name__}: {first_line(error)}"
