"""Benchmarks: Millrace beside other engines, each side in turn, with an A/A control."""

BENCHES = {
    "sql": "queries of TPC-H, and of many small blocks, with Millrace and with Spark SQL",
    "pipelines": "pipelines of DataFrames as scripts have them, in an enabled session and without",
    "predicates": "filters by expensive predicates: Millrace, Spark's where, and the best order there is",
    "robust": "joins in random orders that do not change, with the default policy, and by other engines",
    "state": "static plans, EddyJoins, SteMs and STAIRs on the same arrivals; DuckDB and Spark SQL beside",
    "streams": "joins of streams, micro-batch by micro-batch, against Spark's; a hub of queries",
    "access": "lookups over HTTP: requests and time; pandas UDFs beside",
    "prefer": "rows that are wanted first: when they come, and the time of all of them",
    "micro": "the join kernel, the exchange of blocks, a frequent key, permits, the start of a worker",
}
