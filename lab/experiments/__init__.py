"""The papers' experiments, run again with the production engine: one file an experiment."""
