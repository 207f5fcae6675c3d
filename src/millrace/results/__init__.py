"""Results on their way from tasks to the process that planned the query, while the job runs."""

from millrace.results.server import ResultsServer
from millrace.results.sink import ResultsSink
from millrace.results.stream import Stream

__all__ = ["ResultsServer", "ResultsSink", "Stream"]
