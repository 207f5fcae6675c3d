"""Results on their way from tasks to the process that planned the query, while the job runs."""

from millrace.spark.results.server import ResultsServer
from millrace.spark.results.sink import ResultsSink
from millrace.spark.results.stream import Stream

__all__ = ["ResultsServer", "ResultsSink", "Stream"]
