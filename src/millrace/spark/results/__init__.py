"""Results on their way from tasks to the process that planned the query, while the job runs."""
