"""The laboratory: figures of the papers, benchmarks and long runs, beside the package."""
