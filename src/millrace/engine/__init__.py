"""The four papers, without Spark and without a network."""
